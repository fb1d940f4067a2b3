"""What questions about DNS cost at the API, and who pays (contract 6.2, 8.5).

Owns the budgets of a question: all are charged in one step, or none. Whatever else comes to these
paths costs its address one unit, or the service that sent it. How budgets count is admission's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiohttp import web

from smartgw.admission.budgets import METERED, Budget, Charged, Refused, identity_key
from smartgw.admission.budgets import Left as OfBudget
from smartgw.admission.callers import caller_of
from smartgw.admission.meter import Meter
from smartgw.api.answers import LEFT, ApiError, Handler, Left
from smartgw.api.operations import CALLER
from smartgw.api.service_rates import ServiceRates
from smartgw.api.tokens import Caller, Role
from smartgw.config_limits import Rates

DAY: Final = 86_400
PATHS: Final = frozenset(path.decode() for path in METERED)
CHARGED = web.RequestKey("charged", bool)
"""On a request that was charged, or could not be."""
CLIENT = web.RequestKey("client", str)
"""On every request: the address that it comes from."""
_TOLD: Final = "X-Smartgw-Client"
_NAMES: Final = ("gateway", "session", "session-day")
_OF_WHAT: Final = ("requests of your address", "queries of your session", "queries a day")
_PREFIXES: Final = ("X-RateLimit", "X-RateLimit-Identity", "X-RateLimit-Identity-Quota")


class Metering:
    """`meter` counts where the data path counts; `rates` are the settings in force."""

    def __init__(
        self, meter: Callable[[], Meter], rates: Callable[[], Rates], services: ServiceRates
    ) -> None:
        self._meter = meter
        self._rates = rates
        self._services = services

    async def charge(self, request: web.Request, caller: Caller, units: int) -> None:
        """Charge so many questions. Raises ApiError: 429, 503, or 400 for what never fits."""
        if caller.role is Role.SERVICE:
            self._charge_service(request, caller, units)
            return
        budgets = (self._of_address(request, units), *self._of_session(caller, units))
        outcome = await self._meter().charge(budgets)
        if isinstance(outcome, Refused) and outcome.wait is None:
            # One request, as any that is wrong.
            limit = min(budgets[place].limit for place in outcome.which)
            message = f"{units} queries at once never fit: the limit is {limit}"
            raise ApiError(400, "too_many_queries", message, pointer="/queries")
        request[CHARGED] = True
        if isinstance(outcome, Charged):
            request[LEFT] = self._told(outcome.left)
        elif isinstance(outcome, Refused):
            request[LEFT] = self._told(outcome.left)
            raise _too_many(budgets, outcome)
        else:
            message = "nobody can say now how much of your budgets is used; nothing was answered"
            fields = {"Retry-After": "1"}
            raise ApiError(503, "counters_unavailable", message, fields=fields)

    async def note(self, request: web.Request) -> None:
        """Charge one unit for what is no question. Raises ApiError, 429."""
        request[CHARGED] = True
        caller = request.get(CALLER)
        if caller is not None and caller.role is Role.SERVICE:
            self._charge_service(request, caller, 1)
            return
        budgets = (self._of_address(request, 1),)
        meter = self._meter()
        outcome = await meter.charge(budgets)
        if not isinstance(outcome, Charged | Refused):
            # Nothing is given away, so it need not wait for the store (6.6).
            outcome = meter.charge_here(budgets)
        if isinstance(outcome, Charged | Refused):
            request[LEFT] = self._told(outcome.left)
        if isinstance(outcome, Refused):
            raise _too_many(budgets, outcome)

    def middleware(self, *, internal: bool) -> Any:
        """Return what sees to it that nothing at these paths is free.

        `internal`: of that listener, where nobody but the connection tells who the client is.
        """

        @web.middleware
        async def nothing_is_free(request: web.Request, handler: Handler) -> web.StreamResponse:
            told = None if internal else request.headers.get(_TOLD)
            request[CLIENT] = told or request.remote or "unix"
            if request.rel_url.raw_path not in PATHS:
                # Of another spelling of one of them the data path has charged a unit already.
                return await handler(request)
            try:
                return await handler(request)
            except Exception:
                if CHARGED not in request:
                    await self.note(request)
                raise

        return nothing_is_free

    # ---- budgets ----

    def _of_address(self, request: web.Request, units: int) -> Budget:
        """The window that all calls to our hostnames share (6.2)."""
        rates = self._rates()
        # As the data path names it, which tells us the client.
        key = (_NAMES[0], "", caller_of(request[CLIENT]))
        return Budget(key, rates.own, rates.window, units)

    def _of_session(self, caller: Caller, units: int) -> tuple[Budget, Budget]:
        rates = self._rates()
        who = identity_key(caller.issuer, caller.session_id)
        return (
            Budget((_NAMES[1], "", who), rates.queries, rates.window, units),
            Budget((_NAMES[2], "", who), rates.queries_a_day, None, units),
        )

    def _charge_service(self, request: web.Request, caller: Caller, units: int) -> None:
        request[LEFT], refused = self._services.charge(caller, units)
        if refused is not None:
            # What never fits is one request that is wrong.
            request[CHARGED] = refused.status != 400
            raise refused
        request[CHARGED] = True

    def _told(self, lefts: Sequence[OfBudget]) -> Left:
        window = math.ceil(self._rates().window)
        fields: dict[str, str] = {}
        policies, remaining = [], []
        for prefix, name, left in zip(_PREFIXES, _NAMES, lefts, strict=False):
            for word, number in (
                ("Limit", left.limit),
                ("Remaining", left.remaining),
                ("Reset", left.reset),
            ):
                fields[f"{prefix}-{word}"] = str(number)
            seconds = DAY if name == _NAMES[2] else window
            policies.append(f'"{name}";q={left.limit};w={seconds}')
            remaining.append(f'"{name}";r={left.remaining};t={left.reset}')
        fields["RateLimit-Policy"] = ", ".join(policies)
        fields["RateLimit"] = ", ".join(remaining)
        return Left("session", fields)


def _too_many(budgets: Sequence[Budget], refused: Refused) -> ApiError:
    limits = ", ".join(
        _OF_WHAT[place]
        + ("" if budgets[place].window is None else f" in {budgets[place].window:g} s")
        + f" ({budgets[place].limit})"
        for place in refused.which
    )
    message = f"at the limit: {limits}; all of it fits in {refused.wait} s; nothing was charged"
    return ApiError(429, "rate_limited", message, fields={"Retry-After": str(refused.wait)})
