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
from collections.abc import Callable
from typing import Any, cast

from smartgw_dns.catalog import Catalog
from smartgw_dns.rates import network
from smartgw_dns.respond import LATER, Responder

_MOST_PACKET = 4_096
"""Octets of a datagram that are read; a query that is longer is cut, and then malformed."""
_PACKETS_A_TURN = 64
_ODD_A_TURN = 2
"""Packets of other forms than the plain one, which take up to 3 ms each."""
_MESSAGES_A_TURN = 32
_OCTETS_A_TURN = 16_384
_LENGTH_BYTES = 2
_READ_BYTES = 16_384
_CONNECTIONS, _CONNECTIONS_OF_NETWORK = 1_000, 100
_IDLE_SECONDS = 10.0
_LEAST_IDLE_SECONDS = 1.0
"""Where there is no room for a new connection, one that was silent for so long gives way."""
_SWEEP_SECONDS = 1.0
_LATER_SECONDS = 0.1
"""Until a message is tried again that there was no time for."""
_BACKLOG = 256
_UDP_BUFFER = 4 << 20
# Of Linux; the first two have no names before Python 3.12 and 3.14.
_IP_PKTINFO, _IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_OMIT = 8, 10, 23, 5
_PKTINFO_ROOM = socket.CMSG_SPACE(20)
_ALL_ADDRESSES = frozenset(("0.0.0.0", "::"))
_Ancillary = list[tuple[int, int, bytes]]
_log = logging.getLogger(__name__)


class Counts:
    """What came and what was answered, since the start."""

    __slots__ = (
        "answered_tcp",
        "answered_udp",
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
            _prepare(datagram)
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


def _prepare(sock: socket.socket) -> None:
    """Have answers, which are small, never cut to a path MTU: whoever forges the ICMP message that
    says so would have the second fragment to forge as well.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UDP_BUFFER)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_OMIT)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_OMIT)


class Server:
    """Serves pairs of sockets from `bind`, which it owns from now on.

    Args:
        idle: seconds that a connection may be silent.
        connections: how many there may be.
    """

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
        # In the order of their deadlines, the longest silent first.
        self.connections: dict[_Connection, None] = {}
        self.of_network: Counter[str] = Counter()
        # Read and worked off at once, so one is enough for all connections.
        self.incoming = bytearray(_READ_BYTES)
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
            self._loop.add_reader(sock, _reader(sock, self.responder, self.counts))
        for sock in self._stream:
            self._listening.append(
                await self._loop.create_server(
                    lambda: _Connection(self), sock=sock, backlog=_BACKLOG
                )
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
            connection.end()
        for sock in self._stream:
            sock.close()
        # What was ended is closed in the next turn of the loop.
        await asyncio.sleep(0)

    def has_room(self, address: str) -> bool:
        """Say whether one more connection of an address may be held; makes room where it can."""
        if self.of_network[network(address)] >= _CONNECTIONS_OF_NETWORK:
            return False
        if len(self.connections) < self._most:
            return True
        oldest = next(iter(self.connections))
        if oldest.deadline - self.idle + _LEAST_IDLE_SECONDS > self.now():
            return False
        oldest.end()
        return True

    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def soon(self, work: Callable[[], None]) -> None:
        """Have something done after others had their turn."""
        self._loop.call_soon(work)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Have something done in a while."""
        self._loop.call_later(seconds, work)

    def _sweep(self) -> None:
        """End the connections that have been silent for too long."""
        self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        now = self.now()
        for connection in list(self.connections):
            if connection.deadline > now:
                break
            connection.end()


def _reader(sock: socket.socket, responder: Responder, counts: Counts) -> Callable[[], None]:
    """Return what answers the datagrams of a socket, but leaves others their turn."""
    receive, send = _ways(sock)
    respond = responder.udp

    def readable() -> None:
        most_odd = responder.odd + _ODD_A_TURN
        for _ in range(_PACKETS_A_TURN):
            if responder.odd >= most_odd:
                return
            try:
                packet, peer = receive(_MOST_PACKET)
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
                send(answer, peer)
                counts.answered_udp += 1
            except OSError:
                counts.unsent += 1

    return readable


def _ways(
    sock: socket.socket,
) -> tuple[Callable[[int], tuple[bytes, Any]], Callable[[bytes, Any], object]]:
    """Return how to receive from a socket (packet, whence: host and port first), and to answer.

    An answer has to come from where the question went to. The system sees to it where the socket
    has one address; where it has all, it has to be told, which costs a microsecond.
    """
    if sock.getsockname()[0] not in _ALL_ADDRESSES:
        return sock.recvfrom, sock.sendto
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)

    def receive(most: int) -> tuple[bytes, tuple[str, int, Any, _Ancillary]]:
        packet, told, _, peer = sock.recvmsg(most, _PKTINFO_ROOM)
        return packet, (peer[0], peer[1], peer, [_source(*one) for one in told])

    def send(answer: bytes, whence: tuple[str, int, Any, _Ancillary]) -> None:
        _, _, peer, source = whence
        sock.sendmsg((answer,), source, 0, peer)

    return receive, send


