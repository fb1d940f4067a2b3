"""sources.py: one file or one validator, read once."""

import asyncio
import os
from pathlib import Path

import pytest

from smartgw.peers import sources
from smartgw.peers.directory import Reason
from smartgw.peers.sources import Failure, Found, ListFile, Source, Validator
from smartgw_hosts.clusters import MAX_BYTES
from tests.validators import answer, chunked, list_text, validator


async def voters(source: Source) -> tuple[str, ...]:
    found = await source.read()
    assert isinstance(found, Found)
    return found.clusters.voters


async def failure(source: Source) -> Failure:
    found = await source.read()
    assert isinstance(found, Failure)
    return found


# ---- a file ----


async def test_a_file_is_read_when_it_changes(tmp_path: Path) -> None:
    """4.3: the list comes from a file, which is read again when it changes."""
    path = tmp_path / "clusters.json"
    path.write_bytes(list_text("a", "b"))
    source = ListFile(path)
    for _ in range(3):
        assert await voters(source) == ("a", "b")
    (tmp_path / "next").write_bytes(list_text("a", "c"))
    os.replace(tmp_path / "next", path)
    assert await voters(source) == ("a", "c")


async def test_a_file_that_is_half_written_is_not_judged(tmp_path: Path) -> None:
    """4.3: a list that is refused counts when it holds still, and is one refusal."""
    path = tmp_path / "clusters.json"
    path.write_bytes(list_text("a", "b"))
    source = ListFile(path)
    assert await voters(source) == ("a", "b")
    path.write_bytes(list_text("a", "b", "c")[:40])
    assert await voters(source) == ("a", "b")
    path.write_bytes(list_text("a", "b", "c")[:80])
    assert await voters(source) == ("a", "b")
    told = await failure(source)
    assert told.reason is Reason.NOT_JSON
    assert await failure(source) is told
    path.write_bytes(list_text("a", "b", "c"))
    assert await voters(source) == ("a", "b", "c")


async def test_two_writes_within_one_tick_are_both_seen(tmp_path: Path) -> None:
    """4.3: a change that leaves time and size as they were is seen by the look that follows."""
    path = tmp_path / "clusters.json"
    path.write_bytes(list_text("a", "b"))
    stamp = path.stat()
    source = ListFile(path)
    assert await voters(source) == ("a", "b")
    path.write_bytes(list_text("a", "c"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert await voters(source) == ("a", "c")


async def test_a_file_that_is_missing_or_wrong_is_said(tmp_path: Path) -> None:
    """4.3: malformed and oversized lists are refused; what is misspelt is found."""
    path = tmp_path / "clusters.json"
    source = ListFile(path)
    assert await failure(source) == Failure(
        Reason.UNREACHABLE, "cannot be read: No such file or directory"
    )
    for text, reason in (
        (list_text("a", afinity=False), Reason.MALFORMED),
        (b" " * (MAX_BYTES + 1), Reason.TOO_LARGE),
        (list_text("a", epoch="0" * 16), Reason.WRONG_EPOCH),
    ):
        path.write_bytes(text)
        await source.read()
        assert (await failure(source)).reason is reason


# ---- a validator ----


async def test_a_validator_gives_its_list_and_how_old_it_is() -> None:
    """4.3: validators are polled over HTTP: `GET /api/v3/discovery/clusters`."""
    async with validator() as running:
        running.says = answer(list_text("a", "b"), 200, "Age: 7")
        source = Validator(running.url)
        found = await source.read()
        assert isinstance(found, Found)
        assert (found.clusters.voters, found.age) == (("a", "b"), 7.0)
        assert running.asked[0].startswith(b"GET /api/v3/discovery/clusters HTTP/1.1\r\n")
        assert await voters(Validator(f"{running.url}/lists/of.json?x")) == ("a", "b")
        assert running.asked[1].startswith(b"GET /lists/of.json?x HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (answer(b"[]"), Reason.NOT_JSON),
        (answer(b"{}"), Reason.MALFORMED),
        (answer(b"<html>"), Reason.NOT_JSON),
        (answer("é".encode()), Reason.NOT_ASCII),
        (answer(list_text("a", "a")), Reason.DUPLICATE),
        (answer(list_text("a"), 500), Reason.STATUS),
        (answer(list_text("a"), 206), Reason.STATUS),
        (answer(b"", 304), Reason.STATUS),
        (answer(b" " * (MAX_BYTES + 1)), Reason.TOO_LARGE),
        (chunked(10 << 20), Reason.TOO_LARGE),
        (b"\x00\xff garbage \r\n\r\n", Reason.UNREACHABLE),
        (b"", Reason.UNREACHABLE),
        (answer(list_text("a"))[:-1], Reason.UNREACHABLE),
        (answer(b"x", 200, "Content-Encoding: gzip"), Reason.NOT_JSON),
        (answer(list_text("a"), 200, "X-Long: " + "x" * 100_000), Reason.UNREACHABLE),
    ],
    ids=range(15),
)
async def test_what_is_no_list_is_a_reason(says: bytes | list[bytes], reason: Reason) -> None:
    """4.3: malformed, duplicate, oversized or non-ASCII lists are refused as a whole."""
    async with validator() as running:
        running.says = says
        told = await failure(Validator(running.url))
        assert told.reason is reason
        assert len(told.text) < 400
        assert told.text.isascii()
        assert told.text.isprintable()


async def test_redirects_are_not_followed() -> None:
    """4.3: the list comes from whom the settings name, and from nobody that he names."""
    async with validator() as running, validator() as other:
        other.says = answer(list_text("evil"))
        running.says = answer(b"", 302, f"Location: {other.url}/")
        assert (await failure(Validator(running.url))).reason is Reason.STATUS
        assert other.asked == []


async def test_a_slow_validator_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.3: a validator that is silent, or sends a byte now and then, holds nothing up."""
    monkeypatch.setattr(sources, "TIMEOUT", 0.3)
    async with validator() as running:
        running.says = None
        assert (await failure(Validator(running.url))).reason is Reason.TIMED_OUT
        running.says = [bytes([byte]) for byte in answer(list_text("a"))]
        running.pause = 0.05
        assert (await failure(Validator(running.url))).reason is Reason.TIMED_OUT
        await running.stop()
        assert (await failure(Validator(running.url))).reason is Reason.UNREACHABLE


async def test_nothing_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """11.5: nothing but the settings says where lists come from; no cookie is kept."""
    async with validator() as running, validator() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        running.says = answer(list_text("a"), 200, "Set-Cookie: a=b")
        source = Validator(running.url)
        for _ in range(2):
            assert await voters(source) == ("a",)
        assert proxy.asked == []
        assert b"ookie" not in running.asked[1]


async def test_an_age_that_cannot_be_read_is_too_old() -> None:
    """4.4: a list of which nobody knows how old it is does not serve."""
    async with validator() as running:
        running.says = answer(list_text("a"), 200, "Age: soon")
        found = await Validator(running.url).read()
        assert isinstance(found, Found)
        assert found.age == float("inf")


async def test_reading_can_be_cancelled() -> None:
    """11.1: an end does not wait for a validator."""
    async with validator() as running:
        running.says = None
        task = asyncio.create_task(Validator(running.url).read())
        while not running.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
