"""A validator for tests: answers `GET /api/v3/discovery/clusters` with whatever it is told.

Owns the ways in which a validator fails. It is a plain TCP server, so that it can also answer
with what no HTTP library would.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from smartgw_hosts.identity import Identity, PublicKey
from tests.listening import stop_listening


def cluster_key(number: int) -> PublicKey:
    """The public key of the cluster of this number in lists of tests."""
    return Identity.from_seed(number.to_bytes(32, "big")).public_key


def entry(cluster_id: str, number: int, **members: Any) -> dict[str, Any]:
    """One cluster of a list, with a gateway and a key of its own."""
    return {
        "id": cluster_id,
        "gateways": [f"http://10.0.0.{number}:80"],
        "keys": [cluster_key(number).text],
        "state": "active",
    } | members


def list_text(*entries: dict[str, Any] | str, **members: Any) -> bytes:
    """A list as a validator gives it; a text stands for an active cluster of that id."""
    whole = [
        entry(each, number) if isinstance(each, str) else each
        for number, each in enumerate(entries, 1)
    ]
    return json.dumps({"clusters": whole} | members).encode()


def answer(body: bytes, status: int = 200, *fields: str) -> bytes:
    """A whole HTTP response."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(size: int) -> list[bytes]:
    """A response of so many bytes whose length is not told."""
    part = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *[part] * (size // 65_536), b"0\r\n\r\n"]


class ScriptedValidator:
    """`says` is the bytes of each answer, a list for pieces with a pause between them, None for
    silence. `asked` are the heads of the requests that came.
    """

    def __init__(self) -> None:
        self.says: bytes | Sequence[bytes] | None = answer(list_text())
        self.pause = 0.0
        self.asked: list[bytes] = []
        self.url = ""
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            server, self._server = self._server, None
            await stop_listening(server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            if self.says is None:
                await reader.read()
                return
            for piece in [self.says] if isinstance(self.says, bytes) else self.says:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(self.pause)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def validator() -> AsyncIterator[ScriptedValidator]:
    """A validator that listens."""
    running = ScriptedValidator()
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


class LiveValidator(ScriptedValidator):
    """A validator with an event loop and a thread of its own, for tests that block."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.listen()

    def listen(self) -> None:
        """Listen (again)."""
        asyncio.run_coroutine_threadsafe(self.start(), self._loop).result(10)

    def refuse(self) -> None:
        """Refuse connections from now on."""
        asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result(10)

    def close(self) -> None:
        """End it."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        await self.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
