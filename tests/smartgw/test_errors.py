"""errors.py: the gateway's own answers, for programs and for people."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.errors import (
    ANSWERS,
    REFUSED_MESSAGE,
    Fault,
    Reason,
    body,
    counted,
    proxy_status,
    wants_html,
)
from smartgw_hosts import chunked, http1, start_line

# RFC 9209 2.3: the error types that a field may name.
ERROR_TYPES = frozenset(
    (
        *("dns_timeout", "dns_error", "destination_not_found", "destination_unavailable"),
        *("destination_ip_prohibited", "destination_ip_unroutable", "connection_refused"),
        *("connection_terminated", "connection_timeout", "connection_read_timeout"),
        *("connection_write_timeout", "connection_limit_reached", "tls_protocol_error"),
        *("tls_certificate_error", "tls_alert_received", "http_request_error"),
        *("http_request_denied", "http_response_incomplete", "http_response_header_section_size"),
        *("http_response_header_size", "http_response_body_size"),
        *("http_response_trailer_section_size", "http_response_trailer_size"),
        *("http_response_transfer_coding", "http_response_content_coding", "http_response_timeout"),
        *("http_upgrade_failed", "http_protocol_error", "proxy_internal_response"),
        *("proxy_internal_error", "proxy_configuration_error", "proxy_loop_detected"),
    )
)
REASONS = st.sampled_from(list(Reason))


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_its_answer(reason: Reason) -> None:
    """3.10: reasons are a closed set; each has a status, a fault, words and an error type."""
    answer = ANSWERS[reason]
    assert answer.phrase == HTTPStatus(answer.status).phrase.replace("-URI", " URI") or (
        answer.phrase in ("URI Too Long", "Request Header Fields Too Large")
    )
    assert answer.error in ERROR_TYPES
    assert re.fullmatch(r"[A-Z][^<>&\"]+\.", answer.text)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", reason.value)
    if answer.fault is Fault.DOWNSTREAM:
        assert answer.status < 500 or answer.status == 505
    else:
        assert answer.status >= 500
    # 500 would be a fault that nobody can cause: an app may have one, we have reasons.
    assert answer.status != 500


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.UNKNOWN_HOST, 404),
        (Reason.RESERVED_PATH, 404),
        (Reason.NO_UPSTREAM, 503),
        (Reason.NOT_READY, 503),
        (Reason.METHOD_NOT_ALLOWED, 405),
        (Reason.BAD_HOSTNAME, 400),
        (Reason.UPSTREAM_REFUSED, 502),
        (Reason.UPSTREAM_RESET, 502),
        (Reason.UPSTREAM_TIMEOUT, 504),
        (Reason.CONNECT_TIMEOUT, 504),
    ],
)
def test_statuses_of_the_contract(reason: Reason, status: int) -> None:
    """3.4, 3.5, 5: unknown is 404, nothing to serve it 503, CONNECT 405, reset 502, late 504."""
    assert ANSWERS[reason].status == status


def test_refused_messages() -> None:
    """3.2: whatever http1.py refuses has its answer, after which the connection is closed."""
    refused: set[int] = set()
    for module in (http1, start_line, chunked):
        source = Path(module.__file__ or "").read_text()
        refused |= {int(status) for status in re.findall(r"MessageRefused\((\d+)", source)}
    # A 502 is what becomes of an answer that is refused.
    assert refused - {502} == set(REFUSED_MESSAGE)
    for status, reason in REFUSED_MESSAGE.items():
        assert ANSWERS[reason].status == status
        assert ANSWERS[reason].close


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        (None, False),
        (b"", False),
        (b"*/*", False),
        (b"text/*", False),
        (b"application/json", False),
        (b"text/html", True),
        (b"TEXT/HTML", True),
        (b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", True),
        (b"application/xhtml+xml", True),
        (b"application/json, text/html", False),
        (b"text/html, application/json", True),
        (b"application/json;q=0.5, text/html", True),
        (b"text/html;q=0.1, application/json", False),
        (b"text/html;q=0, application/json;q=0.1", False),
        (b"text/html;q=0", False),
        (b"text/html;q=0.000", False),
        (b"text/html ; level=1 ; q=0.3", True),
        (b"text/html;q=x", False),
        (b"text/html;q=2", False),
        (b"text/html;q=1e3", False),
        (b"text/html;q=nan", False),
        (b"application/problem+json, text/html", False),
        (b"application/vnd.api+json", False),
        (b"text/htmlx", False),
        (b"x/text/html", False),
        (b"text/html;", True),
        (b",,;;,text/html", True),
        (b"\xff", False),
    ],
)
def test_who_gets_a_page(accept: bytes | None, page: bool) -> None:
    """3.10: errors are JSON for API clients and a small HTML page for browsers, by Accept."""
    assert wants_html(accept) is page


@given(st.binary(max_size=60))
def test_any_accept(accept: bytes) -> None:
    """3.10: no Accept field is beyond judgement."""
    assert wants_html(accept) in (True, False)


@pytest.mark.parametrize("detail", ["", "no connection in time"])
def test_json(detail: str) -> None:
    """3.10: the JSON names status, reason, words and request id, and the detail if there is one."""
    media_type, payload = body(Reason.NO_UPSTREAM, "id-1", detail, as_html=False)
    assert media_type == "application/json"
    error = {
        "status": 503,
        "reason": "no_upstream",
        "message": "No healthy host serves this app now.",
        **({"detail": detail} if detail else {}),
        "request_id": "id-1",
    }
    assert json.loads(payload) == {"error": error}
    assert payload.endswith(b"\n")


class Page(HTMLParser):
    """Collects the elements and the words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.just(
    "<script>{status}</script>&\"'{0}"
)


