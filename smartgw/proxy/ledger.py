"""What is written down of an exchange that is over: counters, and a line of the access log (11.3).

Owns what counts as what. Holds nothing open: links and places are given back by path.py.
"""

from bisect import bisect_left
from typing import TYPE_CHECKING

from smartgw.proxy.counters import Counters
from smartgw.proxy.exchange import Exchange

if TYPE_CHECKING:
    from smartgw.accesslog import AccessLog

_PROTOCOLS = ("HTTP/1.0", "HTTP/1.1")


def write_down(
    exchange: Exchange, own_cluster: str, now: float, counters: Counters, log: "AccessLog | None"
) -> None:
    """Count and log an exchange once; `now` is the loop's time."""
    duration = now - exchange.started
    counters.in_flight -= 1
    counters.requests[exchange.status // 100] += 1
    histogram = counters.duration
    histogram.counts[bisect_left(histogram.bounds, duration)] += 1
    histogram.total += duration
    counters.received += exchange.received
    counters.sent += exchange.sent_bytes
    reason = exchange.reason
    if reason is not None:
        counters.own_errors[reason] += 1
    if log is None:
        return
    request = exchange.request
    route, link, course, mark = exchange.route, exchange.link, exchange.course, exchange.mark
    cluster = host = None
    if link is not None:
        host = link.host_id or None
        if reason is None:
            cluster = link.cluster_id or own_cluster
    marked = request.marked
    log.append(
        (
            exchange.started,
            duration,
            exchange.client,
            request.method,
            exchange.hostname,
            request.target,
            _PROTOCOLS[request.minor],
            exchange.status,
            exchange.received,
            exchange.sent_bytes,
            exchange.request_id,
            None if route is None else route.app_id,
            host,
            None if reason is None else reason.value,
            request.lines[marked[0]][11:].strip() if marked else None,
            cluster,
            None if exchange.forward is None else exchange.forward.value,
            None if mark is None else mark.sender,
            int(link is not None) if course is None else course.made,
        )
    )
