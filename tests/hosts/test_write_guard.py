"""write_guard.py: a host follows the list of its cluster's gateways, and judges writes by it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from smartgw_hosts import guard as rules
from smartgw_hosts import write_guard
from smartgw_hosts.guard import Accept, NotOwner
from smartgw_hosts.owner import epoch, owner
from smartgw_hosts.write_guard import WriteGuard
from tests.servers import free_port
from tests.validators import answer, list_text, validator

IDS = ("c1", "c2", "c3")
OURS = next(f"app-{n}" for n in range(100) if owner(f"app-{n}", IDS) == "c1")
THEIRS = next(f"app-{n}" for n in range(100) if owner(f"app-{n}", IDS) == "c2")
LIST = answer(list_text(*IDS), 200, "Age: 0")
UNKNOWN = answer(json.dumps({"error": {"reason": "directory_unknown"}}).encode(), 503)
ALONE = answer(json.dumps({"error": {"reason": "no_directory"}}).encode(), 404)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways are asked many times a second."""
    monkeypatch.setattr(write_guard, "INTERVAL", 0.04)
    monkeypatch.setattr(write_guard, "AGAIN", 0.01)


@asynccontextmanager
async def guarding(*gateways: str) -> AsyncIterator[WriteGuard]:
    """The guard of a host of c1 that serves both apps."""
    guard = WriteGuard("c1", lambda: (OURS, THEIRS), gateways)
    guard.start()
    try:
        yield guard
    finally:
        await guard.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens soon."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def refuses(guard: WriteGuard) -> bool:
    """Whether it knows that it does not own the other app."""
    try:
        guard.check(THEIRS)
    except NotOwner:
        return True
    return False


async def test_a_write_is_refused_by_the_gateways_list() -> None:
    """4.8: the directory comes from the cluster's gateway; at a non-owner a write is refused."""
    async with validator() as gateway:
        gateway.says = LIST
        async with guarding(gateway.url) as guard:
            await until(lambda: guard.owner_of(THEIRS) is not None)
            assert guard.owner_of(THEIRS) == "c2"
            with pytest.raises(NotOwner, match="c2 owns the app"):
                guard.check(THEIRS)
            assert guard.check(OURS)
            host = (b"host", f"{THEIRS}.smart-app.example".encode())
            judged = guard.judge("POST", [host])
            assert isinstance(judged, NotOwner)
            assert guard.judge("GET", [host]) is Accept.SURE
            assert guard.counters == {"refused": 2, "unsure": 0}
            with pytest.raises(ValueError, match="app id"):
                guard.owner_of("")


async def test_without_gateways_everything_is_done() -> None:
    """4.8: a host without a list accepts and flags."""
    async with guarding() as guard:
        assert guard.check(THEIRS) is False
        assert guard.owner_of(THEIRS) is None
        assert guard.judge("DELETE", []) is Accept.UNSURE
        assert guard.counters == {"refused": 0, "unsure": 2}


async def test_the_first_gateway_with_a_list_counts() -> None:
    """4.3: in configured order, the first valid one counts, and none are merged."""
    async with validator() as first, validator() as second:
        first.says, second.says = answer(b"<html>"), LIST
        dead = f"http://127.0.0.1:{free_port()}"
        async with guarding(dead, first.url, second.url) as guard:
            await until(lambda: refuses(guard))
            first.says = answer(list_text("c1"), 200)
            await until(lambda: not refuses(guard))
            assert guard.owner_of(THEIRS) == "c1"


async def test_a_gateway_that_starts_does_not_outweigh_one_that_knows() -> None:
    """4.4: that one gateway has no list yet does not make the host unsure."""
    async with validator() as first, validator() as second:
        first.says, second.says = UNKNOWN, LIST
        async with guarding(first.url, second.url) as guard:
            await until(lambda: refuses(guard))
            asked = len(first.asked)
            await until(lambda: len(first.asked) > asked + 3)
            assert refuses(guard)