@given(REASONS, ANY, ANY)
def test_page(reason: Reason, request_id: str, detail: str) -> None:
    """3.10: the page says the same, and no word of anyone's becomes markup in it."""
    media_type, payload = body(reason, request_id, detail, as_html=True)
    assert media_type == "text/html; charset=utf-8"
    page = Page(payload.decode())
    plain = Page(body(reason, "", "x" if detail else "", as_html=True)[1].decode())
    assert page.elements == plain.elements
    assert "script" not in page.elements
    assert f"{ANSWERS[reason].status} {reason.value}" in page.words
    assert ANSWERS[reason].text in page.words


@given(REASONS, ANY, ANY)
def test_any_json(reason: Reason, request_id: str, detail: str) -> None:
    """3.10: whatever stands in detail and id, the body is JSON that says so."""
    error = json.loads(body(reason, request_id, detail, as_html=False)[1])["error"]
    assert (error["status"], error["reason"]) == (ANSWERS[reason].status, reason.value)
    assert (error["request_id"], error.get("detail", "")) == (request_id, detail)


@given(REASONS, ANY)
def test_proxy_status(reason: Reason, detail: str) -> None:
    """3.10 (RFC 9209, RFC 9651): Proxy-Status names us and the error; details are one string."""
    value = proxy_status(reason, detail).decode("ascii")
    head, _, rest = value.partition('; details="')
    assert head == f"smartgw; error={ANSWERS[reason].error}"
    assert bool(rest) == bool(detail)
    if rest:
        assert re.fullmatch(r'(?:[ !#-\[\]-~]|\\[\\"])*"', rest)
        shown = re.sub(r"\\(.)", r"\1", rest[:-1])
        assert shown == "".join(c if " " <= c <= "~" else "?" for c in detail)


def test_numbers_have_their_noun() -> None:
    """3.10: what is told to people is a sentence."""
    assert [counted(n, "request") for n in (0, 1, 2, 6000)] == [
        *("0 requests", "1 request", "2 requests", "6,000 requests")
    ]
