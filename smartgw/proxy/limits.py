"""The step `limit` of a request's path: which window it is charged to, and what its answer says.

Owns the kinds of window (contract 6.1, 6.2, 6.4), the fields of 6.2, and what holds while the
shared counters are away (6.6). How a window counts is admission's; what is answered path.py's.
"""

import asyncio
import math
import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

from smartgw.admission.callers import caller_of
from smartgw.admission.meter import Meter
from smartgw.admission.shared_counters import BROKEN, SharedCounters
from smartgw.admission.span import SECOND, Span
from smartgw.admission.table import Table
from smartgw.errors import Reason, counted
from smartgw.proxy.counters import Counters
from smartgw.proxy.exchange import Exchange, Taken
from smartgw.proxy.headers import first_value
from smartgw.routing.snapshot import Route

if TYPE_CHECKING:
    from smartgw.config import Settings
    from smartgw.proxy.path import Path

# Only to be spared work, so each is emptied when it is full.
_MOST_CALLERS: Final = 16_384
_MOST_REFUSED: Final = 16_384
_MOST_LINES: Final = 8_192
_TIDY_SECONDS: Final = 1.0
_ns = time.monotonic_ns


class Kind:
    """A kind of window: its name in fields and metrics, and of what it is, for people."""

    __slots__ = ("field", "name", "of_what")

    def __init__(self, name: str, of_what: str) -> None:
        self.name = name
        self.field = name.encode()
        self.of_what = of_what


APP: Final = Kind("app", "this app")
UNKNOWN: Final = Kind("unknown", "hostnames that no app has")
OWN: Final = Kind("gateway", "the gateway's own hostnames")
# The same window, for what the API charges itself (8.5).
LATER: Final = Kind(OWN.name, OWN.of_what)
# Credentials whose address has used up its window are looked at all the same, so many.
SIGNED: Final = Kind("signed", "credentials of an address")


class Place:
    """Where a request is charged: one caller's window of one kind."""

    __slots__ = ("caller", "key", "kind", "limit")

    def __init__(self, kind: Kind, app_id: str, caller: str, limit: int) -> None:
        self.kind = kind
        self.caller = caller
        self.key = (kind.name, app_id, caller)
        self.limit = limit


