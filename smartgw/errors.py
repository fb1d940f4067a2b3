"""Every answer that the gateway itself gives: the closed set of reasons, whose fault, which status.

Owns the one table from reason to status, words and RFC 9209 error type, and the body that a
program (JSON) or a person (HTML) gets (contract 3.10). Does not decide which reason applies.
"""

import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


def counted(number: int, what: str) -> str:
    """Return a number of things in words: "1 request", "6,000 requests"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


class Fault(StrEnum):
    """Whose doing an error is; counted by it."""

    DOWNSTREAM = "downstream"
    UPSTREAM = "upstream"
    PEER = "peer"
    INTERNAL = "internal"


class Reason(StrEnum):
    """Why the gateway answers by itself; stands in bodies, logs and metrics."""

    BAD_REQUEST = "bad_request"
    BAD_HOSTNAME = "bad_hostname"
    TARGET_TOO_LONG = "target_too_long"
    HEAD_TOO_LARGE = "head_too_large"
    EXPECTATION_FAILED = "expectation_failed"
    VERSION_NOT_SUPPORTED = "version_not_supported"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    CLIENT_STALLED = "client_stalled"
    UNKNOWN_HOST = "unknown_host"
    RESERVED_PATH = "reserved_path"
    RATE_LIMITED = "rate_limited"
    LOOP_DETECTED = "loop_detected"
    APP_SUSPENDED = "app_suspended"
    APP_RETIRED = "app_retired"
    NOT_READY = "not_ready"
    NO_UPSTREAM = "no_upstream"
    OVERLOADED = "overloaded"
    UPSTREAM_REFUSED = "upstream_refused"
    UPSTREAM_UNPROVEN = "upstream_unproven"
    UPSTREAM_RESET = "upstream_reset"
    UPSTREAM_MALFORMED = "upstream_malformed"
    UPGRADE_FAILED = "upgrade_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    PEER_UNREACHABLE = "peer_unreachable"
    PEER_RESET = "peer_reset"
    PEER_MALFORMED = "peer_malformed"
    PEER_TIMEOUT = "peer_timeout"
    OWNER_UNCLEAR = "owner_unclear"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reason means to the outside.

    Attributes:
        status: HTTP status code; `phrase` its reason phrase.
        fault: whose doing it is.
        error: the error type of RFC 9209 2.3 for the Proxy-Status field, None where none fits.
        text: one sentence for the person in front of it.
        close: the connection cannot be used further.
    """

    status: int
    phrase: str
    fault: Fault
    error: str | None
    text: str
    close: bool = False


_D, _U, _P, _I = Fault.DOWNSTREAM, Fault.UPSTREAM, Fault.PEER, Fault.INTERNAL