async def test_as_unsure_as_the_gateways() -> None:
    """4.4, 4.8: once the gateways know no owners and serve by themselves, the host writes."""
    async with validator() as gateway:
        gateway.says = LIST
        async with guarding(gateway.url) as guard:
            await until(lambda: refuses(guard))
            gateway.says = UNKNOWN
            await until(lambda: not refuses(guard))
            assert guard.owner_of(OURS) is None
            gateway.says = ALONE
            await until(lambda: guard.owner_of(THEIRS) == "c1")
            assert guard.check(THEIRS)
            gateway.says = LIST
            await until(lambda: refuses(guard))


@pytest.mark.parametrize("away", ["refuses", "hangs", "talks nonsense"])
async def test_grace(away: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """4.4: with no gateway to ask the last good list serves for a grace, then the host accepts."""
    monkeypatch.setattr(rules, "GRACE", 0.5)
    monkeypatch.setattr("smartgw_hosts.clusters_source.TIMEOUT", 0.2)
    async with validator() as gateway:
        gateway.says = LIST
        async with guarding(gateway.url) as guard:
            await until(lambda: refuses(guard))
            if away == "refuses":
                await gateway.stop()
            else:
                gateway.says = None if away == "hangs" else b"nonsense\r\n\r\n"
            assert refuses(guard)
            await until(lambda: not refuses(guard))
            assert guard.check(THEIRS) is False
            if away == "refuses":
                await gateway.start()
            gateway.says = LIST
            await until(lambda: refuses(guard))


async def test_a_list_that_is_too_old() -> None:
    """4.4: what the gateway itself has in its grace serves no longer here than there."""
    async with validator() as gateway:
        gateway.says = answer(list_text(*IDS), 200, "Age: 30")
        async with guarding(gateway.url) as guard:
            await until(lambda: len(gateway.asked) > 2)
            assert guard.owner_of(THEIRS) is None


async def test_a_refusal_has_the_list_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.6, 4.8: whoever sent a write that is refused may know more: the host asks at once."""
    monkeypatch.setattr(write_guard, "INTERVAL", 3600.0)
    async with validator() as gateway:
        gateway.says = LIST
        async with guarding(gateway.url) as guard:
            await until(lambda: guard.owner_of(THEIRS) == "c2")
            gateway.says = answer(list_text("c1"), 200)
            assert refuses(guard)
            await until(lambda: guard.owner_of(THEIRS) == "c1")


async def test_whatever_happens_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """4.8: a fault of the follower itself is told, and the next poll is another chance."""
    async with validator() as gateway:
        gateway.says = LIST

        def fail(*_: object) -> None:
            raise RuntimeError("planted")

        with monkeypatch.context() as broken:
            broken.setattr("smartgw_hosts.clusters_source.parse_response", fail)
            async with guarding(gateway.url) as guard:
                await until(lambda: "could not be followed" in caplog.text)
                broken.undo()
                monkeypatch.setattr(write_guard, "AGAIN", 0.01)
                await until(lambda: refuses(guard))


async def test_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """4.8: the log tells the list, the refusals and the writes that nobody was sure of; each kind
    once a minute at most.
    """
    caplog.set_level(logging.INFO, "smartgw_hosts.write_guard")
    async with validator() as gateway:
        gateway.says = b""
        async with guarding(gateway.url) as guard:
            await until(lambda: len(gateway.asked) > 2)
            for _ in range(5):
                guard.check("x\n")
            gateway.says = LIST
            await until(lambda: refuses(guard))
            assert refuses(guard)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(gateway.url)[0] for line in lines] == [
        "no list of clusters from ",
        "a write for 'x\\n' was done without knowing which cluster owns the app",
        f"list of clusters {epoch(IDS)}: from ",
        f"a write for '{THEIRS}' was refused: cluster c2 owns the app, by the list of clusters "
        + epoch(IDS),
    ]


@pytest.mark.parametrize("url", ["10.0.0.1:80", "ftp://x", "http://a/b", "http://a b", ""])
def test_a_bad_url(url: str) -> None:
    """4.8: what is no gateway's URL is refused when the host is made."""
    with pytest.raises(ValueError, match=r"gateway '.*' (must|has)"):
        WriteGuard("c1", tuple, [url])
