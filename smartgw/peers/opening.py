"""One connection to a peer's gateway: it is opened, then its requests are marked (contract 4.5).

Owns what is said on it that hosts are not told: the question of the link's opening, the proof that
it demands, and the head of a forward. Which connection is used is links.py's, what a mark holds
routing/forwarding.py's.
"""

import asyncio
import os
import ssl

from smartgw.peers.certificate import key_of
from smartgw.proxy import headers
from smartgw.proxy.exchange import Exchange
from smartgw.routing.forwarding import MAX_REMAINING_MS, NONCE_BYTES, Keyring, Sealer
from smartgw.routing.link_opening import PATH, Opened, opened, question
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.clusters import Cluster, Gateway

# The receiver ends a connection that nothing has come on for as long as it says. Ours ends before,
# with time for a request that is on its way.
_PART_OF_KEPT = 0.8


class PeerOpening:
    """See `smartgw.proxy.upstream.Opening` and `Marking`.

    Attributes:
        link: what the opening gave, None before.
        kept: seconds that the connection may be unused.
    """

    __slots__ = (
        "_cluster",
        "_counter",
        "_gateway",
        "_loop",
        "_nonce",
        "_offset_ms",
        "_ring",
        "_sealer",
        "kept",
        "link",
    )

    def __init__(
        self,
        cluster: Cluster,
        gateway: Gateway,
        ring: Keyring,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._cluster = cluster
        self._gateway = gateway
        self._ring = ring
        self._loop = loop
        self._nonce = os.urandom(NONCE_BYTES)
        self._counter = 0
        self._offset_ms = 0
        self.kept = 0.0
        self.link: Opened | None = None
        self._sealer: Sealer | None = None

    def question(self, transport: asyncio.Transport) -> bytes | Verdict:
        """Ask nothing of whom TLS shows to be somebody else."""
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        if tls is not None and key_of(tls) not in self._cluster.keys:
            return Verdict(
                Proof.BAD_SIGNATURE, "speaks TLS with a key that the directory does not list"
            )
        value = question(self._ring, self._cluster.id, self._nonce)
        if value is None:
            return Verdict(Proof.REFUSED, "the directory lists no key of this peer")
        gateway = self._gateway
        host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
        return (
            b"POST %b HTTP/1.1\r\nHost: %b:%d\r\nx-smartgw-link: %b\r\nContent-Length: 0\r\n\r\n"
        ) % (PATH, host.encode(), gateway.port, value)

    def judge(self, status: int, body: bytes) -> Verdict:
        if status != 200:
            hint = ": it does not list our key, or does not know the directory yet"
            return Verdict(Proof.BAD_STATUS, f"status {status}{hint if status == 404 else ''}")
        found = opened(body.strip(), self._ring, self._cluster.id, self._nonce)
        if not isinstance(found, Opened):
            return Verdict(Proof.BAD_SIGNATURE, f"does not prove its cluster's key: {found.value}")
        self.link = found
        self._sealer = Sealer(found.key, found.nonce)
        self.kept = found.kept * _PART_OF_KEPT
        self._offset_ms = found.time_ms - int(self._loop.time() * 1000)
        return Verdict(Proof.OK)

    @property
    def key(self) -> bytes | None:
        """The id of the key that both sides have proven; None before."""
        return None if self.link is None else self.link.key.key_id

    def head(self, exchange: Exchange) -> bytes:
        sealer, request, view = self._sealer, exchange.request, exchange.view
        route, kind = exchange.route, exchange.forward
        assert sealer is not None, "nothing is carried before the opening"
        assert route is not None, "only what has a route is carried"
        assert kind is not None, "the path says why it goes to a peer"
        assert view is not None, "only a list names peers"
        assert view.clusters is not None, "only a list names peers"
        now = self._loop.time()
        left = int((exchange.until - now) * 1000)
        self._counter += 1
        sealed = sealer.seal(
            kind,
            exchange.downstream.caller_scheme(request),
            view.clusters.epoch,
            exchange.client,
            route.app_id,
            int(now * 1000) + self._offset_ms,
            max(0, min(left, MAX_REMAINING_MS)),
            self._counter,
            request.method,
            request.authority,
            request.target,
        )
        return headers.forward_head(
            request, sealed, exchange.forwarding, exchange.request_id, exchange.upgrade
        )
