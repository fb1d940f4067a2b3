"""A host and the clients of it in one event loop, for drills that count lost requests.

`python -m tests.drills.load --help`. Prints `host ready`, waits for a line, then prints a line of
JSON now and again until the next: connections opened, and how many requests were lost. One is
lost when its answer is not a whole 200, whatever the reason: also when a kept connection was
closed just as the next request came. Owns the counting; what happens to the gateway is the
drill's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from typing import cast

import uvloop

from smartgw_hosts.challenge import PATH, Responder
from tests.gateway import identity_of

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_THINK_SECONDS = 0.02


class Host(asyncio.Protocol):
    """Answers challenges, and every other request with `ok` after a while."""

    def __init__(self, responder: Responder, seconds: float) -> None:
        self._responder = responder
        self._seconds = seconds
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, rest = self._buffer[:end], self._buffer[end + 4 :]
            lines = head.split(b"\r\n")
            fields = [tuple(line.split(b": ", 1)) for line in lines[1:]]
            length = int(next((v for k, v in fields if k.lower() == b"content-length"), b"0"))
            if len(rest) < length:
                return
            body, self._buffer = rest[:length], rest[length:]
            method, target, _ = lines[0].split(b" ")
            if target == PATH:
                now = time.time()
                status, answer = self._responder.answer(
                    method,
                    target,
                    [(k, v) for k, v in fields],
                    body,
                    time.monotonic(),
                    int(now * 1000),
                )
                self._transport.write(
                    b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(answer), answer)
                )
            elif self._seconds:
                loop = asyncio.get_running_loop()
                loop.call_later(self._seconds, self._transport.write, _ANSWER)
            else:
                self._transport.write(_ANSWER)


class Clients:
    """`opened` counts connections of new-connection clients, `kept` requests on kept ones."""

    def __init__(self, port: int, hostname: str) -> None:
        self._port = port
        self._request = f"GET / HTTP/1.1\r\nHost: {hostname}\r\n\r\n".encode()
        self.done = False
        self.opened = 0
        self.kept = 0
        self.answered = 0
        self.lost: Counter[str] = Counter()

    async def fresh(self) -> None:
        """A connection for each request."""
        while not self.done:
            self.opened += 1
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                self._lose(f"new: connect: {error.strerror}")
                continue
            await self._ask(reader, writer, "new")
            writer.close()

    async def keeping(self) -> None:
        """One connection for as many requests as it may have."""
        while not self.done:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                self._lose(f"kept: connect: {error.strerror}")
                continue
            while not self.done:
                self.kept += 1
                if not await self._ask(reader, writer, "kept"):
                    break
                await asyncio.sleep(_THINK_SECONDS)
            writer.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str
    ) -> bool:
        """Send one request; True when the connection may be used again."""
        try:
            async with asyncio.timeout(15):
                writer.write(self._request)
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(_value(head, b"content-length") or b"0"))
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            self._lose(f"{kind}: {type(error).__name__}")
            return False
        if not head.startswith(b"HTTP/1.1 200 ") or body != b"ok":
            self._lose(f"{kind}: {head.partition(bytes((13,)))[0].decode('latin1')}")
            return False
        self.answered += 1
        return _value(head, b"connection") != b"close"

    def _lose(self, why: str) -> None:
        self.lost[why] += 1

    def line(self, *, over: bool) -> str:
        """The counts as JSON."""
        return json.dumps(
            {
                "over": over,
                "opened": self.opened,
                "kept": self.kept,
                "answered": self.answered,
                "lost": sum(self.lost.values()),
                "why": dict(self.lost),
            }
        )


def _value(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return b""


async def drive(args: argparse.Namespace) -> None:
    """Be the host, and on a word from standard input also its clients."""
    loop = asyncio.get_running_loop()
    address = f"http://127.0.0.1:{args.host_port}"
    identity = identity_of(args.host_id)
    responder = Responder(identity, args.host_id, args.cluster, lambda: {address})
    seconds = args.handler_ms / 1000
    await loop.create_server(lambda: Host(responder, seconds), "127.0.0.1", args.host_port)
    print("host ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    clients = Clients(args.gateway_port, args.hostname)
    tasks = [asyncio.create_task(clients.fresh()) for _ in range(args.clients)]
    tasks += [asyncio.create_task(clients.keeping()) for _ in range(args.keeping)]
    enough = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while not enough.done():
        await asyncio.sleep(0.1)
        print(clients.line(over=False), flush=True)
    clients.done = True
    await asyncio.gather(*tasks)
    print(clients.line(over=True), flush=True)
    # Still the host, until nobody needs it any more.
    with contextlib.suppress(OSError):
        await asyncio.to_thread(sys.stdin.readline)


def main() -> None:
    parser = argparse.ArgumentParser("load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--host-id", required=True)
    parser.add_argument("--host-port", type=int, required=True)
    parser.add_argument("--gateway-port", type=int, required=True)
    parser.add_argument("--hostname", required=True)
    parser.add_argument("--clients", type=int, default=16, help="that open one a request")
    parser.add_argument("--keeping", type=int, default=8, help="that keep theirs")
    parser.add_argument("--handler-ms", type=float, default=0.0)
    uvloop.run(drive(parser.parse_args()))


if __name__ == "__main__":
    main()
