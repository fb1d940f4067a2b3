"""Differential fuzzing of HTTP/1: `python -m tests.fuzz [--seconds N] [--seed N]`.

Our reading of requests, answers and chunked bodies against llhttp's and h11's. Owns what counts
as a difference, and the list of those that are meant, each with its reason. Ends with
`N inputs, N differences` and fails when there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

import httptools

from smartgw.errors import REFUSED_MESSAGE
from smartgw.proxy import headers
from smartgw.routing import cors
from smartgw.routing.policy import AppPolicy
from smartgw.routing.wellknown import is_reserved
from smartgw_hosts.http1 import Bounds, parse_request, parse_response
from tests.fuzz_inputs import Inputs
from tests.fuzz_readers import Field, Reading, Verdict, by_h11, by_llhttp, ours

MESSAGES_PER_INPUT = 6
SHOWN = 20
_MAX_PADDING = 65_536
# For what is forwarded: with our own lines it may be larger than what came.
_ROOMY = Bounds(head=100_000, fields=200, field_line=50_000, target=50_000)
# Sent behind a body that ends with its connection: who takes it for anything else is found out.
_FILLER = b"\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One message, or its beginning, with what may follow it.

    Attributes:
        method: that of the request which the bytes answer; None when they are a request.
    """

    data: bytes
    method: bytes | None
    bounds: Bounds

    @property
    def first_line(self) -> bytes:
        """The request or status line."""
        return self.data.lstrip(b"\r\n").partition(b"\r\n")[0]


@dataclass(frozen=True, slots=True)
class Difference:
    """A case on which readers part; `reader` is the other one, "" when it is about ours alone."""

    what: str
    reader: str
    case: Case
    mine: Reading
    theirs: Reading

    def __str__(self) -> str:
        method = self.case.method
        kind = "request" if method is None else f"answer to {method.decode()}"
        text = f"{self.what} {self.reader}\n  {kind} {self.case.data!r}\n  ours {self.mine}"
        return f"{text}\n  {self.reader or 'and'} {self.theirs}"


@dataclass(frozen=True, slots=True)
class Allowance:
    """A kind of difference that is meant, by `reader` or by all, and why."""

    what: frozenset[str]
    reader: str
    when: Callable[[Difference], bool]
    why: str


def _only_an_eight_bit_target(difference: Difference) -> bool:
    """Say whether nothing is left of a difference when the target is ASCII."""
    case = difference.case
    line = case.first_line
    plain = bytes(byte if byte < 128 else 120 for byte in line)
    data = case.data.replace(line, plain, 1)
    return line != plain and not differences(Case(data, case.method, case.bounds))[0]


_STEERING = frozenset((b"connection", b"transfer-encoding", b"content-length", b"upgrade"))


def _steering_trailer(difference: Difference) -> bool:
    return any(name in _STEERING for name, _ in difference.mine.trailers)


ALLOWED = (
    Allowance(
        frozenset(("accepted",)),
        "",
        _only_an_eight_bit_target,
        "Clients do send raw UTF-8 in targets. It is no delimiter of anything here and passes byte "
        "for byte (contract 3.5), so the framing is as sure as without it.",
    ),
    Allowance(
        frozenset(("keeps",)),
        "h11",
        lambda it: b"HTTP/1.0" in it.case.first_line,
        "h11 has no keep-alive for HTTP/1.0; we keep it when Connection says so (RFC 9112 9.3).",
    ),
    Allowance(
        frozenset(("accepted",)),
        "",
        _steering_trailer,
        "Framing fields in a trailer section are taken out (contract 3.5; RFC 9110 6.5.1 lets them "
        "be ignored). h11 and llhttp refuse some values of them.",
    ),
    Allowance(
        frozenset(("keeps",)),
        "llhttp",
        _steering_trailer,
        "llhttp obeys Connection and Transfer-Encoding in a trailer section. A trailer never "
        "steers the connection, and none of these is passed on.",
    ),
    Allowance(
        frozenset(("trailers",)),
        "h11",
        _steering_trailer,
        "h11 writes the values of framing fields in its own way, in trailers too.",
    ),
    Allowance(
        frozenset(("end", "verdict", "body")),
        "llhttp",
        lambda it: it.theirs.upgrade or it.theirs.start == (b"101",),
        "At an upgrade httptools leaves the body to the other protocol, and ends a head one byte "
        "early. We upgrade no request with a body (headers.upgrade_to_try).",
    ),
    Allowance(
        frozenset(("waits",)),
        "h11",
        lambda it: b"\n" in it.case.data.replace(b"\r\n", b""),
        "h11 takes a bare LF for the end of a line. An answer that has one stays unfinished for "
        "us, or is refused once an empty line ends its head.",
    ),
)


