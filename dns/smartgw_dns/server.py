"""The zones on the wire: sockets for UDP and TCP, and what becomes of the packets on them.

Owns how many packets are worked off in a turn of the loop, how many TCP connections there may be
and how long each may be silent (RFC 7766). What is answered is respond.py's. Several processes
serve one address, each with sockets of its own (SO_REUSEPORT).
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from typing import cast

from smartgw_dns.catalog import Catalog
from smartgw_dns.rates import network
from smartgw_dns.respond import Responder

_MOST_PACKET = 4_096
"""Octets of a datagram that are read; a query that is longer is cut, and then malformed."""
_PACKETS_A_TURN = 64
_MESSAGES_A_TURN = 32
_LENGTH_BYTES = 2
_BUFFERED = 65_536 + _LENGTH_BYTES
_CONNECTIONS, _CONNECTIONS_OF_NETWORK = 1_000, 100
_IDLE_SECONDS = 10.0
_SWEEP_SECONDS = 1.0
_BACKLOG = 256
_UDP_BUFFER = 4 << 20
_log = logging.getLogger(__name__)


class Counts:
    """What came and what was answered, since the start."""

    __slots__ = (
        "answered_tcp",
        "answered_udp",
        "connections",
        "queries_tcp",
        "queries_udp",
        "turned_away",
        "unsent",
    )

    def __init__(self) -> None:
        self.queries_udp = 0
        self.queries_tcp = 0
        self.answered_udp = 0
        self.answered_tcp = 0
        self.connections = 0
        self.turned_away = 0
        self.unsent = 0


def bind(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return sockets for UDP and TCP at one address and port; port 0: a free one of both.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(16):
        stream = socket.socket(family, socket.SOCK_STREAM)
        datagram = socket.socket(family, socket.SOCK_DGRAM)
        try:
            for sock in (stream, datagram):
                sock.setblocking(False)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            datagram.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UDP_BUFFER)
            stream.bind((host, port))
            datagram.bind((host, stream.getsockname()[1]))
            stream.listen(_BACKLOG)
        except OSError:
            stream.close()
            datagram.close()
            if port:
                raise
            continue
        return datagram, stream
    raise OSError(f"no port of {host} is free for UDP and TCP")


class Server:
    """Serves pairs of sockets from `bind`, which it owns from now on."""

    def __init__(
        self,
        responder: Responder,
        sockets: list[tuple[socket.socket, socket.socket]],
        *,
        idle: float = _IDLE_SECONDS,
        connections: int = _CONNECTIONS,
    ) -> None:
        self.responder = responder
        self.counts = Counts()
        self.idle = idle
        self.connections: set[_Connection] = set()
        self.of_network: Counter[str] = Counter()
        self._most = connections
        self._datagram = [pair[0] for pair in sockets]
        self._stream = [pair[1] for pair in sockets]
        self._listening: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where it serves."""
        return [sock.getsockname()[:2] for sock in self._datagram]

    def follow(self, catalog: Catalog) -> None:
        """Put these zones in force."""
        self.responder.catalog = catalog

    async def start(self) -> None:
        """Begin to serve."""
        self._loop = asyncio.get_running_loop()
        for sock in self._datagram:
            self._loop.add_reader(sock, self._readable, sock)
        for sock in self._stream:
            self._listening.append(
                await self._loop.create_server(lambda: _Connection(self), sock=sock)
            )
        self._sweep()

    async def stop(self) -> None:
        """End everything; safe after a failed start."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for sock in self._datagram:
            with contextlib.suppress(AttributeError):
                self._loop.remove_reader(sock)
            sock.close()
        for server in self._listening:
            server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        for sock in self._stream:
            sock.close()

    def has_room(self, address: str) -> bool:
        """Say whether one more connection of an address may be held."""
        return (
            len(self.connections) < self._most
            and self.of_network[network(address)] < _CONNECTIONS_OF_NETWORK
        )

    def _readable(self, sock: socket.socket) -> None:
        """Answer datagrams, but leave others their turn."""
        counts, respond = self.counts, self.responder.udp
        for _ in range(_PACKETS_A_TURN):
            try:
                packet, peer = sock.recvfrom(_MOST_PACKET)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # An ICMP error of an earlier answer, which says nothing of this socket.
                _log.debug("DNS over UDP: %s", error)
                return
            counts.queries_udp += 1
            if not peer[1]:
                continue  # nobody can be reached at port 0
            answer = respond(packet, peer[0])
            if answer is None:
                continue
            try:
                sock.sendto(answer, peer)
                counts.answered_udp += 1
            except OSError:
                counts.unsent += 1

    def _sweep(self) -> None:
        """End the connections that have been silent for too long."""
        self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        now = self._loop.time()
        for connection in [one for one in self.connections if one.deadline <= now]:
            connection.transport.abort()


class _Connection(asyncio.Protocol):
    """One TCP connection: messages with their length before them, answered in order."""

    __slots__ = ("_address", "_buffer", "_choked", "_paused", "_server", "deadline", "transport")

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = b""
        self._choked = False
        self._paused = False
        self._address = ""
        self.deadline = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        peer = self.transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        server = self._server
        if not server.has_room(self._address):
            server.counts.turned_away += 1
            self._address = ""
            self.transport.abort()
            return
        server.counts.connections += 1
        server.connections.add(self)
        server.of_network[network(self._address)] += 1
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        server = self._server
        if self in server.connections:
            server.connections.discard(self)
            name = network(self._address)
            server.of_network[name] -= 1
            if not server.of_network[name]:
                del server.of_network[name]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._work()

    def eof_received(self) -> bool | None:
        # Whoever has only closed its sending side still gets its answers.
        return None

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self._wait()
        self._work()

    def _wait(self) -> None:
        self.deadline = self._server._loop.time() + self._server.idle

    def _work(self) -> None:
        """Answer whole messages, but leave others their turn, and take no more than is taken."""
        answers = []
        buffer, at, taken = self._buffer, 0, 0
        while not self._choked and taken < _MESSAGES_A_TURN:
            end = at + _LENGTH_BYTES + int.from_bytes(buffer[at : at + _LENGTH_BYTES], "big")
            if len(buffer) - at < _LENGTH_BYTES or len(buffer) < end:
                break
            packet = buffer[at + _LENGTH_BYTES : end]
            at, taken = end, taken + 1
            self._server.counts.queries_tcp += 1
            answer = self._server.responder.tcp(packet, self._address)
            if answer is None:
                # Not one that speaks DNS: nothing that follows can be trusted.
                self.transport.abort()
                return
            answers.append(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)
        self._buffer = buffer[at:]
        if answers:
            self._server.counts.answered_tcp += len(answers)
            self._wait()
            self.transport.write(b"".join(answers))
        more = taken == _MESSAGES_A_TURN
        if more and not self._choked:
            self._server._loop.call_soon(self._work)
        self._hold(more or self._choked or len(self._buffer) > _BUFFERED)

    def _hold(self, hold: bool) -> None:
        """Take no more of the client for now, or take it again."""
        if hold != self._paused and not self.transport.is_closing():
            self._paused = hold
            if hold:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
