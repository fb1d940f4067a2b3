"""What the API reads of the gateway that it is a part of, as Protocols.

Owns nothing: smartgw.app.Gateway and the records of smartgw_hosts.pool have these shapes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from smartgw.admission.meter import Meter
from smartgw.config_limits import Rates
from smartgw.metrics import Family
from smartgw.nameserver import Nameserver
from smartgw.peers.directory import View
from smartgw.processes.drain import Phase
from smartgw.proxy.explain import Question
from smartgw.state.durable import DurableState


class Readiness(Protocol):
    """Whether traffic may come, what is missing for it, and what works less well than it could."""

    @property
    def ready(self) -> bool: ...
    @property
    def missing(self) -> Sequence[str]: ...
    @property
    def degraded(self) -> Sequence[str]: ...
    @property
    def state(self) -> Mapping[str, Any] | None: ...


class Key(Protocol):
    """A host's public key."""

    @property
    def text(self) -> str: ...


class Host(Protocol):
    """One host as the pool knows it (smartgw_hosts.pool.HostRecord); times are monotonic."""

    @property
    def host_id(self) -> str: ...
    @property
    def boot(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def pending_address(self) -> str | None: ...
    @property
    def pending_reason(self) -> str: ...
    @property
    def key(self) -> Key: ...
    @property
    def apps(self) -> Sequence[str]: ...
    @property
    def refused_apps(self) -> Sequence[tuple[str, str]]: ...
    @property
    def weight(self) -> int: ...
    @property
    def region(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def since(self) -> float: ...
    @property
    def verified_at(self) -> float | None: ...


class Leaving(Protocol):
    """See `smartgw.processes.leaving.Leaving`."""

    @property
    def phase(self) -> Phase: ...

    async def begin(self) -> None: ...

    async def undo(self) -> bool: ...


class Directory(Protocol):
    """See `smartgw.peers.follow.Follower`."""

    @property
    def view(self) -> View: ...
    @property
    def confirmed_ago(self) -> float | None: ...


class Gateway(Protocol):
    """What the API reads of the gateway. smartgw.app.Gateway is one."""

    def status(self) -> Mapping[str, Any]:
        """JSON values, by section; a section that is not there is not shown.

        `gateway`: id, cluster, version, pid, started_at (unix seconds), compiled (the data path,
        see smartgw.native), base_domains, http (addresses), internal; `bus`: connected, servers
        (how many), reconnects, drops; `traffic`: requests, in_flight, connections,
        upstream_connections, by_status {"2xx": n}, own_errors {reason: n}; `discovery`: messages,
        refused {reason: n}; `access_log`: written, dropped; `peers`: mode, epoch, affinity,
        failover, source, age_seconds, clusters, refused {reason: n}, faults {source: text}.
        """

    async def refresh(self) -> None:
        """Have what `status` and `metrics` read be of now, in every process."""

    def readiness(self) -> Readiness: ...

    def hosts(self) -> Sequence[Host]: ...

    def host(self, host_id: str) -> Host | None:
        """One of them, None when it is not known."""

    @property
    def leaving(self) -> Leaving: ...

    @property
    def durable(self) -> DurableState | None:
        """What the platform has decided, None where nothing is kept."""

    @property
    def base_domains(self) -> tuple[str, ...]:
        """The domains below which apps have their labels."""

    @property
    def rates(self) -> Rates:
        """How many requests of one caller pass."""

    @property
    def meter(self) -> Meter:
        """Charges budgets where the data path counts."""

    @property
    def dns(self) -> Nameserver:
        """The zones, and whoever answers from them; only once the gateway has started."""

    @property
    def directory(self) -> Directory | None:
        """The directory of clusters, None before the gateway has started."""

    async def drain_host(self, host_id: str, *, undo: bool) -> bool:
        """Take a host out of choice for new requests, or back in; False: it is not known."""

    async def explain(self, question: Question) -> dict[str, Any] | None:
        """What would be done with a request; None: no process that carries traffic answers."""

    def metrics(self) -> Iterable[Family]:
        """The families of the gateway's own counters; readiness and hosts are added here."""
