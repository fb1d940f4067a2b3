"""One request and its answer on their way through the gateway; knows no HTTP version.

Owns the state that the steps of path.py share, and the two faces that an exchange sees: the
downstream that brought it and the upstream that carries it. Decides nothing.
"""

from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, Protocol

from smartgw.errors import Reason
from smartgw.routing.snapshot import Route
from smartgw_hosts import guard
from smartgw_hosts.http1 import RequestHead, ResponseHead

if TYPE_CHECKING:
    from smartgw.peers.directory import View
    from smartgw.proxy.link import Link
    from smartgw.routing.failover import Course
    from smartgw.routing.forwarding import Kind, Mark

SAFE_METHODS = frozenset(method.encode() for method in guard.SAFE_METHODS)
"""Requests that may be sent to another cluster, and again (contract 5); all others are writes."""


PENDING_LIMIT = 65_536
"""Bytes of a request body that are held while it waits for a connection (contract 5.6)."""


class Sent(IntEnum):
    """How much of the request has left for a host (contract 5.5)."""

    NONE = 0
    PARTIAL = 1
    FULL = 2


class Taken(Enum):
    """A step's result beside a reason: it has answered the exchange itself, or will go on with it
    later.
    """

    TAKEN = auto()


class Downstream(Protocol):
    """The side that calls us. Each of its connections or streams has one exchange at a time."""

    deadline: float
    peer: str
    scheme: bytes

    def forwarding(self, request: RequestHead) -> tuple[str, bytes]:
        """Return the client's address and the lines that tell it to the host."""

    def caller_scheme(self, request: RequestHead) -> bytes:
        """Return b"http" or b"https": how the client came, as `forwarding` tells it."""

    def mark(self, request: RequestHead, sent: bytes) -> "Mark | None":
        """Return what a peer's gateway says of a request that it forwards, None when that is not
        to be believed; `sent`: value of `x-smartgw-forward` (contract 4.5).
        """

    def marked_forwarding(self, request: RequestHead, mark: "Mark") -> bytes:
        """Return the lines that tell the host of the client of a forward."""

    def await_head(self) -> None:
        """Expire when the present attempt's answer is due, if nothing else is before."""

    def interim(self, head: ResponseHead) -> None:
        """Send a 1xx answer."""

    def respond(
        self,
        exchange: "Exchange",
        status: int,
        phrase: bytes,
        lines: list[bytes],
        length: int,
        payload: bytes,
        done: bool,
    ) -> None:
        """Send the answer's head with the first bytes of its body; `done`: and that is all."""

    def write(self, payload: bytes) -> None:
        """Send more of the answer's body."""

    def finish(self, exchange: "Exchange", trailers: list[bytes]) -> None:
        """End the answer's body."""

    def break_off(self) -> None:
        """End the connection or stream so that the client sees that the answer is not whole."""

    def tunnel(self, exchange: "Exchange", head: ResponseHead, upstream: "Upstream") -> None:
        """Send a 101 answer and relay bytes from now on."""

    def pause_body(self) -> None:
        """Take no more of the request's body from the client for now."""

    def resume_body(self) -> None:
        """Take the request's body again."""


class Upstream(Protocol):
    """A proven connection to a host, or a stream of one, that carries an exchange."""

    def send_body(self, payload: bytes) -> None:
        """Send more of the request's body."""

    def send_end(self, trailers: list[bytes]) -> None:
        """End the request's body."""

    def pause_reading(self) -> None:
        """Take no more of the answer for now."""

    def resume_reading(self) -> None:
        """Take the answer again."""

    def unsent(self) -> int:
        """Return how many bytes the host has not taken yet."""

    def abandon(self) -> None:
        """Give up the exchange: the host must not take what it got for a whole request."""


_NONE = Sent.NONE
_NO_TRAILERS: list[bytes] = []


