"""Recordings of a pool: played again they give the same table, and nothing else is played."""

import json
from dataclasses import replace

import pytest
from hypothesis import settings

from smartgw_hosts.challenge import Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import Action, KnownHost
from smartgw_hosts.tape import (
    FORMAT,
    Entry,
    Input,
    Player,
    RecordedPool,
    TapeRefused,
    beginning,
    encode,
    read,
)
from smartgw_hosts.wire import Kind, Reason
from tests.hosts.bus_messages import CLUSTER, WALL, Speaker
from tests.hosts.test_pool import BAD, Playbook, enrolment, verify
from tests.hosts.test_pool_machine import SETTINGS, PoolMachine


def lines_of(inputs: list[Input]) -> list[bytes]:
    lines, before = [], ""
    for entry in inputs:
        line, before = encode(entry, before)
        lines.append(line)
    return lines


def played(lines: list[bytes]) -> tuple[Pool, list[list[Action]]]:
    """The pool, and what it said is to be done, where that was anything."""
    player = Player()
    actions = [player.play(entry) for entry in read(lines)]
    return player.pool, [some for some in actions if some]


class RecordedMachine(PoolMachine):
    """Any order of events, recorded, written, read and played."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Input] = []
        self.pool = RecordedPool(CLUSTER, SETTINGS, self.noted.append)
        self.noted.append(beginning(self.pool, 0.0, WALL, "start"))

    def teardown(self) -> None:
        """1.9: A recorded stream can be replayed, from its start or from any later dump."""
        # Ticks that do nothing are left out of a recording.
        expected = [actions for _, actions in self.told if actions]
        lines = lines_of(self.noted)
        pool, actions = played(lines)
        assert actions == expected
        assert pool.dump() == self.pool.dump()
        for start in (len(lines) // 3, len(lines) // 2):
            middle, actions = played(lines[: start + 1])
            so_far = len(actions)
            begin = beginning(middle, 0.0, WALL, "full")
            pool, actions = played(lines_of([begin, *self.noted[start + 1 :]]))
            assert actions == expected[so_far:]
            assert pool.records() == self.pool.records()
            assert pool.known_apps() == self.pool.known_apps()
            assert pool.dump() == self.pool.dump()
            assert pool._stranger_bytes == self.pool._stranger_bytes


RecordedMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, print_blob=True
)
TestTape = RecordedMachine.TestCase


class Recorded(Playbook):
    """A playbook whose pool is recorded."""

    def __init__(self, *enrolments: Enrolment) -> None:
        super().__init__()
        self.noted: list[Input] = []
        self.pool = RecordedPool(CLUSTER, None, self.noted.append)
        self.noted.append(beginning(self.pool, 0.0, WALL, "start"))
        self.pool.enrol(enrolments, 0.0, WALL)


@pytest.fixture
def lines() -> list[bytes]:
    """A recording with every kind of input."""
    play = Recorded(enrolment(apps=("shop", "blög*"), expires=WALL + 500), enrolment("h2"))
    first, second = Speaker(apps=("shop", "blög\u2028s", "no")), Speaker("h2")
    play.pool.restore([KnownHost("h2", 100, second.describe())], 0.0, WALL)
    play.routed(first, 0.5)
    play.pool.refuse(Reason.MALFORMED)
    play.tick(1.0)
    ticket = verify(play.pool.suspect("h1", 1.5)).ticket
    play.pool.verdict(ticket, Verdict(BAD.reason, 'said "no"'), 2.1)
    play.pool.bus_lost(3.0)
    play.pool.bus_answered(3.5, 3.6)
    play.pool.stalled(12.0, 20.0)
    play.say(replace(first, sequence=50), Kind.LEAVE, 21.0)
    play.say(Speaker("stranger"), Kind.HEARTBEAT, 21.0)
    play.tick(22.0)
    kinds = {entry[0] for entry in play.noted}
    assert len(kinds) == 11, kinds
    return lines_of(play.noted)


def test_every_line_is_json(lines: list[bytes]) -> None:
    """1.9: A recording can be read with any JSON reader, line by line."""
    assert all(isinstance(json.loads(line), list) for line in lines)
    assert b"".join(lines).count(b"\n") == len(lines)
    entries = list(read(lines))
    assert [entry.line for entry in entries] == list(range(1, len(lines) + 1))
    assert entries[-1].wall == WALL + 22.0


def test_a_message_is_kept_as_it_came(lines: list[bytes]) -> None:
    """1.9: Messages are recorded raw, with their subject: their signatures can be checked."""
    (message, *_) = (entry for entry in read(lines) if entry.kind == "message")
    _, _, _, subject, payload = message.input
    assert subject == "smartgw.c1.host.h1.announce"
    assert payload.startswith("smartgw1 ")
    assert '"blög' in payload


def test_a_cut_last_line(lines: list[bytes]) -> None:
    """1.9: A recording that ends within a line is played up to there."""
    whole = list(read(lines))
    assert list(read([*lines[:-1], lines[-1][:-1]])) == whole[:-1]
    assert list(read([*lines[:-1], lines[-1][:10]])) == whole[:-1]
    assert list(read([])) == []


def test_any_altered_byte_is_told(lines: list[bytes]) -> None:
    """1.9: A recording that was altered is refused with the line at which it shows."""
    for number, line in enumerate(lines[1:], 2):
        for index in range(0, len(line) - 1, 7):
            altered = bytearray(line)
            altered[index] ^= 1
            if altered[index] == 10:
                continue
            with pytest.raises(TapeRefused, match=f"line {number}: "):
                list(read([*lines[: number - 1], bytes(altered), *lines[number:]]))


def test_missing_and_moved_lines_are_told(lines: list[bytes]) -> None:
    """1.9: Lines that were taken out or exchanged are told as well."""
    with pytest.raises(TapeRefused, match="line 4: "):
        list(read([*lines[:3], *lines[4:]]))
    with pytest.raises(TapeRefused, match="line 3: "):
        list(read([lines[0], lines[1], lines[3], lines[2], *lines[4:]]))
    with pytest.raises(TapeRefused, match="not the beginning"):
        list(read(lines[1:]))
    with pytest.raises(TapeRefused, match="line 1: "):
        list(read([b"\x00\xff\n"]))
    with pytest.raises(TapeRefused, match="line 1: "):
        list(read([b"[" * 100_000 + b"\n"]))


def test_of_another_version(lines: list[bytes]) -> None:
    """1.9: What this version cannot mean is refused, not played differently."""
    begin = list(beginning(Pool(CLUSTER), 0.0, WALL, "start"))
    begin[3] = FORMAT + 1
    with pytest.raises(TapeRefused, match="of another version"):
        played(lines_of([tuple(begin)]))
    with pytest.raises(TapeRefused, match="cannot be played"):
        Player().play(Entry(7, WALL, ("dance", 1.0)))
    with pytest.raises(TapeRefused, match="line 1: cannot be played"):
        Player().play(Entry(1, WALL, ("begin", 0.0, WALL, FORMAT, "c1", {}, {"hosts": 1}, "")))


def test_a_later_beginning_replaces_all(lines: list[bytes]) -> None:
    """1.9: A gateway that was restarted begins anew in the same recording."""
    fresh = Recorded(enrolment("h9"))
    fresh.say(Speaker("h9"), Kind.ANNOUNCE)
    pool, _ = played([*lines, *lines_of(fresh.noted)])
    assert [record.host_id for record in pool.records()] == ["h9"]
