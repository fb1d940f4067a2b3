"""A small WebSocket client that sends the next message when the last has come back.

`python -m tests.bench.websocket HOSTNAME PORT CONNECTIONS SECONDS` prints one line of JSON
(load.py reads it). Masks with a key of zeros, which is allowed and costs the load core nothing,
and sends one size only. It checks the handshake, and that every echo has its message's length.
"""

import asyncio
import base64
import os
import sys
import time
from typing import cast

import uvloop

from tests.bench.cases import MESSAGE_BYTES
from tests.bench.load import LoadFailed, Result, write_result

HEAD_BYTES = 2
_OUT = bytes([0x82, 0x80 | MESSAGE_BYTES, 0, 0, 0, 0]) + bytes(MESSAGE_BYTES)
_CONNECT_SECONDS = 10.0


class Client(asyncio.Protocol):
    """One connection; `latencies` has the seconds of each round trip once `begin` was called."""

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._transport: asyncio.Transport
        self._buffer = b""
        self._due = 0
        self._sent_at = 0.0
        self._running = False
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self.failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        key = base64.b64encode(os.urandom(16)).decode()
        self._transport.write(
            f"GET /ws HTTP/1.1\r\nHost: {self._hostname}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        if self._running:
            self._due -= len(data)
            if self._due == 0:
                now = time.perf_counter()
                self.latencies.append(now - self._sent_at)
                self._send(now)
            return
        self._buffer += data
        if b"\r\n\r\n" in self._buffer and not self.opened.done():
            if self._buffer.startswith(b"HTTP/1.1 101 "):
                self.opened.set_result(None)
            else:
                line = self._buffer.partition(b"\r\n")[0].decode("latin-1")
                self.opened.set_exception(LoadFailed(f"no upgrade: {line}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.failed = self._running
        if not self.opened.done():
            self.opened.set_exception(LoadFailed("closed before the upgrade"))

    def begin(self) -> None:
        """Send the first message."""
        self._running = True
        self._send(time.perf_counter())

    def end(self) -> None:
        """Send no further message and close."""
        self._running = False
        self._transport.close()

    def _send(self, now: float) -> None:
        self._due = HEAD_BYTES + MESSAGE_BYTES
        self._sent_at = now
        self._transport.write(_OUT)


async def measure(hostname: str, port: int, connections: int, seconds: float) -> Result:
    """Exchange messages for a time. Raises LoadFailed when a connection cannot be opened."""
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: Client(hostname), "127.0.0.1", port)
        clients.append(client)
    async with asyncio.timeout(_CONNECT_SECONDS):
        await asyncio.gather(*(client.opened for client in clients))
    start = time.perf_counter()
    for client in clients:
        client.begin()
    await asyncio.sleep(seconds)
    elapsed = time.perf_counter() - start
    for client in clients:
        client.end()
    latencies = sorted(latency for client in clients for latency in client.latencies)
    if not latencies:
        raise LoadFailed("no message came back")
    return Result(
        requests=len(latencies),
        rps=len(latencies) / elapsed,
        p50_us=latencies[len(latencies) // 2] * 1e6,
        p99_us=latencies[len(latencies) * 99 // 100] * 1e6,
        errors=sum(client.failed for client in clients),
    )


def main() -> int:
    hostname, port, connections, seconds = sys.argv[1:]
    try:
        result = uvloop.run(measure(hostname, int(port), int(connections), float(seconds)))
    except (LoadFailed, OSError, TimeoutError) as error:
        print(f"websocket client: {error or 'not opened in time'}", file=sys.stderr)
        return 1
    print(write_result(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
