"""The channel between control process and worker: that neither fills the other's memory."""

import asyncio
import contextlib
import socket

import pytest

from smartgw.processes.channel import HIGH_WATER, Channel
from smartgw.processes.messages import Message
from smartgw.processes.worker import Worker

PART = {"type": "apps", "add": ["x" * 16_000]}


async def fill(channel: Channel) -> int:
    """Send for as long as there is room within a second, 160 MB at most; how many messages."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            while sent < 10_000:
                channel.send({**PART, "number": sent})
                sent += 1
                await channel.room()
    return sent


async def test_a_side_that_is_behind_leaves_no_room() -> None:
    """11.1: who cannot keep up gets nothing more, and all of it in order when it can."""
    ours, theirs = socket.socketpair()
    got: list[Message] = []
    sent, all_there = 0, asyncio.Event()

    def take(message: Message) -> None:
        got.append(message)
        if len(got) == sent:
            all_there.set()

    there = await Channel.open(theirs, take, lambda: None)
    here = await Channel.open(ours, take, lambda: None)
    there.behind(True)
    there.behind(True)
    sent = await fill(here)
    assert sent * 16_000 < HIGH_WATER + (4 << 20)
    assert got == []
    there.behind(False)
    async with asyncio.timeout(5):
        await all_there.wait()
    assert [message["number"] for message in got] == list(range(sent))
    for channel in (here, there):
        channel.close()
    await asyncio.sleep(0)


async def test_a_worker_that_is_busy_is_sent_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """11.1: what a worker has not done yet waits in the control process, where it is bounded."""
    free = asyncio.Event()
    done: list[int] = []

    async def obey(worker: Worker, message: Message) -> None:
        await free.wait()
        done.append(message["number"])

    monkeypatch.setattr(Worker, "_obey", obey)
    ours, theirs = socket.socketpair()
    worker = Worker(())
    running = asyncio.create_task(worker.run(theirs))
    here = await Channel.open(ours, lambda message: None, lambda: None)
    sent = await fill(here)
    assert worker._messages.qsize() * 16_000 < 1 << 20
    free.set()
    here.send({"type": "stop"})
    async with asyncio.timeout(5):
        await running
    assert done == list(range(sent))
    here.close()
    await asyncio.sleep(0)
