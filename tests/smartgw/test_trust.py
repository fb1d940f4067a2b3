"""Where trust comes from: a changed enrolment list reaches whoever must hear of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smartgw.trust import Trust
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import Identity

KEY = Identity.from_seed(b"k" * 32).public_key
OTHER_KEY = Identity.from_seed(b"o" * 32).public_key
Told = asyncio.Queue[list[str]]


def text_of(*ids: str) -> str:
    return "".join(
        f'[[host]]\nid = "{id_}"\nkey = "{KEY.text}"\ncluster = "eu"\napps = ["app-{id_}"]\n'
        for id_ in ids
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "hosts.toml").write_text(text_of("h1", "h2"))
    return tmp_path / "hosts.toml"


@asynccontextmanager
async def watching(file: Trust, fails: Callable[[], bool] = lambda: False) -> AsyncIterator[Told]:
    told: Told = asyncio.Queue()

    def changed(enrolments: tuple[Enrolment, ...]) -> None:
        if fails():
            raise RuntimeError("receiver failed")
        told.put_nowait([enrolment.host_id for enrolment in enrolments])

    task = asyncio.create_task(file.watch(changed))
    await asyncio.sleep(0)
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def told_within(told: Told, seconds: float) -> list[str]:
    async with asyncio.timeout(seconds):
        return await told.get()


async def test_a_removed_enrolment_is_passed_on_in_time(path: Path) -> None:
    """1.4: a removed enrolment ends routing within 2 s; its apps are declared before."""
    declared: list[set[str]] = []
    async with watching(Trust(path, "eu", declared.append)) as told:
        for ids in (["h2"], []):
            await asyncio.to_thread(path.write_text, text_of(*ids))
            assert await told_within(told, 5) == ids
            assert declared[-1] == {f"app-{id_}" for id_ in ids}


@pytest.mark.parametrize("who", ["the pool", "the table"])
async def test_a_revocation_is_told_until_it_was_heard(path: Path, who: str) -> None:
    """1.4: who cannot take a list now is told again, though the file changes no more."""
    failures = 0

    def fails() -> bool:
        nonlocal failures
        failures += 1
        return failures <= 2

    def declare(apps: set[str]) -> None:
        if who == "the table" and "app-h1" not in apps and fails():
            raise RuntimeError("receiver failed")

    file = Trust(path, "eu", declare)
    async with watching(file, fails if who == "the pool" else lambda: False) as told:
        await asyncio.to_thread(path.write_text, text_of("h2"))
        assert await told_within(told, 5) == ["h2"]
        await asyncio.sleep(1.2)
        assert told.empty(), "once it was heard, never again"
    assert failures == 3


async def test_another_file_is_told_at_once(path: Path) -> None:
    """11.1: a reload may name another file; a receiver that fails then is told again."""
    failing = True
    other = path.with_suffix(".new")
    other.write_text(text_of("h9"))
    file = Trust(path, "eu", lambda apps: None)
    async with watching(file, lambda: failing) as told:
        file.follow(other)
        assert told.empty()
        failing = False
        assert await told_within(told, 2) == ["h9"]
        file.follow(path)
        assert told.get_nowait() == ["h1", "h2"]


def enrolment(host_id: str, cluster: str = "eu", *apps: str) -> Enrolment:
    return Enrolment(host_id, OTHER_KEY, cluster, apps or (f"stored-{host_id}",))


async def test_the_platform_enrols_what_the_file_does_not_name(path: Path) -> None:
    """1.4: of a host that both name, the operator's file counts; the store adds the others."""
    declared: list[set[str]] = []
    trust = Trust(path, "eu", declared.append)
    async with watching(trust) as told:
        trust.enrol([enrolment("h1"), enrolment("h3"), enrolment("h4", "us")])
        assert sorted(await told_within(told, 1)) == ["h1", "h2", "h3", "h4"]
        assert {e.host_id: e.key for e in trust.current}["h1"] == KEY
        assert declared[-1] == {"app-h1", "app-h2", "stored-h3", "stored-h4"}
        # Taken off the file, it is the store's to say; and the other way round.
        await asyncio.to_thread(path.write_text, text_of("h2", "h3"))
        assert sorted(await told_within(told, 5)) == ["h1", "h2", "h3", "h4"]
        assert {e.host_id: e.key == KEY for e in trust.current} == {
            **{"h1": False, "h2": True, "h3": True, "h4": False}
        }
        trust.enrol([])
        assert sorted(told.get_nowait()) == ["h2", "h3"]


async def test_trust_without_a_file() -> None:
    """1.4: what the platform enrolled will do; a host of our cluster counts before a namesake."""
    trust = Trust(None, "eu", lambda apps: None)
    async with watching(trust) as told:
        for order in (1, -1):
            trust.enrol([enrolment("h1"), enrolment("h1", "us"), enrolment("h1", "aa")][::order])
            assert told.get_nowait() == ["h1"]
            assert trust.current[0].cluster == "eu"
        assert trust.degraded() == []
