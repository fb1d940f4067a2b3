"""Autobahn's WebSocket cases (as kosoku runs them) against an echo alone and through a gateway.

`python -m tests.autobahn [--cases GLOB ...] [--without GLOB ...]` fails when a case fails through
the gateway that the echo alone passes. The echo is aiohttp's; it stands behind
`smartgw host --raw`. It judges no WebSocket frame itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import kosoku
from aiohttp import WSMsgType, web

from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Sidecar

APP = "echo"
PARALLEL = 4


@dataclass(frozen=True, slots=True)
class Comparison:
    """Failed case ids: of the echo alone, and through the gateway only."""

    cases: int
    alone: tuple[str, ...]
    gateway_only: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.cases} cases, {len(self.alone)} fail at the echo alone {self.alone}, "
        return text + f"{len(self.gateway_only)} only through the gateway {self.gateway_only}"


async def _echo(request: web.Request) -> web.WebSocketResponse:
    answer = web.WebSocketResponse(max_msg_size=0)
    await answer.prepare(request)
    async for message in answer:
        if message.type is WSMsgType.TEXT:
            await answer.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await answer.send_bytes(message.data)
    return answer


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """An echo on loopback; gives its port."""
    application = web.Application()
    application.router.add_get("/", _echo)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@contextlib.asynccontextmanager
async def renamed(to: tuple[str, int], hostname: str) -> AsyncIterator[int]:
    """A relay that puts `hostname` into the first head: kosoku can only name what resolves."""

    relays: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        relays.add(task)
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            onward, back = await asyncio.open_connection(*to)
            writers.append(back)
            head = await reader.readuntil(b"\r\n\r\n")
            back.write(re.sub(rb"(?im)^host:.*\r$", b"Host: " + hostname.encode() + b"\r", head))
            await asyncio.gather(_pump(reader, back), _pump(onward, writer))
            back.close()
        writer.close()

    listening = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield int(listening.sockets[0].getsockname()[1])
    finally:
        listening.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*relays)


async def failures(port: int, cases: Sequence[str], without: Sequence[str]) -> tuple[int, set[str]]:
    """How many cases ran against a port, and the ids of those that failed."""
    try:
        results = await kosoku.run_fuzzingclient(
            f"ws://127.0.0.1:{port}/", list(cases), list(without), PARALLEL
        )
    except kosoku.FailureError as error:
        results = error.results
    return len(results), {result.case_id for result in results if not result.passed}


async def compare(
    gateway: tuple[str, int], hostname: str, port: int, cases: Sequence[str], without: Sequence[str]
) -> Comparison:
    """Run the cases against the echo at `port`, alone and by the gateway's address."""
    count, alone = await failures(port, cases, without)
    async with renamed(gateway, hostname) as relayed:
        through, failed = await failures(relayed, cases, without)
    if through != count:
        raise RuntimeError(f"{count} cases alone, {through} through the gateway")
    return Comparison(count, tuple(sorted(alone)), tuple(sorted(failed - alone)))


async def run(cases: Sequence[str], without: Sequence[str]) -> Comparison:
    """Start a bus, a gateway, a sidecar and the echo, and compare."""
    async with echo() as port:
        cluster = Cluster(enrolled=1)
        sidecar = Sidecar(cluster, "host-0", [APP], port)
        try:
            gateway = Gateway(cluster)
            cluster.gateways.append(gateway)
            await gateway.start_async()
            await sidecar.start_async()
            return await compare(gateway.public, f"{APP}.{BASE_DOMAIN}", port, cases, without)
        finally:
            sidecar.stop()
            cluster.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; 1 when a case fails only through the gateway."""
    parser = argparse.ArgumentParser(prog="python -m tests.autobahn", description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--without", nargs="*", default=[], metavar="GLOB")
    options = parser.parse_args(arguments)
    comparison = asyncio.run(run(options.cases, options.without))
    print(comparison)
    return 1 if comparison.gateway_only else 0


if __name__ == "__main__":
    sys.exit(main())
