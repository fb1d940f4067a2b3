"""What a gateway says of itself: the sections of its status, and its metrics (contract 11.3).

Owns their names. The numbers are the parts' own, read when somebody asks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from smartgw.metrics import Family, by_label, counter, gauge
from smartgw.proxy.counters import Counters


class Worker(Protocol):
    """One worker; see `smartgw.processes.crew.WorkerFacts`."""

    @property
    def number(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def serving(self) -> bool: ...
    @property
    def restarts(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def cpu(self) -> float: ...
    @property
    def connections(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """The numbers of one moment, of all processes of the gateway together.

    `bus` and `discovery` are the parts' counters, empty before they start; `refused` counts bus
    messages by reason; `log` is lines written and dropped; `tasks` are those of this process.
    """

    counters: Counters
    connected: bool
    servers: int
    bus: Mapping[str, int]
    discovery: Mapping[str, int]
    refused: Mapping[str, int]
    log: tuple[int, int]
    workers: Sequence[Worker]
    tasks: int


def sections(facts: Facts) -> dict[str, Any]:
    """Return the sections of the status that are numbers."""
    counters, bus = facts.counters, facts.bus
    found: dict[str, Any] = {
        "bus": {
            "connected": facts.connected,
            "servers": facts.servers,
            "reconnects": max(0, bus.get("generations", 0) - 1),
            "drops": bus.get("drops", 0),
        },
        "traffic": {
            "requests": sum(counters.requests),
            "in_flight": counters.in_flight,
            "connections": counters.connections,
            "upstream_connections": counters.upstream_connections,
            "by_status": {f"{n}xx": count for n, count in enumerate(counters.requests) if n},
            "own_errors": {
                reason.value: count for reason, count in counters.own_errors.items() if count
            },
        },
        "limits": {
            "limited": dict(counters.limited),
            "callers": counters.limit_callers,
            "squeezed": counters.limit_squeezed,
            "alone": counters.limit_alone,
            "meter_unavailable": counters.meter_unavailable,
        },
        "discovery": {
            "messages": bus.get("messages", 0),
            "refused": {reason: count for reason, count in facts.refused.items() if count},
        },
        "access_log": {"written": facts.log[0], "dropped": facts.log[1]},
    }
    if facts.workers:
        found["workers"] = [
            {
                "number": worker.number,
                "pid": worker.pid,
                "serving": worker.serving,
                "restarts": worker.restarts,
                "connections": worker.connections,
                "memory": worker.memory,
            }
            for worker in facts.workers
        ]
    return found


def families(facts: Facts) -> Iterable[Family]:
    """Yield the metrics."""
    counters = facts.counters
    yield by_label(
        "smartgw_requests_total",
        "Requests that are over, by the class of their status; 0xx: the client went away.",
        "class",
        {f"{n}xx": count for n, count in enumerate(counters.requests)},
    )
    yield by_label(
        "smartgw_own_errors_total",
        "Answers that the gateway gave by itself.",
        "reason",
        {reason.value: count for reason, count in counters.own_errors.items()},
    )
    yield Family(
        "smartgw_request_duration_seconds",
        "From the end of a request's head to the last byte of its answer.",
        "histogram",
        {(): counters.duration},
    )
    for name, text in _COUNTERS.items():
        yield counter(f"smartgw_{name}_total", text, getattr(counters, name))
    yield counter(
        "smartgw_connections_total", "Connections of clients.", counters.connections_total
    )
    yield counter(
        "smartgw_upstream_connections_total",
        "Connections to hosts.",
        counters.upstream_connections_total,
    )
    yield by_label(
        "smartgw_limited_total",
        "Requests refused since their caller had used up a window.",
        "window",
        dict(counters.limited),
    )
    yield by_label(
        "smartgw_store_faults_total",
        "Times the store of the counters could not be asked.",
        "reason",
        {fault.value: count for fault, count in counters.store_faults.items()},
    )
    for name, text in _GAUGES.items():
        yield gauge(f"smartgw_{name}", text, getattr(counters, name))
    yield from _link_families(counters)
    yield by_label(
        "smartgw_discovery_refused_total",
        "Messages of the bus that were refused.",
        "reason",
        dict(facts.refused),
    )
    if bus := facts.bus:
        yield gauge("smartgw_bus_connected", "1 while the bus is there.", int(facts.connected))
        yield counter("smartgw_bus_messages_total", "Messages taken from the bus.", bus["messages"])
        yield counter("smartgw_bus_drops_total", "Messages that came too fast.", bus["drops"])
    if proofs := facts.discovery:
        yield counter("smartgw_proofs_total", "Verifications of hosts.", proofs["proofs"])
        yield counter("smartgw_proofs_failed_total", "Those that failed.", proofs["proofs_failed"])
        yield counter("smartgw_stalls_total", "Times we did not run.", proofs["stalls"])
    yield gauge("smartgw_tasks", "Tasks of the control process's event loop.", facts.tasks)
    yield counter("smartgw_access_log_lines_total", "Lines written.", facts.log[0])
    yield counter("smartgw_access_log_dropped_total", "Lines lost.", facts.log[1])
    if facts.workers:
        yield from _worker_families(facts.workers)


def _link_families(counters: Counters) -> Iterable[Family]:
    """Yield what happens on connections between gateways (contract 4.5)."""
    yield by_label(
        "smartgw_links_total",
        "Connections between gateways, by who opened them.",
        "opened_by",
        {"us": counters.links_opened, "peer": counters.links_accepted},
    )
    yield by_label(
        "smartgw_link_failures_total",
        "Connections to peers' gateways that failed before they could carry a request.",
        "reason",
        {reason.value: count for reason, count in counters.link_failures.items() if reason != "ok"},
    )
    yield by_label(
        "smartgw_links_refused_total",
        "Questions to open a link that were refused.",
        "reason",
        {reason.value: count for reason, count in counters.links_refused.items()},
    )
    yield by_label(
        "smartgw_forwards_total",
        "Attempts at peers.",
        "kind",
        {kind.value: count for kind, count in counters.forwards.items()},
    )
    yield by_label(
        "smartgw_forwards_received_total",
        "Requests that peers forwarded to us.",
        "kind",
        {kind.value: count for kind, count in counters.forwards_received.items()},
    )
    yield counter("smartgw_marks_total", "Forwards of peers that were taken.", counters.marks)
    yield by_label(
        "smartgw_marks_refused_total",
        "Marks of forwards that were dropped; their requests are ordinary ones.",
        "reason",
        {reason.value: count for reason, count in counters.marks_refused.items()},
    )


def _worker_families(workers: Sequence[Worker]) -> Iterable[Family]:
    """Numbers of the places and not of processes: a set that the settings close."""
    yield gauge("smartgw_workers", "Workers that serve.", sum(w.serving for w in workers))
    yield by_label(
        "smartgw_worker_restarts_total",
        "Workers that died.",
        "worker",
        {str(worker.number): worker.restarts for worker in workers},
    )
    yield by_label(
        "smartgw_worker_cpu_seconds_total",
        "CPU time of the workers, user and system.",
        "worker",
        {str(worker.number): worker.cpu for worker in workers},
    )
    yield by_label(
        "smartgw_worker_resident_memory_bytes",
        "Memory of the workers.",
        "worker",
        {str(worker.number): worker.memory for worker in workers},
        "gauge",
    )


_COUNTERS = {
    "received": "Bytes of request bodies.",
    "sent": "Bytes of answers' bodies.",
    "connections_refused": "Connections of clients that were one too many.",
    "attempts_failed": "Attempts to reach a host before anything was sent.",
    "limit_alone": "Requests that a process counted alone, for the store was away.",
    "limit_squeezed": "Callers that shared a window, for rates.callers were there.",
    "meter_unavailable": "Metered calls that were answered 503, for the store was away.",
    "store_checks": "Windows that the store was asked about.",
    "store_trips": "Round trips to the store.",
    "downstream_aborts": "Requests whose client went away.",
    "upgrades": "Upgrades to WebSocket.",
    "upstream_failures": "Connections to hosts that failed.",
    "failovers": "Answers of another cluster than the one that a request was meant for.",
    "retries": "Requests that were sent to a second cluster after they had been to a first.",
    "peers_set_aside": "Times a peer was set aside because it kept failing.",
    "epochs_differed": "Forwards, sent or received, whose other end goes by another list.",
    "misplaced": "Writes that a host refused because another cluster owns the app.",
}
_GAUGES = {
    "limit_callers": "Callers that are counted apart.",
    "store_away": "Processes that cannot ask the store of the counters now.",
    "connections": "Connections of clients that are open.",
    "in_flight": "Requests that are not over.",
    "tunnels": "Upgraded connections.",
    "upstream_connections": "Connections to hosts that are open.",
}
