"""What a sidecar answers by itself: challenges, and errors of the gateway's shape (contract 3.10).

Owns the form of these answers. Whether a challenge is signed is challenge.py's to decide, when an
answer is due sidecar_http.py's and sidecar_raw.py's.
"""

import json
import time
from collections.abc import Iterator
from http import HTTPStatus

from smartgw_hosts.challenge import Responder
from smartgw_hosts.http1 import RequestHead


def answer_challenge(
    responder: Responder, raw_head: bytes, request: RequestHead, body: bytes
) -> tuple[int, bytes]:
    """Hand a request to the responder exactly as it came: raw target, every field."""
    return responder.answer(
        request.method,
        raw_head.split(b" ", 2)[1],
        list(fields_of(raw_head)),
        body,
        time.monotonic(),
        time.time_ns() // 1_000_000,
    )


def fields_of(raw_head: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and value of each field, exactly as they came."""
    for line in raw_head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        yield name, value.strip(b" \t")


def own_answer(status: int, body: bytes, *lines: bytes) -> bytes:
    """A whole answer of ours, with a JSON body."""
    head = (
        b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        b"Cache-Control: no-store\r\n"
    ) % (status, HTTPStatus(status).phrase.encode(), len(body))
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def error_body(status: int, reason: str, message: str) -> bytes:
    """The body of an error of ours, of the gateway's shape (contract 3.10)."""
    error = {"status": status, "reason": reason, "message": message}
    return json.dumps({"error": error}).encode() + b"\n"
