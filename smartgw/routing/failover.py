"""Which cluster gets a request next, for how long, and when nobody does any more (contract 5).

Owns the table of section 5, the order of peers, the circuit breaker of each, the budget of retries
and the shares of the one deadline. Sends nothing: times (monotonic seconds) come in, attempts go
out. Which host of a cluster gets a request is choice.py's, what may be sent again path.py's.
"""

import copy
import hashlib
import math
from collections import deque
from enum import Enum, IntEnum, auto

from smartgw.peers.directory import View
from smartgw_hosts.clusters import State

SHARE = 0.4
"""Of the one deadline, what an attempt may take while others remain (contract 5.1)."""
# Timers come a little early.
_NEARLY = 0.99
_FAILURES = 5
"""In a row, until a peer is set aside."""
_SHORTEST_TERM, _LONGEST_TERM = 1.0, 10.0
# What has no other place to go still tries a peer that is set aside, but never piles up there; nor
# does one app take all the room, for then its being slow would keep others from finding the peer.
_FEW, _FEW_OF_ONE = 8, 4
_RETRY_SHARE, _RETRY_SECONDS, _RETRIES_A_SECOND = 0.2, 10, 10
_ORDERS_KEPT = 4_096


class Place(IntEnum):
    """Where an attempt goes. A number, as `Outcome` is: the tables are asked for each answer."""

    LOCAL = auto()
    OWNER = auto()
    PEER = auto()


class Outcome(IntEnum):
    """How an attempt ended, as far as it matters for what follows."""

    ANSWERED = auto()
    """Any answer below 500."""
    FAILED = auto()
    """An answer of 500 or above that is not the gateway's there."""
    SUSPENDED = auto()
    """The app is suspended or retired there (contract 3.4)."""
    MISPLACED = auto()
    """421 of a host's guard: nothing was done there (contract 4.8)."""
    NOTHING = auto()
    """Nobody is there to be asked."""
    REFUSED = auto()
    """No connection, or none in time; nothing was sent."""
    BROKEN = auto()
    """The connection broke, or what came was no answer."""
    TIMED_OUT = auto()
    """It was sent, and no answer came in time."""


class Then(Enum):
    """What follows."""

    RETURN = auto()
    """The answer is the client's."""
    NEXT = auto()
    """Somebody else is asked; when nobody is left the first failure is the answer."""
    END = auto()
    """Our own answer, of this failure; nobody else is asked."""
    FOLLOW = auto()
    """The owner is asked, if the newest list names another than us; once."""


_FAILURE = (Outcome.NOTHING, Outcome.REFUSED, Outcome.BROKEN, Outcome.TIMED_OUT)
_IS_AN_ANSWER = {Outcome.ANSWERED: Then.RETURN, Outcome.FAILED: Then.RETURN}
_NOBODY_IS_ASKED = {Outcome.SUSPENDED: Then.RETURN}
_ASK_ANOTHER = dict.fromkeys(_FAILURE, Then.NEXT)
# It may have been done there; only the client knows whether twice is harmful.
_NEVER_TWICE = dict.fromkeys(_FAILURE, Then.END)
# A forward travels one hop, so its 421 is not followed.
_ONE_HOP = {Outcome.MISPLACED: Then.END}
_PROVES_NOTHING_DONE = {Outcome.MISPLACED: Then.FOLLOW}

READ: dict[Place, dict[Outcome, Then]] = {
    Place.LOCAL: _IS_AN_ANSWER | _NOBODY_IS_ASKED | _ASK_ANOTHER | _PROVES_NOTHING_DONE,
    Place.OWNER: _IS_AN_ANSWER | _NOBODY_IS_ASKED | _ASK_ANOTHER | _ONE_HOP,
    # Another cluster may do better than a peer that was asked in need only.
    Place.PEER: _IS_AN_ANSWER
    | {Outcome.FAILED: Then.NEXT, Outcome.MISPLACED: Then.NEXT}
    | _NOBODY_IS_ASKED
    | _ASK_ANOTHER,
}
"""What follows for GET, HEAD and OPTIONS: the table of contract 5."""
WRITE: dict[Place, dict[Outcome, Then]] = {
    Place.LOCAL: _IS_AN_ANSWER | _NOBODY_IS_ASKED | _NEVER_TWICE | _PROVES_NOTHING_DONE,
    Place.OWNER: _IS_AN_ANSWER | _NOBODY_IS_ASKED | _NEVER_TWICE | _ONE_HOP,
}
"""What follows for every other method; a write goes to no peer but the owner."""


