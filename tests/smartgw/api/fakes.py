"""A gateway that is a plain object, for tests of its API alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smartgw.admission.meter import Meter
from smartgw.admission.span import Span
from smartgw.admission.table import Table
from smartgw.api.api import Api
from smartgw.api.audit import Audit
from smartgw.api.credentials import Credentials
from smartgw.api.gateway import Directory
from smartgw.api.operator import Operator
from smartgw.config_fields import Auth, Settings
from smartgw.config_limits import Rates
from smartgw.metrics import Family, counter
from smartgw.nameserver import Nameserver
from smartgw.processes.drain import Phase
from smartgw.proxy.counters import Counters
from smartgw.proxy.explain import Question
from smartgw.state.durable import DurableState


@dataclass(frozen=True, slots=True)
class FakeKey:
    text: str = "ed25519:" + "A" * 43


@dataclass(frozen=True, slots=True)
class FakeHost:
    host_id: str
    state: str = "healthy"
    reason: str = "verified"
    since: float = 90.0
    verified_at: float | None = 95.0
    boot: int = 1
    address: str = "http://127.0.0.1:9000"
    pending_address: str | None = None
    pending_reason: str = ""
    detail: str = ""
    key: FakeKey = field(default_factory=FakeKey)
    apps: tuple[str, ...] = ("shop",)
    refused_apps: tuple[tuple[str, str], ...] = ()
    weight: int = 100
    region: str = ""
    version: str = "1"


@dataclass(frozen=True, slots=True)
class FakeReadiness:
    ready: bool = True
    missing: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    state: Mapping[str, Any] | None = None


@dataclass(slots=True)
class FakeLeaving:
    phase: Phase = Phase.SERVING
    final: bool = False

    async def begin(self) -> None:
        self.phase = Phase.UNREADY

    async def undo(self) -> bool:
        if not self.final:
            self.phase = Phase.SERVING
        return not self.final


REFUSED: Mapping[str, Any] = {
    "outcome": "refused",
    "status": 503,
    "reason": "no_upstream",
    "detail": "No healthy host serves this app now.",
    "hostname": "shop.smart-app.test",
    "app_id": "shop",
    "policy": None,
    "limit": None,
    "cors": None,
    "attempts": [],
    "steps": [],
}


SHOWN: Mapping[str, Any] = {
    "gateway": {"id": "g1", "cluster": "east"},
    "bus": {"connected": True},
}


SETTINGS = Settings.model_validate(
    {
        "cluster": "east",
        "base_domains": ["smart-app.test"],
        "host_networks": ["127.0.0.0/8"],
        "state": {"bucket": "smartgw"},
    }
)


def memory_meter() -> Meter:
    """A meter of one process."""
    return Meter(Table(Span.of(60), 1_000), Counters())


@dataclass(slots=True)
class FakeGateway:
    leaving: FakeLeaving = field(default_factory=FakeLeaving)
    refreshed: int = 0
    all_hosts: list[FakeHost] = field(default_factory=list)
    now_ready: FakeReadiness = field(default_factory=FakeReadiness)
    broken: bool = False
    durable: DurableState | None = None
    base_domains: tuple[str, ...] = ("smart-app.test",)
    rates: Rates = field(default_factory=Rates)
    directory: Directory | None = None
    explained: Mapping[str, Any] = field(default_factory=lambda: REFUSED)
    meter: Meter = field(default_factory=lambda: memory_meter())
    dns: Nameserver = field(default_factory=lambda: Nameserver(SETTINGS, (), None, None))
    shown: Mapping[str, Any] = field(default_factory=lambda: SHOWN)

    def status(self) -> Mapping[str, Any]:
        if self.broken:
            raise RuntimeError("secret detail")
        return self.shown

    async def refresh(self) -> None:
        self.refreshed += 1

    async def drain_host(self, host_id: str, *, undo: bool) -> bool:
        return any(host.host_id == host_id for host in self.all_hosts)

    def readiness(self) -> FakeReadiness:
        return self.now_ready

    def hosts(self) -> Sequence[FakeHost]:
        return self.all_hosts

    def host(self, host_id: str) -> FakeHost | None:
        return next((host for host in self.all_hosts if host.host_id == host_id), None)

    async def explain(self, question: Question) -> dict[str, Any] | None:
        return None if self.broken else dict(self.explained)

    def metrics(self) -> Iterable[Family]:
        return [counter("smartgw_requests_total", "Requests.", 3)]


def api_of(gateway: FakeGateway, auth: Auth | None = None) -> tuple[Api, Credentials]:
    """The API of a gateway, its changes told to nobody."""
    credentials = Credentials(auth or Auth(), Operator())
    return Api(gateway, credentials, Audit("off", "g1", "east")), credentials
