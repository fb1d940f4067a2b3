"""Counters shared through a real Valkey, and what becomes of them when it fails (6.6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from smartgw.admission.breaker import Fault
from smartgw.admission.shared_counters import BROKEN
from smartgw.admission.store_places import Address, Places
from tests.relays import Relay
from tests.servers import Valkey, free_port
from tests.smartgw.admission.asking import MINUTE, asking, at, through, until


async def test_600_are_admitted_and_no_more() -> None:
    """6.1: the store admits 600, then tells the wait, and one caller's window is his alone."""
    with Valkey() as server:
        async with asking(at(server)) as asker:
            for _ in range(601):
                assert asker.ask("app x 192.0.2.1")
            assert asker.ask("app x 192.0.2.2")
            *admitted, refused, other = await asker.answers(602)
            assert [used for _, (used, _) in admitted] == list(range(1, 601))
            assert 59_000_000 < refused[0] <= MINUTE
            assert other == (0, [1, MINUTE])


async def test_checks_of_one_turn_travel_together() -> None:
    """6.6: one round trip for all checks of one turn of the loop."""
    with Valkey() as server:
        async with asking(at(server)) as asker:
            for number in range(200):
                asker.ask(f"app x {number}")
            await asker.answers(200)
            assert asker.counters.store_checks == 200
            assert asker.counters.store_trips == 1


async def test_50_callers_of_one_key_over_3_processes() -> None:
    """R13: 50 callers at once over 3 connections with 600 left: exactly 600, 20 of 20."""
    with Valkey() as server:
        async with asking(at(server)) as a, asking(at(server)) as b, asking(at(server)) as c:
            for number in range(20):
                for _ in range(50):
                    for asker in (a, b, c):
                        for _ in range(5):
                            assert asker.ask(f"app x {number}")
                    await asyncio.sleep(0)
                verdicts = [v for asker in (a, b, c) for v in await asker.answers(250)]
                assert sum(wait == 0 for wait, _ in verdicts) == 600


async def test_nobody_waits_for_a_store_that_is_frozen() -> None:
    """6.6: what is not answered in 50 ms is decided without, what comes after at once; a charge
    that was given up counts as charged.
    """
    with Valkey() as server:
        async with asking(at(server), budget=0.05) as asker:
            asker.ask("app x frozen")
            await asker.answers(1)
            server.freeze()
            start = time.monotonic()
            asker.ask("app x frozen", units=5)
            ((wait, _),) = await asker.answers(1)
            assert wait == BROKEN
            assert time.monotonic() - start >= 0.05
            assert not asker.ask("app x frozen")
            assert asker.shared.breaker.fault is Fault.LATE
            assert asker.counters.store_away == 1
            server.thaw()
            thawed = time.monotonic()
            await until(lambda: asker.up)
            assert time.monotonic() - thawed < 2
            asker.ask("app x frozen", units=0)
            assert (await asker.answers(1))[0][1][0] == 6
            assert asker.shared.breaker.doubted_until > time.monotonic()


async def test_a_killed_store_is_back_within_2_s_of_its_return() -> None:
    """6.6: killed under load: what was under way is decided without, and the store is used again
    within 2 s of its return.
    """
    with Valkey() as server:
        async with asking(at(server)) as asker:
            for _ in range(10):
                asker.ask("app x 1")
            server.kill()
            verdicts = await asker.answers(10)
            assert all(wait in (0, BROKEN) for wait, _ in verdicts)
            await until(lambda: not asker.up)
            await asyncio.sleep(1.5)
            assert not asker.ask("app x 1")
            server.start()
            started = time.monotonic()
            await until(lambda: asker.up)
            assert time.monotonic() - started < 2
            asker.ask("app x 1")
            assert await asker.answers(1) == [(0, [1, MINUTE])]


async def test_a_store_that_forgot_the_script_is_told_it_again() -> None:
    """6.6: NOSCRIPT: nothing was charged, so it is asked once more, with the script."""
    with Valkey() as server:
        async with asking(at(server)) as asker:
            server.ask("SCRIPT", "FLUSH")
            asker.ask("app x 1")
            asker.ask("app x 1")
            assert [used for _, (used, _) in await asker.answers(2)] == [1, 2]
            assert asker.up


