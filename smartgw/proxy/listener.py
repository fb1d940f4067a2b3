"""Who may connect: how many connections there may be, and how many of them from one address.

Owns the bounds on connections (contract 3.11) and the set of those that are open. The sockets are
doors.py's, what a connection says is downstream.py's.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from smartgw import memory
from smartgw.admission.sharing import Pressure, connection_limits, holder_of, may_have_more
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.doors import Doors, nearly_full
from smartgw.proxy.downstream import Http1Downstream
from smartgw.proxy.headers import Forwarding, bounds_on_link
from smartgw.proxy.marks import Marks
from smartgw.proxy.path import Path
from smartgw.proxy.preface import ProxyPreface
from smartgw.proxy.tunnel import Tunnel
from smartgw_hosts.http1 import Bounds

if TYPE_CHECKING:
    from smartgw.config import Settings
    from smartgw.proxy.upstream import UpstreamConnection

# Hundreds of connections come within such a time, and each may hold a whole head.
_MEMORY_INTERVAL, _MEMORY_NEAR_INTERVAL = 0.1, 0.02
_GIVE_BACK_INTERVAL = 0.5

_log = logging.getLogger(__name__)


class Listening:
    """What all downstream connections of this process share."""

    def __init__(
        self,
        settings: "Settings",
        path: Path,
        loop: asyncio.AbstractEventLoop,
        watch: Deadlines,
        bounds: Bounds,
    ) -> None:
        self.path = path
        self.turn = path.turn
        self.loop = loop
        self.watch = watch
        self.bounds = bounds
        self.link_bounds = bounds_on_link(bounds)
        self.marks = Marks(loop, path.counters)
        self.retiring = False
        """Whether each answer says `Connection: close` (contract 11.1)."""
        self.tunnels: set[Tunnel] = set()
        self._protocol = ProxyPreface if settings.listen.proxy_protocol else Http1Downstream
        self._memory_timer: asyncio.TimerHandle | None = None
        self._give_back_at = 0.0
        self.prefaces: set[ProxyPreface] = set()
        """Connections whose PROXY header has not come yet."""
        self._by_holder: dict[str, int] = {}
        self._open: set[Http1Downstream] = set()
        self._doors = Doors(loop)
        self.configure(settings)

    def configure(self, settings: "Settings") -> None:
        """Put settings in force; a request keeps the deadlines that it has already."""
        self.deadlines = settings.deadlines
        self.forwarding = Forwarding(settings.cluster, settings.proxy.trusted)
        self._per_address = settings.limits.connections_per_address
        self._alone = settings.processes.workers == 1
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._in_all, upstream = connection_limits(files, settings.limits.connections)
        self.path.pools.allow(upstream)
        mib = settings.limits.memory_mib
        self._pressure = Pressure(mib << 20 if mib is not None else memory.limit())

    async def listen(self, sockets: Iterable[socket.socket]) -> None:
        """Accept clients on sockets that are bound already; they stay the caller's."""
        await self._serve(sockets, lambda: self._protocol(self, b"http"), None)

    async def listen_to_peers(self, sockets: Iterable[socket.socket], tls: ssl.SSLContext) -> None:
        """Accept links of peers' gateways on sockets of their own; who marks nothing is a client
        there as well.
        """
        await self._serve(sockets, lambda: Http1Downstream(self, b"https"), tls)

    async def _serve(
        self,
        sockets: Iterable[socket.socket],
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        if self._memory_timer is None:
            self._look_at_memory()
        await self._doors.add(sockets, make, tls, self.deadlines.head)

    def unlisten(self) -> None:
        """Accept nobody any more. Who waits in the sockets' queues is for who else has them."""
        self._doors.close()

    def has_place(self) -> bool:
        """Say whether one more connection may be open at all."""
        held = len(self._open) + len(self.prefaces)
        return held < self._in_all and not self._pressure.high

    def admit(self, downstream: Http1Downstream) -> bool:
        """Count a new connection in, or say that it is one too many."""
        counters = self.path.counters
        counters.connections_total += 1
        holder = holder_of(downstream.peer)
        held = self._by_holder.get(holder, 0)
        fair = held < self._per_address and may_have_more(self._in_all, len(self._open), held)
        if not self.has_place() or not (fair or downstream.trusted):
            counters.connections_refused += 1
            return False
        self._by_holder[holder] = held + 1
        self._open.add(downstream)
        self.watch.add(downstream)
        counters.connections += 1
        if not self._alone and nearly_full(len(self._open), self._in_all):
            self._doors.step_aside()
        return True

    def new_tunnel(
        self, downstream: Http1Downstream, upstream: "UpstreamConnection", *, websocket: bool
    ) -> Tunnel:
        """Return a tunnel for these two, which are its now to watch and to end."""
        tunnel = Tunnel(
            self.loop,
            self.watch,
            self.deadlines.websocket,
            (lambda: self.dismiss(downstream), upstream.dismissed),
            self._tunnel_ended,
            websocket=websocket,
        )
        self.path.counters.tunnels += 1
        self.tunnels.add(tunnel)
        self.watch.discard(downstream)
        return tunnel

    def _tunnel_ended(self, tunnel: Tunnel) -> None:
        self.tunnels.discard(tunnel)
        self.path.counters.tunnels -= 1

    def dismiss(self, downstream: Http1Downstream) -> None:
        """Count a connection out; no harm if it was not admitted."""
        self.watch.discard(downstream)
        if downstream not in self._open:
            return
        self._open.discard(downstream)
        self.path.counters.connections -= 1
        if not downstream.vouched:
            self.vouch(downstream.peer)

    def vouch(self, address: str) -> None:
        """Count one connection less for an address: it has ended, or is a link of a peer, which
        stands for many clients and has proven it.
        """
        holder = holder_of(address)
        held = self._by_holder[holder] - 1
        if held:
            self._by_holder[holder] = held
        else:
            del self._by_holder[holder]

    @property
    def accepting(self) -> bool:
        """Whether new clients are taken."""
        return self._doors.open

    def send_away(self) -> None:
        """Close connections that carry nothing; tell WebSockets that we are going away."""
        for downstream in list(self._open):
            downstream.close_idle()
        for tunnel in list(self.tunnels):
            tunnel.go_away()

    def cut(self) -> None:
        """End every connection that is still open."""
        for preface in list(self.prefaces):
            preface.transport.abort()
        for downstream in list(self._open):
            downstream.transport.abort()

    def close(self) -> None:
        """Accept nobody and end everything."""
        if self._memory_timer is not None:
            self._memory_timer.cancel()
        self.unlisten()
        self.cut()

    def _look_at_memory(self) -> None:
        pressure = self._pressure
        interval = _MEMORY_NEAR_INTERVAL if pressure.near else _MEMORY_INTERVAL
        # First of all: whatever fails below for want of memory is looked at again.
        self._memory_timer = self.loop.call_later(interval, self._look_at_memory)
        before, now = pressure.high, self.loop.time()
        high = pressure.look(memory.resident())
        if high and now >= self._give_back_at:
            self._give_back_at = now + _GIVE_BACK_INTERVAL
            memory.give_back()
        self.path.shedding = pressure.higher
        if high != before:
            _log.warning(
                "memory is short: new connections are answered 503"
                if high
                else "memory is no longer short"
            )