class Exchange:
    """A request from its head to its last log line.

    Attributes:
        started: monotonic seconds, when the head was complete.
        view: the clusters as this request sees them (contract 4.6), None before they matter.
        mark: what a peer's gateway says of it; None: it comes from its client.
        forward: why the present attempt goes to a peer; None: it is for a host here.
        course: the attempts at several clusters; None: there is but the one here.
        until: monotonic seconds, when the one deadline to the answer's head passes (5.1). That of
            a write moves on with its body, by `patience` seconds from the last that came.
        due: when the present attempt is over, if somebody else would be asked; of a write `until`.
        began: something of an answer has gone to the client, so nothing is sent again (5.6).
        whole: all that has come of the body is still here: in `pending`, and once that was given
            away in `kept`.
        request_done: the whole request has come in.
        link: the host or the peer that was chosen, None before.
        pending: body bytes that wait for an upstream connection; bounded by PENDING_LIMIT.
        tried: hosts here that failed before anything was sent, None before the first did.
        looks: how often the table is looked at again when nobody is left, for a host is moving.
        failure: the first failure, which is what is answered when nobody is left.
        preflight: the lines that answer a preflight, None for every other request.
        limits: what its window says, as lines joined by CRLF (contract 6.2); empty before.
        wait: seconds until it would fit, `detail` that in words; of a refused one.
        charged: when it was charged, by the clock of who counted it; 0 before.
        status: what was answered, 0 before.
        admitted: counted among its app's requests.
        over: answered and settled; whatever still comes for it is ignored.
    """

    __slots__ = (
        "admitted",
        "began",
        "charged",
        "client",
        "course",
        "detail",
        "downstream",
        "due",
        "failure",
        "forward",
        "forwarding",
        "hostname",
        "kept",
        "limits",
        "link",
        "looks",
        "mark",
        "over",
        "patience",
        "pending",
        "pending_size",
        "preflight",
        "reason",
        "received",
        "request",
        "request_done",
        "request_id",
        "route",
        "sent",
        "sent_bytes",
        "started",
        "status",
        "trailers",
        "tried",
        "until",
        "upgrade",
        "upstream",
        "view",
        "wait",
        "whole",
    )

    def __init__(
        self, downstream: Downstream, request: RequestHead, started: float, patience: float
    ) -> None:
        self.downstream = downstream
        self.request = request
        self.started = started
        self.client = downstream.peer
        self.view: View | None = None
        self.mark: Mark | None = None
        self.forward: Kind | None = None
        self.course: Course | None = None
        self.patience = patience
        self.until = self.due = started + patience
        self.began = False
        self.whole = False
        self.kept: list[bytes] | None = None
        self.forwarding = b""
        self.hostname = b""
        self.request_id = b""
        self.route: Route | None = None
        self.link: Link | None = None
        self.upstream: Upstream | None = None
        self.upgrade: bytes | None = None
        self.pending: list[bytes] | None = None
        self.pending_size = 0
        self.trailers: list[bytes] = _NO_TRAILERS
        self.tried: set[Link] | None = None
        self.failure: Reason | None = None
        self.preflight: list[bytes] | None = None
        self.limits = b""
        self.wait = 0
        self.charged = 0
        self.detail = ""
        self.looks = 0
        self.reason: Reason | None = None
        self.sent = _NONE
        self.status = 0
        self.received = 0
        self.sent_bytes = 0
        self.request_done = False
        self.admitted = False
        self.over = False

    def hold(self, payload: bytes) -> None:
        """Keep body bytes until there is an upstream connection."""
        if self.pending is None:
            self.pending = [payload]
        else:
            self.pending.append(payload)
        self.pending_size += len(payload)

    def keep(self, payload: bytes) -> None:
        """Remember body bytes that are given away, as long as that is all of them and not much."""
        if self.received > PENDING_LIMIT:
            self.whole, self.kept = False, None
        elif self.kept is None:
            self.kept = [payload]
        else:
            self.kept.append(payload)


def no_request() -> RequestHead:
    """Return what stands for the head of a message that could not be read."""
    head = RequestHead()
    head.method, head.target, head.authority = b"", b"", b""
    head.lines, head.marked, head.noted = [], [], {}
    head.length, head.minor, head.upgrade = 0, 1, ()
    head.keep_alive = head.expect = False
    head.nominated = frozenset()
    return head
