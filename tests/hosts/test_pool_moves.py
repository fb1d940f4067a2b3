"""The pool's rules for a host that says it is at another address (contract 2.2, N04)."""

from collections import Counter

import pytest

from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.records import Verify
from smartgw_hosts.wire import Kind
from tests.hosts.bus_messages import Speaker
from tests.hosts.test_pool import (
    ANNOUNCE,
    BAD,
    HEALTHY,
    HEARTBEAT,
    LEAVE,
    OK,
    UNHEALTHY,
    Playbook,
    enrolment,
    updated,
    verify,
)


@pytest.fixture
def play() -> Playbook:
    return Playbook(enrolment())


@pytest.fixture
def h1() -> Speaker:
    return Speaker()


def moved(play: Playbook, h1: Speaker, now: float = 5.0) -> tuple[str, Verify]:
    before, h1.address = h1.address, "http://10.0.0.2:8001"
    return before, verify(play.say(h1, HEARTBEAT, now))


def test_new_address(play: Playbook, h1: Speaker) -> None:
    """N04: New url unverified until challenged there; old url keeps its own state."""
    play.routed(h1)
    before, asked = moved(play, h1)
    record = play.at(h1)
    assert asked.address == h1.address
    assert (record.state, record.address, record.pending_address) == (HEALTHY, before, h1.address)
    record = updated(play.pool.verdict(asked.ticket, BAD, 5.0))
    assert (record.state, record.address) == (HEALTHY, before)
    assert record.pending_reason == "verification: bad_signature"
    again = verify(play.tick(6.0))
    assert again.address == h1.address
    record = updated(play.pool.verdict(again.ticket, OK, 6.0))
    assert (record.state, record.address) == (HEALTHY, h1.address)
    assert (record.pending_address, record.pending_reason) == (None, "")


@pytest.mark.parametrize("kind", [ANNOUNCE, HEARTBEAT])
def test_old_address_is_left_alone_while_the_new_is_asked(
    play: Playbook, h1: Speaker, kind: Kind
) -> None:
    """2.2 and N04: What serves goes on serving until the new address is verified.

    A host that has moved signs no longer for its old address; asking there would end it.
    """
    play.routed(h1)
    before, h1.address = h1.address, "http://10.0.0.2:8001"
    asked = verify(play.say(h1, kind, 5.0))
    assert asked.address == h1.address
    told = play.pool.suspect("h1", 5.1)
    for second in range(6, 100):
        told += play.tick(second) + play.say(h1, ANNOUNCE, second)
        told += play.pool.suspect("h1", second)
    assert told == []
    assert (play.at(h1).state, play.at(h1).address) == (HEALTHY, before)
    assert updated(play.pool.verdict(asked.ticket, OK, 100.0)).address == h1.address


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("proof", [Proof.OK, Proof.REFUSED])
def test_host_moves_while_its_old_address_is_asked(
    play: Playbook, h1: Speaker, proof: Proof, late: bool
) -> None:
    """2.2 and N04: The verdict on the old address counts for nothing once a move is announced."""
    play.routed(h1)
    old = verify(play.say(h1, ANNOUNCE, 5.0))
    before, asked = moved(play, h1, 5.1)
    if not late:
        assert not play.pool.wants(old.ticket)
        assert play.pool.verdict(old.ticket, Verdict(proof), 5.2) == []
        assert (play.at(h1).state, play.at(h1).address) == (HEALTHY, before)
    record = updated(play.pool.verdict(asked.ticket, OK, 5.3))
    assert (record.state, record.address, record.pending_address) == (HEALTHY, h1.address, None)
    if late:
        assert play.pool.verdict(old.ticket, Verdict(proof), 5.4) == []
    assert (play.at(h1).state, play.at(h1).verified_at) == (HEALTHY, 5.3)