class Attempt:
    """Send the request to this cluster, and wait for the answer's head until `due`.

    Then ask `Course.others`: an attempt is cut short only where somebody else would be asked.
    Never changed; no dataclass, for one is made for each request that is forwarded.
    """

    __slots__ = ("cluster", "due", "place")

    def __init__(self, place: Place, cluster: str, due: float) -> None:
        self.place = place
        self.cluster = cluster
        self.due = due


def owner_elsewhere(view: View, app_id: str) -> str | None:
    """Return the cluster that a request is meant for, None if that is ours (contract 4.2, 4.4)."""
    clusters = view.clusters
    if clusters is None or not clusters.affinity:
        return None
    owner = clusters.owner(app_id)
    return None if owner == view.own_id else owner


class Breaker:
    """Whether a peer is set aside because it keeps failing, and how it comes back.

    Aside it gets one request on trial when its term is over. A failed trial doubles the term. One
    answer, to whatever request, ends it.
    """

    __slots__ = (
        "_era",
        "_failures",
        "_few",
        "_few_of",
        "_heard",
        "_on_trial",
        "_silent",
        "_term",
        "_until",
    )

    def __init__(self) -> None:
        self._failures = 0
        self._until: float | None = None
        self._term = _SHORTEST_TERM
        self._on_trial = False
        self._few = 0
        self._few_of: dict[str, int] = {}
        # When the peer last spoke. What it kept waiting meanwhile was its app's to answer.
        self._heard = -math.inf
        # Apps from which no answer came in time, since the peer last spoke. Each counts once: one
        # that hangs is not a peer that fails, and must not set it aside for all others.
        self._silent: set[str] = set()
        # Counts openings and closings, so that what began before one says nothing after it.
        self._era = 0

    @property
    def is_open(self) -> bool:
        """Whether the peer is set aside."""
        return self._until is not None

    def admits(self, now: float) -> bool:
        """Say whether a request that could go elsewhere may go there."""
        return self._until is None or (now >= self._until and not self._on_trial)

    def admits_few(self, app_id: str) -> bool:
        """Say whether a request that can go nowhere else may go there."""
        if self._until is None:
            return True
        return self._few < _FEW and self._few_of.get(app_id, 0) < _FEW_OF_ONE

    def begin(self, now: float, app_id: str) -> int:
        """A request goes there; the result is to be given to `end`."""
        if self._until is not None:
            self._few += 1
            self._few_of[app_id] = self._few_of.get(app_id, 0) + 1
            self._on_trial = self._on_trial or now >= self._until
        return self._era

    def end(
        self,
        era: int,
        began: float,
        now: float,
        app_id: str,
        outcome: Outcome | None,
        spoke: bool,
    ) -> bool:
        """It has come to an end: None, nobody waits any more. `began`: when it went there; `spoke`:
        the peer's gateway has said something, though it were that it cannot serve. Return whether
        the peer is set aside now.
        """
        same = era == self._era
        if same and self._until is not None:
            self._few -= 1
            self._few_of[app_id] -= 1
        if spoke:
            self._heard = now
            self._failures = 0
            self._silent.clear()
            if self._until is not None:
                self._until = None
                self._term = _SHORTEST_TERM
                self._change()
        elif same and (
            outcome is None
            or (outcome is Outcome.TIMED_OUT and (self._heard > began or app_id in self._silent))
        ):
            self._on_trial = False
        elif same:
            if outcome is Outcome.TIMED_OUT and len(self._silent) < _FAILURES:
                self._silent.add(app_id)
            return self._failed(now)
        return False

    def _failed(self, now: float) -> bool:
        self._failures += 1
        if self._until is None:
            if self._failures < _FAILURES:
                return False
            self._until = now + self._term
            self._change()
            return True
        if self._on_trial:
            self._term = min(2 * self._term, _LONGEST_TERM)
            self._until = now + self._term
            self._change()
        return False

    def _change(self) -> None:
        self._era += 1
        self._few = 0
        self._few_of.clear()
        self._on_trial = False


