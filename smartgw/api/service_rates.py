"""How many requests of one service are taken at the API (contract 6.2, 10.3).

Owns their windows, one a service, wherever its requests come from and at whichever listener: so no
program of the platform that runs wild can take the event loop from traffic. Counted by this
gateway alone.
"""

import math
import time
from collections.abc import Callable

from smartgw.admission.span import SECOND, Span
from smartgw.admission.table import Table
from smartgw.admission.window import NEVER
from smartgw.api.answers import ApiError, Left
from smartgw.api.tokens import Caller
from smartgw.config_limits import Rates
from smartgw.errors import counted

_MOST_SERVICES = 10_000


class ServiceRates:
    """`rates` gives the settings in force; its window is that of the start."""

    def __init__(
        self, rates: Callable[[], Rates], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._rates = rates
        self._clock = clock
        self._span = Span.of(rates().window)
        self._table = Table(self._span, _MOST_SERVICES)

    def charge(self, caller: Caller, units: int = 1) -> tuple[Left, ApiError | None]:
        """Count a request of a service, or as many units as it has questions.

        Returns what is left to it (contract 6.2), and the refusal when that is too little.
        """
        now = self._clock() // 1000
        limit = self._rates().services
        window = self._table.find((caller.issuer, caller.subject), now)
        wait = window.charge(now, units, limit, self._span)
        left = max(0, limit - window.used)
        reset = math.ceil(window.reset(now, limit, self._span) / SECOND)
        fields = {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset": str(reset),
            "RateLimit-Policy": f'"service";q={limit};w={math.ceil(self._rates().window)}',
            "RateLimit": f'"service";r={left};t={reset}',
        }
        told = Left("service", fields)
        if not wait:
            return told, None
        taken = f"{counted(limit, 'request')} in {self._rates().window:g} s"
        message = f"the limit of one service is {taken}"
        if wait == NEVER:
            return told, ApiError(400, "too_many_queries", f"{units} never fit: {message}")
        seconds = str(math.ceil(wait / SECOND))
        return told, ApiError(429, "rate_limited", message, fields={"Retry-After": seconds})