def _source(level: int, kind: int, info: bytes) -> tuple[int, int, bytes]:
    """Turn where a datagram came to (in_pktinfo, in6_pktinfo) into where its answer comes from.

    The interface is left to the system, as a way back may be another one.
    """
    if level == socket.IPPROTO_IP:
        return level, kind, bytes(4) + info[4:8] + bytes(4)
    return level, kind, info[:16] + bytes(4)


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection: messages with their length before them, answered in order."""

    __slots__ = (
        "_address",
        "_buffer",
        "_choked",
        "_later",
        "_paused",
        "_server",
        "deadline",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = b""
        self._choked = False
        self._later = False
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
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(_OCTETS_A_TURN)
        server.of_network[network(self._address)] += 1
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def end(self) -> None:
        """Close at once, without what was not yet taken."""
        self._forget()
        self.transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.incoming

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer += memoryview(self._server.incoming)[:nbytes]
        self._work()

    def eof_received(self) -> bool | None:
        # Whoever has only closed its sending side still gets its answers: there are no whole
        # messages left when this is read, and what was written is sent before it closes.
        return None

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        if self in self._server.connections:
            self._wait()
            self._work()

    def _wait(self) -> None:
        """Begin to be silent."""
        server = self._server
        server.connections.pop(self, None)
        server.connections[self] = None
        self.deadline = server.now() + server.idle

    def _forget(self) -> None:
        server = self._server
        if self not in server.connections:
            return
        del server.connections[self]
        name = network(self._address)
        server.of_network[name] -= 1
        if not server.of_network[name]:
            del server.of_network[name]

    def _work(self) -> None:
        """Answer whole messages, but leave others their turn, and take no more than is taken."""
        server = self._server
        if self not in server.connections:
            return
        answers: list[bytes] = []
        buffer, at, octets = self._buffer, 0, 0
        most_odd = server.responder.odd + _ODD_A_TURN
        later = False
        while end := _message_end(buffer, at):
            if self._choked or len(answers) == _MESSAGES_A_TURN or octets >= _OCTETS_A_TURN:
                break
            if server.responder.odd >= most_odd:
                break
            answer = server.responder.tcp(buffer[at + _LENGTH_BYTES : end], self._address)
            later = answer == LATER
            if later:
                break
            server.counts.queries_tcp += 1
            if answer is None:
                # Not one that speaks DNS: nothing that follows can be trusted.
                self.end()
                return
            answers.append(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)
            at, octets = end, octets + len(answer)
        self._buffer = buffer[at:]
        if answers:
            server.counts.answered_tcp += len(answers)
            self._wait()
            self.transport.write(b"".join(answers))
        if later:
            self._try_later()
        elif end and not self._choked:
            server.soon(self._work)
        self._hold(bool(end))

    def _try_later(self) -> None:
        if not self._later:
            self._later = True
            self._server.later(_LATER_SECONDS, self._again)

    def _again(self) -> None:
        self._later = False
        self._work()

    def _hold(self, hold: bool) -> None:
        """Take no more of the client for now, or take it again."""
        if hold != self._paused and not self.transport.is_closing():
            self._paused = hold
            if hold:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()


def _message_end(buffer: bytes, at: int) -> int:
    """Return where the message ends whose length stands at `at`; 0: it is not there as a whole."""
    begin = at + _LENGTH_BYTES
    end = begin + int.from_bytes(buffer[at:begin], "big")
    return end if begin <= end <= len(buffer) else 0
