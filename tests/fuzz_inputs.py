"""What the fuzzing of HTTP/1 feeds: messages made by a grammar of sly parts, seeds, and mutations.

Owns how inputs are made, all from one `random.Random`, so that a seed number repeats a run. The
grammar errs on purpose: each part is right most of the time, so that the wrong one is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from smartgw_hosts.http1 import Bounds

DATA = Path(__file__).parent / "data"
_MAX_SEED = 2_048
_MAX_INPUT = 6_000
_MAX_SINGLE_BYTES = 400

METHODS = (*(b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"PATCH"),)
ODD_METHODS = (
    *(b"get", b"BREW", b"CONNECT", b"TRACE", b"PRI", b"M-SEARCH", b"G\x00T", b"", b"*", b"A_B"),
)
TARGETS = (
    *(b"/", b"/p", b"/p?x=1", b"//x", b"/a%2Fb", b"/?", b"*", b"p", b"", b"/p#f", b"/\xff"),
    *(b"/\xc3\xa9", b"/a\tb", b"/\x00", b'/|{}^`"<>\\', b"http://b/", b"http://b", b"http://b?q"),
    *(b"HTTP://B:80/p", b"https://b/p", b"http://", b"http:///p", b"ftp://b/", b"http://u@b/"),
    *(b"http://[::1]:80/", b"b:80", b"http://b:99999/", b"http://b\\c/", b"http:/b", b"://b/"),
    *(b"http://b/p http", b"/http://b/"),
)
VERSIONS = (b"HTTP/1.1",) * 12 + (b"HTTP/1.0",) * 3
ODD_VERSIONS = (
    *(b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b"HTTP/11.1", b"HTTP/1", b""),
    *(b"HTTP/1.10",),
)
HOSTS = (
    *(b"Host: a.example", b"host:a.example:80", b"HOST: A.Example.", b"Host: [::1]:80", b"Host:"),
    *(b"Host: a b", b"Host: a, b", b"Host: x@a", b"Host : a", b"Host: a\t", b"H_ost: a"),
    *(b"Host: a\xff",),
)
LENGTHS = (
    *(b"Content-Length: %d", b"content-length:%d", b"Content-Length:\t%d \t"),
    *(b"Content-Length: 0%d", b"Content-Length: +%d", b"Content-Length: -%d"),
    *(b"Content-Length: 0x%x", b"Content-Length: %d, %d", b"Content_Length: %d"),
    *(b"Content-Length : %d", b"Content-Length: %d\r\n 0", b"Content-Length: %d;"),
    *(b"Content-Length: 1%019d", b"Content-Length: %d\x0b", b"Content-Length: \xef\xbc\x95%d"),
    *(b"Content-Length: 1_%d",),
)
CODINGS = (
    *(b"Transfer-Encoding: chunked", b"transfer-encoding:Chunked", b"TRANSFER-encoding: chunked "),
    *(b"Transfer-Encoding:\tchunked \t", b"Transfer-Encoding: gzip, chunked"),
    *(b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: ,chunked"),
    *(b"Transfer-Encoding: identity", b"Transfer-Encoding:", b"Transfer_Encoding: chunked"),
    *(b"Transfer-Encoding : chunked", b"Transfer-Encoding: chunked;q=1"),
    *(b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked\x0b"),
    *(b'Transfer-Encoding: "chunked"', b"Transfer-Encoding:\r\n chunked"),
    *(b"Transfer-Encoding: chunked\x00", b"Transfer\xad-Encoding: chunked"),
    *(b"TransferEncoding: chunked",),
)
FIELDS = (
    *(b"Connection: close", b"Connection: keep-alive", b"Connection: Keep-Alive, close"),
    *(b"connection: upgrade", b"Connection: X-A, Host", b"Connection: content-length"),
    *(b"Connection: transfer-encoding, close", b"Connection:", b"Upgrade: websocket"),
    *(b"Upgrade: h2c", b"Upgrade: a, b/1", b"Expect: 100-continue", b"Expect: x", b"X-A: 1"),
    *(b"X-A: 2", b"X-A:", b"X_A: 3", b"x-a:  v  v ", b'X-A: "q;"', b"X-A:\tt", b"TE: trailers"),
    *(b"Trailer: X-T", b"Cookie: a=b; c=d", b"User-Agent: f", b"X-Forwarded-For: 1.2.3.4"),
    *(b"Accept: text/html", b"X-A: \xe4", b"X-A: a\x01b", b"X-A: a\x7fb", b"X-A: a\x00b"),
    *(b"X-A: a\rb", b"X-A: a\nb", b"X-A\x00: 1", b": v", b"NoColon", b" X-A: folded"),
    *(b"\tX-A: folded", b"X-A : 1", b"X A: 1", b"X(: 1", b"X\xff: 1", b"X:: 1"),
    *(b"Proxy-Connection: keep-alive", b"Keep-Alive: timeout=5", b"HTTP2-Settings: AA"),
    *(b"Sec-WebSocket-Key: x",),
)
EXTENSIONS = (
    *(b";a", b";a=b", b';a="q;\\""', b";", b" ;a", b"; a = b", b";a\xff", b";a\x00", b";a\rb"),
    *(b";=", b";a=", b';a="', b";\t"),
)
SIZES = (
    *(b"+%x", b"-%x", b"0x%x", b" %x", b"%x ", b"%x\t", b"_%x", b"%xg", b"00000000%x"),
    *(b"0000000000000000%x", b"%X", b"", b"1%016x"),
)
TRAILERS = (
    *(b"X-T: 1", b"x-t:", b"Content-Length: 3", b"Transfer-Encoding: chunked", b"Host: b"),
    *(b"NoColon", b" folded", b"X T: 1", b"X-T: a\x00", b"X-T: a\rb", b": v", b"X-T : 1"),
    *(b"X-T: \xff", b"Trailer: X", b"Connection: close"),
)
STATUSES = (b"200 OK",) * 8 + (
    *(b"204 No Content", b"304 Not Modified", b"100 Continue", b"103 Early Hints"),
    *(b"101 Switching Protocols", b"200", b"200 ", b"404 Not \xff", b"206  x"),
    *(b"205 Reset Content", b"500 a\tb", b"599 x"),
)
ODD_STATUSES = (
    *(b"20 OK", b"2000 OK", b"099 x", b"600 x", b"abc x", b"+20 x", b" 200 OK", b"200OK"),
    *(b"200\tOK", b"", b"200 a\rb", b"999 x", b"000 x"),
)
TOKENS = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\x00", b" ", b"\t", b":", b";", b",", b"\x0b"),
    *(b"\x0c", b"\x7f", b"\x80", b"\xff", b"_", b"-", b"0\r\n\r\n", b"5\r\nhello\r\n", b"0"),
    *(b"1", b"f", b"\r\nHost: b", b"HTTP/1.1", b"HTTP/1.0", b"GET / HTTP/1.1\r\nHost: s\r\n\r\n"),
    *(b"chunked", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n"),
    *(b"Connection: close\r\n", b"\r\n ", b"\r\r\n", b"\n\r\n"),
)


class Inputs:
    """Makes inputs of three kinds: requests, answers and chunked bodies behind either."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._requests = _seeds(DATA / "http1") or [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"]
        self._answers = _seeds(DATA / "responses") or [b"HTTP/1.1 200 OK\r\n\r\n"]

    def request(self) -> bytes:
        """Return bytes from a client: a request, often with another behind it."""
        draw = self._random
        if draw.random() < 0.25:
            made = draw.choice(self._requests)
        else:
            made = self._message(self._request_line())
            while draw.random() < 0.3:
                made += self._message(self._request_line())
        return self._mutated(made, self._requests)

    def answer(self) -> bytes:
        """Return bytes from a host."""
        draw = self._random
        if draw.random() < 0.2:
            made = draw.choice(self._answers)
        else:
            made = self._message(self._status_line(), host=False)
            if draw.random() < 0.2:
                made += self._message(self._status_line(), host=False)
        return self._mutated(made, self._answers)

    def chunked(self) -> bytes:
        """Return a head that announces chunks, of a POST or an answer, and bytes behind it."""
        head = self._random.choice(
            (
                b"POST /p HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            )
        )
        body = self._chunks() + b"GET /next HTTP/1.1\r\n"
        return head + self._mutated(body, (self._chunks(),))

    def cuts(self, size: int) -> list[int]:
        """Return places at which the bytes are cut into pieces: few, or all."""
        if 1 < size < _MAX_SINGLE_BYTES and self._random.random() < 0.1:
            return list(range(1, size))
        count = min(self._random.choice((1, 1, 2, 3, 8)), max(size - 1, 0))
        return sorted(self._random.sample(range(1, size), count)) if count else []

    def bounds(self, data: bytes) -> Bounds:
        """Return the usual bounds, or some that the data meets to the byte or misses by one."""
        draw = self._random
        if draw.random() < 0.75:
            return Bounds()
        head = data[: data.find(b"\r\n\r\n", 2)]
        lines = head.split(b"\r\n")
        exact = (len(head), len(lines) - 1, max(map(len, lines[1:]), default=8), len(lines[0]) - 13)
        return Bounds(*(max(size + draw.choice((-1, 0, 0, 1, 20)), 4) for size in exact))

    def pick(self, choices: Sequence[bytes]) -> bytes:
        """Return one of them."""
        return self._random.choice(choices)

    # ---- the grammar ----

    def _odd(self, usual: Sequence[bytes], odd: Sequence[bytes], share: float = 0.05) -> bytes:
        return self._random.choice(odd if self._random.random() < share else usual)

    def _request_line(self) -> bytes:
        draw = self._random
        target = draw.choice(TARGETS if draw.random() < 0.4 else (b"/", b"/p", b"/p?x=1"))
        parts = (self._odd(METHODS, ODD_METHODS), target, self._odd(VERSIONS, ODD_VERSIONS))
        return self._odd((b" ",), (b"  ", b"\t", b""), 0.02).join(parts)

    def _status_line(self) -> bytes:
        return self._odd(VERSIONS, ODD_VERSIONS) + b" " + self._odd(STATUSES, ODD_STATUSES)

    def _message(self, line: bytes, host: bool = True) -> bytes:
        draw = self._random
        lines = [HOSTS[0] if draw.random() < 0.8 else draw.choice(HOSTS)] if host else []
        body = b""
        framing = draw.random()
        if framing < 0.35:
            body = bytes(draw.choice(b"ab\r\n0 ") for _ in range(draw.randrange(9)))
            form = self._odd(LENGTHS[:3], LENGTHS, 0.3)
            lines.append(form.replace(b"%d", b"%d" % len(body)).replace(b"%x", b"%x" % len(body)))
        elif framing < 0.65:
            body = self._chunks()
            lines.append(self._odd(CODINGS[:3], CODINGS, 0.3))
        for pool, share in ((FIELDS, 0.6), (FIELDS, 0.3), (FIELDS, 0.2), (HOSTS, 0.03)):
            if draw.random() < share:
                lines.append(draw.choice(pool))
        if draw.random() < 0.08:
            # Framed twice, or in two ways.
            form = draw.choice((*LENGTHS, *CODINGS))
            lines.append(form.replace(b"%d", b"3").replace(b"%x", b"3"))
        draw.shuffle(lines)
        end = self._odd((b"\r\n",), (b"\n", b"\r", b"\r\r\n"), 0.02)
        return end.join((line, *lines, b"", b"")) + body

    def _chunks(self) -> bytes:
        draw = self._random
        made = b""
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            size = draw.choice((1, 2, 5, 10, 16, 31))
            made += (
                self._size(size) + bytes(draw.choice(b"ab\r\n0;") for _ in range(size)) + b"\r\n"
            )
        made += self._size(0)
        for _ in range(draw.choice((0, 0, 0, 1, 2))):
            made += draw.choice(TRAILERS if draw.random() < 0.3 else TRAILERS[:2]) + b"\r\n"
        return made + b"\r\n"

    def _size(self, size: int) -> bytes:
        form = self._odd((b"%x",), SIZES, 0.06)
        made = form % size if b"%" in form else form
        if self._random.random() < 0.15:
            made += self._odd(EXTENSIONS[:3], EXTENSIONS, 0.3)
        return made + self._odd((b"\r\n",), (b"\n", b"\r", b"\r\r\n", b""), 0.02)

    # ---- mutations ----

    def _mutated(self, data: bytes, others: Sequence[bytes]) -> bytes:
        draw = self._random
        for _ in range(draw.choice((0, 0, 1, 1, 2, 4))):
            data = draw.choice(MUTATIONS)(data, draw, others)
        return data[:_MAX_INPUT]


def _flip(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    place = draw.randrange(len(data))
    return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]


def _insert(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    place = draw.randint(0, len(data))
    return data[:place] + draw.choice(TOKENS) + data[place:]


def _delete(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    place = draw.randint(0, len(data))
    return data[:place] + data[place + draw.choice((1, 1, 2, 8)) :]


def _repeat(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    place = draw.randint(0, len(data))
    return data[: place + draw.choice((1, 2, 20))] + data[place:]


def _cut(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    return data[: draw.randint(0, len(data))]


def _join(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    other = draw.choice(others)
    return data[: draw.randint(0, len(data))] + other[draw.randint(0, len(other)) :]


def _move_line(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    lines = data.split(b"\r\n")
    line = lines.pop(draw.randrange(len(lines)))
    lines.insert(draw.randint(0, len(lines)), line)
    return b"\r\n".join(lines)


def _add_line(data: bytes, draw: Random, others: Sequence[bytes]) -> bytes:
    lines = data.split(b"\r\n")
    line = draw.choice(draw.choice((FIELDS, HOSTS, CODINGS, TRAILERS)))
    lines.insert(draw.randint(0, min(len(lines), 6)), line)
    return b"\r\n".join(lines)


Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]
MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _insert, _insert, _delete, _repeat, _cut, _join, _move_line, _add_line),
)


def _seeds(folder: Path) -> list[bytes]:
    """Return the small raw cases of a folder; none when it is not there."""
    return [
        data for path in sorted(folder.glob("*.raw")) if len(data := path.read_bytes()) <= _MAX_SEED
    ]