class Budget:
    """How many requests may be sent again: so many that a dead cluster doubles no traffic.

    One that is given to somebody else before any of it was sent is not sent again.
    """

    __slots__ = ("_edge", "_past", "_retries", "_second", "_traffic")

    def __init__(self) -> None:
        self._past: deque[tuple[int, int, int]] = deque()
        self._second = 0
        self._edge = 0.0
        self._traffic = 0
        self._retries = 0

    def count(self, now: float) -> None:
        """A request has come."""
        if now >= self._edge:
            self._roll(now)
        self._traffic += 1

    def has(self, now: float) -> bool:
        """Say whether one more may be sent again."""
        if now >= self._edge:
            self._roll(now)
        if self._retries < _RETRIES_A_SECOND:
            return True
        traffic = self._traffic + sum(second[1] for second in self._past)
        retries = self._retries + sum(second[2] for second in self._past)
        return retries < max(_RETRY_SHARE * traffic, _RETRIES_A_SECOND * _RETRY_SECONDS)

    def take(self, now: float) -> bool:
        """Send one more again, if it may be."""
        if not self.has(now):
            return False
        self._retries += 1
        return True

    def _roll(self, now: float) -> None:
        """Begin the second that it is now."""
        if self._traffic or self._retries:
            self._past.append((self._second, self._traffic, self._retries))
        self._second = int(now)
        self._edge = self._second + 1.0
        self._traffic = self._retries = 0
        while self._past and self._past[0][0] <= self._second - _RETRY_SECONDS:
            self._past.popleft()


class Failover:
    """What is remembered of all requests: the peers' breakers, the budget, the peers' order."""

    def __init__(self) -> None:
        self.budget = Budget()
        self._breakers: dict[str, Breaker] = {}
        self._orders: dict[str, tuple[str, ...]] = {}
        self._ordered: View | None = None

    def breaker(self, cluster: str) -> Breaker:
        """Return the breaker of a peer."""
        breaker = self._breakers.get(cluster)
        if breaker is None:
            breaker = self._breakers[cluster] = Breaker()
        return breaker

    def keep(self, view: View) -> None:
        """Forget what is remembered of clusters that are no peers any more."""
        self._breakers = {n: one for n, one in self._breakers.items() if n in view.peers}

    def apart(self) -> "Failover":
        """Return one that remembers the same, to ask what would happen; this one is not told."""
        other = Failover()
        other.budget = copy.deepcopy(self.budget)
        other._breakers = copy.deepcopy(self._breakers)
        other._orders, other._ordered = dict(self._orders), self._ordered
        return other

    def aside(self) -> tuple[str, ...]:
        """Return the peers that are set aside, sorted."""
        return tuple(sorted(name for name, one in self._breakers.items() if one.is_open))

    def order(self, view: View, app_id: str) -> tuple[str, ...]:
        """Return the peers in the order in which they are asked for an app (contract 5.2).

        Rendezvous hashing: each app has an order of its own, so that a dead cluster's load
        spreads, and one that comes or goes changes no other's place. Draining ones come last.
        """
        if view is not self._ordered:
            self._ordered = view
            self._orders.clear()
            self.keep(view)
        order = self._orders.get(app_id)
        if order is None:
            app = app_id.encode()
            app = len(app).to_bytes(4, "big") + app

            def rank(cluster: str) -> tuple[bool, bytes]:
                score = hashlib.blake2b(app + cluster.encode(), digest_size=8).digest()
                return view.peers[cluster].state is not State.DRAINING, score

            order = tuple(sorted(view.peers, key=rank, reverse=True))
            if len(self._orders) >= _ORDERS_KEPT:
                self._orders.clear()
            self._orders[app_id] = order
        return order