def test_new_boot_at_a_new_address(play: Playbook, h1: Speaker) -> None:
    """2.2 and N04: What serves goes on serving when its host starts again elsewhere."""
    play.routed(h1)
    h1.boot, h1.sequence = 101, 0
    before, asked = moved(play, h1)
    assert asked.address == h1.address
    assert (play.at(h1).state, play.at(h1).address) == (HEALTHY, before)
    assert updated(play.pool.verdict(asked.ticket, OK, 5.1)).address == h1.address


def test_old_address_has_its_turn_when_the_move_fails(play: Playbook, h1: Speaker) -> None:
    """2.2: Again every 60 s: the old address goes on while its own verification holds."""
    play.routed(h1)
    before, asked = moved(play, h1)
    play.pool.verdict(asked.ticket, BAD, 5.0)
    turns = []
    for second in range(6, 200):
        if second % 5 == 0:
            play.say(h1, ANNOUNCE, second)
        for action in play.tick(second):
            assert isinstance(action, Verify)
            good = action.address == before
            turns += [second] * good
            play.pool.verdict(action.ticket, OK if good else BAD, second)
        assert (play.at(h1).state, play.at(h1).pending_address) == (HEALTHY, h1.address)
    assert all(40 <= b - a <= 61 for a, b in zip([0, *turns], turns, strict=False))
    assert len(turns) in (3, 4)


def test_old_address_fails_while_the_new_is_asked(play: Playbook, h1: Speaker) -> None:
    """N04: A failure at the old address never drops the move, nor begins it again."""
    play.routed(h1)
    before, asked = moved(play, h1)
    play.pool.verdict(asked.ticket, BAD, 5.0)
    turn = 0.0
    waiting: dict[str, Verify] = {}
    while before not in waiting:
        turn += 1.0
        for action in play.tick(5.0 + turn) + play.say(h1, HEARTBEAT, 5.0 + turn):
            if isinstance(action, Verify):
                waiting[action.address] = action
    record = updated(play.pool.verdict(waiting[before].ticket, BAD, 5.0 + turn))
    assert (record.state, record.reason) == (UNHEALTHY, "verification: bad_signature")
    assert (record.address, record.pending_address, record.verified_at) == (h1.address, None, None)
    assert play.pool.wants(waiting[h1.address].ticket)
    record = updated(play.pool.verdict(waiting[h1.address].ticket, OK, 5.0 + turn))
    assert (record.state, record.address) == (HEALTHY, h1.address)


def test_spacing_is_of_an_address(play: Playbook, h1: Speaker) -> None:
    """1.8 and 2.2: A new address is challenged at once, but a restless host not for ever."""
    play.routed(h1, 4.9)
    asked = Counter[str]()
    for tenth in range(50, 150):
        h1.address = f"http://10.0.0.{tenth % 3 + 2}:80"
        for action in play.say(h1, ANNOUNCE, tenth / 10) + play.tick(tenth / 10):
            if isinstance(action, Verify):
                asked[action.address] += 1
    assert 9 <= min(asked.values()) <= max(asked.values()) <= 10
    for tenth in range(200, 300):
        h1.address = f"http://10.0.1.{tenth - 100}:80"
        for action in play.say(h1, ANNOUNCE, tenth / 10) + play.tick(tenth / 10):
            asked["new"] += isinstance(action, Verify)
    assert 36 <= asked["new"] <= 44


def test_move_taken_back(play: Playbook, h1: Speaker) -> None:
    """N04: An address that is no longer announced is no longer of interest."""
    play.routed(h1)
    before, asked = moved(play, h1)
    h1.address = before
    record = updated(play.say(h1, HEARTBEAT, 6.0))
    assert (record.state, record.address, record.pending_address) == (HEALTHY, before, None)
    assert play.pool.verdict(asked.ticket, OK, 6.0) == []
    assert play.at(h1).address == before


def test_new_address_of_unhealthy_host(play: Playbook, h1: Speaker) -> None:
    """2.2: Verified on a change of address and after any unhealthy spell."""
    play.routed(h1)
    play.say(h1, LEAVE, 1.0)
    _, asked = moved(play, h1)
    assert asked.address == h1.address
    assert updated(play.pool.verdict(asked.ticket, OK, 5.0)).address == h1.address