def differences(case: Case) -> tuple[list[Difference], Reading]:
    """Return where the readers part on a case, and our reading of it."""
    found: list[Difference] = []

    def differ(what: str, reader: str, mine: Reading, theirs: Reading) -> None:
        difference = Difference(what, reader, case, mine, theirs)
        for allowed in ALLOWED:
            if what in allowed.what and reader == allowed.reader and allowed.when(difference):
                return
        found.append(difference)

    mine = ours(case.data, case.bounds, case.method)
    if mine.verdict is Verdict.REFUSED:
        if case.method is None and mine.status not in REFUSED_MESSAGE:
            differ("status", "", mine, Reading())
        return found, mine
    if not mine.start:
        others = _read(case, len(case.data))
        for reader, theirs in others.items():
            if theirs.verdict is Verdict.WHOLE:
                differ("waits", reader, mine, theirs)
        return found, mine
    read, padded = mine, case
    if mine.verdict is Verdict.WAITS:
        padding = _FILLER if mine.until_close else b"x" * min(mine.left, _MAX_PADDING)
        if padding:
            padded = Case(case.data + padding, case.method, case.bounds)
            read = ours(padded.data, case.bounds, case.method)
    others = _read(padded, read.end or len(padded.data))
    if read.verdict is Verdict.WHOLE or read.until_close:
        refused = [theirs for theirs in others.values() if theirs.verdict is Verdict.REFUSED]
        if len(refused) == len(others):
            differ("accepted", "", read, refused[0])
    for reader, theirs in others.items():
        if theirs.verdict is not Verdict.REFUSED:
            what = _parts(reader, read, theirs)
            if what:
                differ(what, reader, read, theirs)
    return found, mine


def _read(case: Case, end: int) -> dict[str, Reading]:
    """Return what the others say; llhttp cannot be told that an answer is one to HEAD."""
    others = {"h11": by_h11(case.data, case.method)}
    if case.method != b"HEAD":
        others["llhttp"] = by_llhttp(case.data, end, case.method)
    return others


def _parts(reader: str, mine: Reading, theirs: Reading) -> str:
    """Return in what two readings of a message differ, "" when in nothing."""
    if theirs.verdict is not mine.verdict:
        return "verdict"
    if mine.verdict is Verdict.WHOLE:
        if mine.end != theirs.end:
            return "end"
        if mine.trailers != theirs.trailers:
            return "trailers"
        if mine.keep_alive and not theirs.keep_alive:
            return "keeps"
    if mine.body != theirs.body:
        return "body"
    if reader == "h11" and mine.until_close != theirs.until_close:
        return "until_close"
    if not _same_start(mine, theirs):
        return "start"
    return "" if _comparable(mine, mine.fields) == _comparable(theirs, theirs.fields) else "fields"


def _same_start(mine: Reading, theirs: Reading) -> bool:
    """Say whether both name the same resource, an absolute-form target taken apart."""
    if mine.start == theirs.start:
        return True
    method, target = theirs.start
    if target[:1] == b"/" or method != mine.start[0]:
        return False
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        # It knows no empty port (RFC 3986 3.2.3), and has no say then.
        return True
    path = (url.path or b"/") + (b"" if url.query is None else b"?" + url.query)
    if method == b"OPTIONS" and not url.path and url.query is None:
        path = b"*"
    # An empty query counts to us (contract 3.5); it is not told from none there.
    same_path = path == mine.start[1] or path + b"?" == mine.start[1]
    host = mine.host.rpartition(b":")[0] if url.port is not None else mine.host.removesuffix(b":")
    return same_path and host.strip(b"[]") == url.host


_SHARING = AppPolicy(origins=frozenset((b"https://a.example",)))
_MARKED = (b"set-cookie:", b"vary:", b"access-control-")
_LEFT_OUT = frozenset(
    (
        *(b"transfer-encoding", b"connection", b"upgrade", b"expect", b"host"),
        *(b"content_length", b"transfer_encoding"),
    )
)
_NOT_NOMINATED = frozenset((b"content-length", b"close", b"keep-alive", b"te", b"via"))


def _comparable(reading: Reading, fields: Sequence[Field]) -> list[Field]:
    """Return the fields that ours keeps: not those that frame, steer or are nominated."""
    options = {
        option.strip(b" \t").replace(b"_", b"-")
        for name, value in fields
        if name == b"connection"
        for option in value.lower().split(b",")
    } - _NOT_NOMINATED
    # RFC 9110 8.6: 1xx and 204 never carry a length, so ours leaves it out.
    no_length = reading.start == (b"204",) or reading.start[0][:1] == b"1"
    return [
        (name, value)
        for name, value in fields
        if name not in _LEFT_OUT
        and name.replace(b"_", b"-") not in options
        and not (no_length and name == b"content-length")
    ]


def difference_in_pieces(case: Case, cuts: Sequence[int]) -> list[Difference]:
    """Return whether it matters that the bytes come in pieces that end at `cuts`."""
    at_once = ours(case.data, case.bounds, case.method)
    cut = ours(case.data, case.bounds, case.method, cuts)
    if at_once.verdict is cut.verdict is Verdict.REFUSED or at_once == cut:
        return []
    return [Difference("pieces", "", case, at_once, cut)]


