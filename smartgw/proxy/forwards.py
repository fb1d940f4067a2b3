"""A request and the clusters that may serve it: begun there, judged, given to the next (4, 5).

Carries out what routing/failover.py decides: links are taken, attempts cut short, answers of peers
passed over, a 421 of a host's guard is followed. Which host of ours serves is path.py's, how a
peer's gateway is reached peers/links.py's.
"""

import logging
from typing import TYPE_CHECKING

from smartgw.errors import Reason
from smartgw.peers.directory import Mode, View
from smartgw.proxy import headers
from smartgw.proxy.exchange import SAFE_METHODS, Exchange, Sent, Taken
from smartgw.routing.failover import (
    SHARE,
    Attempt,
    Course,
    Failover,
    Outcome,
    Place,
    Then,
    owner_elsewhere,
)
from smartgw.routing.forwarding import Kind, Mark
from smartgw.routing.told import parse
from smartgw_hosts.http1 import ResponseHead

if TYPE_CHECKING:
    from smartgw.proxy.path import Path

# How long, and how often, the newest list is awaited that a host seems to know (contract 4.8).
_LOOKS, _LOOK_SECONDS = 40, 0.05
# A timer of the loop may come so much too soon, and the deadline has passed all the same.
_EARLY = 0.001
# A peer reckons by a clock and turns of its own, so it may say so much sooner that it has passed.
_PEER_EARLY = 0.05

_OUTCOMES = {
    Reason.NO_UPSTREAM: Outcome.NOTHING,
    Reason.NOT_READY: Outcome.NOTHING,
    Reason.OVERLOADED: Outcome.REFUSED,
    Reason.UPSTREAM_REFUSED: Outcome.REFUSED,
    Reason.UPSTREAM_UNPROVEN: Outcome.REFUSED,
    Reason.UPSTREAM_RESET: Outcome.BROKEN,
    Reason.UPSTREAM_MALFORMED: Outcome.BROKEN,
    Reason.CONNECT_TIMEOUT: Outcome.REFUSED,
    Reason.UPSTREAM_TIMEOUT: Outcome.TIMED_OUT,
    Reason.PEER_TIMEOUT: Outcome.TIMED_OUT,
    Reason.OWNER_UNCLEAR: Outcome.MISPLACED,
    Reason.APP_SUSPENDED: Outcome.SUSPENDED,
    Reason.APP_RETIRED: Outcome.SUSPENDED,
}
"""How an attempt that failed for a reason ended; of all others the client is the cause."""
_OF_A_PEER = {
    Reason.UPSTREAM_REFUSED: Reason.PEER_UNREACHABLE,
    Reason.UPSTREAM_UNPROVEN: Reason.PEER_UNREACHABLE,
    Reason.UPSTREAM_RESET: Reason.PEER_RESET,
    Reason.UPSTREAM_MALFORMED: Reason.PEER_MALFORMED,
    Reason.CONNECT_TIMEOUT: Reason.PEER_TIMEOUT,
    Reason.UPSTREAM_TIMEOUT: Reason.PEER_TIMEOUT,
}
"""What a failure is called when it is not a host of ours that it happened with."""
_OURS = frozenset((Reason.OVERLOADED, Reason.NO_UPSTREAM))
"""Unless a peer tells of them: we have no room for a connection there, or it is off the list."""
_NO_HOST = frozenset(
    (
        *(Reason.NO_UPSTREAM, Reason.NOT_READY, Reason.CONNECT_TIMEOUT),
        *(Reason.UPSTREAM_REFUSED, Reason.UPSTREAM_UNPROVEN),
    )
)
"""Of a peer's gateway: no host of it had the request, so to send it elsewhere doubles no work."""
_SENT = {b"none": Sent.NONE, b"partial": Sent.PARTIAL, b"full": Sent.FULL}

_log = logging.getLogger(__name__)


