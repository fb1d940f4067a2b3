"""What a crew waits for and what it keeps from a worker: Crew and Seat without their processes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from smartgw.config import Settings
from smartgw.processes.crew import Crew
from smartgw.processes.drain import Step

SETTINGS = {
    "cluster": "c1",
    "base_domains": ["smart-app.test"],
    "bus": {"servers": ["nats://127.0.0.1:1"]},
    "trust": {"mode": "first-use"},
    "host_networks": ["127.0.0.0/8"],
    "processes": {"workers": 2},
}


def crew() -> Crew:
    settings = Settings.model_validate(SETTINGS)
    return Crew(settings, (), frozenset(), None, lambda _: None, lambda: None, as_json=False)


class Channel:
    """Keeps what is sent, and has room when it is let."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.free = asyncio.Event()

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(str(message.get("step", message["type"])))

    async def room(self) -> None:
        await self.free.wait()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_all_must_be_there_at_one_moment() -> None:
    """11.1: a worker that has started and died since is waited for again."""
    made = crew()
    one, other = (seat.serving for seat in made._seats)
    waiting = asyncio.create_task(made.there())
    one.set()
    await turns()
    one.clear()
    other.set()
    await turns()
    assert not waiting.done()
    one.set()
    await asyncio.wait_for(waiting, 5)


async def test_who_does_not_know_all_hosts_accepts_nobody() -> None:
    """11.1: a worker that is still being told resumes behind the last that it is told."""
    made = crew()
    seat, channel = made._seats[0], Channel()
    seat._channel = channel  # type: ignore[assignment]
    feeding = asyncio.create_task(seat._feed(channel))  # type: ignore[arg-type]
    await turns()
    seat.order(Step.RETIRE)
    made._setup.order(Step.RESUME)
    seat.order(Step.RESUME)
    await turns()
    assert channel.sent[-1] == "retire"
    channel.free.set()
    await turns(20)
    assert channel.sent[-2:] == ["accept", "resume"]
    seat.order(Step.RESUME)
    assert channel.sent[-1] == "resume"
    feeding.cancel()


class Process:
    """A process that lives until it is killed."""

    pid = 4242

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.ended = asyncio.Event()

    def kill(self) -> None:
        self.returncode = -9
        self.ended.set()

    async def wait(self) -> int:
        await self.ended.wait()
        assert self.returncode is not None
        return self.returncode


async def test_an_error_of_ours_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails while a worker is told or before, process and channel end."""
    made: list[Process] = []
    pairs: list[tuple[socket.socket, socket.socket]] = []
    real = socket.socketpair

    def pair() -> tuple[socket.socket, socket.socket]:
        pairs.append(real())
        return pairs[-1]

    async def no_process(*_: object, **__: object) -> Process:
        raise OSError(11, "no process")

    async def make(*_: object, **__: object) -> Process:
        made.append(Process())
        return made[-1]

    async def no_channel(*_: object, **__: object) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(socket, "socketpair", pair)
    seat = crew()._seats[0]
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", no_process)
        with pytest.raises(OSError, match="no process"):
            await asyncio.wait_for(seat._one_life(), 5)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", make)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "create_unix_connection", no_channel)
        with pytest.raises(ValueError, match="a fault of ours"):
            await asyncio.wait_for(seat._one_life(), 5)
    assert [one.returncode for one in made] == [-9]

    async def fails(_channel: object) -> None:
        await asyncio.sleep(0)
        raise KeyError("a fault of ours")

    monkeypatch.setattr(seat, "_feed", fails)
    with pytest.raises(KeyError):
        await asyncio.wait_for(seat._one_life(), 5)
    assert [one.returncode for one in made] == [-9, -9]
    await turns()
    assert [end.fileno() for ends in pairs for end in ends] == [-1] * 6
