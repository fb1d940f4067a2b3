"""How raw cases are judged: pure functions from a case and what was seen to the reasons why it
failed.

The rules of a request case are: refused when it must be, forwarded at most once when it may be,
never malformed, never a second request that the client did not make. Those of an answer case
stand in its manifest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.raw_http import Answer, BadAnswer, Downstream
from tests.upstreams import Request

Case = dict[str, Any]


@dataclass(slots=True)
class Exchange:
    """What the client got and what the upstream recorded."""

    got: bytes
    closed: bool
    requests: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def finals(self) -> list[int]:
        """Final status codes, in order."""
        found = re.findall(rb"HTTP/1\.[01] (\d{3})[ \r]", self.got)
        return [int(code) for code in found if int(code) >= 200]

    @property
    def heads(self) -> bytes:
        """All recorded heads, lower case, `name: value` lines."""
        lines = []
        for request in self.requests:
            lines.append(request.head.split(b"\r\n")[0])
            lines += [name + b": " + value for name, value in request.fields]
        return b"\r\n".join([*lines, b""]).lower()


def judge_request(case: Case, seen: Exchange) -> list[str]:
    """Why a case of raw request bytes failed; empty when it passed."""
    fail = []
    count, finals = len(seen.requests), seen.finals
    if count > len(finals) and count > 1:
        fail.append(f"DESYNC: upstream saw {count} requests, client got {len(finals)} answers")
    elif any(b"/smuggled" in r.raw_target for r in seen.requests):
        fail.append("follow-on request served after ambiguous framing")
    fail += [f"upstream got a malformed request: {error}" for error in seen.errors[:1]]
    fail += _judge_outcome(case, seen)
    if 500 in finals:
        fail.append("a 500 of ours")
    heads = seen.heads
    fail += [f"upstream saw {x!r}" for x in case["not_seen"] if x.lower().encode() in heads]
    if count or case["expect"] == "accept":
        fail += [
            f"upstream did not see {x!r}" for x in case["seen"] if x.lower().encode() not in heads
        ]
    return fail


def _judge_outcome(case: Case, seen: Exchange) -> list[str]:
    fail = []
    count, finals, allowed = len(seen.requests), seen.finals, case["status"]
    hangs = not finals and not seen.closed
    if case["expect"] == "reject":
        if count:
            fail.append(f"forwarded {count}")
        elif finals and finals[0] < 400:
            fail.append(f"status {finals[0]}")
        elif hangs:
            fail.append("no answer and not closed")
        if finals and allowed and finals[0] not in allowed:
            fail.append(f"status {finals[0]}, allowed {allowed}")
    elif case["expect"] == "accept":
        if not finals or any(code >= 400 for code in finals):
            fail.append(f"refused: {finals[:2] or ('closed' if seen.closed else 'no answer')}")
        if finals and allowed and finals[0] not in allowed:
            fail.append(f"status {finals[0]}, allowed {allowed}")
    else:
        if count == 0 and hangs:
            fail.append("no answer and not closed")
        if count > 1:
            fail.append(f"{count} requests forwarded")
        if count == 0 and finals and allowed and finals[0] not in allowed:
            fail.append(f"status {finals[0]}, allowed {allowed}")
    return fail


def judge_answer(case: Case, client: Downstream, raw: bytes) -> tuple[list[int], list[str]]:
    """Read the answer to a case of raw answer bytes; final statuses and why it failed."""
    try:
        answer = client.answer(case["request"]["method"])
    except BadAnswer as error:
        cut = case["end"] == "truncated" and not client.got
        return [], [] if cut else [f"not an answer: {error}"]
    except TimeoutError:
        return [], [f"no whole answer in time, got {bytes(client.got[:80])!r}"]
    fail = _judge_body(case, answer, raw)
    # The body of a HEAD or a smuggled second answer must not come either.
    client.closed(0.1)
    got = bytes(client.got).lower()
    if answer.status not in case["status"]:
        fail.append(f"status {answer.status}, allowed {case['status']}")
    if answer.status == 500:
        fail.append("a 500 of ours")
    fail += [f"client got {x!r}" for x in case["absent"] if x.lower().encode() in got]
    for name in case.get("at_most_one", []):
        if len(answer.all(name)) > 1:
            fail.append(f"{name} stands {len(answer.all(name))} times")
    if case.get("one_framing") and answer.all("content-length") and answer.all("transfer-encoding"):
        fail.append("two framings")
    if case.get("crlf_only") and re.search(rb"(?<!\r)\n|\r(?!\n)", answer.head):
        fail.append("a bare CR or LF in the head")
    if client.buffer:
        fail.append(f"bytes after the answer: {bytes(client.buffer[:40])!r}")
    return [answer.status], fail


def _judge_body(case: Case, answer: Answer, raw: bytes) -> list[str]:
    fail = []
    ours = answer.status == 502
    if not ours and case["body"] is not None and answer.body != case["body"].encode():
        fail.append(f"body {answer.body[:60]!r}, wanted {case['body'][:60]!r}")
    if not ours and (wanted := case.get("raw_body")):
        exact = raw.partition(b"\r\n\r\n")[2] if wanted is True else str(wanted).encode("latin1")
        if answer.body != exact:
            fail.append(f"body is not passed as it was: {answer.body[:60]!r}")
    if case["end"] == "complete" and not answer.complete:
        fail.append("answer is not complete")
    if case["end"] == "truncated" and answer.complete and not ours:
        fail.append("the client cannot tell that the answer was cut")
    return fail
