"""The sockets of the wire server, over loopback: order, deadlines, bounds, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import dns.asyncquery
import dns.edns
import dns.flags
import dns.message
import dns.rcode
import pytest

from smartgw_dns import master, server
from smartgw_dns.catalog import Catalog
from smartgw_dns.respond import Responder
from smartgw_dns.server import Server, bind
from tests.dns.zones import NS, SOA
from tests.servers import die_with, free_port

REPO = Path(__file__).parents[2]
BIG = " ".join(f'"{number:0250}"' for number in range(200))
ZONE = master.read(f"$ORIGIN z.\n$TTL 300\n{SOA}{NS}* A 192.0.2.1\nbig TXT {BIG}\n", b"\x01z\0")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def serving(
    *hosts: str, idle: float = 10.0, connections: int = 1_000
) -> AsyncIterator[Server]:
    """A server of the zone `z.` at free ports."""
    responder = Responder(bytes(32), 0, lambda: 1e9)
    responder.catalog = Catalog.of([ZONE])
    sockets = [bind(host, 0) for host in hosts or ["127.0.0.1"]]
    made = Server(responder, sockets, idle=idle, connections=connections)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@contextlib.asynccontextmanager
async def connected(made: Server, source: str = "127.0.0.1") -> AsyncIterator[Stream]:
    """A TCP connection to a server."""
    host, port = made.addresses[0]
    reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def asked(name: str = "a.z.", rdtype: str = "A", ident: int = 1) -> bytes:
    """A query as it stands on a TCP connection."""
    query = dns.message.make_query(name, rdtype, id=ident, flags=0).to_wire()
    return len(query).to_bytes(2, "big") + query


async def answer(reader: asyncio.StreamReader) -> dns.message.Message:
    """The next answer on a TCP connection."""
    length = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 20), "big")
    return dns.message.from_wire(await asyncio.wait_for(reader.readexactly(length), 20))


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether a connection is closed with nothing more on it."""
    try:
        return await asyncio.wait_for(reader.read(1), 20) == b""
    except ConnectionError:
        return True


async def over_udp(made: Server, name: str = "a.z.") -> dns.message.Message:
    """Ask over UDP, which also has the server's loop look at all that came before."""
    host, port = made.addresses[0]
    query = dns.message.make_query(name, "A", flags=0)
    return await dns.asyncquery.udp(query, host, 20, port)


# ---- both protocols, both families ----


async def test_all_addresses_are_served_over_udp_and_tcp() -> None:
    """8.4: the zones answer on UDP and TCP, IPv4 and IPv6."""
    async with serving("127.0.0.1", "::1") as made:
        for host, port in made.addresses:
            query = dns.message.make_query("Some.Name.Z.", "A")
            for ask in (dns.asyncquery.udp, dns.asyncquery.tcp):
                got = await ask(query, host, 20, port)
                assert [rrset.to_text() for rrset in got.answer] == [
                    "Some.Name.Z. 300 IN A 192.0.2.1"
                ]
                assert got.flags & dns.flags.AA
                assert not got.flags & dns.flags.RA
        assert (made.counts.answered_udp, made.counts.answered_tcp) == (2, 2)


