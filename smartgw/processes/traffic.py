"""The data path of one process: clients, routes, hosts and the access log, as one thing.

Owns how its parts fit together. What the routes are, and when it drains, it is told: by the
gateway that it is part of (app.py) or over a channel (worker.py).
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from smartgw import memory
from smartgw.accesslog import AccessLog
from smartgw.admission.meter import Meter
from smartgw.admission.shared_counters import SharedCounters
from smartgw.config import Settings
from smartgw.peers import certificate
from smartgw.peers.directory import View
from smartgw.peers.links import PeerLinks
from smartgw.peers.whereabouts import Whereabouts
from smartgw.processes.drain import Step
from smartgw.processes.sockets import LINKS, Listener
from smartgw.proxy.counters import Counters
from smartgw.proxy.deadlines import Deadlines
from smartgw.proxy.dialler import UNIX
from smartgw.proxy.explain import Explanation, Question
from smartgw.proxy.listener import Listening
from smartgw.proxy.path import Path
from smartgw.proxy.pools import Pools
from smartgw.routing.forwarding import Keyring
from smartgw.routing.snapshot import HostEntry, Route, Snapshot
from smartgw.routing.table import AppUpdate, HostUpdate, RoutingTable
from smartgw.state.desired import Desired
from smartgw.wiring import identity_of, store_places
from smartgw_hosts.http1 import Bounds

Endpoints = frozenset[tuple[str, int]]

_SLICE, _FIRST_SLICE = 0.001, 0.01
"""Seconds of a large change of apps before requests have as long, and of the first."""


class Traffic:
    """Make it in the loop that it runs in, `start`, tell it of hosts and apps, then `accept`.

    `listeners`: to take clients from; closed when the drain is final. `own`: where gateway
    listeners are, which are never dialled (2.5). `api`: path of the Unix socket of the gateway's
    own API, None without one. `on_suspect`: called with the id of a host that could not be
    reached. `on_stale`: called when somebody knows of a newer list of clusters (4.8).
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Sequence[Listener],
        own: Endpoints,
        api: str | None,
        on_suspect: Callable[[str], None],
        on_stale: Callable[[], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.counters = Counters()
        self.log = AccessLog(settings.log.access)
        self._bounds = Bounds()
        self._watch = Deadlines(loop, _shortest(settings))
        self.pools = Pools(settings, loop, self._watch, self._bounds, on_suspect)
        self._own = own
        self.pools.dialler.avoid(own, frozenset())
        self._path = Path(settings, self.pools, self.counters, self.log, _own_route(api))
        self._path.ask_for_clusters = on_stale
        self.pools.path = self._path
        self._listening = Listening(settings, self._path, loop, self._watch, self._bounds)
        self._settings = settings
        self._cluster = settings.cluster
        self._identity = identity_of(settings)
        self._ring: Keyring | None = None
        self._links = self._path.peers = PeerLinks(settings, loop, self.pools)
        self._tls: ssl.SSLContext | None = None
        self._whereabouts = Whereabouts(self._gateways_are_at)
        self._table = RoutingTable(
            settings.base_domains,
            settings.hostnames,
            # Which of them are suspended is not known yet where there is a state to be read.
            announced=settings.state.bucket is None,
        )
        self._announced = settings.apps == "announced"
        self._settled = settings.state.bucket is None
        self._desired = Desired()
        self._due: dict[str, None] = {}
        self._settling = memory.Settling()
        self._registering: asyncio.TimerHandle | None = None
        self._apps: Collection[str] = ()
        self._complete = False
        self._listeners = listeners
        self._bound(settings)
        self._publish(self._table.snapshot)

    def start(self) -> None:
        """Begin to watch deadlines, to write the log and to look for the store of the counters.
        OSError: the log cannot be opened, or a file of the store not be read.
        """
        self.log.start()
        self._watch.start()
        settings, places = self._settings, store_places(self._settings)
        store = None
        if places is not None:
            budget, term = settings.store.budget, settings.rates.window
            store = SharedCounters(places, settings.cluster, budget, term, self.counters)
        self._path.limits.start(store)
        memory.keep_for_traffic()

    @property
    def meter(self) -> Meter:
        """Charges budgets where this process counts (contract 6.6)."""
        return self._path.limits.meter

    async def accept(self) -> None:
        """Take clients from now on."""
        listening = self._listening
        if listening.accepting:
            return
        # So that nobody is counted apart for the milliseconds that it takes.
        await self._path.limits.store_tried()
        await listening.listen(one.socket for one in self._listeners if one.name != LINKS)
        links = [one.socket for one in self._listeners if one.name == LINKS]
        if links and self._identity is not None:
            if self._tls is None:
                self._tls = certificate.receiving(self._identity, self._cluster)
            await listening.listen_to_peers(links, self._tls)

    # ---- the table ----

    @property
    def snapshot(self) -> Snapshot:
        """The table that requests are carried by now."""
        return self._path.snapshot

    @property
    def settled(self) -> bool:
        """Whether the registered apps are in force, as far as they are known."""
        return self._settled and self._registering is None

    @property
    def complete(self) -> bool:
        """Whether a hostname that has no route is unknown, and not merely unheard of."""
        return self._table.snapshot.complete

    def write_out(self) -> None:
        """Write what requests and answers wait to have written, before work of another kind."""
        self._path.turn.end()

    def apply(self, updates: Sequence[HostUpdate], removed: Sequence[str]) -> None:
        """Take in changed and removed hosts."""
        self.write_out()
        self._publish(self._table.apply(updates, removed))
        for host_id in removed:
            # Nobody will hear of it any more, not even that it lost its enrolment (1.4).
            self.pools.follow(host_id, None, cut=True)
        for host in updates:
            self.pools.follow(host.host_id, self._table.entry(host.host_id), host.cut)

    def declare(self, apps: Collection[str], complete: bool) -> None:
        """Set the apps that exist whether or not a host announces them."""
        self._apps, self._complete = apps, complete
        # What is being taken in is not unknown.
        self._publish(self._table.declare(apps, complete and self._registering is None))

    def register(self, desired: Desired, apps: Collection[str]) -> None:
        """These registered apps are otherwise, or no longer; many of them in parts, between which
        requests are carried, and in force as one change. Before the first call, with an empty
        `apps` if need be, no app is served where there is a state to be read.
        """
        self._desired = desired
        self._due.update(dict.fromkeys(apps))
        if self._registering is None:
            self._register_on()

    def _register_on(self) -> None:
        self._registering = None
        self.write_out()
        # Before anything is in force nobody can be held up.
        first = not self._settled
        end = time.monotonic() + (_FIRST_SLICE if first else _SLICE)
        while self._due and time.monotonic() < end:
            app_id, _ = self._due.popitem()
            update = self._desired.update(app_id)
            self.take_apps((), (app_id,)) if update is None else self.take_apps((update,), ())
        if self._due:
            loop = asyncio.get_running_loop()
            self._registering = loop.call_later(0 if first else _SLICE, self._register_on)
        else:
            self.publish_apps()

    def take_apps(self, updates: Sequence[AppUpdate], gone: Sequence[str]) -> None:
        """Take in a part of a change, in force with `publish_apps`."""
        self._table.register(updates, gone)
        self._settling.note(len(updates) + len(gone))

    def publish_apps(self) -> None:
        """Put in force what was taken in: the state is known from now on."""
        self._settled = True
        snapshot = self._table.publish()
        replaced, self._table.replaced = self._table.replaced, []
        memory.let_go(replaced)
        if self._announced:
            snapshot = self._table.admit()
        if self._complete and not snapshot.complete:
            snapshot = self._table.declare(self._apps, True)
        self._publish(snapshot)

    def follow_clusters(self, view: View) -> None:
        """Set the clusters as the requests that come from now on see them (4.6)."""
        self._path.view = view
        self._whereabouts.follow(view)
        if self._identity is not None:
            self._ring = Keyring(self._cluster, (self._identity,), view.keys, self._ring)
            self._listening.marks.ring = self._ring
            self._links.follow(view, self._ring)

    def _gateways_are_at(self, endpoints: Endpoints) -> None:
        self.pools.dialler.avoid(self._own, endpoints)

    def _publish(self, snapshot: Snapshot) -> None:
        self._path.snapshot = snapshot

    async def explain(self, question: Question) -> dict[str, Any] | None:
        """What would be done with a request that nobody has sent (contract 10.4)."""
        now = asyncio.get_running_loop().time()
        return Explanation(self._path, self._bounds, question, now).make()

    # ---- settings and the end ----

    def reload(self, settings: Settings, api: str | None) -> None:
        """Put settings in force between two requests; what is under way keeps its own."""
        self._bound(settings)
        self._watch.configure(_shortest(settings))
        self.pools.configure(settings)
        self._links.configure(settings)
        self._path.configure(settings)
        self._path.own_route = _own_route(api)
        self._listening.configure(settings)
        self._publish(self._table.rename(settings.base_domains, settings.hostnames))
        self.log.reopen()

    async def order(self, step: Step) -> None:
        """Do one step of a drain."""
        listening = self._listening
        match step:
            case Step.RETIRE:
                listening.retiring = True
            case Step.STOP:
                listening.unlisten()
            case Step.RELEASE:
                for listener in self._listeners:
                    listener.close()
            case Step.SEND_AWAY:
                listening.send_away()
            case Step.CUT:
                listening.cut()
            case Step.RESUME:
                listening.retiring = False
                await self.accept()

    async def stop(self) -> None:
        """End everything that is still under way."""
        if self._registering is not None:
            self._registering.cancel()
        self._listening.close()
        self._links.close()
        await self._whereabouts.stop()
        await self.pools.close()
        self._watch.stop()
        await self._path.limits.stop()
        await self.log.stop()

    def _bound(self, settings: Settings) -> None:
        # One object that all connections look at.
        limits, bounds = settings.limits, self._bounds
        bounds.head, bounds.fields = limits.head_bytes, limits.fields
        bounds.field_line, bounds.target = limits.field_line_bytes, limits.target_bytes


def _own_route(api: str | None) -> Route | None:
    return None if api is None else Route("", (HostEntry("api", UNIX + api, None, 1),))


def _shortest(settings: Settings) -> float:
    deadlines = settings.deadlines
    return min(
        deadlines.head,
        deadlines.request_body,
        deadlines.keepalive,
        deadlines.response_head,
        deadlines.response_body,
        deadlines.websocket,
        deadlines.linger,
        settings.upstream.idle,
    )


def own_endpoints(sockets: Iterable[socket.socket]) -> Endpoints:
    """Return (ip, port) of listening TCP sockets."""
    return frozenset(
        (sock.getsockname()[0], sock.getsockname()[1])
        for sock in sockets
        if sock.family in (socket.AF_INET, socket.AF_INET6)
    )