class Course:
    """The attempts of one request that comes from a client and is not simply served here.

    Attributes:
        attempt: the present one, None before the first.
        made: how many have been made, those included that were made before this was.
        intended: the cluster that the request is meant for.
    """

    __slots__ = (
        "_app",
        "_aside",
        "_began",
        "_era",
        "_failover",
        "_followed",
        "_local",
        "_queue",
        "_read",
        "_total",
        "_under_way",
        "_until",
        "_view",
        "attempt",
        "intended",
        "made",
    )

    def __init__(
        self, failover: Failover, view: View, app_id: str, *, read: bool, total: float
    ) -> None:
        """`read`: the method is GET, HEAD or OPTIONS. `total`: seconds of the whole deadline."""
        self._failover = failover
        self._view = view
        self._app = app_id
        self._read = read
        self._total = total
        self._until = 0.0
        self._local = False
        # Made when the first attempt has failed, which is rare.
        self._queue: deque[tuple[Place, str]] | None = None
        self._aside: list[tuple[Place, str]] = []
        self._followed = False
        self._under_way = False
        self._began = 0.0
        self._era = 0
        self.attempt: Attempt | None = None
        self.made = 0
        self.intended = view.own_id

    def to_owner(self, owner: str, until: float, now: float, *, local: bool) -> Attempt | None:
        """Begin at the owner, or elsewhere if that is set aside; `local`: a host of ours serves
        the app too. None when nobody is to be asked.
        """
        self.intended = owner
        self._until = until
        self._local = local
        if self._failover.breaker(owner).admits(now):
            return self._begin(Place.OWNER, owner, now)
        self._aside.append((Place.OWNER, owner))
        return self.next(now)

    def after_local(self, until: float, *, made: bool) -> None:
        """Begin behind our own hosts, the present attempt; `made`: there were some to be asked."""
        self._until = until
        self.attempt = Attempt(Place.LOCAL, self._view.own_id, until)
        self.made = int(made)

    def _others(self) -> deque[tuple[Place, str]]:
        """Return who has not been asked yet, in order."""
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
            if self._read and self._view.failover:
                if self._local:
                    queue.append((Place.LOCAL, self._view.own_id))
                order = self._failover.order(self._view, self._app)
                queue.extend((Place.PEER, name) for name in order if name != self.intended)
        return queue

    def then(self, outcome: Outcome) -> Then:
        """Return what follows the present attempt's outcome."""
        assert self.attempt is not None
        return (READ if self._read else WRITE)[self.attempt.place][outcome]

    def others(self, now: float, *, again: bool, sent: bool) -> bool:
        """Say whether somebody else would be asked now; arguments as of `next`."""
        if now >= self._until or not again or (sent and not self._failover.budget.has(now)):
            return False
        return any(self._admitted(place, name, now) for place, name in self._others())

    def next(self, now: float, *, again: bool = True, sent: bool = False) -> Attempt | None:
        """Return the next attempt, None when there is none. The last one's `end` comes first.

        `again`: the request can be given to another as it came. `sent`: some of it had been sent.
        """
        if now >= self._until or (self.made and not again) or not (self._others() or self._aside):
            return None
        chosen = self._choose(now)
        if chosen is None or (sent and not self._failover.budget.take(now)):
            return None
        return self._begin(*chosen, now)

    def follow(self, view: View, until: float, now: float) -> Attempt | None:
        """Return the attempt at the owner that `view`, the newest, names, if that is not us and
        a 421 was not followed before (contract 4.8).
        """
        owner = view.owner(self._app)
        if self._followed or owner is None or owner not in view.peers or now >= until:
            return None
        if not self._failover.breaker(owner).admits_few(self._app):
            return None
        self._followed = True
        self._queue = deque()
        self._aside.clear()
        self._view = view
        self._until = until
        self.intended = owner
        return self._begin(Place.OWNER, owner, now)

    def end(self, outcome: Outcome | None, now: float, *, spoke: bool) -> bool:
        """The present attempt has an answer, has failed, or nobody waits for it any more: None.
        What is said of one after its end counts for nothing.

        `spoke`: the other gateway has said something, if only that it cannot serve. Return
        whether its cluster is set aside from now on.
        """
        attempt, under_way = self.attempt, self._under_way
        self._under_way = False
        if attempt is None or not under_way:
            return False
        breaker = self._failover.breaker(attempt.cluster)
        return breaker.end(self._era, self._began, now, self._app, outcome, spoke)

    def had_share(self, now: float) -> bool:
        """Say whether the present attempt has had as long as any may count on (contract 5.1)."""
        return now - self._began >= _NEARLY * SHARE * self._total

    def _admitted(self, place: Place, cluster: str, now: float) -> bool:
        return place is Place.LOCAL or self._failover.breaker(cluster).admits(now)

    def _choose(self, now: float) -> tuple[Place, str] | None:
        queue = self._others()
        while queue:
            place, cluster = queue.popleft()
            if self._admitted(place, cluster, now):
                return place, cluster
            self._aside.append((place, cluster))
        # A peer that is set aside is better than nobody.
        while self._aside:
            place, cluster = self._aside.pop(0)
            if self._failover.breaker(cluster).admits_few(self._app):
                return place, cluster
        return None

    def _begin(self, place: Place, cluster: str, now: float) -> Attempt:
        self.made += 1
        due = self._until
        if self._queue or (self._queue is None and self._read):
            due = min(now + SHARE * self._total, due)
        if place is not Place.LOCAL:
            self._began = now
            self._era = self._failover.breaker(cluster).begin(now, self._app)
            self._under_way = True
        self.attempt = Attempt(place, cluster, due)
        return self.attempt
