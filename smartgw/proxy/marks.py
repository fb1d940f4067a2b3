"""Which forwards of peers are believed (contract 4.5): the receiving side of the links.

Owns what is remembered of a link, the clock that marks are judged by, and what is counted. What a
mark proves is routing/forwarding.py's, who a link belongs to routing/link_opening.py's.
"""

import asyncio
import os
import time

from smartgw.proxy.counters import Counters
from smartgw.routing import link_opening
from smartgw.routing.forwarding import NONCE_BYTES, Keyring, Mark, MarkFault, unseal
from smartgw_hosts.http1 import RequestHead

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: no-store\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


class LinkEnd:
    """The receiving end of a link: all that is remembered, for nothing else can be replayed.

    Attributes:
        nonce: random, given to the sender when the connection opened.
        counter: that of the last mark that was good.
    """

    __slots__ = ("counter", "nonce")

    def __init__(self, nonce: bytes) -> None:
        self.nonce = nonce
        self.counter = 0


class Marks:
    """What all connections of this process judge by.

    The clock is the wall clock as it stood at the start, carried on by the loop's: senders reckon
    by what a link's opening told them of it, so that a step of either side's clock makes no mark
    stale.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, counters: Counters) -> None:
        self.ring: Keyring | None = None
        """Our keys with the clusters of the list in force; None: there is no directory."""
        self._loop = loop
        self._counters = counters
        self._offset = time.time() - loop.time()

    def open(self, request: RequestHead, asked: bytes, kept: float) -> tuple[LinkEnd, bytes] | None:
        """Return a new link and the whole answer to the request that opens it; None for every
        other request and whoever cannot prove a cluster's key: he gets what any reserved path gets.

        `asked`: value of `x-smartgw-link`. `kept`: seconds that we keep an idle connection.
        """
        ring = self.ring
        if ring is None or request.target != link_opening.PATH:
            return None
        if request.method != b"POST" or request.length or not request.keep_alive:
            return None
        nonce = os.urandom(NONCE_BYTES)
        answer = link_opening.answer(asked, ring, nonce, self._now_ms(), kept)
        if isinstance(answer, MarkFault):
            self._counters.links_refused[answer] += 1
            return None
        self._counters.links_accepted += 1
        return LinkEnd(nonce), _ANSWER % (len(answer[1]), answer[1])

    def judge(self, link: LinkEnd | None, request: RequestHead, sent: bytes) -> Mark | None:
        """Return the mark of a request, None when it has none that counts; count it either way.

        `link`: of the connection that it came on. `sent`: value of `x-smartgw-forward`.
        """
        found: Mark | MarkFault
        if link is None or self.ring is None:
            found = MarkFault.NO_LINK
        elif b"," in sent:
            found = MarkFault.SEVERAL
        else:
            found = unseal(
                sent,
                self.ring,
                request.method,
                request.authority,
                request.target,
                link.nonce,
                link.counter,
                self._now_ms(),
            )
        if isinstance(found, MarkFault):
            self._counters.marks_refused[found] += 1
            return None
        assert link is not None
        link.counter = found.counter
        self._counters.marks += 1
        return found

    def _now_ms(self) -> int:
        return int((self._loop.time() + self._offset) * 1000)