# A refused message leaves it open where the next one begins, so its connection ends (RFC 9112 9.6).
ANSWERS: dict[Reason, Answer] = {
    Reason.BAD_REQUEST: Answer(
        400, "Bad Request", _D, "http_request_error", "The request is malformed.", True
    ),
    Reason.BAD_HOSTNAME: Answer(
        400, "Bad Request", _D, "http_request_error", "The request names no valid host.", True
    ),
    Reason.TARGET_TOO_LONG: Answer(
        414, "URI Too Long", _D, "http_request_error", "The address is too long.", True
    ),
    Reason.HEAD_TOO_LARGE: Answer(
        431,
        "Request Header Fields Too Large",
        _D,
        "http_request_error",
        "The request's header fields are too large.",
        True,
    ),
    Reason.EXPECTATION_FAILED: Answer(
        417,
        "Expectation Failed",
        _D,
        "http_request_error",
        "The request expects something other than 100-continue.",
        True,
    ),
    Reason.VERSION_NOT_SUPPORTED: Answer(
        505,
        "HTTP Version Not Supported",
        _D,
        "http_request_error",
        "Only HTTP/1.1 and HTTP/1.0 are understood here.",
        True,
    ),
    # A CONNECT body or tunnel would follow: the connection ends with the refusal.
    Reason.METHOD_NOT_ALLOWED: Answer(
        405,
        "Method Not Allowed",
        _D,
        "http_request_denied",
        "CONNECT and TRACE are not allowed here.",
        True,
    ),
    Reason.REQUEST_TIMEOUT: Answer(
        408,
        "Request Timeout",
        _D,
        "http_request_error",
        "The request did not arrive in time.",
        True,
    ),
    # Stands in the log only: whoever does not read his answer gets no other.
    Reason.CLIENT_STALLED: Answer(
        408,
        "Request Timeout",
        _D,
        "http_request_error",
        "The client did not take its answer in time.",
        True,
    ),
    Reason.UNKNOWN_HOST: Answer(
        404,
        "Not Found",
        _D,
        "destination_not_found",
        "No app is served under this hostname; check its spelling.",
    ),
    Reason.RESERVED_PATH: Answer(
        404, "Not Found", _D, "http_request_denied", "This path is reserved by the gateway."
    ),
    Reason.RATE_LIMITED: Answer(
        429,
        "Too Many Requests",
        _D,
        "http_request_denied",
        "There were too many requests from this address; wait a little and try again.",
    ),
    Reason.LOOP_DETECTED: Answer(
        508,
        "Loop Detected",
        _U,
        "proxy_loop_detected",
        "The request has been here before: somebody behind this gateway sent it back.",
    ),
    Reason.APP_SUSPENDED: Answer(
        503, "Service Unavailable", _I, "http_request_denied", "This app is suspended."
    ),
    Reason.APP_RETIRED: Answer(
        503, "Service Unavailable", _I, "http_request_denied", "This app has been retired."
    ),
    Reason.NOT_READY: Answer(
        503,
        "Service Unavailable",
        _I,
        "proxy_internal_response",
        "The gateway is starting and does not know its hosts yet.",
    ),
    Reason.NO_UPSTREAM: Answer(
        503,
        "Service Unavailable",
        _U,
        "destination_unavailable",
        "No healthy host serves this app now.",
    ),
    Reason.OVERLOADED: Answer(
        503,
        "Service Unavailable",
        _I,
        "connection_limit_reached",
        "The gateway has no room for this request now.",
    ),
    Reason.UPSTREAM_REFUSED: Answer(
        502, "Bad Gateway", _U, "connection_refused", "The app's host cannot be reached."
    ),
    Reason.UPSTREAM_UNPROVEN: Answer(
        502,
        "Bad Gateway",
        _U,
        "destination_ip_prohibited",
        "The app's host did not prove its identity.",
    ),
    Reason.UPSTREAM_RESET: Answer(
        502,
        "Bad Gateway",
        _U,
        "connection_terminated",
        "The app's host closed the connection without an answer.",
    ),
    Reason.UPSTREAM_MALFORMED: Answer(
        502, "Bad Gateway", _U, "http_protocol_error", "The app's answer is malformed."
    ),
    Reason.UPGRADE_FAILED: Answer(
        502, "Bad Gateway", _U, "http_upgrade_failed", "The app's upgrade answer is not valid."
    ),
    Reason.CONNECT_TIMEOUT: Answer(
        504,
        "Gateway Timeout",
        _U,
        "connection_timeout",
        "The app's host did not take the connection in time.",
    ),
    Reason.UPSTREAM_TIMEOUT: Answer(
        504, "Gateway Timeout", _U, "http_response_timeout", "The app did not answer in time."
    ),
    Reason.PEER_UNREACHABLE: Answer(
        502, "Bad Gateway", _P, "connection_refused", "The app's home cluster cannot be reached."
    ),
    Reason.PEER_RESET: Answer(
        502,
        "Bad Gateway",
        _P,
        "connection_terminated",
        "The app's home cluster closed the connection without an answer.",
    ),
    Reason.PEER_MALFORMED: Answer(
        502,
        "Bad Gateway",
        _P,
        "http_protocol_error",
        "The answer of the app's home cluster is malformed.",
    ),
    Reason.PEER_TIMEOUT: Answer(
        504,
        "Gateway Timeout",
        _P,
        "http_response_timeout",
        "The app's home cluster did not answer in time.",
    ),
    # The host that refused the request did nothing with it (contract 4.8).
    Reason.OWNER_UNCLEAR: Answer(
        503,
        "Service Unavailable",
        _P,
        "destination_unavailable",
        "The app is moving to another cluster; try again in a moment.",
    ),
}

