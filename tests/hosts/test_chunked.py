"""chunked.py: where a chunked body ends, whatever its bytes and however they are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.chunked import ChunkedBody, chunk, last_chunk
from smartgw_hosts.http1 import Bounds, MessageRefused

NEXT = b"GET /next HTTP/1.1\r\n\r\n"
Result = tuple[bytes, list[bytes], bytes] | str


def decode(pieces: Iterable[bytes], bounds: Bounds | None = None) -> Result:
    """Return payload, trailers and what follows the body, or "refused" or "waits"."""
    body = ChunkedBody(bounds or Bounds())
    payload = rest = b""
    for piece in pieces:
        if body.done:
            rest += piece
            continue
        try:
            more, end = body.feed(piece)
        except MessageRefused:
            return "refused"
        payload += more
        rest += piece[end:]
    return (payload, body.trailers, rest) if body.done else "waits"


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut data into pieces that end at these places."""
    return [data[a:b] for a, b in itertools.pairwise((0, *places, len(data)))]


def every_cut(data: bytes) -> Iterator[Sequence[int]]:
    """All cuts in two, many in three, and single bytes."""
    yield from ([place] for place in range(1, len(data)))
    yield from itertools.combinations(range(max(1, len(data) - 14), len(data)), 2)
    yield range(1, len(data))


GOOD: list[tuple[bytes, bytes, list[bytes]]] = [
    (b"0\r\n\r\n", b"", []),
    (b"5\r\nhello\r\n0\r\n\r\n", b"hello", []),
    (b"05\r\nhello\r\n000\r\n\r\n", b"hello", []),
    (b"000000000000005\r\nhello\r\n000000000000000\r\n\r\n", b"hello", []),
    (b"a\r\n0123456789\r\nA\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n", b"0123456789" + b"\r\n" * 5, []),
    (b"1\r\n\r\r\n1\r\n\n\r\n0\r\n\r\n", b"\r\n", []),
    (b"7\r\n0\r\n\r\n0\r\r\n0\r\n\r\n", b"0\r\n\r\n0\r", []),
    (b"5;a\r\nhello\r\n0;b=c\r\n\r\n", b"hello", []),
    (b'5;a="q;\\"5";b\r\nhello\r\n0\r\n\r\n', b"hello", []),
    (b"5;\r\nhello\r\n0; \t\r\n\r\n", b"hello", []),
    (b"5;a\xff=\t5\r\nhello\r\n0\r\n\r\n", b"hello", []),
    (b"0\r\nX-T: 1\r\n\r\n", b"", [b"X-T: 1"]),
    (
        b"1\r\na\r\n0\r\nX-T: 1\r\nx-t:\r\nY:\t\xff \r\n\r\n",
        b"a",
        [b"X-T: 1", b"x-t:", b"Y:\t\xff "],
    ),
    (b"0\r\nContent-Length: 60\r\nHost: b\r\n\r\n", b"", [b"Content-Length: 60", b"Host: b"]),
]


@pytest.mark.parametrize(("data", "payload", "trailers"), GOOD)
@pytest.mark.parametrize("follows", [b"", NEXT, b"\r\n", b"0\r\n\r\n"])
def test_good_bodies(data: bytes, payload: bytes, trailers: list[bytes], follows: bytes) -> None:
    """3.5, 3.6: body and trailers come out as sent, and what follows is the next message's.

    Wherever the bytes are cut.
    """
    expected = (payload, trailers, follows)
    assert decode([data + follows]) == expected
    for places in every_cut(data):
        assert decode(cut(data + follows, places)) == expected


@pytest.mark.parametrize("data", [data for data, _, _ in GOOD])
def test_a_cut_body_is_not_whole(data: bytes) -> None:
    """3.6: an aborted body is never taken for a shorter, complete one (R22)."""
    for end in range(len(data)):
        assert decode([data[:end]]) == "waits"
        assert decode(cut(data[:end], range(1, end))) == "waits"


