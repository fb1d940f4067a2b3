"""A request and the hosts of ours that may serve it: which one next (contract 3.7).

Owns that another host is tried only while nothing was sent, how many, and that one which moves is
waited for. Whether another cluster may be asked is forwards.py's.
"""

import random
from typing import TYPE_CHECKING

from smartgw.errors import Reason
from smartgw.proxy.choice import choose
from smartgw.proxy.exchange import Exchange
from smartgw.routing.snapshot import HostEntry

if TYPE_CHECKING:
    from smartgw.proxy.link import Link
    from smartgw.proxy.path import Path

_MAX_ATTEMPTS = 4
# A host that moves signs for its old address no longer, until its new one is verified and in the
# table: how often and how far apart the table is looked at meanwhile.
_LOOKS, _LOOK_SECONDS = 40, 0.05


class Locally:
    """The part of the path that chooses among hosts."""

    def __init__(self, path: "Path") -> None:
        self._path = path

    def attempt(self, exchange: Exchange) -> bool:
        """Choose a host and a connection to it; the exchange goes on when there is one. False:
        nobody is left.
        """
        path, route = self._path, exchange.route
        assert route is not None
        tried = exchange.tried
        link: Link | None = None
        if tried is None:
            link = choose(route.hosts, path.pools.link, random.random, route.shares)
        elif len(tried) < _MAX_ATTEMPTS:
            link = choose(self._untried(exchange, tried), path.pools.link, random.random)
        if link is None:
            if not exchange.looks:
                return False
            exchange.looks -= 1
            path.pools.loop.call_later(_LOOK_SECONDS, self._look_again, exchange)
            return True
        exchange.link = link
        link.outstanding += 1
        connection = link.take(exchange)
        if connection is not None:
            path.carry(exchange, connection)
        return True

    def failed(self, exchange: Exchange, reason: Reason, moving: bool) -> None:
        """No connection to the chosen host; nothing was sent, so the next one may have it."""
        link = exchange.link
        assert link is not None
        exchange.link = None
        if exchange.tried is None:
            exchange.tried = set()
        if exchange.failure is None:
            exchange.failure = reason
        exchange.tried.add(link)
        if moving and not exchange.looks:
            exchange.looks = _LOOKS
        link.done(exchange)
        self._path.counters.attempts_failed += 1

    def _look_again(self, exchange: Exchange) -> None:
        # In the time that was waited another cluster may have got it.
        if not exchange.over and exchange.link is None and exchange.forward is None:
            self._path.attempt(exchange)

    def _untried(self, exchange: Exchange, tried: "set[Link]") -> list[HostEntry]:
        """Return the hosts that may still be tried: of today's table, for a host may have moved,
        and one that lost its enrolment meanwhile must not be spoken to (1.4).
        """
        route = exchange.route
        if route is not self._path.own_route:
            before, mark = exchange.route, exchange.mark
            route = self._path.snapshot.lookup(exchange.hostname)
            if route is None and mark is not None:
                route = self._path.snapshot.route(mark.app_id)
            if route is None or before is None or route.app_id != before.app_id:
                return []
            exchange.route = route
        assert route is not None
        return [host for host in route.hosts if self._path.pools.link(host) not in tried]