REFUSED_MESSAGE: dict[int, Reason] = {
    400: Reason.BAD_REQUEST,
    414: Reason.TARGET_TOO_LONG,
    417: Reason.EXPECTATION_FAILED,
    431: Reason.HEAD_TOO_LARGE,
    505: Reason.VERSION_NOT_SUPPORTED,
}
"""Status of `smartgw_hosts.http1.MessageRefused` -> reason."""

_QUALITY = re.compile(rb"(?:0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\Z")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{status} {phrase}</title><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1.5rem;\
color:#1c1e21;background:#fff}}
h1{{font-size:1.4rem}}code,small{{color:#5a6068}}
@media(prefers-color-scheme:dark){{body{{color:#e6e8eb;background:#16181c}}\
code,small{{color:#9aa1aa}}}}
</style></head><body><h1>{text}</h1><p>{detail}<code>{status} {reason}</code></p>
<p><small>Request id: {request_id}</small></p></body></html>
"""


def wants_html(accept: bytes | None) -> bool:
    """Say whether a client with this Accept field would rather read a page than JSON.

    Browsers list text/html by name; API clients send nothing, */* or JSON.
    """
    most, html_is_it = 0.0, False
    for choice in (accept or b"").lower().split(b","):
        media_type, *parameters = (part.strip() for part in choice.split(b";"))
        is_html = media_type in (b"text/html", b"application/xhtml+xml")
        weight = _weight(parameters)
        if (is_html or media_type.endswith(b"json")) and weight > most:
            most, html_is_it = weight, is_html
    return html_is_it


def _weight(parameters: Iterable[bytes]) -> float:
    """Return the q of a choice (RFC 9110 12.4.2); what cannot be read weighs nothing."""
    for parameter in parameters:
        if parameter.startswith(b"q="):
            return float(parameter[2:]) if _QUALITY.match(parameter[2:]) else 0.0
    return 1.0


def body(
    reason: Reason, request_id: str, detail: str, as_html: bool, retry_after: int = 0
) -> tuple[str, bytes]:
    """Return media type and body of the answer; `detail` says what exactly was wrong, or is empty.

    The JSON form is `{"error": {"status", "reason", "message", "detail"?, "retry_after"?,
    "request_id"}}`; `retry_after` are seconds, after which the same request may succeed.
    """
    answer = ANSWERS[reason]
    if as_html:
        page = _PAGE.format(
            status=answer.status,
            phrase=answer.phrase,
            reason=reason.value,
            text=html.escape(answer.text),
            detail=html.escape(detail) + "<br>" if detail else "",
            request_id=html.escape(request_id),
        )
        return "text/html; charset=utf-8", page.encode()
    error: dict[str, object] = {
        "status": answer.status,
        "reason": reason.value,
        "message": answer.text,
    }
    if detail:
        error["detail"] = detail
    if retry_after:
        error["retry_after"] = retry_after
    error["request_id"] = request_id
    return "application/json", json.dumps({"error": error}).encode() + b"\n"


def proxy_status(reason: Reason, detail: str) -> bytes:
    """Return the value of the Proxy-Status field (RFC 9209)."""
    error = ANSWERS[reason].error
    value = b"smartgw" if error is None else b"smartgw; error=" + error.encode()
    if detail:
        # A string of RFC 9651 3.3.3: printable ASCII with backslash and quote escaped.
        text = "".join(c if " " <= c <= "~" else "?" for c in detail)
        value += b'; details="' + text.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'
    return value


_SHED = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Cache-Control: no-store\r\nProxy-Status: smartgw; error=connection_limit_reached\r\n"
    b"Retry-After: 1\r\n%b\r\nConnection: close\r\nContent-Length: 51\r\n\r\n"
    b'{"error": {"status": 503, "reason": "overloaded"}}\n'
)


def shed(limits: bytes) -> bytes:
    """Return the answer to a connection that is one too many, before it has said anything;
    `limits` are the lines of contract 6.2.
    """
    return _SHED % limits