class Forwards:
    """The part of the path that knows of other clusters."""

    def __init__(self, path: "Path") -> None:
        self._path = path
        self.failover = Failover()

    # ---- path.py calls in ----

    def obey(self, exchange: Exchange, mark: Mark) -> None:
        """A peer forwards it: it is served here, in the time that is left, or not at all (5.3)."""
        counters = self._path.counters
        counters.forwards_received[mark.kind] += 1
        view = exchange.view
        if view is not None and view.epoch != mark.epoch:
            counters.epochs_differed += 1
        left = mark.remaining_ms / 1000
        if left < exchange.patience:
            exchange.patience = left
            exchange.until = exchange.due = exchange.started + left
            exchange.downstream.await_head()

    def plan(self, exchange: Exchange, view: View) -> Taken | None:
        """Begin where the request belongs, if that is not here."""
        route = exchange.route
        assert route is not None
        # A guard's 421 may come from a newer list, on which there are others.
        exchange.whole = True
        if not view.peers:
            return None
        self.failover.budget.count(exchange.started)
        read = exchange.request.method in SAFE_METHODS
        owner = owner_elsewhere(view, route.app_id)
        if owner is None:
            if read and view.failover:
                exchange.due = exchange.started + SHARE * exchange.patience
                exchange.downstream.await_head()
            return None
        course = exchange.course = self._course(exchange, view, read)
        until, local = exchange.until, bool(route.hosts)
        self._go(exchange, course.to_owner(owner, until, exchange.started, local=local))
        return Taken.TAKEN

    def goes_on(self, exchange: Exchange, reason: Reason, *, spoke: bool = False) -> bool:
        """The present attempt has failed before an answer; say whether somebody else has it now.

        `spoke`: it is a peer's gateway that says so.
        """
        outcome = _OUTCOMES.get(reason)
        if outcome is None:
            self._end(exchange, None, spoke=spoke)
            return False
        if exchange.course is None and not self._behind_local(exchange):
            return False
        attempt = self._after(exchange, outcome, reason, spoke=spoke)
        if attempt is None:
            return False
        self._path.take_back(exchange)
        self._go(exchange, attempt)
        return True

    def as_ours(self, exchange: Exchange, reason: Reason) -> Reason:
        """Return for what reason we answer ourselves, when nobody is left: that of the first
        failure, unless the deadline has passed (contract 5) or an answer had begun since.
        """
        if self._path.pools.loop.time() + _EARLY >= exchange.until:
            reason = Reason.UPSTREAM_TIMEOUT
        elif exchange.failure is not None and not exchange.status:
            return exchange.failure
        return reason if exchange.forward is None else _OF_A_PEER.get(reason, reason)

    def end(self, exchange: Exchange, reason: Reason | None) -> None:
        """The present attempt is over for this reason; None: its answer is, or its client left."""
        outcome = None if reason is None else _OUTCOMES.get(reason)
        self._end(exchange, outcome, spoke=False)

    def share_over(self, exchange: Exchange) -> None:
        """The present attempt has had its share of the deadline: others have the rest, if there
        are any; else it goes on.
        """
        now = self._path.pools.loop.time()
        if exchange.course is not None or self._behind_local(exchange):
            course = exchange.course
            assert course is not None
            sent = exchange.sent is not Sent.NONE
            if course.others(now, again=_again(exchange), sent=sent) and self.goes_on(
                exchange, Reason.UPSTREAM_TIMEOUT
            ):
                return
        exchange.due = exchange.until
        exchange.downstream.await_head()

    def answers(self, exchange: Exchange, head: ResponseHead) -> bool:
        """Say whether this answer is the client's; if not, the exchange goes on elsewhere or has
        another answer already.
        """
        if exchange.forward is None:
            if head.status == 421 and b"epoch=" in head.noted.get(headers.GUARD, b""):
                self._misplaced(exchange)
                return False
            self._end(exchange, Outcome.ANSWERED, spoke=True)
        elif not self._peer_answers(exchange, head):
            return False
        course = exchange.course
        if course is not None and course.attempt is not None:
            cluster = course.attempt.cluster
            if cluster != course.intended:
                self._path.counters.failovers += 1
                head.lines.append(b"X-Failover-Cluster: " + cluster.encode())
        return True

    # ---- attempts ----

    def _course(self, exchange: Exchange, view: View, read: bool) -> Course:
        route = exchange.route
        assert route is not None
        return Course(self.failover, view, route.app_id, read=read, total=exchange.patience)

    def _behind_local(self, exchange: Exchange) -> bool:
        """Begin to look at other clusters, after our own hosts; False: it is none of theirs."""
        view = exchange.view
        if view is None or view.mode is Mode.NONE or exchange.mark is not None:
            return False
        if exchange.route is self._path.own_route:
            return False
        course = self._course(exchange, view, exchange.request.method in SAFE_METHODS)
        made = exchange.link is not None or exchange.tried is not None
        course.after_local(exchange.until, made=made)
        exchange.course = course
        return True

    def _go(self, exchange: Exchange, attempt: Attempt | None) -> None:
        """Make an attempt, and another when there is no way to whom it goes."""
        path = self._path
        while attempt is not None:
            exchange.due = attempt.due
            exchange.tried = None
            if attempt.place is Place.LOCAL:
                exchange.forward = None
                exchange.downstream.await_head()
                path.attempt(exchange)
                return
            kind = Kind.AFFINITY if attempt.place is Place.OWNER else Kind.FAILOVER
            exchange.forward = kind
            link = None if path.peers is None else path.peers.link(attempt.cluster)
            if link is not None:
                path.counters.forwards[kind] += 1
                exchange.link = link
                link.outstanding += 1
                exchange.downstream.await_head()
                connection = link.take(exchange)
                if connection is not None:
                    path.carry(exchange, connection)
                return
            attempt = self._after(exchange, Outcome.REFUSED, Reason.UPSTREAM_REFUSED, spoke=False)
        # Without a failure: all that could be asked is set aside, and has its few requests.
        path.refuse(exchange, self.as_ours(exchange, Reason.PEER_UNREACHABLE))

    def _after(
        self, exchange: Exchange, outcome: Outcome, reason: Reason, *, spoke: bool
    ) -> Attempt | None:
        """Return the attempt that follows one that failed."""
        course = exchange.course
        assert course is not None
        theirs = spoke or reason not in _OURS
        self._end(exchange, outcome if theirs else None, spoke=spoke)
        if exchange.failure is None:
            peers = exchange.forward is not None and not spoke
            exchange.failure = _OF_A_PEER.get(reason, reason) if peers else reason
        if course.then(outcome) is not Then.NEXT:
            return None
        sent = exchange.sent is not Sent.NONE and not (spoke and reason in _NO_HOST)
        now = self._path.pools.loop.time()
        attempt = course.next(now, again=_again(exchange), sent=sent)
        if attempt is not None and sent:
            self._path.counters.retries += 1
        return attempt

    def _end(self, exchange: Exchange, outcome: Outcome | None, *, spoke: bool) -> None:
        course = exchange.course
        if course is None:
            return
        now = self._path.pools.loop.time()
        if outcome is Outcome.TIMED_OUT and not spoke:
            outcome = self._timed_out(exchange, course, now)
        if course.end(outcome, now, spoke=spoke):
            assert course.attempt is not None
            self._path.counters.peers_set_aside += 1
            _log.warning("cluster %s keeps failing and is set aside", course.attempt.cluster)

    def _timed_out(self, exchange: Exchange, course: Course, now: float) -> Outcome | None:
        """Return how an attempt ended that had no time left; None: its peer is no cause of it."""
        if not course.had_share(now):
            return None
        if exchange.sent is not Sent.NONE:
            return Outcome.TIMED_OUT
        # All connections may have been in use, by however few apps.
        link = exchange.link
        return Outcome.REFUSED if link is not None and link.is_opening() else None

    # ---- answers ----

    def _peer_answers(self, exchange: Exchange, head: ResponseHead) -> bool:
        course = exchange.course
        assert course is not None
        told = parse(head.noted.get(headers.ANSWER), head.status)
        if told.other_epoch:
            self._path.counters.epochs_differed += 1
        if told.failed is None:
            outcome = Outcome.FAILED if head.status >= 500 else Outcome.ANSWERED
            if course.then(outcome) is not Then.NEXT or exchange.began:
                self._end(exchange, outcome, spoke=True)
                return True
            attempt = self._after(exchange, outcome, Reason.NO_UPSTREAM, spoke=True)
            self._path.take_back(exchange)
            self._go(exchange, attempt)
        elif not self.goes_on(exchange, told.failed, spoke=True):
            # It is theirs to know how much had left for a host.
            exchange.sent = _SENT.get(told.sent, exchange.sent)
            off = _OUTCOMES.get(told.failed) is Outcome.SUSPENDED
            left = exchange.until - self._path.pools.loop.time()
            late = told.failed is Reason.UPSTREAM_TIMEOUT and left <= _PEER_EARLY
            theirs = off or late
            reason = told.failed if theirs else self.as_ours(exchange, told.failed)
            self._path.refuse(exchange, reason)
        return False

    def _misplaced(self, exchange: Exchange) -> None:
        """A host of ours has refused: another cluster owns the app (contract 4.8)."""
        path = self._path
        path.counters.misplaced += 1
        again = _again(exchange)
        path.take_back(exchange)
        if not again or (exchange.course is None and not self._behind_local(exchange)):
            path.refuse(exchange, Reason.OWNER_UNCLEAR)
            return
        # While the list is awaited nobody else gets the request.
        exchange.due = exchange.until
        exchange.downstream.await_head()
        path.ask_for_clusters()
        self._look_for_owner(exchange, _LOOKS)

    def _look_for_owner(self, exchange: Exchange, looks: int) -> None:
        """Send the request to the owner as soon as a list names another than us."""
        if exchange.over:
            return
        path = self._path
        course, view, now = exchange.course, path.view, path.pools.loop.time()
        assert course is not None
        attempt = course.follow(view, exchange.until, now)
        if attempt is not None:
            exchange.view = view
            self._go(exchange, attempt)
        elif looks:
            path.pools.loop.call_later(_LOOK_SECONDS, self._look_for_owner, exchange, looks - 1)
        else:
            path.refuse(exchange, Reason.OWNER_UNCLEAR)


def _again(exchange: Exchange) -> bool:
    """Say whether the request can be sent again as it came (contract 5.6)."""
    if exchange.began or not exchange.whole:
        return False
    return exchange.request_done or exchange.sent is Sent.NONE
