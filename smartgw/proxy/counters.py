"""What the data path counts: plain integers, read when somebody asks (contract 11.3)."""

from typing import Final

from smartgw.admission.breaker import Fault
from smartgw.errors import Reason
from smartgw.metrics import Histogram
from smartgw.routing.forwarding import Kind, MarkFault
from smartgw_hosts.challenge import Proof

NAMES: Final = (
    "attempts_failed",
    "connections",
    "connections_refused",
    "connections_total",
    "downstream_aborts",
    "duration",
    "epochs_differed",
    "failovers",
    "forwards",
    "forwards_received",
    "in_flight",
    "limit_alone",
    "limit_callers",
    "limit_squeezed",
    "limited",
    "link_failures",
    "links_accepted",
    "links_opened",
    "links_refused",
    "marks",
    "marks_refused",
    "meter_unavailable",
    "misplaced",
    "own_errors",
    "peers_set_aside",
    "received",
    "requests",
    "retries",
    "sent",
    "store_away",
    "store_checks",
    "store_faults",
    "store_trips",
    "tunnels",
    "upgrades",
    "upstream_connections",
    "upstream_connections_total",
    "upstream_failures",
)
"""The attributes of Counters, whose slots the compiler does not tell."""


class Counters:
    """Attributes: requests is indexed by the status's first digit, 0 for no answer at all.

    Links are connections between gateways: `links_opened` by us, `links_accepted` from peers.
    `marks` are forwards of peers that were taken for what they say, `marks_refused` the others.
    `forwards` counts attempts at peers, `retries` requests that were sent again, `failovers`
    answers of another cluster than the one meant, `peers_set_aside` how often one was, `misplaced`
    421s of hosts' guards.
    `limited` counts refusals by kind of window, `limit_alone` what a process decided without the
    store that it shares with others. `limit_callers` and `store_away` say what there is now.
    """

    __slots__ = NAMES

    def __init__(self) -> None:
        self.requests = [0] * 6
        self.duration = Histogram()
        self.own_errors = dict.fromkeys(Reason, 0)
        self.in_flight = 0
        self.received = 0
        self.sent = 0
        self.attempts_failed = 0
        self.downstream_aborts = 0
        self.connections = 0
        self.connections_total = 0
        self.connections_refused = 0
        self.upgrades = 0
        self.tunnels = 0
        self.upstream_connections = 0
        self.upstream_connections_total = 0
        self.upstream_failures = 0
        self.links_opened = 0
        self.link_failures = dict.fromkeys(Proof, 0)
        self.links_accepted = 0
        self.links_refused = dict.fromkeys(MarkFault, 0)
        self.marks = 0
        self.marks_refused = dict.fromkeys(MarkFault, 0)
        self.forwards = dict.fromkeys(Kind, 0)
        self.forwards_received = dict.fromkeys(Kind, 0)
        self.epochs_differed = 0
        self.failovers = 0
        self.retries = 0
        self.peers_set_aside = 0
        self.misplaced = 0
        self.limited = {"app": 0, "unknown": 0, "gateway": 0, "metered": 0}
        self.limit_alone = 0
        self.limit_callers = 0
        self.limit_squeezed = 0
        self.meter_unavailable = 0
        self.store_checks = 0
        self.store_trips = 0
        self.store_faults = dict.fromkeys(Fault, 0)
        self.store_away = 0
