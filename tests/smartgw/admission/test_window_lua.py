"""window.lua in a real Valkey says what the memory core says (contract 6.1, 6.6, 8.5)."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import hiredis
import pytest

from smartgw.admission.budgets import (
    Budget,
    Charged,
    MemoryBudgets,
    Refused,
    Unavailable,
    outcome,
)
from smartgw.admission.shared_counters import BROKEN, SCRIPT, Check, words
from smartgw.admission.span import SECOND, Span
from smartgw.admission.store_connection import pack
from smartgw.admission.table import Table
from smartgw.admission.window import Window
from tests.servers import Valkey

CLOCK = "local clock = redis.call('TIME')\nlocal now = clock[1] * 1000000 + clock[2]"
# The same script with a clock that the test sets, in a last argument that it does not look at.
FAKE_CLOCK = SCRIPT.replace(CLOCK, "local now = tonumber(ARGV[#ARGV])")
MINUTE = Span.of(60)
START = 1_700_000_000_123_457
# An acceptance check runs a hundred times as many.
HISTORIES = 1_000


def nobody(context: object, wait: int, results: Sequence[int]) -> None:
    """No callback is called here."""


class Script:
    """The script in a Valkey, over a blocking socket."""

    def __init__(self, server: Valkey) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._reader = hiredis.Reader()
        self.digest = str(self.ask(pack(["SCRIPT", "LOAD", FAKE_CLOCK]))[0].decode())

    def ask(self, *commands: bytes) -> list[Any]:
        """Send commands in one piece, return their answers."""
        self._socket.sendall(b"".join(commands))
        answers: list[Any] = []
        while len(answers) < len(commands):
            while (answer := self._reader.gets()) is False:
                self._reader.feed(self._socket.recv(1 << 16))
            answers.append(answer)
        return answers

    def command(self, checks: Sequence[Check], now: int) -> bytes:
        batch = words([(checks, nobody, None, 0.0)])
        return pack(["EVALSHA", self.digest, *batch[2:], now])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with Valkey() as server:
        script = Script(server)
        yield script
        script.close()


def test_the_fake_clock_is_the_only_difference() -> None:
    """6.6: what is tried here is the script that gateways run, but for its clock."""
    assert CLOCK in SCRIPT
    assert FAKE_CLOCK != SCRIPT


Expected = tuple[list[Budget], Charged | Refused | Unavailable]


class History:
    """One random history: charges of several budgets, and refunds, at times that only rise."""

    def __init__(self, number: int) -> None:
        self.dice = dice = random.Random(number)
        self.prefix = f"h{number}"
        self.limits = dice.choice([5, 40, 600])
        self.now = START + dice.randrange(10**9)
        self.memory = MemoryBudgets(Table(MINUTE, 1_000))
        self.charged: list[tuple[list[Budget], Charged]] = []

    def step(self) -> tuple[list[Check], int, Expected | None]:
        """Return what to ask the script, when, and what it has to say."""
        dice = self.dice
        self.now += dice.choice(
            [0, 1, dice.randrange(1_000), dice.randrange(300_000), dice.randrange(70 * SECOND)]
            + [10 * SECOND, 60 * SECOND, 250_000] * (dice.random() < 0.3)
        )
        if self.charged and dice.random() < 0.1:
            budgets, charged = self.charged.pop(dice.randrange(len(self.charged)))
            self.memory.refund(budgets, charged, self.now, self.now)
            # Looked at afterwards, by the next charge of the same keys.
            checks = [(" ".join(b.key), charged.at[0], span_of(b), -b.units) for b in budgets]
            return checks, self.now, None
        kinds = dice.sample([60.0, 10.0, None], dice.choice([1, 1, 2, 3]))
        budgets = [
            Budget(
                (self.prefix, str(dice.randrange(2)), str(window)),
                self.limits if dice.random() < 0.9 else self.limits // 2,
                window,
                dice.choice([0, 1, 1, 2, dice.randrange(1, self.limits + 3)]),
            )
            for window in kinds
        ]
        answer = self.memory.charge(budgets, self.now, self.now)
        if isinstance(answer, Charged):
            self.charged = [*self.charged[-5:], (budgets, answer)]
        checks = [(" ".join(b.key), b.limit, span_of(b), b.units) for b in budgets]
        return checks, self.now, (budgets, answer)


def span_of(budget: Budget) -> int:
    return 0 if budget.window is None else Span.of(budget.window).length


def compare(script: Script, histories: range) -> int:
    """Play histories in both; returns how many charges were refused."""
    refused = 0
    for number in histories:
        history = History(number)
        steps = [history.step() for _ in range(30)]
        answers = script.ask(*(script.command(checks, now) for checks, now, _ in steps))
        for (_, now, expected), (told, wait, *results) in zip(steps, answers, strict=True):
            assert told == now
            if expected is None:
                continue
            budgets, answer = expected
            assert outcome(budgets, wait, results, (now, now)) == answer, number
            refused += isinstance(answer, Refused)
        script.ask(pack(["FLUSHALL"]))
    return refused


def test_random_histories_agree(script: Script) -> None:
    """6.6: memory core and script agree on random histories, refunds and quotas included."""
    assert compare(script, range(HISTORIES)) > HISTORIES


def test_clocks_that_jump_agree(script: Script) -> None:
    """6.6: a store's clock that is set back is taken in the same way by both."""
    for number in range(HISTORIES // 2):
        dice = random.Random(number)
        window, now = Window(), START
        times, waits = [], []
        for _ in range(30):
            now += dice.choice(
                [0, dice.randrange(9 * SECOND), -dice.randrange(90 * SECOND), SECOND]
            )
            times.append(now)
            waits.append(window.charge(now, 2, 20, MINUTE))
        check = (f"jump {number}", 20, MINUTE.length, 2)
        answers = script.ask(*(script.command([check], now) for now in times))
        assert [wait for _, wait, *_ in answers] == waits


def test_one_batch_is_many_checks(script: Script) -> None:
    """R13: checks of one batch are decided one after the other: 100 left, 200 at once, 100 pass."""
    checks: list[Check] = [("batch", 600, MINUTE.length, 500)]
    script.ask(script.command(checks, START))
    batch = words([([("batch", 600, MINUTE.length, 1)], nobody, None, 0.0)] * 200)
    command = pack(["EVALSHA", script.digest, *batch[2:], START + 1])
    ((_, *answer),) = script.ask(command)
    assert answer[::3].count(0) == 100
    assert answer[1::3] == [*range(501, 601), *[600] * 100]


def test_a_group_is_taken_whole_or_not_at_all(script: Script) -> None:
    """8.5: several windows and a quota are taken in one atomic step or not at all."""
    group: list[Check] = [("g1", 600, MINUTE.length, 10), ("g2", 9, MINUTE.length, 10)]
    ((_, wait, *results),) = script.ask(script.command(group, START))
    assert (wait, results) == (-1, [0, 0, 0, 0])
    group[1] = ("g2", 15, MINUTE.length, 10)
    ((_, wait, *results),) = script.ask(script.command(group, START))
    assert (wait, results) == (0, [10, 60 * SECOND, 10, 60 * SECOND])
    ((_, wait, *results),) = script.ask(script.command(group, START + 1))
    assert (wait, results) == (60 * SECOND - 1, [10, 60 * SECOND - 1, 10, 60 * SECOND - 1])


@pytest.mark.parametrize(
    "words",
    [
        ["LPUSH", "alien", "x"],
        ["SET", "alien", "x"],
        ["SET", "alien", "W" * 28],
        ["SET", "alien", "W" * 29],
        ["SET", "alien", ""],
    ],
)
def test_what_no_gateway_wrote_is_left_alone(script: Script, words: list[str]) -> None:
    """6.6: a key that holds something else is told, stays as it is, and harms no other check."""
    script.ask(pack(["DEL", "alien"]), pack(words))
    before = script.ask(pack(["DUMP", "alien"]))
    group: list[Check] = [("beside", 5, MINUTE.length, 1), ("alien", 5, MINUTE.length, 1)]
    ((_, wait, *_),) = script.ask(script.command(group, START))
    quota: list[Check] = [("alien", 5, 0, 1)]
    ((_, of_quota, *_),) = script.ask(script.command(quota, START))
    alone: list[Check] = [("beside", 5, MINUTE.length, 1)]
    ((_, other, used, _),) = script.ask(script.command(alone, START))
    assert (of_quota, other, used) == (BROKEN, 0, 1)
    assert wait == BROKEN
    assert script.ask(pack(["DUMP", "alien"])) == before
    script.ask(pack(["DEL", "beside"]))


def test_a_full_key_takes_little_memory(script: Script) -> None:
    """6.7: at most 1.3 KiB a key in the store, and it is gone within two windows."""
    key = "sg1:{eu-1}:app an-app-with-a-name 2001:db8:ffff::/48"
    commands = [
        script.command([(key, 600, MINUTE.length, 1)], START + number * 251_000)
        for number in range(400)
    ]
    script.ask(*commands)
    size, ttl = script.ask(pack(["MEMORY", "USAGE", key]), pack(["PTTL", key]))
    assert size <= 1331
    assert 60_000 < ttl <= 120_000


def test_callers_of_one_request_are_gone_within_two_windows(script: Script) -> None:
    """R12: a distinct caller takes at most 250 bytes in the store, and expires in two windows."""
    count, span = 20_000, Span.of(1).length

    def memory() -> int:
        text = script.ask(pack(["INFO", "memory"]))[0].decode()
        return int(text.partition("used_memory:")[2].split()[0])

    script.ask(pack(["FLUSHALL"]))
    before = memory()
    start = time.monotonic()
    for first in range(0, count, 200):
        names = (
            f"sg1:{{eu-1}}:app shop 10.1.{n >> 8}.{n & 255}" for n in range(first, first + 200)
        )
        batch = words([([(name, 600, span, 1)], nobody, None, 0.0) for name in names])
        script.ask(pack(["EVALSHA", script.digest, *batch[2:], START]))
    assert memory() - before < count * 250
    ask = [pack(["DBSIZE"])]
    while script.ask(*ask) != [0]:
        assert time.monotonic() - start < 10
        time.sleep(0.05)