@pytest.mark.parametrize(
    ("host", "asked_at"), [("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "127.8.9.10"), ("::", "::1")]
)
async def test_an_answer_comes_from_the_address_that_was_asked(host: str, asked_at: str) -> None:
    """8.4: a server at all addresses answers from the one that the question went to."""
    async with serving(host) as made:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            # Bound first: whoever is only connected would take answers from one address alone.
            client.bind(("::1" if ":" in host else "127.0.0.1", 0))
            port = made.addresses[0][1]
            client.sendto(asked()[2:], (asked_at, port))
            while True:
                await asyncio.sleep(0.001)
                with contextlib.suppress(BlockingIOError):
                    got, whence = client.recvfrom(4096)
                    break
            assert whence[:2] == (asked_at, port)
            assert dns.message.from_wire(got).answer


async def test_what_is_no_query_gets_no_datagram() -> None:
    """8.4: malformed packets are dropped or FORMERR, and the next one is answered."""
    async with serving() as made:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect(made.addresses[0])
            # None, no whole header, an answer, a header alone, too long to be read as a whole.
            for packet in (b"", b"x", asked()[2:4] + b"\x80\0", bytes(12), bytes(60_000)):
                client.send(packet)
            assert (await over_udp(made)).answer
            answers = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    answers.append(dns.message.from_wire(client.recv(4096)).rcode())
        assert answers == [dns.rcode.FORMERR, dns.rcode.FORMERR]
        assert made.counts.queries_udp == 6


# ---- one TCP connection ----


async def test_many_messages_in_one_segment_are_answered_in_order() -> None:
    """8.4: TCP pipelining (RFC 7766 6.2.1.1), more than are worked off in one turn."""
    async with serving() as made, connected(made) as (reader, writer):
        writer.write(b"".join(asked(f"n{ident}.z.", "A", ident) for ident in range(500)))
        for ident in range(500):
            got = await answer(reader)
            assert got.id == ident
            assert got.answer[0].name.to_text() == f"n{ident}.z."


async def test_messages_that_take_long_are_answered_when_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8.4: TCP pipelining, also of messages that only dnspython reads, which none is lost of."""
    monkeypatch.setattr(server, "_LATER_SECONDS", 0.01)
    options: list[dns.edns.Option] = [dns.edns.GenericOption(dns.edns.NSID, b"")]
    async with serving() as made, connected(made) as (reader, writer):
        there_is = iter([True, False, False, *[True] * 9, False])
        monkeypatch.setattr(made.responder, "_has_time", lambda: next(there_is, True))
        for ident in range(40):
            query = dns.message.make_query(f"n{ident}.z.", "A", id=ident, options=options).to_wire()
            writer.write(len(query).to_bytes(2, "big") + query)
        writer.write_eof()
        assert [(await answer(reader)).id for _ in range(40)] == list(range(40))
        assert await ended(reader)
        assert (made.responder.odd, made.counts.queries_tcp) == (40, 40)


async def test_a_message_may_come_in_any_two_parts() -> None:
    """8.4: TCP has no packets; a message cut at each octet is answered when it is whole."""
    async with serving() as made, connected(made) as (reader, writer):
        message = asked() + asked("b.z.")
        for cut in range(1, len(message)):
            writer.write(message[:cut])
            await over_udp(made)
            writer.write(message[cut:])
            names = [(await answer(reader)).answer[0].name.to_text() for _ in range(2)]
            assert names == ["a.z.", "b.z."], cut


async def test_a_client_that_closes_its_side_gets_its_answers() -> None:
    """8.4: half-close: all that was asked before is answered, then the connection ends."""
    async with serving() as made, connected(made) as (reader, writer):
        writer.write(b"".join(asked("big.z.", "TXT", ident) for ident in range(100)))
        writer.write_eof()
        assert [(await answer(reader)).id for _ in range(100)] == list(range(100))
        assert await ended(reader)


@pytest.mark.parametrize("packet", [b"\0\0", b"\0\3abc", b"\0\x0c" + b"\0\0\x80" + bytes(9)])
async def test_what_is_no_query_ends_a_connection(packet: bytes) -> None:
    """8.4: who does not speak DNS over TCP is not listened to any longer; others are."""
    async with serving() as made, connected(made) as (reader, writer):
        writer.write(packet + asked())
        assert await ended(reader)
        async with connected(made) as (other, asking):
            asking.write(asked())
            assert (await answer(other)).answer


async def test_a_client_that_does_not_read_costs_little() -> None:
    """8.4: what is kept for a client that asks and does not read is bounded, and none is lost."""
    count = 400  # of 50 KiB: far more than the system takes
    async with serving() as made, connected(made) as (reader, writer):
        asking = b"".join(asked("big.z.", "TXT", ident % 65_536) for ident in range(count))
        writer.write(asking * 20)
        for _ in range(20):
            await over_udp(made)
        (connection,) = made.connections
        written = connection.transport.get_write_buffer_size()
        assert 0 < written < 200_000
        assert len(connection._buffer) < 100_000
        assert made.counts.answered_tcp < count
        for ident in range(count):
            assert (await answer(reader)).id == ident


# ---- deadlines and bounds ----


@pytest.mark.parametrize("answered", [0, 3])
@pytest.mark.parametrize("drips", [b"", b"\xff"], ids=["silence", "drips"])
async def test_a_silent_connection_is_ended(
    monkeypatch: pytest.MonkeyPatch, answered: int, drips: bytes
) -> None:
    """8.4: idle deadline (RFC 7766 6.2.3), which runs from the last answer, whatever comes."""
    monkeypatch.setattr(server, "_SWEEP_SECONDS", 0.01)
    async with serving(idle=0.2) as made, connected(made) as (reader, writer):
        writer.write(asked() * answered)
        for _ in range(answered):
            await answer(reader)
        closed = asyncio.ensure_future(ended(reader))
        while not closed.done():
            writer.write(drips)
            await asyncio.wait([closed], timeout=0.02)
        assert await closed
        assert made.connections == {}
        assert not made.of_network


async def test_one_network_has_its_share_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.4: connection caps: a network that has its share leaves the others theirs."""
    monkeypatch.setattr(server, "_CONNECTIONS_OF_NETWORK", 3)
    async with serving() as made, contextlib.AsyncExitStack() as stack:
        for number in range(3):
            await stack.enter_async_context(connected(made, f"127.0.0.{number + 1}"))
        await over_udp(made)
        async with connected(made, "127.0.0.9") as (reader, _):
            assert await ended(reader)
        assert made.counts.turned_away == 1
        async with connected(made, "127.0.1.1") as (reader, writer):
            writer.write(asked())
            assert (await answer(reader)).answer
        await stack.aclose()
        while made.connections:
            await over_udp(made)
        async with connected(made, "127.0.0.9") as (reader, writer):
            writer.write(asked())
            assert (await answer(reader)).answer


@pytest.mark.parametrize("patience", [0.0, 60.0])
async def test_where_there_is_no_room_the_longest_silent_gives_way(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """8.4: connection caps in all: silence does not keep others out, but has its second."""
    monkeypatch.setattr(server, "_LEAST_IDLE_SECONDS", patience)
    async with (
        serving(connections=2) as made,
        connected(made) as (first, asking),
        connected(made) as (second, _),
    ):
        asking.write(asked())
        await answer(first)
        async with connected(made) as (third, writer):
            writer.write(asked())
            if patience:
                assert await ended(third)
            else:
                assert await ended(second)
                assert (await answer(third)).answer
                asking.write(asked())
                assert (await answer(first)).answer
            assert len(made.connections) == 2
            assert made.counts.turned_away == bool(patience)


async def test_connections_that_say_nothing_do_not_stop_udp() -> None:
    """8.4: with every connection taken, UDP goes on, and so do connections that ask."""
    async with (
        serving(connections=200) as made,
        contextlib.AsyncExitStack() as stack,
        connected(made) as (reader, writer),
    ):
        for number in range(260):
            source = f"127.0.{number // 90}.1"
            await stack.enter_async_context(connected(made, source))
        assert (await over_udp(made)).answer
        assert len(made.connections) == 200
        assert made.counts.turned_away == 61
        writer.write(asked())
        assert (await answer(reader)).answer


# ---- start and end ----


def files() -> set[str]:
    """What this process has open, but for the folder that is read here."""
    return {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    } - {f"/proc/{os.getpid()}/fd"}


async def test_the_end_leaves_nothing_open() -> None:
    """8.4: stop() ends all sockets and connections, whatever they are in."""
    before = files()
    made = None
    async with contextlib.AsyncExitStack() as stack:
        async with serving("127.0.0.1", "::1") as made:
            streams = [await stack.enter_async_context(connected(made)) for _ in range(4)]
            streams[1][1].write(asked()[:5])
            streams[2][1].write(asked("big.z.", "TXT") * 1_000)
            streams[3][1].write(asked())
            await answer(streams[3][0])
        for reader, _ in streams[:2] + streams[3:]:
            assert await ended(reader)
        assert made.connections == {}
        assert [sock.fileno() for sock in made._datagram] == [-1, -1]
    for _ in range(10):
        await asyncio.sleep(0)
    assert files() <= before


async def test_a_server_that_did_not_start_can_be_ended() -> None:
    """8.4: stop() is safe after a failed start."""
    before = files()
    made = Server(Responder(bytes(32), 0, lambda: 1e9), [bind("127.0.0.1", 0)])
    await made.stop()
    assert files() <= before


def test_an_address_that_is_not_ours_cannot_be_bound() -> None:
    """8.4: the fault is said; no socket is left behind."""
    before = files()
    for port in (0, 53_535):
        with pytest.raises(OSError, match=r"192\.0\.2\.1|assign"):
            bind("192.0.2.1", port)
    assert files() <= before


SHARING = """
import asyncio, sys
from smartgw_dns.catalog import Catalog
from smartgw_dns.respond import Responder
from smartgw_dns.server import Server, bind

async def main():
    made = Server(Responder(bytes(32), 0, lambda: 1e9), [bind("127.0.0.1", int(sys.argv[1]))])
    await made.start()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(made.counts.answered_udp, made.counts.answered_tcp, flush=True)
    await made.stop()

asyncio.run(main())
"""


@pytest.fixture
def sharing() -> Iterator[tuple[int, list[subprocess.Popen[str]]]]:
    """Two processes that serve one port."""
    port, parent = free_port(), os.getpid()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARING, str(port)],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: die_with(parent),
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    yield port, processes
    for process in processes:
        process.kill()
        process.communicate()


def test_two_processes_share_an_address(
    sharing: tuple[int, list[subprocess.Popen[str]]],
) -> None:
    """8.4: SO_REUSEPORT: each process has its part of the clients, and every client an answer."""
    port, processes = sharing
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        for _ in range(40):
            with socket.socket(socket.AF_INET, kind) as client:
                client.settimeout(20)
                client.connect(("127.0.0.1", port))
                client.sendall(asked()[2:] if kind == socket.SOCK_DGRAM else asked())
                assert client.recv(4096)
    counts = []
    for process in processes:
        told, _ = process.communicate("end\n", timeout=20)
        counts.append([int(word) for word in told.split()])
    assert [sum(of_both) for of_both in zip(*counts, strict=True)] == [40, 40]
    assert all(count > 0 for of_one in counts for count in of_one)