class Forwarded:
    """What the gateway makes of a head that it accepts must be read the same behind it."""

    def __init__(self) -> None:
        self._request_names = headers.request_names(("X-Real-IP", "X-Host"))
        self._response_names = headers.response_names()
        self._forwarding = headers.Forwarding("c", (ip_network("192.0.2.0/24"),))

    def differences(self, case: Case, mine: Reading) -> list[Difference]:
        """Return what a host would read otherwise than we did; raises where ours fails."""
        raw = case.data.removeprefix(b"\r\n") if case.method is None else case.data
        raw = raw.partition(b"\r\n\r\n")[0]
        if case.method is not None:
            answer = parse_response(raw, self._response_names, case.bounds, case.method)
            for place in answer.marked:
                line = headers.without_wide_domain(answer.lines[place], (b"a.example",))
                assert line.lower().startswith(_MARKED)
            cors.complete(_SHARING, b"https://a.example", answer.lines, answer.marked)
            names = [line.partition(b":")[0].lower() for line in answer.lines]
            assert names.count(b"access-control-allow-origin") == 1
            return []
        request = parse_request(raw, self._request_names, case.bounds)
        assert all(request.lines[place][:11].lower() == b"user-agent:" for place in request.marked)
        is_reserved(request.target)
        client = self._forwarding.client("192.0.2.1", request.noted)
        authority = request.authority
        for lines in (
            self._forwarding.lines(client, b"http", authority),
            self._forwarding.trusted_lines("192.0.2.1", b"http", authority, request.noted),
        ):
            upgrade = headers.upgrade_to_try(request, frozenset((b"websocket",)))
            sent = headers.upstream_head(request, lines, b"id", upgrade)
            again = parse_request(sent[:-4], self._request_names, _ROOMY)
            same = (
                (request.method, request.target, request.authority, request.length)
                == (again.method, again.target, again.authority, again.length)
                and sent.endswith(b"\r\n\r\n")
                and sent.lower().count(b"\r\nhost:") == 1
                and again.lines[: len(request.lines)] == request.lines
            )
            read = by_h11(sent, None)
            if not same or (read.verdict is Verdict.REFUSED and request.target.isascii()):
                return [Difference("forwarded", "", Case(sent, None, case.bounds), mine, read)]
        return []


class Run:
    """One run: inputs of a seed, what was found in them, and how many of each verdict."""

    def __init__(self, seed: int) -> None:
        self.count = 0
        self.found: list[Difference] = []
        self.verdicts: Counter[str] = Counter()
        self._inputs = Inputs(seed)
        self._forwarded = Forwarded()

    def one(self) -> None:
        """Make one input and look at the messages in it, one after another."""
        inputs = self._inputs
        method: bytes | None = None
        kind = self.count % 3
        self.count += 1
        if kind == 0:
            data = inputs.request()
        elif kind == 1:
            data = inputs.answer()
            method = inputs.pick((b"GET", b"GET", b"HEAD", b"POST"))
        else:
            data = inputs.chunked()
            method = None if data[:4] == b"POST" else b"GET"
        bounds = inputs.bounds(data)
        for _ in range(MESSAGES_PER_INPUT):
            if not data:
                return
            case = Case(data, method, bounds)
            found, mine = self.look(case)
            self.found += found
            self.verdicts[mine.verdict.value] += 1
            if found or mine.verdict is not Verdict.WHOLE or not mine.keep_alive:
                return
            data = data[mine.end :]

    def look(self, case: Case) -> tuple[list[Difference], Reading]:
        """Return all that is wrong with a case, a crash of ours included."""
        mine = Reading()
        try:
            found, mine = differences(case)
            found += difference_in_pieces(case, self._inputs.cuts(len(case.data)))
            if mine.start and mine.verdict is not Verdict.REFUSED:
                found += self._forwarded.differences(case, mine)
        except Exception:
            failed = Reading(reason=traceback.format_exc(limit=-3))
            return [Difference("crash", "", case, mine, failed)], mine
        return found, mine


def shrunk(run: Run, difference: Difference) -> Difference:
    """Return the same difference on fewer bytes, as far as leaving out slices gets."""
    best = difference
    size = max(len(best.case.data) // 2, 1)
    while size:
        place = 0
        while place < len(best.case.data):
            data = best.case.data[:place] + best.case.data[place + size :]
            found, _ = run.look(Case(data, best.case.method, best.case.bounds))
            same = [it for it in found if (it.what, it.reader) == (best.what, best.reader)]
            if same:
                best = same[0]
            else:
                place += size
        size //= 2
    return best


def main(argv: Sequence[str]) -> int:
    """Fuzz for some seconds; return 1 when there was a difference."""
    parser = argparse.ArgumentParser("fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="repeats the inputs of a run")
    args = parser.parse_args(argv)
    run = Run(args.seed)
    until = time.monotonic() + args.seconds
    while time.monotonic() < until and len(run.found) < SHOWN:
        run.one()
    kinds = {(it.what, it.reader): it for it in reversed(run.found)}
    for difference in kinds.values():
        print(shrunk(run, difference), end="\n\n")
    for verdict, count in sorted(run.verdicts.items()):
        print(f"{count} messages {verdict}")
    print(f"{run.count} inputs, {len(run.found)} differences")
    return 1 if run.found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
