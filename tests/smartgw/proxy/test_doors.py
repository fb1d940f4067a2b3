"""Who accepts on sockets that several processes share: Doors on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from smartgw.proxy.doors import Doors, nearly_full


@pytest.fixture
async def bound() -> AsyncIterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        yield sock


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


async def greeted(sock: socket.socket, seconds: float = 5.0) -> bool:
    """Whether who connects is greeted in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            try:
                return await reader.read() == b"hello"
            finally:
                writer.close()
    return False


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing more can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_whoever_steps_aside_comes_back(bound: socket.socket) -> None:
    """3.11: for a moment only, and who came meanwhile is served by whoever is there."""
    doors = Doors(asyncio.get_running_loop())
    await doors.add([bound], Greeting, None, 5.0)
    assert await greeted(bound)
    doors.step_aside()
    assert doors.open
    assert await greeted(bound)
    doors.close()
    assert not doors.open


async def test_without_a_descriptor_it_comes_back_later(bound: socket.socket) -> None:
    """3.11: a worker that has none free to accept with tries again until it has."""
    doors = Doors(asyncio.get_running_loop())
    await doors.add([bound], Greeting, None, 5.0)
    doors.step_aside()
    with no_descriptors():
        await asyncio.sleep(0.2)
    assert await greeted(bound)
    doors.close()


async def test_closed_while_aside_it_stays_closed(bound: socket.socket) -> None:
    """11.1: a generation that has ended accepts nobody, though it was about to."""
    doors = Doors(asyncio.get_running_loop())
    await doors.add([bound], Greeting, None, 5.0)
    doors.step_aside()
    doors.close()
    doors.step_aside()
    await asyncio.sleep(0.2)
    assert not await greeted(bound, 0.2)


@pytest.mark.parametrize(("held", "most", "full"), [(34, 40, False), (35, 40, True), (1, 1, True)])
def test_nearly_full(held: int, most: int, full: bool) -> None:
    """3.11: an eighth is kept for when no other worker has room."""
    assert nearly_full(held, most) is full
