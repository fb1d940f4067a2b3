"""The path of a request, written once: identify, match, limit, admit, attempt, reply, settle.

Owns the order of the steps, which host of ours is tried again (contract 3.7) and which failure is
which answer. Knows no HTTP version and does no I/O: a downstream calls in, an upstream is called.
What goes to other clusters is forwards.py's.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from smartgw.admission.budgets import METERED
from smartgw.admission.sharing import may_have_more
from smartgw.errors import ANSWERS, Reason
from smartgw.peers.directory import Mode, View
from smartgw.proxy import headers
from smartgw.proxy.answers import Date, confirms, own_answer, tell_sender
from smartgw.proxy.counters import Counters
from smartgw.proxy.exchange import PENDING_LIMIT, Exchange, Sent, Taken
from smartgw.proxy.forwards import Forwards
from smartgw.proxy.ledger import write_down
from smartgw.proxy.limits import Limits
from smartgw.proxy.locally import Locally
from smartgw.proxy.outlet import Turn
from smartgw.routing import cors
from smartgw.routing.hostname import hostname_of
from smartgw.routing.policy import AppState
from smartgw.routing.snapshot import Route, Snapshot
from smartgw.routing.wellknown import is_reserved
from smartgw_hosts.http1 import ResponseHead

if TYPE_CHECKING:
    from smartgw.accesslog import AccessLog
    from smartgw.config import Settings
    from smartgw.peers.links import PeerLinks
    from smartgw.proxy.pools import Pools
    from smartgw.proxy.upstream import UpstreamConnection

_MAX_HOSTNAMES = 4_096
_REFUSED_METHODS = frozenset((b"CONNECT", b"TRACE"))
# A name of a module is found three times faster than a member of an enumeration.
_NONE, _FULL, _PARTIAL = Sent.NONE, Sent.FULL, Sent.PARTIAL
_ACTIVE = AppState.ACTIVE
_OFF = {AppState.SUSPENDED: Reason.APP_SUSPENDED, AppState.RETIRED: Reason.APP_RETIRED}


class Path:
    """What the steps need, and the steps' entry points for downstreams and upstreams."""

    def __init__(
        self,
        settings: "Settings",
        pools: "Pools",
        counters: Counters,
        log: "AccessLog | None",
        own_route: Route | None,
    ) -> None:
        self.snapshot = Snapshot()
        self.view = View(Mode.NONE, settings.cluster)
        self.pools = pools
        self.counters = counters
        self.turn = Turn(pools.loop)
        self.limits = Limits(settings, counters, self)
        self.own_route = own_route
        self.cluster = settings.cluster
        self.locally = Locally(self)
        self.forwards = Forwards(self)
        self.response_names = headers.response_names()
        self.peer_response_names = headers.peer_response_names()
        self.api_response_names = headers.api_response_names()
        self.peers: PeerLinks | None = None
        self.ask_for_clusters: Callable[[], None] = lambda: None
        self._log = log
        self._hostnames: dict[bytes, bytes] = {}
        self.shedding = False
        self._by_app: dict[str, int] = {}
        self._date = Date()
        self._pseudonym = settings.cluster.encode()
        self._id_prefix = b"%x-" % random.SystemRandom().getrandbits(64)
        self._id_count = 0
        self.configure(settings)

    def configure(self, settings: "Settings") -> None:
        """Put settings in force for the requests that come from now on."""
        self.deadlines = settings.deadlines
        self.request_names = headers.request_names(settings.proxy.removed_fields)
        self._base_domains = tuple(domain.encode() for domain in settings.base_domains)
        self._upgrades = frozenset(name.lower().encode() for name in settings.proxy.upgrades)
        self._requests = settings.limits.requests
        self.limits.configure(settings)

    # ---- steps: each looks at the exchange and returns why to stop, or None to go on ----

    def identify(self, exchange: Exchange) -> Reason | None:
        """Who asks, and under which id."""
        request = exchange.request
        self.name(exchange)
        noted = request.noted
        sent = noted.get(headers.FORWARD)
        mark = None if sent is None else exchange.downstream.mark(request, sent)
        if mark is None:
            exchange.client, exchange.forwarding = exchange.downstream.forwarding(request)
        else:
            exchange.mark, exchange.client = mark, mark.client
            exchange.forwarding = exchange.downstream.marked_forwarding(request, mark)
        if request.method in _REFUSED_METHODS:
            return Reason.METHOD_NOT_ALLOWED
        via = noted.get(headers.VIA)
        if via is not None and headers.has_been_at(via, self._pseudonym):
            return Reason.LOOP_DETECTED
        return None

    def name(self, exchange: Exchange) -> None:
        """Give the exchange its request id: the client's if it has the form, else a new one."""
        sent = exchange.request.noted.get(headers.REQUEST_ID)
        if sent is not None and headers.is_request_id(sent):
            exchange.request_id = sent
        else:
            self._id_count += 1
            exchange.request_id = b"%b%x" % (self._id_prefix, self._id_count)

    def understand(self, exchange: Exchange) -> bool:
        """Give the exchange the hostname that its authority names; False when it names none."""
        authority = exchange.request.authority
        hostname = self._hostnames.get(authority)
        if hostname is None:
            hostname = hostname_of(authority)
            if hostname is None:
                return False
            if len(self._hostnames) >= _MAX_HOSTNAMES:
                self._hostnames.clear()
            self._hostnames[authority] = hostname
        exchange.hostname = hostname
        return True

    def match(self, exchange: Exchange) -> Reason | None:
        """Which hostname is asked, and which route it has in this Snapshot; the exchange keeps it
        (3.8)."""
        snapshot = self.snapshot
        authority = exchange.request.authority
        route = snapshot.lookup(authority)
        if route is not None:
            # The table knows hostnames in one form only, so it was asked in this one.
            exchange.hostname = authority
        elif not self.understand(exchange):
            return Reason.BAD_HOSTNAME
        # No forward is for us, even if its app has a hostname elsewhere that is ours here.
        if exchange.hostname in snapshot.own and exchange.mark is None:
            exchange.route = self.own_route
            # Whom the API charges (8.5), which other fields may not tell: proxies stand in them.
            client = b"X-Smartgw-Client: %b\r\n" % exchange.client.encode()
            exchange.forwarding = client + exchange.forwarding
            return None if self.own_route is not None else Reason.UNKNOWN_HOST
        if route is None:
            route = snapshot.lookup(exchange.hostname)
        if route is None and exchange.mark is not None:
            # Its sender knows the app by this hostname, so we never say that there is none (4.7).
            route = snapshot.route(exchange.mark.app_id)
            if route is None:
                return Reason.NO_UPSTREAM
        if route is None:
            return Reason.UNKNOWN_HOST if snapshot.complete else Reason.NOT_READY
        exchange.route = route
        if is_reserved(exchange.request.target):
            return Reason.RESERVED_PATH
        if exchange.request.upgrade:
            exchange.upgrade = headers.upgrade_to_try(exchange.request, self._upgrades)
        return None

    def preflight(self, exchange: Exchange) -> None:
        """Whether a page asks what it may send from another origin: that is ours to say (3.9)."""
        request = exchange.request
        if request.method != b"OPTIONS":
            return
        assert exchange.route is not None
        policy = exchange.route.policy
        noted = request.noted
        origin, method = noted.get(headers.ORIGIN), noted.get(headers.ASKED_METHOD)
        if origin is None or method is None or policy.own_cors:
            return
        names = noted.get(headers.ASKED_NAMES, b"")
        exchange.preflight = cors.preflight(policy, origin, method, names)

    def limit(self, exchange: Exchange) -> Reason | Taken | None:
        """Whether the caller may have this one, too; a preflight is free (6.1, 6.2)."""
        if exchange.preflight is None:
            if self._api_charges(exchange):
                return self.limits.foresee(exchange)
            return self.limits.charge(exchange)
        if self.limits.charge(exchange, units=0) is None:
            self._answer_preflight(exchange, exchange.preflight)
        return Taken.TAKEN

    def _api_charges(self, exchange: Exchange) -> bool:
        """Say whether a request is one that our API charges itself, by what it asks for (8.5)."""
        if exchange.route is not self.own_route:
            return False
        return exchange.request.target.partition(b"?")[0] in METERED

    def admit(self, exchange: Exchange) -> Reason | None:
        """Whether the app is served at all (3.4), and whether there is room: one app may hold as
        much of it as is left to the others.
        """
        route = exchange.route
        assert route is not None
        reason = self.bars(route, self.counters.in_flight - 1)
        if reason is None:
            self._by_app[route.app_id] = self._by_app.get(route.app_id, 0) + 1
            exchange.admitted = True
        return reason

    def bars(self, route: Route, others: int) -> Reason | None:
        """Return what keeps one more request from an app, with so many others in flight."""
        if route.policy.state is not _ACTIVE:
            return _OFF[route.policy.state]
        held = self._by_app.get(route.app_id, 0)
        if self.shedding or not may_have_more(self._requests, others, held):
            return Reason.OVERLOADED
        return None

    def plan(self, exchange: Exchange) -> Taken | None:
        """Which cluster the request is for (4.2, 5): another gets it now, ours when all is done."""
        view = exchange.view = self.view
        if exchange.mark is not None:
            self.forwards.obey(exchange, exchange.mark)
        elif view.mode is not Mode.NONE and exchange.route is not self.own_route:
            return self.forwards.plan(exchange, view)
        return None

    # ---- downstream calls in ----

    def accept(self, exchange: Exchange) -> None:
        """Take a request whose head is complete; as much of its body as came is in `pending`."""
        self.counters.in_flight += 1
        self._walk(exchange, STEPS)

    def _walk(self, exchange: Exchange, steps: "tuple[Step, ...]") -> None:
        for step in steps:
            reason = step(self, exchange)
            if reason is not None:
                if isinstance(reason, Reason):
                    self._stop(exchange, reason)
                return
        self.attempt(exchange)

    def _stop(self, exchange: Exchange, reason: Reason) -> None:
        """Refuse by a step's result; what no window was charged for is charged first (6.2)."""
        if exchange.limits:
            self.refuse(exchange, reason)
        elif reason in UNLIMITED:
            self.limits.note(exchange)
            self.refuse(exchange, reason)
        else:
            exchange.failure = reason
            full = self.limits.charge(exchange)
            if full is None:
                self.refuse(exchange, reason)
            elif isinstance(full, Reason):
                self.refuse(exchange, full)

    def go_on(self, exchange: Exchange) -> None:
        """The shared counters have charged a request that waited for them."""
        if exchange.failure is not None:
            self.refuse(exchange, exchange.failure)
        elif exchange.preflight is not None:
            self._answer_preflight(exchange, exchange.preflight)
        else:
            self._walk(exchange, _AFTER_LIMIT)

    def turn_away(self, exchange: Exchange, reason: Reason, detail: str) -> None:
        """Refuse what is not surely a request, before any step."""
        self.counters.in_flight += 1
        if exchange.request.method:
            self.identify(exchange)
            self.understand(exchange)
        else:
            self.name(exchange)
        self.limits.note(exchange)
        self.refuse(exchange, reason, detail)

    def body(self, exchange: Exchange, payload: bytes) -> None:
        """More of the request's body has come."""
        exchange.received += len(payload)
        if exchange.upstream is not None:
            if exchange.whole:
                exchange.keep(payload)
            exchange.upstream.send_body(payload)
            return
        exchange.hold(payload)
        if exchange.pending_size > PENDING_LIMIT:
            exchange.downstream.pause_body()

    def body_end(self, exchange: Exchange, trailers: list[bytes]) -> None:
        """The request's body is whole."""
        exchange.request_done = True
        if trailers:
            trailers = headers.passing_trailers(
                trailers, self.request_names, exchange.request.nominated
            )
        exchange.trailers = trailers
        if exchange.upstream is not None:
            exchange.sent = _FULL
            exchange.upstream.send_end(trailers)

    def downstream_lost(self, exchange: Exchange) -> None:
        """The client has gone: the host's work is cancelled and not held against it (3.6)."""
        self.counters.downstream_aborts += 1
        self._drop_upstream(exchange)
        self.settle(exchange)

    def body_refused(self, exchange: Exchange, reason: Reason, detail: str) -> None:
        """The request's body is malformed or did not come: the host must not see a whole one."""
        self._give_up(exchange, reason, detail)

    def timed_out(self, exchange: Exchange, by_client: bool) -> None:
        """The one deadline to the answer's head, or that between its parts, has passed.

        `by_client`: it is the client that does not take its answer.
        """
        if by_client and exchange.status:
            self._give_up(exchange, Reason.CLIENT_STALLED)
        else:
            self._give_up(exchange, self.forwards.as_ours(exchange, Reason.UPSTREAM_TIMEOUT))

    # ---- attempts ----

    def attempt(self, exchange: Exchange) -> None:
        """Give the exchange to a host of ours, or say that there is none."""
        if not self.locally.attempt(exchange):
            self._failed(exchange, exchange.failure or Reason.NO_UPSTREAM)

    def carry(self, exchange: Exchange, connection: "UpstreamConnection") -> None:
        """Give the request to a proven connection. From here on no other host of ours gets it."""
        exchange.upstream = connection
        exchange.sent = _FULL if exchange.request_done else _PARTIAL
        pending, exchange.pending = exchange.pending, None
        if exchange.whole:
            exchange.whole = exchange.received <= PENDING_LIMIT
            exchange.kept = pending if exchange.whole else None
        if not exchange.request_done:
            # Before anything is written, which may be more than the host takes: then it pauses.
            exchange.downstream.resume_body()
        connection.carry(exchange, pending)

    def attempt_failed(self, exchange: Exchange, reason: Reason, *, moving: bool = False) -> None:
        """No connection to the chosen host; nothing was sent, so the next host may have it.

        `moving`: the host says that it is elsewhere now, which the table will say in a moment.
        What exactly was wrong is the host's status's to tell, not the client's to know.
        """
        if exchange.over:
            return
        if exchange.forward is None:
            self.locally.failed(exchange, reason, moving)
            self.attempt(exchange)
        else:
            self._failed(exchange, reason)

    def take_back(self, exchange: Exchange) -> None:
        """Take the request from where it is, as it came, so that somebody else can have it."""
        self._drop_upstream(exchange)
        link = exchange.link
        if link is not None:
            exchange.link = None
            link.done(exchange)
        if exchange.sent is not _NONE:
            exchange.pending, exchange.pending_size = exchange.kept, exchange.received
            exchange.sent = _NONE

    def _failed(self, exchange: Exchange, reason: Reason, detail: str = "") -> None:
        """An attempt failed before any answer: another cluster is asked, or this is ours."""
        if not self.forwards.goes_on(exchange, reason):
            self._give_up(exchange, self.forwards.as_ours(exchange, reason), detail)

    # ---- upstream calls in ----

    def interim(self, exchange: Exchange, head: ResponseHead) -> None:
        """A 1xx answer; 100 goes only to a client that asked, and only once (3.5)."""
        if head.status == 100:
            if not exchange.request.expect:
                return
            exchange.request.expect = False
        if exchange.request.minor:
            if head.marked:
                self._narrow_cookies(head)
                assert exchange.route is not None
                cors.remove(exchange.route.policy, head.lines, head.marked)
            exchange.began = True
            exchange.downstream.interim(head)

    def _narrow_cookies(self, head: ResponseHead) -> None:
        lines = head.lines
        for place in head.marked:
            lines[place] = headers.without_wide_domain(lines[place], self._base_domains)

    def reply(self, exchange: Exchange, head: ResponseHead, payload: bytes, done: bool) -> None:
        """The answer's head, with the first bytes of its body."""
        if (exchange.course is not None or head.status == 421) and not self.forwards.answers(
            exchange, head
        ):
            return
        if exchange.route is self.own_route:
            full = self.limits.api_answered(exchange, head.noted.get(headers.CALLER))
            if full is not None:
                self.refuse(exchange, full)
                return
        exchange.status = head.status
        exchange.sent_bytes = len(payload)
        exchange.kept = None
        if head.marked:
            self._narrow_cookies(head)
        lines = head.lines
        if exchange.forward is None and exchange.limits:
            # A forwarded answer carries the serving cluster's numbers (6.2).
            lines.append(exchange.limits)
        if exchange.mark is None:
            route, origin = exchange.route, exchange.request.noted.get(headers.ORIGIN)
            assert route is not None
            cors.complete(route.policy, origin, lines, head.marked)
            lines.append(b"X-Request-Id: " + exchange.request_id)
        else:
            # What else is ours, the gateway says that the client speaks with.
            tell_sender(exchange, exchange.mark, exchange.view or self.view, lines)
        if head.status == 426 and head.upgrade:
            # Without it the client could not know what to upgrade to (RFC 9110 15.5.22).
            lines.append(b"Connection: Upgrade\r\nUpgrade: " + b", ".join(head.upgrade))
        exchange.downstream.respond(
            exchange, head.status, head.phrase, lines, head.length, payload, done
        )
        if done:
            self._replied(exchange)

    def reply_body(self, exchange: Exchange, payload: bytes) -> None:
        """More of the answer's body."""
        exchange.sent_bytes += len(payload)
        exchange.downstream.write(payload)

    def reply_end(
        self,
        exchange: Exchange,
        trailers: list[bytes],
        nominated: frozenset[bytes] = frozenset(),
    ) -> None:
        """The answer is whole; its trailers go to clients that can take them (RFC 9110 6.5.1)."""
        if trailers:
            trailers = (
                headers.passing_trailers(trailers, self.response_names, nominated)
                if headers.wants_trailers(exchange.request)
                else []
            )
        exchange.downstream.finish(exchange, trailers)
        self._replied(exchange)

    def switch(
        self, exchange: Exchange, head: ResponseHead, connection: "UpstreamConnection"
    ) -> None:
        """A 101 answer: correct, or a 502 and no tunnel (3.6)."""
        if exchange.upgrade is None or not confirms(exchange, head):
            self.upstream_failed(
                exchange,
                Reason.UPGRADE_FAILED if exchange.upgrade else Reason.UPSTREAM_MALFORMED,
                "101 without a matching upgrade",
            )
            return
        if exchange.course is not None and not self.forwards.answers(exchange, head):
            return
        exchange.status = 101
        self._narrow_cookies(head)
        assert exchange.route is not None
        cors.complete(
            exchange.route.policy,
            exchange.request.noted.get(headers.ORIGIN),
            head.lines,
            head.marked,
        )
        if exchange.forward is None:
            head.lines.append(exchange.limits)
        if exchange.mark is not None:
            tell_sender(exchange, exchange.mark, exchange.view or self.view, head.lines)
        head.lines.append(b"X-Request-Id: " + exchange.request_id)
        self.counters.upgrades += 1
        exchange.downstream.tunnel(exchange, head, connection)
        self.settle(exchange)

    def upstream_failed(self, exchange: Exchange, reason: Reason, detail: str) -> None:
        """The answer is malformed or broke off; some of the request was sent, so no other host of
        ours gets it.
        """
        if exchange.status:
            self._give_up(exchange, reason, detail)
        else:
            self._failed(exchange, reason, detail)

    # ---- the end ----

    def _give_up(self, exchange: Exchange, reason: Reason, detail: str = "") -> None:
        """Refuse, or break an answer off that has begun; a host never gets a cut request whole."""
        self._drop_upstream(exchange)
        if exchange.course is not None:
            self.forwards.end(exchange, reason)
        if exchange.status:
            exchange.reason = reason
            exchange.downstream.break_off()
            self.settle(exchange)
        else:
            self.refuse(exchange, reason, detail)

    def refuse(self, exchange: Exchange, reason: Reason, detail: str = "") -> None:
        """Answer by ourselves (3.10)."""
        answer = ANSWERS[reason]
        exchange.reason = reason
        if answer.close:
            exchange.request.keep_alive = False
        lines, body = own_answer(exchange, reason, detail)
        self._answer(exchange, answer.status, b" " + answer.phrase.encode(), lines, body)

    def _answer_preflight(self, exchange: Exchange, lines: list[bytes]) -> None:
        self._answer(exchange, 204, b" No Content", lines, b"")

    def _answer(
        self, exchange: Exchange, status: int, phrase: bytes, lines: list[bytes], body: bytes
    ) -> None:
        """Send an answer of our own."""
        # Before it was charged there is only what this process knows.
        lines.append(exchange.limits or self.limits.fields(exchange))
        lines.append(self._date.line())
        lines.append(b"X-Request-Id: " + exchange.request_id)
        payload = b"" if exchange.request.method == b"HEAD" else body
        exchange.status = status
        exchange.sent_bytes = len(payload)
        if exchange.mark is not None:
            tell_sender(exchange, exchange.mark, exchange.view or self.view, lines)
        self._drop_upstream(exchange)
        exchange.downstream.respond(exchange, status, phrase, lines, len(body), payload, True)
        self.settle(exchange)

    def settle(self, exchange: Exchange) -> None:
        """Count and log, once."""
        if exchange.over:
            return
        exchange.over = True
        exchange.pending = exchange.kept = None
        if exchange.course is not None:
            self.forwards.end(exchange, None)
        if exchange.link is not None:
            exchange.link.done(exchange)
        if exchange.admitted:
            assert exchange.route is not None
            app = exchange.route.app_id
            held = self._by_app[app] - 1
            if held:
                self._by_app[app] = held
            else:
                del self._by_app[app]
        write_down(exchange, self.cluster, self.pools.loop.time(), self.counters, self._log)

    def _replied(self, exchange: Exchange) -> None:
        if not exchange.request_done:
            # The host has answered early: it does not get the rest (RFC 9112 9.5).
            self._drop_upstream(exchange)
        self.settle(exchange)

    def _drop_upstream(self, exchange: Exchange) -> None:
        upstream = exchange.upstream
        if upstream is not None:
            exchange.upstream = None
            upstream.abandon()


Step = Callable[[Path, Exchange], Reason | Taken | None]
STEPS: tuple[Step, ...] = (
    Path.identify,
    Path.match,
    Path.preflight,
    Path.limit,
    Path.admit,
    Path.plan,
)
"""What is asked of a request before it is carried, in this order; the first result ends it."""
_AFTER_LIMIT = STEPS[STEPS.index(Path.limit) + 1 :]

UNLIMITED = frozenset(
    (
        Reason.NOT_READY,
        Reason.NO_UPSTREAM,
        *(reason for reason, answer in ANSWERS.items() if answer.close),
    )
)
"""What keeps its answer when the window is full: a malformed request is told what is wrong (6.2),
and one for a name that we do not know yet is not taken for one that nobody has (11.2)."""