class Limits:
    """Counts what callers use; where there are shared counters, requests wait for them.

    Attributes:
        store: the shared counters, None where this process is the only one.
        meter: charges several budgets at once, where this counts.
    """

    def __init__(self, settings: "Settings", counters: Counters, path: "Path") -> None:
        """`path` goes on with what has waited."""
        rates = settings.rates
        self.store: SharedCounters | None = None
        self._path = path
        self._span = Span.of(rates.window)
        self._seconds = math.ceil(rates.window)
        self._counters = counters
        self._table = Table(self._span, rates.callers)
        self.meter = Meter(self._table, counters)
        self._callers: dict[str, str] = {}
        self._heads: dict[tuple[str, int, int], bytes] = {}
        self._tails = [
            b"%d\r\nX-RateLimit-Reset: %d" % (seconds, seconds)
            for seconds in range(self._seconds + 1)
        ]
        self._refused: dict[Hashable, tuple[int, int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unknown = self._own = self._app = self._proofs = 0

    def configure(self, settings: "Settings") -> None:
        """Put other limits in force; what was counted counts on."""
        rates = settings.rates
        self._app, self._unknown, self._own = rates.requests, rates.unknown, rates.own
        self._proofs = rates.services

    def start(self, store: SharedCounters | None) -> None:
        """Forget callers that are gone from now on, and count with `store` if there is one."""
        self.store = self.meter.store = store
        if store is not None:
            store.start()
        self._tidy()

    async def store_tried(self) -> None:
        """Wait until the store was found, or not; a second at most."""
        if self.store is not None:
            await self.store.tried.wait()

    async def stop(self) -> None:
        """Let go of the store."""
        if self._timer is not None:
            self._timer.cancel()
        if self.store is not None:
            await self.store.stop()

    def _tidy(self) -> None:
        self._table.tidy(_ns() // 1000)
        self._counters.limit_callers = len(self._table)
        self._counters.limit_squeezed = self._table.squeezed
        self._timer = asyncio.get_running_loop().call_later(_TIDY_SECONDS, self._tidy)

    # ---- what path.py calls ----

    def charge(self, exchange: Exchange, units: int = 1) -> Reason | Taken | None:
        """Charge a request to its window.

        `units`: 0 for what is free and is still told what remains. Returns None if it may go on,
        RATE_LIMITED, or TAKEN: it waits, and `Path.go_on` or `Path.refuse` is called later.
        """
        place = self._place(exchange.route, exchange.client)
        now = _ns() // 1000
        if self.store is None:
            return self._alone(exchange, place, units, now)
        return self._ask(self.store, exchange, place, units, now)

    def foresee(self, exchange: Exchange) -> Reason | Taken | None:
        """Charge nothing, for the API will, but let nothing through for which nothing is left: so
        that a flood of refused questions gets no further than others do. Returns as `charge` does.
        """
        own = self._place(exchange.route, exchange.client)
        place = Place(LATER, "", own.caller, own.limit)
        now = _ns() // 1000
        if self.store is None:
            return self._alone(exchange, place, 0, now)
        return self._ask(self.store, exchange, place, 0, now)

    def note(self, exchange: Exchange) -> None:
        """Charge what keeps its answer whether or not it fits (6.2); nothing waits for it."""
        place = self._place(exchange.route, exchange.client)
        now = _ns() // 1000
        self._table.find(place.key, now).charge(now, 1, place.limit, self._span)
        exchange.limits = self._known(place, now)
        if self.store is not None:
            self.store.ask((self._check(place, 1),), _nobody, None)

    def fields(self, exchange: Exchange) -> bytes:
        """Return the lines of 6.2 for what is answered before it was charged: what this process
        knows.
        """
        return self._known(self._place(exchange.route, exchange.client), _ns() // 1000)

    def of_stranger(self, client: str) -> bytes:
        """Return the lines for a client that has not asked for anything."""
        return self._known(self._place(None, client), _ns() // 1000)

    def api_answered(self, exchange: Exchange, caller: bytes | None) -> Reason | None:
        """Judge an answer of our own API; `caller`: what it says of whom it answers.

        A service has a window of its own at the API (6.2), so its address gets its unit back.
        Anybody else is refused if the window was full: credentials alone let nobody through.
        """
        if caller == b"service":
            if exchange.charged:
                self._refund(exchange)
        elif exchange.wait:
            self._counters.limited[OWN.name] += 1
            return Reason.RATE_LIMITED
        if caller is not None:
            # It tells the numbers of the windows that it has charged itself.
            exchange.limits = b""
        return None

    def _refund(self, exchange: Exchange) -> None:
        place = self._place(exchange.route, exchange.client)
        if self.store is None:
            now = _ns() // 1000
            window = self._table.find(place.key, now)
            window.settle(now, self._span)
            window.refund(exchange.charged, 1, self._span)
        else:
            name, _, span, units = self._check(place, -1)
            self.store.ask(((name, exchange.charged, span, units),), _nobody, None)

    def look(self, route: Route | None, client: str) -> tuple[int, int, float]:
        """Return one caller's limit, the requests that count, and seconds until that changes, as
        this process knows them; charges nothing.
        """
        place = self._place(route, client)
        window = self._table.known(place.key)
        if window is None:
            return place.limit, 0, 0.0
        now = _ns() // 1000
        window.settle(now, self._span)
        return place.limit, window.used, window.reset(now, place.limit, self._span) / SECOND

    def detail(self, route: Route | None, client: str, wait: int) -> str:
        """Return what a 429 says to one caller, for whom one more fits in `wait` seconds."""
        return self._told_of(self._place(route, client), wait)

    def _told_of(self, place: Place, wait: int) -> str:
        return (
            f"the limit of {place.kind.of_what} is {counted(place.limit, 'request')} in "
            f"{self._seconds} s; the next one fits in {wait} s"
        )

    # ---- this process alone ----

    def _alone(self, exchange: Exchange, place: Place, units: int, now: int) -> Reason | None:
        window = self._table.find(place.key, now)
        limit = place.limit
        wait = window.charge(now, units, limit, self._span)
        if place.kind is LATER:
            wait = window.wait(now, 1, limit, self._span)
        if wait:
            reset = window.reset(now, limit, self._span)
            return self._over(exchange, place, window.used, wait, reset)
        used = window.used
        exchange.limits = self._lines(place, used, window.due - now if used else 0)
        if self.store is None and place.kind is not LATER:
            exchange.charged = now
        return None

    def _known(self, place: Place, now: int) -> bytes:
        window = self._table.known(place.key)
        if window is None:
            return self._lines(place, 0, 0)
        window.settle(now, self._span)
        return self._lines(place, window.used, window.reset(now, place.limit, self._span))

    def _over(
        self, exchange: Exchange, place: Place, used: int, wait: int, reset: int
    ) -> Reason | None:
        """Refuse: `wait` microseconds until it fits; negative: the limit lets nothing through.

        Not yet, though, what may turn out to be a service's call: see `api_answered`.
        """
        if wait < 0:
            wait = self._span.length
        exchange.limits = self._lines(place, used, reset)
        exchange.wait = -(-wait // SECOND)
        exchange.detail = self._told_of(place, exchange.wait)
        if place.kind is OWN and self._has_credentials(exchange):
            return None
        if place.kind is LATER and self._has_credentials(exchange):
            # The API refuses it for all that is used up, not for the address alone.
            exchange.wait = 0
            return None
        self._counters.limited[place.kind.name] += 1
        return Reason.RATE_LIMITED

    def _has_credentials(self, exchange: Exchange) -> bool:
        """Say whether a request brings some, and they may be looked at: that costs a signature."""
        if first_value(exchange.request.lines, b"authorization") is None:
            return False
        caller = self._place(exchange.route, exchange.client).caller
        now = _ns() // 1000
        window = self._table.find((SIGNED.name, "", caller), now)
        return window.charge(now, 1, self._proofs, self._span) == 0

    # ---- the cluster's count ----

    def _ask(
        self, store: SharedCounters, exchange: Exchange, place: Place, units: int, now: int
    ) -> Reason | Taken | None:
        if units:
            full = self._known_full(store, place, units, now)
            if full is not None:
                return self._over(exchange, place, *full)
        if store.ask((self._check(place, units),), self._told, (exchange, place, units)):
            return Taken.TAKEN
        self._counters.limit_alone += 1
        return self._alone(exchange, place, units, now)

    def _known_full(
        self, store: SharedCounters, place: Place, units: int, now: int
    ) -> tuple[int, int, int] | None:
        """Return what is used, the wait and the reset of a window that is known to be full, so
        that a flood of refused requests never gets as far as the store.
        """
        known = self._refused.get(place.key)
        if known is not None:
            used, until, limit = known
            # Nothing leaves a full window before the time that was told, nothing enters it.
            if now < until and limit == place.limit:
                return used, until - now, until - now
            del self._refused[place.key]
        if now < store.breaker.doubted_until * SECOND:
            # The store does not know what was admitted while it was away; this process does.
            window = self._table.find(place.key, now)
            window.settle(now, self._span)
            wait = window.wait(now, units, place.limit, self._span)
            if wait:
                return window.used, wait, window.reset(now, place.limit, self._span)
        return None

    def _told(self, asked: tuple[Exchange, Place, int], wait: int, results: Sequence[int]) -> None:
        """The store has answered, or will not."""
        exchange, place, units = asked
        store = self.store
        assert store is not None
        now = _ns() // 1000
        reason: Reason | None = None
        if wait == BROKEN:
            self._counters.limit_alone += 1
            reason = self._alone(exchange, place, units, now)
        elif wait:
            used, reset = results
            # Units of our own hostnames' windows may be given back before the time that is told.
            if wait > 0 and place.kind is not OWN:
                if len(self._refused) >= _MOST_REFUSED:
                    self._refused.clear()
                self._refused[place.key] = (used, now + wait, place.limit)
            reason = self._over(exchange, place, used, wait, reset)
        else:
            used, reset = results
            if units:
                # Counted here too, so that there is something to go by when the store is away.
                self._table.find(place.key, now).charge(now, units, place.limit, self._span)
            exchange.limits = self._lines(place, used, reset)
            exchange.charged = store.now
            if place.kind is LATER:
                exchange.charged = 0
                if used >= place.limit:
                    reason = self._over(exchange, place, used, reset, reset)
        if exchange.over:
            return
        if reason is None:
            self._path.go_on(exchange)
        else:
            self._path.refuse(exchange, reason)

    def _check(self, place: Place, units: int) -> tuple[str, int, int, int]:
        assert self.store is not None
        # A space is in no caller and no kind, so no app can be named into another's window.
        name = " ".join(place.key)
        return f"{self.store.prefix}{name}", place.limit, self._span.length, units

    # ---- names and numbers ----

    def _place(self, route: Route | None, client: str) -> Place:
        caller = client if ":" not in client else self._caller(client)
        if route is None:
            return Place(UNKNOWN, "", caller, self._unknown)
        if not route.app_id:
            return Place(OWN, "", caller, self._own)
        limit = route.policy.limit
        return Place(APP, route.app_id, caller, self._app if limit is None else limit)

    def _caller(self, client: str) -> str:
        caller = self._callers.get(client)
        if caller is None:
            if len(self._callers) >= _MOST_CALLERS:
                self._callers.clear()
            caller = self._callers[client] = caller_of(client)
        return caller

    def _lines(self, place: Place, used: int, reset: int) -> bytes:
        """Return the lines, joined by CRLF. `reset`: microseconds until Remaining next rises."""
        limit = place.limit
        left = limit - used if used < limit else 0
        # With a very large limit hardly a number comes twice.
        head = self._heads.get((place.kind.name, limit, left)) if limit < _MOST_LINES else None
        if head is None:
            head = self._head(place.kind, limit, left)
        seconds = -(-reset // SECOND)
        tails = self._tails
        # The store's word is not taken for more than a window can be.
        return head + tails[seconds if 0 <= seconds < len(tails) else len(tails) - 1]

    def _head(self, kind: Kind, limit: int, left: int) -> bytes:
        head = (
            b"X-RateLimit-Limit: %d\r\nX-RateLimit-Remaining: %d\r\n"
            b'RateLimit-Policy: "%b";q=%d;w=%d\r\nRateLimit: "%b";r=%d;t='
        ) % (limit, left, kind.field, limit, self._seconds, kind.field, left)
        if limit < _MOST_LINES:
            if len(self._heads) >= _MOST_LINES:
                self._heads.clear()
            self._heads[(kind.name, limit, left)] = head
        return head


def _nobody(asked: object, wait: int, results: Sequence[int]) -> None:
    """Nobody waits for what is only noted."""
