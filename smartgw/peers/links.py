"""Keep-alive connections to the gateways of other clusters (contract 4.5).

Owns which gateway of a peer gets a request, how many connections each may have, who waits for one,
and what a new cluster list ends. Whether a peer is asked at all is the path's and failover.py's.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from smartgw.errors import Reason
from smartgw.peers import certificate
from smartgw.peers.directory import View
from smartgw.peers.opening import PeerOpening
from smartgw.proxy.dialler import ConnectFailed
from smartgw.proxy.exchange import Exchange
from smartgw.proxy.link import Link
from smartgw.proxy.pools import ANSWER_FOR, Pools
from smartgw.proxy.upstream import UpstreamConnection
from smartgw.routing.forwarding import Keyring
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.clusters import Cluster, Gateway

if TYPE_CHECKING:
    from smartgw.config import Settings

# A gateway that could not be reached is tried again in the background, so that no request waits
# for one that is still away.
_PROBE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class _Gate:
    """One gateway of a peer and the connections to it.

    `failing`: what is wrong with it, empty when nothing is known to be. `probed`: whether it is
    looked at again by itself; `probing`: right now. `dialling`: connections that are being opened
    for exchanges that wait.
    """

    __slots__ = ("connections", "dialling", "failing", "gateway", "idle", "probed", "probing")

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.probed = False
        self.probing = False
        self.connections: dict[UpstreamConnection, PeerOpening] = {}
        self.idle: list[UpstreamConnection] = []
        self.dialling = 0
        self.failing = ""

    @property
    def load(self) -> int:
        """How much is under way: a connection carries one request or tunnel at a time."""
        return len(self.connections) - len(self.idle) + self.dialling


class PeerLink(Link):
    """The connections to one peer cluster, for path.py as those to one host are."""

    __slots__ = ("_cluster", "_gates", "_homes", "_links", "_ring", "_waiting")

    def __init__(self, links: "PeerLinks", cluster: Cluster, ring: Keyring) -> None:
        super().__init__(cluster_id=cluster.id)
        self._links = links
        self._cluster = cluster
        self._ring = ring
        self._gates = [_Gate(gateway) for gateway in cluster.gateways]
        self._homes: dict[UpstreamConnection, _Gate] = {}
        # With how many connections that could not be opened for it.
        self._waiting: dict[Exchange, int] = {}

    # ---- what path.py calls ----

    def take(self, exchange: Exchange) -> UpstreamConnection | None:
        gates = self._gates
        if len(gates) == 1:
            connection = self._free(gates[0], exchange)
        else:
            one, other = self._two()
            connection = self._free(one, exchange) or self._free(other, exchange)
        if connection is None:
            self._waiting[exchange] = 0
            self._dial()
        return connection

    def done(self, exchange: Exchange) -> None:
        self.outstanding -= 1
        self._waiting.pop(exchange, None)

    def is_opening(self) -> bool:
        return any(gate.dialling for gate in self._gates)

    # ---- what upstream.py calls ----

    def release(self, connection: UpstreamConnection) -> None:
        links, gate = self._links, self._homes[connection]
        if gate not in self._gates:
            connection.close()  # its gateway or its key is not on the list any more
            return
        for exchange in self._waiting:
            if connection.alive(exchange.request.method, links.loop.time()):
                del self._waiting[exchange]
                links.pools.path.carry(exchange, connection)
            else:
                self._dial()
            return
        kept = gate.connections[connection].kept
        connection.deadline = connection.idle_since + min(links.pools.idle, kept)
        gate.idle.append(connection)
        if links.pools.wanting:
            links.pools.freed()

    def lost(self, connection: UpstreamConnection) -> None:
        gate = self._homes.pop(connection, None)
        if gate is None:
            return
        del gate.connections[connection]
        if connection in gate.idle:
            gate.idle.remove(connection)
        if self._waiting:
            self._dial()

    def broke(self, connection: UpstreamConnection) -> None:
        # Behind a head it is the app's answer that broke off, and a gateway can show it only so.
        if connection.head is None:
            gate = self._homes[connection]
            self._fails(gate, "ended a connection that it had just opened")

    # ---- what pools.py calls ----

    def wants_one(self) -> bool:
        dialling = sum(gate.dialling for gate in self._gates)
        return dialling < len(self._waiting) and bool(self._with_room())

    def open_one(self) -> None:
        gates = self._with_room()
        gate = min(gates, key=lambda gate: (bool(gate.failing), gate.load, random.random()))
        gate.dialling += 1
        self._open_at(gate)

    def _with_room(self) -> list[_Gate]:
        """Return the gateways to which one more connection may be opened."""
        most = self._links.most
        return [gate for gate in self._gates if len(gate.connections) + gate.dialling < most]

    # ---- which gateway, and which connection ----

    def _two(self) -> tuple[_Gate, _Gate]:
        """Return two gateways to try: failing ones last, then whichever has less to do."""
        gates = self._gates
        sound = [gate for gate in gates if not gate.failing]
        if len(sound) == 1:
            return sound[0], random.choice([gate for gate in gates if gate.failing])
        one, other = random.sample(sound or gates, 2)
        return (one, other) if one.load <= other.load else (other, one)

    def _free(self, gate: _Gate, exchange: Exchange) -> UpstreamConnection | None:
        idle = gate.idle
        while idle:
            connection = idle.pop()
            if connection.alive(exchange.request.method, self._links.loop.time()):
                return connection
        return None

    def _dial(self) -> None:
        """Open one more connection, if one waits for whom none is being opened."""
        if not self.wants_one():
            return
        pools = self._links.pools
        if pools.make_room():
            self.open_one()
        elif self._homes or self.is_opening():
            pools.wanting[self] = None
        else:
            # Nothing of this peer is open whose end could serve those who wait.
            self._turn_away(Reason.OVERLOADED)

    def _open_at(self, gate: _Gate, *, probe: bool = False) -> None:
        self._links.pools.dialling += 1
        self._links.pools.spawn(self._open(gate, probe))

    async def _open(self, gate: _Gate, probe: bool) -> None:
        links = self._links
        opening = PeerOpening(self._cluster, gate.gateway, self._ring, links.loop)
        verdict = Verdict(Proof.UNREACHABLE, "the attempt was given up")
        connection = None
        try:
            tls = None if self._cluster.plain else links.tls
            connection = await links.pools.dialler.dial_gateway(gate.gateway, tls, opening, opening)
            verdict = Verdict(Proof.NO_KEEPALIVE, "closed after its opening")
        except ConnectFailed as failed:
            verdict = failed.verdict
        finally:
            if probe:
                gate.probing = False
            else:
                gate.dialling -= 1
            links.pools.dialling -= 1
            if self._outdated(gate, opening):
                if connection is not None:
                    connection.close()
                self._dial()
            elif connection is not None and connection.alive(b"POST", 0.0):
                self._adopt(gate, connection, opening)
            else:
                self._doubt(gate, verdict)
                if not probe:
                    self._tell_one(verdict)
            links.pools.freed()

    def _outdated(self, gate: _Gate, opening: PeerOpening) -> bool:
        """Say whether the list has changed while a connection was being opened."""
        key = opening.key
        if key is not None and key not in self._ring.offers(self.cluster_id):
            return True
        return gate not in self._gates

    def _adopt(self, gate: _Gate, connection: UpstreamConnection, opening: PeerOpening) -> None:
        if gate.failing:
            gate.failing = ""
            _log.info("%s of cluster %s is there again", gate.gateway.url, self.cluster_id)
        self._links.pools.path.counters.links_opened += 1
        connection.link = self
        gate.connections[connection] = opening
        self._homes[connection] = gate
        self._links.pools.deadlines.add(connection)
        self.release(connection)

    def _tell_one(self, verdict: Verdict) -> None:
        """A connection could not be opened: one of those who wait goes to another gateway, or
        learns it when there is none left.
        """
        for exchange, failures in self._waiting.items():
            if failures + 1 < len(self._gates):
                self._waiting[exchange] = failures + 1
            else:
                del self._waiting[exchange]
                self._links.pools.path.attempt_failed(exchange, ANSWER_FOR[verdict.reason])
            break
        if self._waiting:
            self._dial()

    def _doubt(self, gate: _Gate, verdict: Verdict) -> None:
        self._links.pools.path.counters.link_failures[verdict.reason] += 1
        self._fails(gate, f"{verdict.reason.value} ({verdict.detail})")

    def _fails(self, gate: _Gate, why: str) -> None:
        if not gate.failing:
            _log.warning("%s of cluster %s: %s", gate.gateway.url, self.cluster_id, why)
        gate.failing = why
        if not gate.probed:
            gate.probed = True
            self._links.loop.call_later(_PROBE_SECONDS, self._probe, gate)

    def _probe(self, gate: _Gate) -> None:
        """See whether a gateway that failed is there again; until it is, or is off the list."""
        gate.probed = bool(gate.failing) and gate in self._gates
        if not gate.probed:
            return
        self._links.loop.call_later(_PROBE_SECONDS, self._probe, gate)
        if not gate.dialling and not gate.probing and self._links.pools.make_room():
            gate.probing = True
            self._open_at(gate, probe=True)

    def _turn_away(self, reason: Reason) -> None:
        """Nothing was sent for those who wait: they go on elsewhere, if there is an elsewhere."""
        waiting, self._waiting = self._waiting, {}
        for exchange in waiting:
            self._links.pools.path.attempt_failed(exchange, reason)

    # ---- changes of the list ----

    def follow(self, cluster: Cluster, ring: Keyring) -> None:
        """Go by another list: connections to who is not on it, or by keys that are not, take no
        further request. What they carry goes on.
        """
        self._cluster, self._ring = cluster, ring
        before = {gate.gateway: gate for gate in self._gates}
        self._gates = [before.get(gateway) or _Gate(gateway) for gateway in cluster.gateways]
        for gate in before.values():
            if gate not in self._gates:
                self._retire(gate, list(gate.connections))
        good = set(ring.offers(cluster.id))
        for gate in self._gates:
            self._retire(
                gate, [c for c, opening in gate.connections.items() if opening.key not in good]
            )
        if self._waiting:
            self._dial()

    def retire(self) -> None:
        """The peer is not on the list any more: nobody is sent there from now on."""
        before, self._gates = self._gates, []
        for gate in before:
            self._retire(gate, list(gate.connections))
        self._turn_away(Reason.NO_UPSTREAM)

    def _retire(self, gate: _Gate, connections: list[UpstreamConnection]) -> None:
        gone = _Gate(gate.gateway)
        for connection in connections:
            self._homes[connection] = gone
            gone.connections[connection] = gate.connections.pop(connection)
            if connection in gate.idle:
                gate.idle.remove(connection)
                connection.close()

    def close_idle(self) -> bool:
        """End the connection that has been idle longest; False when there is none."""
        gate = next((gate for gate in self._gates if gate.idle), None)
        if gate is None:
            return False
        connection = gate.idle.pop(0)
        del gate.connections[connection], self._homes[connection]
        connection.close()
        return True

    def cut(self) -> None:
        """End every connection, with what it carries."""
        for connection in list(self._homes):
            connection.cut()


class PeerLinks:
    """The links of this process to all peers of the cluster list in force."""

    def __init__(self, settings: "Settings", loop: asyncio.AbstractEventLoop, pools: Pools) -> None:
        self.loop = loop
        self.pools = pools
        self._links: dict[str, PeerLink] = {}
        self._peers: Mapping[str, Cluster] = {}
        self._ring: Keyring | None = None
        self._tls: ssl.SSLContext | None = None
        pools.more_idle = self._close_idle
        self.configure(settings)

    def configure(self, settings: "Settings") -> None:
        """Put settings in force for the connections that are opened from now on."""
        self.most = settings.upstream.connections_per_host

    @property
    def tls(self) -> ssl.SSLContext:
        """How links are opened to gateways that are not plain."""
        if self._tls is None:
            self._tls = certificate.sending()
        return self._tls

    def link(self, cluster_id: str) -> PeerLink | None:
        """Return the link to a peer; None: the list of now does not have it, whatever an older
        view says, or has no key that both sides hold.
        """
        link = self._links.get(cluster_id)
        if link is None:
            cluster, ring = self._peers.get(cluster_id), self._ring
            if cluster is not None and ring is not None and ring.offers(cluster_id):
                link = self._links[cluster_id] = PeerLink(self, cluster, ring)
        return link

    def follow(self, view: View, ring: Keyring) -> None:
        """Go by another view of the clusters; `ring` holds the keys of its list."""
        self._peers, self._ring = view.peers, ring
        for cluster_id, link in list(self._links.items()):
            cluster = view.peers.get(cluster_id)
            if cluster is None or not ring.offers(cluster_id):
                del self._links[cluster_id]
                link.retire()
            else:
                link.follow(cluster, ring)

    def close(self) -> None:
        """End all links."""
        links, self._links, self._peers = self._links, {}, {}
        for link in links.values():
            link.retire()
            link.cut()

    def _close_idle(self) -> bool:
        return any(link.close_idle() for link in self._links.values())
