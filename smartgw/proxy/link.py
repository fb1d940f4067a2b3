"""What a request is given to: the connections to one host, or to the gateways of one peer.

Owns the face that path.py and upstream.py see of a link. Where its connections go and how each
is proven differs: a host's are pools.py's, a peer's are peers/links.py's.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartgw.proxy.exchange import Exchange
    from smartgw.proxy.upstream import UpstreamConnection


class Link(ABC):
    """A base class and not a Protocol, for its methods are called several times a request.

    Attributes:
        outstanding: requests and tunnels that were given to this link and are not over; whoever
            gives one adds it.
        host_id: of the host, empty for a peer.
        cluster_id: of the peer, empty for a host.
    """

    __slots__ = ("cluster_id", "host_id", "outstanding")

    def __init__(self, host_id: str = "", cluster_id: str = "") -> None:
        self.host_id = host_id
        self.cluster_id = cluster_id
        self.outstanding = 0

    # ---- what path.py calls ----

    @abstractmethod
    def take(self, exchange: "Exchange") -> "UpstreamConnection | None":
        """Return a free connection, or have the exchange wait: then `Path.carry` is called with
        the first that comes free, or `Path.attempt_failed` when there is none to come.
        """

    @abstractmethod
    def done(self, exchange: "Exchange") -> None:
        """An exchange that was given to this link is over, or goes to another."""

    @abstractmethod
    def is_opening(self) -> bool:
        """Say whether a connection is being opened for some of those who wait."""

    # ---- what pools.py calls ----

    @abstractmethod
    def wants_one(self) -> bool:
        """Say whether a request waits for whom no connection is being opened, and one may be."""

    @abstractmethod
    def open_one(self) -> None:
        """Open one more connection: it is wanted, and there is room for it."""

    # ---- what upstream.py calls ----

    @abstractmethod
    def release(self, connection: "UpstreamConnection") -> None:
        """Take back a connection whose exchange is over."""

    @abstractmethod
    def lost(self, connection: "UpstreamConnection") -> None:
        """Forget a connection that has ended."""

    @abstractmethod
    def broke(self, connection: "UpstreamConnection") -> None:
        """A connection ended within the first exchange after its proof."""
