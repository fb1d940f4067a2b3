"""Heads for the tests of http1.py: parsed with one field name of each kind."""

from __future__ import annotations

from smartgw_hosts.http1 import (
    DROP,
    MARK,
    NOTED,
    PASS,
    Bounds,
    FieldNames,
    MessageRefused,
    RequestHead,
    ResponseHead,
    parse_request,
    parse_response,
)

LINE = b"GET / HTTP/1.1"
HOST = b"Host: a.example"
TCHAR = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def kind(name: bytes) -> int:
    """Fields that a proxy reads, marks and drops, one of each."""
    return {b"x-read": NOTED, b"x-mark": MARK, b"x-drop": DROP}.get(name, PASS)


def parse(*lines: bytes, bounds: Bounds | None = None) -> RequestHead:
    """Parse a head of these lines, the first of which is the request line."""
    return parse_request(b"\r\n".join(lines), FieldNames(kind), bounds or Bounds())


def refused(*lines: bytes, bounds: Bounds | None = None) -> int:
    """Return the status with which a head of these lines is refused; 0 if it is not."""
    try:
        parse(*lines, bounds=bounds)
    except MessageRefused as refusal:
        return refusal.status
    return 0


def answer(*lines: bytes, method: bytes = b"GET") -> ResponseHead:
    """Parse the head of an answer, the first line of which is the status line."""
    return parse_response(b"\r\n".join(lines), FieldNames(kind), Bounds(), method)


def answer_refused(*lines: bytes, method: bytes = b"GET") -> bool:
    """Say whether the head of an answer is refused."""
    try:
        answer(*lines, method=method)
    except MessageRefused:
        return True
    return False