SIZES = [
    *(b"", b" ", b"\t", b"-5", b"+5", b"0x5", b"0X5", b"0_5", b"5_", b" 5", b"\t5", b"5 ", b"5\t"),
    *(b"5 ;a", b"5\t;a", b"5these", b"g", b"5.", b"5,", b"5e1g", b"0.2e", b"\xb2", b"\xef\xbc\x95"),
    *(b"5\x00", b"\x005", b"5\x0b", b"\x0c5", b"5\xa0", b"5\r", b"\r5", b"5\rhello", b'"5"', b";a"),
    *(b"1" + b"0" * 15, b"0" * 16, b"f" * 16, b"f" * 100, b"5;a\rb", b"5;a\x00b", b"5;a\x7fb"),
    *(b"5;\x0b", b"5;a\r", b"5\r;a", b"=5", b"5=", b"5:a", b"0\r0"),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("before", [b"", b"1\r\na\r\n"])
def test_broken_sizes(before: bytes, size: bytes) -> None:
    """R35: a chunk size that is not plain hexadecimal digits refuses the body."""
    data = before + size + b"\r\nhello\r\n0\r\n\r\n"
    assert decode([data]) == "refused"
    for places in every_cut(data):
        assert decode(cut(data, places)) == "refused"


BROKEN = [
    b"5\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\n0\r\n\r\n",
    b"5\r\nhello\r0\r\n\r\n",
    b"5\r\nhello\r\r\n0\r\n\r\n",
    b"5\rhello\r\n0\r\n\r\n",
    b"5\r\r\nhello\r\n0\r\n\r\n",
    b"6\r\nhello\r\n0\r\n\r\n",
    b"4\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhello\r\n\r\n0\r\n\r\n",
    b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    b"0\r\nXX" + NEXT,
    b"0\r\n\rZ" + NEXT,
    b"0\r\n\n" + NEXT,
    b"0\n\r\n" + NEXT,
    b"0\r\n\r\r\n" + NEXT,
    b"0\r\n" + NEXT,
    b"0\r\n folded\r\n\r\n",
    b"0\r\nX: a\r\n folded\r\n\r\n",
    b"0\r\nX: a\n\r\n\r\n",
    b"0\r\nX: a\rb\r\n\r\n",
    b"0\r\nX: a\x00\r\n\r\n",
    b"0\r\nX: a\r\n\n\r\n\r\n",
    b"0\r\nX: a\r\n\rY: b\r\n\r\n",
    b"0\r\nNoColon\r\n\r\n",
    b"0\r\n: v\r\n\r\n",
    b"0\r\nX : 1\r\n\r\n",
    b"0\r\nX Y: 1\r\n\r\n",
    b"0\r\nX\xff: 1\r\n\r\n",
    b"0\r\nX: 1\r\nGET / HTTP/1.1\r\n\r\n",
    b"\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("data", BROKEN)
def test_broken_bodies(data: bytes) -> None:
    """R35, R36: chunks and trailers end with CRLF and hold what they say, or are refused."""
    assert decode([data]) == "refused"
    for places in every_cut(data):
        assert decode(cut(data, places)) == "refused"


@pytest.mark.parametrize("byte", range(256))
def test_every_byte(byte: int) -> None:
    """R36: of 256 bytes, which may stand in a size, an extension, a trailer name or value."""
    sly = bytes([byte])
    text = byte == 9 or 32 <= byte != 127
    sizes = {b"5" + sly + b"\r\n", sly + b"5\r\n"}
    for size in sizes if sly not in b"0123456789abcdefABCDEF;" else ():
        assert decode([size + b"hello\r\n0\r\n\r\n"]) == "refused"
    assert (decode([b"1;a" + sly + b"\r\na\r\n0\r\n\r\n"]) != "refused") == text
    assert (decode([b"0\r\nX: " + sly + b"\r\n\r\n"]) != "refused") == text
    token = b"!#$%&'*+-.^_`|~:0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert (decode([b"0\r\nX" + sly + b"A: 1\r\n\r\n"]) != "refused") == (sly in token)


def test_bounds() -> None:
    """3.11: trailers keep the bounds of a head; chunk lines and extensions are bounded too."""
    fits = b"0\r\nX: " + b"a" * 13 + b"\r\n\r\n"
    bounds = Bounds(field_line=16, fields=3)
    for places in ([], *every_cut(fits)):
        assert decode(cut(fits, places), bounds) == (b"", [b"X: " + b"a" * 13], b"")
        assert decode(cut(fits.replace(b":", b"X:"), places), bounds) == "refused"
    assert decode([b"0\r\n" + b"X:\r\n" * 3 + b"\r\n"], bounds) != "refused"
    assert decode([b"0\r\n" + b"X:\r\n" * 4 + b"\r\n"], bounds) == "refused"
    assert decode([b"0\r\n" + b"X" * 20], bounds) == "refused"
    line, rest = b"1;" + b"a" * 1020, b"\r\na\r\n0\r\n\r\n"
    for place in range(1010, 1030):
        assert decode(cut(line + rest, [place])) == (b"a", [], b"")
        assert decode(cut(line + b"a" + rest, [place])) == "refused"
    assert decode([b"1;" + b"a" * 1100]) == "refused"
    assert decode([(line + b"\r\na\r\n") * 17 + b"0\r\n\r\n"]) == "refused"
    assert decode([(line + b"\r\na\r\n") * 16 + b"0\r\n\r\n"]) == (b"a" * 16, [], b"")


def test_great_sizes() -> None:
    """R35: a size of 15 digits is counted exactly and held nowhere; none beyond 64 bits is read."""
    body = ChunkedBody(Bounds())
    assert body.feed(b"fffffffffffffff\r\nab") == (b"ab", 19)
    assert body.feed(b"c" * 1000) == (b"c" * 1000, 1000)
    assert not body.done


def test_start_and_done() -> None:
    """3.6: feeding starts where it is told to, and ends with the body for good."""
    body = ChunkedBody(Bounds())
    assert body.feed(b"head3\r\nab", 4) == (b"ab", 9)
    assert body.feed(b"xxc\r", 2) == (b"c", 4)
    assert body.feed(b"x\n0\r\n\r\nNEXT", 1) == (b"", 7)
    assert body.done
    assert body.feed(b"NEXT") == (b"", 0)


@pytest.mark.parametrize(
    ("after", "result"),
    [
        (b"0\r\n\r\n", (b"", [], b"")),
        (b"00f;x=y\r\n" + b"e" * 15 + b"\r\n0\r\na: b\r\n\r\nGET", (b"e" * 15, [b"a: b"], b"GET")),
        (b"Ff\r\n" + b"e" * 255 + b"\r\n100\r\n" + b"f" * 256 + b"\r\n0\r\n\r\n",
         (b"e" * 255 + b"f" * 256, [], b"")),
        (b"1\r\nxx\r\n0\r\n\r\n", "refused"),
        (b"1\r\nx\n0\r\n\r\n", "refused"),
        (b"1\nx\r\n0\r\n\r\n", "refused"),
        (b"+1\r\nx\r\n0\r\n\r\n", "refused"),
        (b"\r\nx\r\n0\r\n\r\n", "refused"),
    ],
)  # fmt: skip
def test_after_many_tiny_chunks(after: bytes, result: Result) -> None:
    """R35: what is read fast is read as strictly."""
    tiny = b"1\r\na\r\n2\r\n\r\n\r\n" * 500
    whole = decode([tiny + after])
    if isinstance(result, tuple):
        assert isinstance(whole, tuple)
        assert whole == (b"a\r\n" * 500 + result[0], *result[1:])
    else:
        assert whole == result
    assert whole == decode(cut(tiny + after, range(1, len(tiny + after))))


@pytest.mark.parametrize("step", [1, 2, 7, 10_000])
def test_chunks_are_counted(step: int) -> None:
    """3.6: work can be bounded by the number of chunk headers that were read."""
    body = ChunkedBody(Bounds())
    assert body.chunks == 0
    data = chunk(b"a") * 100 + chunk(b"b" * 300) + last_chunk([])
    for place in range(0, len(data), step):
        body.feed(data[place : place + step])
    assert body.done
    assert body.chunks == 102


PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
NAMES = st.text("abcXYZ-_", min_size=1, max_size=5)
TRAILERS = st.lists(st.tuples(NAMES, st.text("v \t;:,é", max_size=6)), max_size=3)


@given(PAYLOADS, TRAILERS, st.binary(max_size=10), st.lists(st.integers(1, 400), max_size=8))
def test_round_trip(
    payloads: list[bytes], trailers: list[tuple[str, str]], rest: bytes, places: list[int]
) -> None:
    """3.5: bodies and trailers pass unchanged, however they are chunked and cut."""
    lines = [f"{name}:{value}".encode("latin-1") for name, value in trailers]
    data = b"".join(map(chunk, payloads)) + last_chunk(lines)
    places = sorted({place for place in places if place < len(data)})
    assert decode(cut(data + rest, places)) == (b"".join(payloads), lines, rest)


PARTS = st.sampled_from(
    [
        *(b"0\r\n", b"\r\n", b"\r", b"\n", b"5\r\nhello", b"5", b"a", b"1;x", b";", b" ", b"\0"),
        *(b"X: 1", b":", b"\r\n\r\n", b"\xff", b"1\r\na\r\n", b"0;a\r\n"),
    ]
)


@given(st.lists(PARTS, max_size=12).map(b"".join), st.sets(st.integers(1, 60), max_size=10))
def test_cutting_changes_nothing(data: bytes, places: set[int]) -> None:
    """3.6: the same bytes are the same body, or refused, wherever they are cut; no crash."""
    at_once = decode([data])
    assert decode(cut(data, sorted(place for place in places if place < len(data)))) == at_once
    assert decode(cut(data, range(1, len(data)))) == at_once
