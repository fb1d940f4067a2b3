"""Which operations there are, and at which listener each is served (contract 10.1, 10.2).

Owns the two lists. The internal listener has all; the gateway's own hostnames have what is public,
and control where the settings do not close it there.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web

from smartgw.api import internal, public
from smartgw.api.audit import Audit
from smartgw.api.clusters import Clusters
from smartgw.api.control import Control
from smartgw.api.credentials import Credentials
from smartgw.api.discovery import Discovery
from smartgw.api.explain import Explain
from smartgw.api.gateway import Gateway
from smartgw.api.metering import Metering
from smartgw.api.observed import HEALTHZ, Observed, healthz
from smartgw.api.openapi import document
from smartgw.api.operations import Access, Bound, Call, Guard, Operation, Outcome, Reply
from smartgw.api.resolve import Resolve
from smartgw.api.service_rates import ServiceRates
from smartgw.api.zones import Zones
from smartgw.metrics import Family, by_label, counter

DESCRIPTION = Operation(
    "openapi",
    "GET",
    "/api/v3/openapi.json",
    "This description",
    "OpenAPI 3.1 of what is served at this listener.",
    "gateway",
    Access.OPEN,
    (Outcome(200, "The description."),),
)


class Api:
    """Makes the applications of both listeners, once each."""

    def __init__(self, gateway: Gateway, credentials: Credentials, audit: Audit) -> None:
        self._credentials = credentials
        self._audit = audit
        self._rates = ServiceRates(lambda: gateway.rates)
        self._metering = Metering(lambda: gateway.meter, lambda: gateway.rates, self._rates)
        observed = Observed(gateway, audit, self._families)
        discovery = Discovery(gateway)
        clusters = Clusters(gateway)
        self._open: tuple[Bound, ...] = (
            *((HEALTHZ, healthz), *discovery.bounds),
            *clusters.bounds,
            *Resolve(lambda: gateway.dns, self._metering).bounds,
        )
        self._internal: tuple[Bound, ...] = observed.open
        control = Control(lambda: gateway.durable, audit, lambda: gateway.base_domains)
        zones = Zones(lambda: gateway.dns, audit, lambda: gateway.base_domains)
        self._control: tuple[Bound, ...] = (
            *control.bounds,
            *zones.bounds,
            *observed.control,
            *Explain(gateway).bounds,
        )

    def operations(self, *, internal: bool, control: bool = True) -> tuple[Bound, ...]:
        """What is served at the internal listener, or else on the gateway's own hostnames."""
        bounds = (
            *self._open,
            *(self._internal if internal else ()),
            *(self._control if control else ()),
        )
        return _described(bounds, internal=internal)

    def internal(self, host: str) -> web.Application:
        """The internal listener's; `host` is what it is called."""
        guard = Guard(self._credentials, self._rates, internal=True)
        return internal.build(self.operations(internal=True), guard, self._metering, host=host)

    def public(self, *, control: bool) -> web.Application:
        """That of the gateway's own hostnames, with control or without."""
        guard = Guard(self._credentials, self._rates, internal=False)
        return public.build(self.operations(internal=False, control=control), guard, self._metering)

    def _families(self) -> Iterable[Family]:
        yield by_label(
            "smartgw_api_refused_total",
            "Credentials that the API refused.",
            "reason",
            {reason.value: count for reason, count in self._credentials.refused.items()},
        )
        yield counter("smartgw_audit_lines_total", "Lines written.", self._audit.written)
        yield counter("smartgw_audit_lost_total", "Lines lost.", self._audit.lost)


def _described(bounds: Sequence[Bound], *, internal: bool) -> tuple[Bound, ...]:
    """Return the operations with the one that describes them; it is made when first asked for."""
    operations = [*(operation for operation, _ in bounds), DESCRIPTION]
    made: list[dict[str, Any]] = []

    async def describe(call: Call) -> Reply:
        if not made:
            # In a thread: schemas of all models take longer than traffic may wait.
            made.append(await asyncio.to_thread(document, operations, internal=internal))
        return Reply(made[0], fields={"Cache-Control": "max-age=60"})

    return (*bounds, (DESCRIPTION, describe))
