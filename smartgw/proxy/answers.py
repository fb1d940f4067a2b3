"""The answers that the gateway gives itself, and what it adds to others' (contract 3.10, 4.7).

Owns what stands in them for a reason, the Date of all, and when a 101 is one. Which reason it is,
and that nothing else has been answered yet, is path.py's.
"""

import time
from email.utils import formatdate

from smartgw import errors
from smartgw.errors import ANSWERS, Reason
from smartgw.peers.directory import View
from smartgw.proxy import headers
from smartgw.proxy.exchange import SAFE_METHODS, Exchange, Sent
from smartgw.routing import cors, told
from smartgw.routing.forwarding import Mark
from smartgw.routing.policy import DEFAULT_POLICY
from smartgw_hosts.http1 import ResponseHead

_SENT_WORDS = {Sent.NONE: b"none", Sent.PARTIAL: b"partial", Sent.FULL: b"full"}
"""How `x-smartgw-request-sent` says how much had left (contract 5.5)."""


def own_answer(exchange: Exchange, reason: Reason, detail: str) -> tuple[list[bytes], bytes]:
    """Return field lines and body of the answer; `detail` says what exactly was wrong."""
    answer = ANSWERS[reason]
    request = exchange.request
    as_html = errors.wants_html(headers.first_value(request.lines, b"accept"))
    wait = 0
    if reason is Reason.RATE_LIMITED:
        wait, detail = exchange.wait, exchange.detail
    media_type, body = errors.body(reason, exchange.request_id.decode(), detail, as_html, wait)
    lines = [
        b"Content-Type: " + media_type.encode(),
        b"Content-Length: %d" % len(body),
        b"Cache-Control: no-store",
        b"Proxy-Status: " + errors.proxy_status(reason, detail),
    ]
    if answer.status == 503:
        lines.append(b"Retry-After: 1")
    elif wait:
        lines.append(b"Retry-After: %d" % wait)
    elif answer.status == 405:
        lines.append(b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
    if answer.status in (502, 503, 504) and request.method not in SAFE_METHODS:
        lines.append(b"X-Smartgw-Request-Sent: " + _SENT_WORDS[exchange.sent])
    route = exchange.route
    policy = DEFAULT_POLICY if route is None else route.policy
    lines += cors.of_ours(policy, request.noted.get(headers.ORIGIN))
    return lines, body


def tell_sender(exchange: Exchange, mark: Mark, view: View, lines: list[bytes]) -> None:
    """Add to the answer to a forward what its sender is to know; `view` is ours of the clusters."""
    epoch = view.epoch
    other = None if epoch == mark.epoch else epoch or "none"
    line = told.line(exchange.reason, exchange.status, _SENT_WORDS[exchange.sent], other)
    if line is not None:
        lines.append(line)


def confirms(exchange: Exchange, head: ResponseHead) -> bool:
    """Say whether a 101 answer confirms what was asked (RFC 9110 7.8, RFC 6455 4.1)."""
    if head.upgrade != (exchange.upgrade,):
        return False
    if exchange.upgrade != b"websocket":
        return True
    accept = headers.first_value(head.lines, b"sec-websocket-accept")
    return accept is not None and accept == headers.websocket_accept(exchange.request)


class Date:
    """The line of a Date field (RFC 9110 6.6.1), made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        """Return the line of now."""
        second = int(time.time())
        if second != self._second:
            self._second, self._line = second, b"Date: " + formatdate(second, usegmt=True).encode()
        return self._line
