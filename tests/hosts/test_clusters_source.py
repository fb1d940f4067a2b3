"""clusters_source.py: a gateway of the own cluster, asked once for the list of clusters."""

from __future__ import annotations

import asyncio
import json
import math

import pytest

from smartgw_hosts import clusters_source
from smartgw_hosts.addresses import parse_address
from smartgw_hosts.clusters import MAX_BYTES
from smartgw_hosts.clusters_source import ClustersSource, Listed, NoList, Without
from tests.servers import free_port
from tests.validators import ScriptedValidator, answer, chunked, list_text, validator


def source_of(running: ScriptedValidator) -> ClustersSource:
    """The host's side of it."""
    return ClustersSource(parse_address(running.url))


def refusal(status: int, reason: str) -> bytes:
    """An error of a gateway's API."""
    return answer(json.dumps({"error": {"reason": reason, "message": "..."}}).encode(), status)


async def fault(source: ClustersSource) -> str:
    """What is said of a gateway that gave nothing of use."""
    with pytest.raises(NoList) as told:
        await source.ask()
    text = str(told.value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 400
    return text


async def test_a_list_and_its_age() -> None:
    """4.8: the host has the list from its cluster's gateway, and how old it is."""
    async with validator() as running:
        running.says = answer(list_text("a", "b"), 200, "Age: 7")
        source = source_of(running)
        found = await source.ask()
        assert isinstance(found, Listed)
        assert (found.clusters.voters, found.age) == (("a", "b"), 7.0)
        again = await source.ask()
        assert isinstance(again, Listed)
        assert again.clusters is found.clusters
        assert running.asked[0].startswith(b"GET /api/v3/discovery/clusters HTTP/1.1\r\nHost: 127.")


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 200 OK\r\n\r\n" + list_text("a"),
        b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n" + list_text("a"),
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n" % (len(list_text("a")), list_text("a")),
            b"0\r\n\r\n",
        ],
    ],
)
async def test_every_framing(says: bytes | list[bytes]) -> None:
    """RFC 9112 6.3: a list without a length, and one in chunks, are read as well."""
    async with validator() as running:
        running.says = says
        found = await source_of(running).ask()
        assert isinstance(found, Listed)
        assert (found.clusters.voters, found.age) == (("a",), 0.0)


@pytest.mark.parametrize("age", ["x", "-1", "1.5", "", "9" * 10, "1, 2"])
async def test_an_age_that_cannot_be_read(age: str) -> None:
    """4.4: a list of unknown age is too old."""
    async with validator() as running:
        running.says = answer(list_text("a"), 200, f"Age: {age}")
        found = await source_of(running).ask()
        assert isinstance(found, Listed)
        assert found.age == math.inf


async def test_a_gateway_without_a_list() -> None:
    """4.4, 4.8: a gateway that says so has no directory, or no list in force."""
    async with validator() as running:
        running.says = refusal(404, "no_directory")
        assert await source_of(running).ask() is Without.ALONE
        running.says = refusal(503, "directory_unknown")
        assert await source_of(running).ask() is Without.UNKNOWN


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (refusal(404, "unknown_host"), "404, unknown_host; name its internal listener"),
        (refusal(503, "overloaded"), "503, overloaded"),
        (refusal(404, "no directory\r\n"), "404; name"),
        (answer(b"[]", 404), "answered 404"),
        (answer(b'{"error": "no_directory"}', 404), "answered 404"),
        (answer(b"", 302, "Location: http://127.0.0.1:1/"), "answered 302"),
        (answer(b"[]"), "refused"),
        (answer(list_text("a", "a")), "twice"),
        (answer(b" " * (MAX_BYTES + 1)), f"more than {MAX_BYTES} bytes"),
        (chunked(MAX_BYTES * 2), f"more than {MAX_BYTES} bytes"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b" " * (MAX_BYTES + 1)], f"more than {MAX_BYTES} bytes"),
        (answer(list_text("a"))[:-1], "bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "ended"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "refused"),
        (b"\x00 garbage \r\n\r\n", "refused"),
        (b"", ""),
        (answer(b"", 200, "X-Long: " + "x" * 100_000), ""),
    ],
    ids=range(17),
)
async def test_what_is_of_no_use(says: bytes | list[bytes], said: str) -> None:
    """4.3: whatever else comes is no list, and is told in one plain line."""
    async with validator() as running:
        running.says = says
        assert said in await fault(source_of(running))


async def test_nobody_there() -> None:
    """4.4: a gateway that refuses connections, or has no address."""
    dead = ClustersSource(parse_address(f"http://127.0.0.1:{free_port()}"))
    assert await fault(dead) == "it refuses connections"
    assert await fault(ClustersSource(parse_address("http://nobody.invalid")))


async def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.8: a gateway that takes connections and says nothing is given up."""
    monkeypatch.setattr(clusters_source, "TIMEOUT", 0.1)
    async with validator() as running:
        running.says = None
        async with asyncio.timeout(5):
            assert "within 0.1 s" in await fault(source_of(running))
