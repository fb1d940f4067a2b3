"""What a next generation is told that does not make sense, and what is left of it."""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smartgw.processes import handover


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def saying(path: Path, body: bytes, fds: list[int]) -> AsyncIterator[None]:
    """A gateway at `path` that hands over so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(path))
        sock.listen()
        sock.setblocking(False)

        async def say() -> None:
            loop = asyncio.get_running_loop()
            peer, _ = await loop.sock_accept(sock)
            with peer:
                socket.send_fds(peer, [struct.pack("!I", len(body)) + body], fds)
                with contextlib.suppress(ConnectionResetError):
                    await loop.sock_recv(peer, 1)

        task = asyncio.create_task(say())
        yield
        await task


async def test_the_sockets_are_taken(tmp_path: Path) -> None:
    """11.1: the sockets that listen, under the names that the settings have for them."""
    path = tmp_path / "handover.sock"
    body = json.dumps({"listeners": [["http", "127.0.0.1:80"]], "hosts": ["h1"]}).encode()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with saying(path, body, [listening.fileno()]):
            taking = await handover.ask(str(path))
            assert taking is not None
            assert taking.hosts == {"h1"}
            (taken,) = taking.listeners
            assert (taken.name, taken.address) == ("http", "127.0.0.1:80")
            assert taken.socket.getsockname() == listening.getsockname()
            taken.socket.close()
            taking.close()


@pytest.mark.parametrize(
    "said",
    [
        {"listeners": [["http", "127.0.0.1:80"]], "hosts": []},
        {"listeners": [["http", "127.0.0.1:80"], ["http"]], "hosts": []},
        {"listeners": [["http", "127.0.0.1:80"], ["http", "127.0.0.1:81"]], "hosts": 3},
        {"listeners": [["http", "127.0.0.1:80"], ["http", "127.0.0.1:81"]]},
    ],
)
async def test_a_failure_halfway_closes_each_descriptor_once(
    tmp_path: Path, said: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """11.1: whose number somebody else may have by then must not be closed again."""
    path = tmp_path / "handover.sock"
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        before = descriptors()
        body = json.dumps(said).encode()
        async with saying(path, body, [one.fileno(), other.fileno()]):
            closed: list[int] = []
            monkeypatch.setattr(os, "close", closed.append)
            with pytest.raises(handover.HandoverFailed, match="does not hand over"):
                await handover.ask(str(path))
            monkeypatch.undo()
            assert closed == [], "the socket objects own them"
        assert descriptors() <= before


async def test_what_is_no_socket(tmp_path: Path) -> None:
    """11.1: a descriptor of something else is refused and closed."""
    path = tmp_path / "handover.sock"
    body = json.dumps({"listeners": [["http", "a:1"]], "hosts": []}).encode()
    reading, writing = os.pipe()
    before = descriptors()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with saying(path, body, [listening.fileno(), reading, writing]):
            with pytest.raises(handover.HandoverFailed, match="does not hand over"):
                await handover.ask(str(path))
    assert descriptors() <= before
    os.close(reading)
    os.close(writing)
