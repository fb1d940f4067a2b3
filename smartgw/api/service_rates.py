"""How many requests of one service are taken at the API (contract 6.2, 10.3).

Owns their windows, one a service, wherever its requests come from and at whichever listener: so no
program of the platform that runs wild can take the event loop from traffic. Counted by this
gateway alone.
"""

import math
import time
from collections.abc import Callable, Mapping

from smartgw.admission.span import SECOND, Span
from smartgw.admission.table import Table
from smartgw.api.answers import ApiError
from smartgw.api.tokens import Caller
from smartgw.config_limits import Rates

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

    def charge(self, caller: Caller) -> tuple[Mapping[str, str], ApiError | None]:
        """Count a request of a service.

        Returns the fields that tell what is left to it (contract 6.2), and the 429 when it had
        too many.
        """
        now = self._clock() // 1000
        limit = self._rates().services
        window = self._table.find((caller.issuer, caller.subject), now)
        wait = window.charge(now, 1, limit, self._span)
        left = max(0, limit - window.used)
        reset = math.ceil(window.reset(now, limit, self._span) / SECOND)
        fields = {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset": str(reset),
            "RateLimit-Policy": f'"service";q={limit};w={math.ceil(self._rates().window)}',
            "RateLimit": f'"service";r={left};t={reset}',
        }
        if not wait:
            return fields, None
        message = f"{limit} requests in {self._rates().window:g} s are taken of one service"
        seconds = str(math.ceil(wait / SECOND))
        return fields, ApiError(429, "rate_limited", message, fields={"Retry-After": seconds})
