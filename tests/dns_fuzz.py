"""Fuzzing of the wire server: `python -m tests.dns_fuzz [--seconds N] [--seed N]`.

Owns the packets, mutated from good and bad ones, and what must hold for each: directly, over UDP
and over TCP; and last, that 1,000 connections that say nothing stop nobody. Ends with the figures;
fails on a crash, an answer that is too long or that nobody can read, one that depends on what was
asked before, and on memory that grows.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import resource
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype

from smartgw_dns import master, respond
from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import ANY
from smartgw_dns.query import HEADER, read
from smartgw_dns.respond import PAYLOAD, Responder
from smartgw_dns.server import Server, bind
from tests.dns_oracle import generate
from tests.servers import die_with

DATA = Path(__file__).parent / "data/dns"
REPO = Path(__file__).parents[1]
ZONES = 12
INSIDE = ("in.smart-app.test.", "ent.smart-app.test.")
KEPT = 300
MOST_GROWTH = 4 << 20
CLIENTS = ("127.0.0.1", "192.0.2.7", "2001:db8::7", "::ffff:192.0.2.7")
BATCH = 200
SHOWN = 5
SILENT, _OF_NETWORK = 1_000, 90
_LONGEST = 60_000  # octets that a datagram can hold
_OPTIONS = (
    b"",
    b"\0\x0a\0\x08" + b"clientck",
    b"\0\x0a\0\x18" + b"clientck" + bytes(16),
    b"\0\x08\0\x07\0\1\x18\0\xc0\0\2",
    b"\0\x03\0\0",
    b"\0\x0c\0\x08" + bytes(8),
    b"\0\x0b\0\0",
    b"\xff\xff\0\0",
)
_GOOD = b"\xfe\xfd" + dns.message.make_query("mail.smart-app.test", "A", flags=0).to_wire()[2:]
_GOOD_ANSWER = _GOOD[:2] + b"\x84\0\0\1\0\1\0\2\0\3"
_NUMBERS = (0, 1, 2, 3, 12, 63, 64, 127, 128, 191, 192, 255)


def catalog() -> Catalog:
    """Return the zones that are asked: the one of corners, two inside it, of which it has an entry
    of one at the very apex, and generated ones.
    """
    corners = master.read((DATA / "smart-app.test.zone").read_text())
    inside = (
        master.read(f"$ORIGIN {name}\n@ 60 SOA a b 1 2 3 4 5\n@ 60 NS a\n* 60 A 192.0.2.9\n")
        for name in INSIDE
    )
    made = (generate(7, number) for number in range(ZONES))
    return Catalog.of(
        [corners, *inside, *(master.read(zone.text, most_records=500) for zone in made)]
    )


def keeping_little() -> AbstractContextManager[object]:
    """Have responders meanwhile keep so few answers that keeping, finding and forgetting are all
    tried, and that memory reaches its height early.
    """
    return mock.patch.multiple(respond, _MOST_KEPT=KEPT, _MOST_FAMILIES=KEPT)


def made_responder() -> Responder:
    """Return a responder with these zones."""
    found = Responder(bytes(32), 0, lambda: 1e9)
    found.catalog = catalog()
    return found


class Packets:
    """Makes packets: questions of all forms, and what mutation makes of them and of bad ones."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._pool = [path.read_bytes() for path in sorted((DATA / "packets").glob("*.bin"))]
        names = {
            question for number in range(ZONES) for question, _ in generate(7, number).questions
        }
        self._names = [
            *sorted(names),
            "smart-app.test.",
            *INSIDE * 10,
            "example.org.",
            ".",
        ]

    def next(self) -> bytes:
        """Return a packet."""
        chance = self.chance
        packet = self._question() if chance.random() < 0.7 else chance.choice(self._pool)
        if chance.random() < 0.6:
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                packet = self._mutated(packet)
            # What has become of one packet is where the next begins.
            if chance.random() < 0.05:
                self._pool[chance.randrange(len(self._pool))] = packet[:4_000]
        return packet[:_LONGEST]

    def _question(self) -> bytes:
        chance = self.chance
        name = chance.choice(self._names)
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            label = chance.choice(
                ("a", "b", "*", "mail", f"n{chance.randrange(1 << 20)}", "x" * 63)
            )
            name = label + ("." + name if name != "." else ".")
        if chance.random() < 0.3:
            name = "".join(chance.choice((char.upper(), char.lower())) for char in name)
        rdtype = chance.choice(
            (1, 1, 2, 5, 6, 15, 16, 28, 39, 43, 255, 252, 65, chance.randrange(300))
        )
        try:
            query = dns.message.make_query(
                name, dns.rdatatype.RdataType(rdtype), id=chance.getrandbits(16)
            )
        except dns.exception.DNSException:
            return bytes(HEADER)
        query.flags = dns.flags.Flag(chance.choice((0, 0x100, 0x110, 0x20)))
        wire = query.to_wire()
        if chance.random() < 0.5:
            options = b"".join(chance.sample(_OPTIONS, chance.choice((0, 0, 1, 2))))
            payload = chance.choice((0, 512, 1232, 4096, 65_535)).to_bytes(2, "big")
            ttl = chance.choice((bytes(4), b"\0\0\x80\0", b"\0\1\0\0"))
            opt = b"\0\0\x29" + payload + ttl + len(options).to_bytes(2, "big") + options
            wire = wire[:11] + b"\1" + wire[12:] + opt
        return wire

    def _mutated(self, packet: bytes) -> bytes:
        chance = self.chance
        data = bytearray(packet or b"\0")
        at, other = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
        kind = chance.randrange(8)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.choice(_NUMBERS)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at:other]
        elif kind == 4:
            data[at:at] = data[at:other]
        elif kind == 5:
            data[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
        elif kind == 6:
            data[at:] = chance.choice(self._pool)[at:]
        else:
            place = chance.choice((4, 6, 8, 10))
            data[place : place + 2] = chance.choice((b"\0\0", b"\0\1", b"\0\2", b"\xff\xff"))
        return bytes(data)


def fault(packet: bytes, answer: bytes | None, *, udp: bool) -> str:
    """Return what is wrong with an answer, empty where nothing is."""
    if len(packet) < HEADER or packet[2] & 0x80:
        return "" if answer is None else "an answer to what is no query"
    if answer is None:
        return "no answer to a query"
    query = read(packet)
    assert query is not None, "a query was read before"
    most = 65_535
    if udp:
        most = PAYLOAD if query.edns is not None else 512
        if query.qtype == ANY and not query.error and query.edns is None:
            most = len(packet)
    if len(answer) > most:
        return f"{len(answer)} octets, and {most} are allowed"
    if answer[:2] != packet[:2] or not answer[2] & 0x80 or (answer[2] ^ packet[2]) & 0x78:
        return "another message's answer"
    try:
        # An UPDATE has other rules for what stands in it.
        message = dns.message.from_wire(answer[:2] + bytes((answer[2] & 0x87,)) + answer[3:])
    except dns.message.UnknownTSIGKey:
        return "" if query.tsig else "a signature that nobody asked for"
    except (dns.exception.DNSException, ValueError, IndexError) as error:
        return f"it cannot be read: {error!r}"
    if message.flags & (dns.flags.RA | dns.flags.AD):
        return "it speaks of recursion or validation"
    if message.rcode() == dns.rcode.REFUSED and message.flags & dns.flags.AA:
        return "refused with authority"
    if message.rcode() == dns.rcode.SERVFAIL:
        return "a fault of ours"
    return ""


def directly(responder: Responder, packet: bytes, client: str) -> str:
    """Ask a responder that was asked much before, and one that was not; returns a fault."""
    fresh = Responder(bytes(32), 0, lambda: 1e9)
    fresh.catalog = responder.catalog
    for udp in (True, False):
        try:
            wanted = (fresh.udp if udp else fresh.tcp)(packet, client)
            got = {(responder.udp if udp else responder.tcp)(packet, client) for _ in range(2)}
        except Exception:
            return traceback.format_exc()
        if got != {wanted}:
            return f"{got} depends on what was asked before; else {wanted!r}"
        if found := fault(packet, wanted, udp=udp):
            return f"{'UDP' if udp else 'TCP'}: {found}: {wanted!r}"
    return ""


# ---- over sockets ----


def allow_files() -> None:
    """Have as many files as may be: 1,000 connections are more than many a default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve() -> None:
    """Serve the zones at a free port, which is printed, until standard input ends."""
    allow_files()
    with keeping_little():
        made = Server(made_responder(), [bind("127.0.0.1", 0)])
        await made.start()
        print(made.addresses[0][1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await made.stop()


class Served:
    """A server in a process of its own."""

    def __init__(self) -> None:
        parent = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.dns_fuzz", "--serve"],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: die_with(parent),
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def memory(self) -> int:
        """Return the octets that the process has."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> str:
        """End it; returns what it had to complain of."""
        _, said = self.process.communicate(timeout=30)
        return said or (
            f"it ended with {self.process.returncode}" if self.process.returncode else ""
        )

    def over_udp(self, packets: Sequence[bytes]) -> str:
        """Send packets, then a question; returns a fault in what came back."""
        by_id: dict[bytes, list[bytes]] = {}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(2)
            client.connect(("127.0.0.1", self.port))
            for packet in packets:
                by_id.setdefault(packet[:2], []).append(packet)
                client.send(packet)
            for _ in range(10):  # where the system has dropped it
                client.send(_GOOD)
                with contextlib.suppress(TimeoutError):
                    while (answer := client.recv(65_535))[:HEADER] != _GOOD_ANSWER:
                        faults = [
                            fault(sent, answer, udp=True) for sent in by_id.get(answer[:2], [])
                        ]
                        if all(faults):
                            return f"{answer!r} to {by_id.get(answer[:2])}: {faults}"
                    return ""
        return "a good question is not answered"

    def silent(self) -> str:
        """Open as many connections as there may be, say nothing, and ask over UDP meanwhile."""
        allow_files()
        with contextlib.ExitStack() as stack:
            for number in range(SILENT):
                source = f"127.{number // _OF_NETWORK}.0.1", 0
                stack.enter_context(socket.create_connection(("127.0.0.1", self.port), 20, source))
            for _ in range(100):
                if found := self.over_udp([]):
                    return f"with {SILENT} silent connections {found}"
        return ""

    def over_tcp(self, packets: Sequence[bytes], chance: random.Random) -> str:
        """Send messages in pieces, some with a wrong length; returns a fault in what came back."""
        stream = b"".join(
            (len(packet) if chance.random() < 0.98 else chance.getrandbits(16)).to_bytes(2, "big")
            + packet
            for packet in packets
        )
        with socket.create_connection(("127.0.0.1", self.port), 20) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError):
                while stream:
                    size = chance.choice((1, 2, 3, 100, 1_000, 60_000))
                    client.sendall(stream[:size])
                    stream = stream[size:]
                client.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while piece := client.recv(65_536):
                    received += piece
            except ConnectionError:
                pass
            except TimeoutError:
                return "a connection is not closed that the client has closed"
        while len(received) > 2:
            end = 2 + int.from_bytes(received[:2], "big")
            if end <= len(received) and (end < 2 + HEADER or not received[4] & 0x80):
                return f"no answer: {received[:end]!r}"
            received = received[end:]
        return ""