@pytest.mark.parametrize(
    ("break_it", "mend_it", "fault"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), Fault.READONLY),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), Fault.MEMORY),
        (
            ("ACL", "SETUSER", "default", "-evalsha", "-eval"),
            ("ACL", "SETUSER", "default", "+@all"),
            Fault.AUTH,
        ),
    ],
    ids=["replica", "out-of-memory", "forbidden"],
)
async def test_a_store_that_refuses(
    break_it: Sequence[str], mend_it: Sequence[str], fault: Fault
) -> None:
    """6.6: a store that was made a replica, or has no memory left, is as good as away."""
    with Valkey() as server:
        async with asking(at(server)) as asker:
            server.ask(*break_it)
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == BROKEN
            assert not asker.ask("app x 1")
            assert asker.shared.breaker.fault is fault
            await asyncio.sleep(1)
            assert not asker.up
            server.ask(*mend_it)
            await until(lambda: asker.up, within=2)
            assert asker.counters.store_faults[fault] > 1


async def test_a_store_that_loads_is_waited_for() -> None:
    """6.6: LOADING: not asked until it is done."""
    with Valkey("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024") as s:
        for start in range(0, 2_000, 100):
            pairs = " ".join(f"key-{number} value" for number in range(start, start + 100))
            s.ask(f"MSET {pairs}")
        s.ask("SAVE")
        s.kill()
        s.spawn()
        async with asking(at(s), up=False) as asker:
            await until(lambda: asker.shared.breaker.fault is Fault.LOADING)
            assert not asker.ask("app x 1")
            await until(lambda: asker.up)


async def test_a_store_that_wants_a_password() -> None:
    """6.6: signed in with user and password; a wrong one is told by its reason, never shown."""
    with Valkey("--requirepass", "right") as server:
        async with asking(at(server, password="right")) as asker:
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == 0
        for password in (None, "wrong"):
            async with asking(at(server, password=password), up=False) as asker:
                await until(lambda: asker.shared.breaker.fault is Fault.AUTH)


async def test_a_slow_store_is_left_alone_until_it_is_quick() -> None:
    """6.6: slow by 100 ms: not waited for, and asked again when it is quick."""
    with Valkey() as server, Relay(server.port) as relay:
        async with asking(through(relay), budget=0.05) as asker:
            relay.delay = 0.1
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == BROKEN
            await asyncio.sleep(1.5)
            assert not asker.up
            relay.delay = 0.0
            await until(lambda: asker.up, within=2)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n", b":1\r\n", b"*0\r\n", b"$-1\r\n"),
        *(b"*1\r\n$1\r\nx\r\n", b":1\r\n:2\r\n:3\r\n", b"*2\r\n:1\r\n:0\r\n", b"-ERR what\r\n"),
        b"*4\r\n$1\r\nx\r\n:0\r\n:1\r\n:1\r\n",
        b"$2000000\r\n" + b"x" * 1_500_000,
    ],
    ids=range(11),
)
async def test_an_answer_of_the_wrong_kind(answer: bytes) -> None:
    """6.6: a server that answers something else is not asked, whatever that is."""
    with Valkey() as server, Relay(server.port) as relay:
        async with asking(through(relay)) as asker:
            relay.answer = answer
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == BROKEN
            await until(lambda: asker.shared.breaker.fault is Fault.ANSWER)
            relay.answer = None
            await until(lambda: asker.up)


async def test_a_store_that_is_not_there() -> None:
    """6.6: nobody is asked, and the reason is told: no server, no such name."""
    for host, fault in (("127.0.0.1", Fault.REFUSED), ("no-such-name.invalid", Fault.NAME)):
        places = Places("server", (Address(host, free_port()),))
        async with asking(places, up=False) as asker:
            await until(lambda: asker.shared.breaker.fault is not None)
            assert asker.shared.breaker.fault in (fault, Fault.LATE)
            assert not asker.ask("app x 1")


async def test_a_store_whose_clock_was_set_forward_is_doubted() -> None:
    """6.6: a jump of the store's clock empties its windows: our own counts hold beside them."""
    with Valkey() as server, Relay(server.port) as relay:
        async with asking(through(relay)) as asker:
            for _ in range(2):
                asker.ask("app x 1")
                await asker.answers(1)
            assert asker.shared.breaker.doubted_until == 0
            relay.answer = b"*4\r\n:99999999999999999\r\n:0\r\n:1\r\n:60000000\r\n"
            asker.ask("app x 1")
            await asker.answers(1)
            assert asker.shared.breaker.doubted_until > time.monotonic()
            assert asker.counters.store_faults[Fault.CLOCK] == 1


async def test_too_many_waiting_are_decided_without_the_store() -> None:
    """6.7: the queue is bounded; who finds it full does not wait."""
    with Valkey() as server:
        async with asking(at(server)) as asker:
            took = [asker.ask("app x 1", limit=10**6) for _ in range(10_000)]
            assert took.count(False) == 10_000 - 8_192
            answers = await asker.answers(8_192)
            assert all(wait in (0, BROKEN) for wait, _ in answers)
