"""follow.py: which source counts, and what is told while they fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smartgw.config_peers import Peers
from smartgw.metrics import render
from smartgw.peers import follow
from smartgw.peers.directory import Mode, View
from smartgw.peers.follow import Follower
from tests.validators import ScriptedValidator, answer, cluster_key, entry, list_text, validator


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def following(told: list[View] | None = None, **settings: Any) -> AsyncIterator[Follower]:
    values = {"interval": 0.05, "grace": 30.0} | settings
    views = [] if told is None else told
    follower = Follower("c1", cluster_key(1), Peers.model_validate(values), views.append)
    await follower.start()
    try:
        yield follower
    finally:
        await follower.stop()


@asynccontextmanager
async def validators(count: int) -> AsyncIterator[list[ScriptedValidator]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(validator()) for _ in range(count)]


async def test_the_first_valid_list_in_order_counts_and_none_are_merged() -> None:
    """4.3: validators: the first valid one in configured order, never merged."""
    async with validators(3) as (first, second, third):
        first.says = answer(b"broken")
        second.says = answer(list_text("c1", "c2"))
        third.says = answer(list_text("c1", "c3"))
        urls = [first.url, second.url, third.url]
        async with following(validators=urls) as follower:
            assert follower.view.mode is Mode.FRESH
            assert list(follower.view.peers) == ["c2"]
            assert third.asked == []
            first.says = answer(list_text("c1", "c4"))
            await until(lambda: list(follower.view.peers) == ["c4"])
            status = follower.status()
            assert status["source"] == first.url
            assert status["faults"] == {}
            assert status["refused"]["not_json"] >= 1


async def test_a_file_is_followed_and_each_change_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4.3: from a file, reloaded when it changes."""
    monkeypatch.setattr(follow, "FILE_SECONDS", 0.02)
    path = tmp_path / "clusters.json"
    path.write_bytes(list_text("c1", "c2"))
    told: list[View] = []
    async with following(told, file=path) as follower:
        assert [list(view.peers) for view in told] == [["c2"]]
        path.write_bytes(list_text("c1", entry("c2", 2, state="draining"), "c3"))
        await until(lambda: len(told) == 2)
        assert list(follower.view.peers) == ["c2", "c3"]
        path.write_bytes(b'{"clusters": [')
        await until(lambda: follower.view.mode is Mode.GRACE)
        assert len(told) == 3
        assert any("not JSON" in line for line in follower.degraded())
        assert follower.status()["refused"] == {"not_json": 1}
        path.write_bytes(list_text("c1", "c2"))
        await until(lambda: follower.view.mode is Mode.FRESH)
        assert follower.degraded() == []


async def test_without_a_directory_there_are_no_peers() -> None:
    """4.3: one cluster alone needs no directory."""
    async with following() as follower:
        assert follower.view == View(Mode.NONE, "c1")
        assert follower.degraded() == []
        assert follower.status()["mode"] == "none"
        assert follower.confirmed_ago is None


async def test_the_grace_ends_though_a_validator_hangs() -> None:
    """4.4: unreachable: the last good list serves for its grace, then the owner is unknown."""
    async with validator() as running:
        running.says = answer(list_text("c1", "c2"))
        told: list[View] = []
        async with following(told, validators=[running.url], grace=0.6) as follower:
            running.says = answer(b"", 500)
            await until(lambda: follower.view.mode is Mode.GRACE)
            running.says = None
            await until(lambda: follower.view.mode is Mode.UNKNOWN)
            assert follower.view.owner("shop") is None
            assert follower.view.keys == {"c2": (cluster_key(2),)}
            assert "no owner is known" in follower.degraded()[0]
            running.says = answer(list_text("c1", "c2"))
            await until(lambda: follower.view.mode is Mode.FRESH)
            assert [view.mode.value for view in told] == ["fresh", "grace", "unknown", "fresh"]
            text = render(follower.families())
            assert 'smartgw_directory_modes_total{mode="fresh"} 2' in text
            assert 'smartgw_directory_mode{mode="fresh"} 1' in text
            assert 'smartgw_directory_refused_total{reason="status"}' in text
            assert "smartgw_clusters 2" in text


async def test_an_empty_valid_answer_counts_at_once() -> None:
    """4.4: at once when a valid answer is empty, the owner is unknown."""
    async with validators(2) as (first, second):
        first.says = second.says = answer(list_text("c1", "c2"))
        async with following(validators=[first.url, second.url]) as follower:
            first.says = answer(list_text())
            await until(lambda: follower.view.mode is Mode.UNKNOWN)
            assert second.asked == []


async def test_gateways_that_ask_each_other_let_a_list_end() -> None:
    """4.4: a list is as old as its origin says, and does not serve beyond its grace."""
    async with validator() as running:
        running.says = answer(list_text("c1", "c2"), 200, "Age: 29")
        async with following(validators=[running.url]) as follower:
            assert follower.view.mode is Mode.FRESH
            assert 29.0 <= (follower.confirmed_ago or 0.0) < 40.0
            running.says = answer(list_text("c1", "c2"), 200, "Age: 30")
            await until(lambda: "stale" in follower.status()["refused"])


async def test_somebody_who_knows_more_can_have_it_asked() -> None:
    """4.8: on a marked 421 the gateway refreshes its list, however often it is told to."""
    async with validator() as running:
        running.says = answer(list_text("c1", "c2"))
        async with following(interval=25.0, validators=[running.url]) as follower:
            running.says = answer(list_text("c1", "c3"))
            for _ in range(100):
                follower.refresh()
                await asyncio.sleep(0)
            await until(lambda: list(follower.view.peers) == ["c3"])
            assert len(running.asked) <= 3


async def test_a_reload_changes_where_lists_come_from(tmp_path: Path) -> None:
    """11.1: a reload takes another directory in; the list in force stays until it has come."""
    path = tmp_path / "clusters.json"
    async with validator() as running:
        running.says = answer(list_text("c1", "c2"))
        async with following(validators=[running.url], interval=25.0) as follower:
            follower.configure(Peers(file=path))
            assert list(follower.view.peers) == ["c2"]
            await until(lambda: follower.view.mode is Mode.GRACE)
            path.write_bytes(list_text("c1", "c3"))
            await until(lambda: list(follower.view.peers) == ["c3"])
            follower.configure(Peers())
            assert follower.view.mode is Mode.NONE
            follower.configure(Peers(validators=(running.url,)))
            await until(lambda: list(follower.view.peers) == ["c2"])


async def test_a_start_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """11.2: started without a directory it serves, and says so."""
    monkeypatch.setattr(follow, "START_SECONDS", 0.05)
    async with validator() as running:
        running.says = None
        async with following(validators=[running.url]) as follower:
            assert follower.view.mode is Mode.UNKNOWN
            assert follower.degraded() != []


async def test_a_receiver_that_fails_stops_nothing() -> None:
    """4.4: a discovery hiccup never takes an app down, ours neither."""
    calls: list[View] = []

    def receive(view: View) -> None:
        calls.append(view)
        if len(calls) == 1:
            raise RuntimeError("receiver failed")

    async with validator() as running:
        running.says = answer(list_text("c1", "c2"))
        peers = Peers(validators=(running.url,), interval=0.05)
        follower = Follower("c1", cluster_key(1), peers, receive)
        await follower.start()
        try:
            running.says = answer(list_text("c1", "c3"))
            await until(lambda: len(calls) == 2)
            assert list(calls[1].peers) == ["c3"]
        finally:
            await follower.stop()