def run(seconds: float, seed: int) -> Iterator[str]:
    """Fuzz for so long; walks the faults, and last the figures."""
    packets, responder, served = Packets(seed), made_responder(), Served()
    started = time.monotonic()
    count = 0
    height = settled = 0
    while (passed := time.monotonic() - started) < seconds:
        batch = [packets.next() for _ in range(BATCH)]
        count += len(batch)
        with keeping_little():
            for packet in batch:
                if found := directly(responder, packet, packets.chance.choice(CLIENTS)):
                    yield f"{packet!r}: {found}"
        for found in (
            served.over_udp(batch),
            served.over_tcp(batch[:40], packets.chance),
        ):
            if found:
                yield f"over sockets: {found}"
        if served.process.poll() is not None:
            break
        if passed > seconds / 3:
            settled = settled or served.memory()
            height = max(height, served.memory())
    if found := served.silent():
        yield found
    if said := served.end():
        yield f"the server says: {said[-4_000:]}"
    growth = height - settled
    if growth > MOST_GROWTH:
        yield f"memory grew by {growth >> 10} KiB, from {settled >> 10} KiB"
    print(f"{count} packets, each directly and over UDP, a fifth over TCP; memory of the server")
    print(f"{settled >> 10} KiB after a third of the time, {growth >> 10} KiB more later")


def main(argv: Sequence[str]) -> int:
    """Fuzz; 0 where nothing was found."""
    parser = argparse.ArgumentParser("dns_fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        asyncio.run(serve())
        return 0
    seed = random.SystemRandom().getrandbits(32) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    found = 0
    for text in run(args.seconds, seed):
        found += 1
        if found <= SHOWN:
            print(text, flush=True)
    print(f"{found} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
