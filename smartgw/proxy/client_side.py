"""Who is at the other end of a downstream connection, and for whom it may speak (contract 3.5).

Owns the three ways to know a client: the socket's address, the word of a trusted proxy, and the
mark of a peer's gateway (4.5). Reads and writes nothing; which marks count is marks.py's.
"""

import asyncio
from typing import TYPE_CHECKING

from smartgw.proxy.marks import LinkEnd
from smartgw.routing.forwarding import Mark
from smartgw_hosts.http1 import RequestHead

if TYPE_CHECKING:
    from smartgw.proxy.listener import Listening


class ClientSide(asyncio.Protocol):
    """A connection that somebody opened to us.

    Attributes:
        peer: its IP address, or that which a trusted load balancer told.
        scheme: b"http" or b"https", as the connection is.
        vouched: it belongs to a peer's gateway, which stands for many clients.
    """

    __slots__ = (
        "_authority",
        "_forwarding",
        "_link",
        "_listening",
        "_stranger",
        "_trusted",
        "peer",
        "scheme",
        "vouched",
    )

    def __init__(
        self,
        listening: "Listening",
        scheme: bytes,
        client: str | None = None,
        stranger: bool = False,
    ) -> None:
        """`client`: the address that a trusted load balancer told; None: that of the socket.
        `stranger`: whoever it is, its own word on its address is not taken.
        """
        self._listening = listening
        self.scheme = scheme
        self.peer = client or ""
        self.vouched = False
        self._authority = b""
        self._forwarding = b""
        self._link: LinkEnd | None = None
        self._stranger = stranger
        self._trusted = False

    @property
    def trusted(self) -> bool:
        """Whether the peer is a configured proxy, which stands for many clients."""
        return self._trusted

    @staticmethod
    def address_of(transport: asyncio.BaseTransport) -> str:
        """Return the peer's IP address, an IPv4-mapped one as the IPv4 address it holds."""
        peername = transport.get_extra_info("peername")
        address = str(peername[0]) if isinstance(peername, tuple) else "unix"
        return address.removeprefix("::ffff:") if "." in address else address

    def forwarding(self, request: RequestHead) -> tuple[str, bytes]:
        forwarding = self._listening.forwarding
        authority = request.authority
        if self._trusted:
            return (
                forwarding.client(self.peer, request.noted),
                forwarding.trusted_lines(self.peer, self.scheme, authority, request.noted),
            )
        if authority != self._authority:
            self._authority = authority
            self._forwarding = forwarding.lines(self.peer, self.scheme, authority)
        if not request.minor:
            return self.peer, self._forwarding.replace(b"\r\nVia: 1.1 ", b"\r\nVia: 1.0 ")
        return self.peer, self._forwarding

    def caller_scheme(self, request: RequestHead) -> bytes:
        if self._trusted:
            return self._listening.forwarding.scheme(self.scheme, request.noted)
        return self.scheme

    def marked_forwarding(self, request: RequestHead, mark: Mark) -> bytes:
        return self._listening.forwarding.lines(mark.client, mark.scheme, request.authority)

    def mark(self, request: RequestHead, sent: bytes) -> Mark | None:
        mark = self._listening.marks.judge(self._link, request, sent)
        if mark is not None and not self.vouched:
            # Only now is it sure that the link's opening was not a recorded one.
            self.vouched = True
            self._listening.vouch(self.peer)
        return mark
