"""http1.py: request heads, as the editor of RFC 9110 and 9112 and as an attacker read them.

Framing and Connection are in test_http1_framing.py, answers in test_http1_answers.py.
tests/fuzz.py compares all of it with other parsers.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.http1 import (
    LINE_BYTES,
    NOTED,
    PASS,
    Bounds,
    FieldNames,
    MessageRefused,
    check_partial,
    is_token,
    parse_request,
)
from tests.hosts.heads import HOST, LINE, TCHAR, kind, parse, refused

# ---- the request line ----


@pytest.mark.parametrize(
    "target",
    [
        b"/",
        b"//x",
        b"/a%2Fb%27c%3Bd/%2520?x=%21&y=a+b",
        b"/?",
        b"/p?",
        b"/.",
        b"/a/../b",
        b"/%zz",
        b"/%00%0d%0aX-Inj:%201",
        b'/|{}[]^`"<>\\',
        "/é".encode(),
        b"/\xff\xfe",
        b"/http://b/",
        b"/?http://b/",
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"get", b"BREW", b"M-SEARCH", b"A_B", b"X" * 64])
def test_method_and_target_pass(method: bytes, target: bytes) -> None:
    """3.5: method and target pass byte for byte (`%2F`, `%27`, `//x`, an empty query)."""
    request = parse(method + b" " + target + b" HTTP/1.1", HOST)
    assert (request.method, request.target, request.minor) == (method, target, 1)
    assert request.authority == b"a.example"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"GET",
        b"GET /",
        b"GET / ",
        b"GET  / HTTP/1.1",
        b"GET /  HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET\t/ HTTP/1.1",
        b"GET /\tx HTTP/1.1",
        b"GET / x HTTP/1.1",
        b"GET /p\x00 HTTP/1.1",
        b"GET /p\x7f HTTP/1.1",
        b"GET /p\x0b HTTP/1.1",
        b"GET /p\rHTTP/1.1",
        b"GET / HTTP/1.1\r",
        b"GET /\nHTTP/1.1",
        b"G\x00T / HTTP/1.1",
        b"G(T / HTTP/1.1",
        b"G\xffT / HTTP/1.1",
        b" / HTTP/1.1",
        b"X" * 65 + b" / HTTP/1.1",
        b"GET / http/1.1",
        b"GET / HTTP/11.1",
        b"GET / HTTP/1.10",
        b"GET / HTTP/1",
        b"GET / HTTP/1.x",
        b"GET / HTTP/x.1",
        b"GET / HTTP/+1.1",
        b"GET / HTTPS/1.1",
        b"GET / HTTP/1.1;",
        b"GET / \xff",
        b"GET p HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET a.example HTTP/1.1",
        b"GET a.example:80 HTTP/1.1",
        b"GET ?x HTTP/1.1",
        b"GET \\ HTTP/1.1",
        b"GET /p#frag HTTP/1.1",
        b"GET http://a.example/#f HTTP/1.1",
        b"GET # HTTP/1.1",
        b"OPTIONS ** HTTP/1.1",
        b"SSH-2.0-OpenSSH_9.2",
        b"PROXY TCP4 127.0.0.9 127.0.0.1 1 2",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_broken_request_lines(line: bytes) -> None:
    """R36: what is not method, space, target, space, version is refused, never repaired."""
    assert refused(line, HOST) == 400


@pytest.mark.parametrize(
    ("version", "status"),
    [(b"HTTP/2.0", 505), (b"HTTP/0.9", 505), (b"HTTP/1.2", 505), (b"HTTP/3.1", 505)],
)
def test_other_versions(version: bytes, status: int) -> None:
    """3.5 (RFC 9110 15.6.6): a well-formed version that is not spoken here is a 505."""
    assert refused(b"GET / " + version, HOST) == status
    assert refused(b"PRI * HTTP/2.0") == 505


@pytest.mark.parametrize(
    ("method", "target", "sent_on", "authority"),
    [
        (b"GET", b"http://b.example/p?q", b"/p?q", b"b.example"),
        (b"GET", b"http://b.example", b"/", b"b.example"),
        (b"GET", b"http://b.example/", b"/", b"b.example"),
        (b"GET", b"http://b.example?q", b"/?q", b"b.example"),
        (b"GET", b"http://b.example?", b"/?", b"b.example"),
        (b"GET", b"http://b.example//x", b"//x", b"b.example"),
        (b"GET", b"http://b.example?/x", b"/?/x", b"b.example"),
        (b"GET", b"HTTP://B.Example:8080/p", b"/p", b"B.Example:8080"),
        (b"GET", b"https://b.example:/p", b"/p", b"b.example:"),
        (b"GET", b"http://[::1]:80/p", b"/p", b"[::1]:80"),
        (b"GET", b"http://x@b.example/p", b"/p", b"x@b.example"),
        (b"GET", b"http://a.example\\@b.example/", b"/", b"a.example\\@b.example"),
        (b"GET", b"http://http://b.example/", b"//b.example/", b"http:"),
        (b"OPTIONS", b"http://b.example", b"*", b"b.example"),
        (b"OPTIONS", b"http://b.example/", b"/", b"b.example"),
        (b"OPTIONS", b"http://b.example?q", b"/?q", b"b.example"),
        (b"CONNECT", b"b.example:443", b"b.example:443", b"b.example:443"),
    ],
)
def test_absolute_form(method: bytes, target: bytes, sent_on: bytes, authority: bytes) -> None:
    """3.2: an absolute-form target wins over Host, and Host says so from there on."""
    request = parse(method + b" " + target + b" HTTP/1.1", b"X-A: 1", HOST, b"X-B: 2")
    assert (request.target, request.authority) == (sent_on, authority)
    assert request.lines == [b"X-A: 1", b"Host: " + authority, b"X-B: 2"]


@pytest.mark.parametrize(
    "target",
    [
        *(b"ftp://a.example/", b"http:/a.example/", b"http:a.example", b"://a.example/"),
        *(b"http://", b"http:///p", b"http://?q", b"ws://a.example/", b"httpx://a.example/"),
        *(b"unix:/x", b"http//a.example", b"h\xf6ttp://a.example/", b"http%3a//a.example/"),
    ],
)
def test_no_absolute_form(target: bytes) -> None:
    """3.2: a target that is neither a path nor an http URL with a host is refused."""
    assert refused(b"GET " + target + b" HTTP/1.1", HOST) == 400


def test_asterisk_form() -> None:
    """3.5 (RFC 9112 3.2.4): OPTIONS * is for the host that Host names."""
    request = parse(b"OPTIONS * HTTP/1.1", HOST)
    assert (request.target, request.authority) == (b"*", b"a.example")


# ---- Host ----


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (b"Host:",),
        (b"Host: \t",),
        (b"Host: a b",),
        (b"Host: a\tb",),
        (b"Host: a,b",),
        (b"Host: a, b",),
        (HOST, HOST),
        (HOST, b"Host: b"),
        (b"Host: b", HOST),
        (HOST, b"HOST: b"),
        (HOST, b"hOST:"),
        (HOST, b"X-A: 1", b"host: b"),
        (b"Host : a",),
        (b" Host: a",),
        (b"Host\t: a",),
        (b"Host",),
        (b"H_ost: a",),
        (b"Host_: a",),
        (b"Host: a\r\n b",),
        (b"Host:\r\n a",),
        (b"Host: a\x00",),
        (b"Host: a\nHost: b",),
        (b"Host: a\rHost: b",),
    ],
)
@pytest.mark.parametrize("line", [LINE, b"GET http://a.example/ HTTP/1.1"])
def test_not_exactly_one_host(line: bytes, lines: tuple[bytes, ...]) -> None:
    """3.2: HTTP/1.1 needs exactly one Host, with an absolute-form target too: else 400."""
    assert refused(line, *lines) == 400


@pytest.mark.parametrize(
    "host",
    [
        *(b"x@evil", b"[::1", b"::1]", b"a:b", b"a:80:81", b"a:-1", b"a/b", b"a?b", b"a#b"),
        *(b"a%2eb", "bücher.example".encode(), b"a;b", b"a\\b", b'"a"', b"a|b", b"http://a"),
    ],
)
def test_invalid_host_beside_absolute_form(host: bytes) -> None:
    """3.2: an invalid Host is a 400 (RFC 9112 3.2), though the target's authority would win."""
    assert refused(b"GET http://a.example/ HTTP/1.1", b"Host: " + host) == 400


@pytest.mark.parametrize("host", [b"a", b"A.Example.:8080", b"[::1]:80", b"127.0.0.1", b"a_b:"])
def test_valid_host_beside_absolute_form(host: bytes) -> None:
    """3.2: a valid Host may differ from the absolute-form target; the target wins."""
    assert parse(b"GET http://b.example/ HTTP/1.1", b"Host: " + host).authority == b"b.example"


def test_http10_host() -> None:
    """3.2: HTTP/1.0 needs a host as well, from Host or from an absolute-form target."""
    assert refused(b"GET / HTTP/1.0") == 400
    assert refused(b"GET / HTTP/1.0", HOST, HOST) == 400
    assert parse(b"GET / HTTP/1.0", HOST).authority == b"a.example"
    request = parse(b"GET http://b/ HTTP/1.0", b"X-A: 1", b"X-Mark: 1")
    assert request.authority == b"b"
    assert request.lines == [b"Host: b", b"X-A: 1", b"X-Mark: 1"]
    assert [request.lines[place] for place in request.marked] == [b"X-Mark: 1"]


# ---- field lines ----


@pytest.mark.parametrize("byte", range(256))
def test_every_byte(byte: int) -> None:
    """R36: a name is a token, a value has no control character; each of 256 bytes is tried."""
    sly = bytes([byte])
    in_name = refused(LINE, HOST, b"X" + sly + b"A: 1")
    assert in_name == (0 if sly in TCHAR or sly == b":" else 400)
    in_value = refused(LINE, HOST, b"X-A: 1" + sly + b"2")
    assert in_value == (0 if byte == 9 or 32 <= byte != 127 else 400)
    assert (sly in LINE_BYTES) == (in_value == 0)


@pytest.mark.parametrize(
    "line",
    [b"NoColon", b": v", b" X: folded", b"\tX: folded", b"X : 1", b"X\t: 1", b"X Y: 1", b"(X): 1"],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_broken_field_lines(line: bytes, place: int) -> None:
    """R36: space before the colon, no colon, no name, folded lines: 400, wherever they stand."""
    lines = [HOST, b"X-A: 1"]
    lines.insert(place, line)
    assert refused(LINE, *lines) == 400


def test_values_pass_unchanged() -> None:
    """3.5: order, duplicates, spelling and spaces of fields pass unchanged."""
    lines = [b"x-a:1", b"X-A:  2 ", HOST, b"X-a:", b"X:: :", b"X-B: \xe4\xff", b"X-A:\t3"]
    assert parse(LINE, *lines).lines == lines


def test_kinds() -> None:
    """3.5: a caller's names are noted, marked or dropped; `_` is read as `-` and then dropped."""
    request = parse(
        *(LINE, b"X-Read: 1", HOST, b"X-Drop: 1", b"X-Mark: 1", b"x-read:\t2 ", b"X-MARK: 2"),
        *(b"X_Read: 3", b"X_Mark: 3", b"X_Drop: 3", b"X_Other: 4", b"x-mark: 5"),
    )
    assert request.noted == {NOTED: b"1, 2"}
    assert request.lines == [HOST, b"X-Mark: 1", b"X-MARK: 2", b"X_Other: 4", b"x-mark: 5"]
    assert request.marked == [1, 2, 4]


def test_names_stay_few() -> None:
    """3.11: a client that makes up names costs bounded memory, and long ones are not kept."""
    names = FieldNames(kind, bound=10)
    for number in range(1000):
        assert names[b"X-%d" % number] == PASS
        assert len(names) <= 10
    assert names[b"X" * 65] == PASS
    assert b"X" * 65 not in names
    with pytest.raises(MessageRefused):
        names[b"X Y"]
    assert b"X Y" not in names


@given(st.binary(max_size=8))
def test_tokens(text: bytes) -> None:
    """R36: a token is one or more of the characters of RFC 9110 5.6.2."""
    assert is_token(text) == (bool(text) and all(byte in TCHAR for byte in text))


# ---- bounds ----


def test_bounds() -> None:
    """3.11: head 32 KiB, 100 fields, a field line 16 KiB, target 8 KiB; one more is refused."""
    target = b"/" + b"a" * 8191
    assert parse(b"GET " + target + b" HTTP/1.1", HOST).target == target
    assert refused(b"GET " + target + b"a HTTP/1.1", HOST) == 414
    field = b"X: " + b"a" * 16381
    assert parse(LINE, HOST, field).lines[1] == field
    assert refused(LINE, HOST, field + b"a") == 431
    assert len(parse(LINE, HOST, *[b"X: 1"] * 99).lines) == 100
    assert refused(LINE, HOST, *[b"X: 1"] * 100) == 431
    head = [LINE, HOST, field, b"Y: "]
    rest = 32_768 - len(b"\r\n".join(head))
    assert refused(*head[:-1], head[-1] + b"a" * rest) == 0
    assert refused(*head[:-1], head[-1] + b"a" * (rest + 1)) == 431
    assert refused(*head, *[b"X: 1"] * 200) == 431


# ---- heads that are not whole yet ----


BEGINNINGS = [
    (b"GET / HTTP/1.1\n", 400),
    (b"GET / HTTP/1.1\r\r", 400),
    (b"GET / HTTP/1.1\r\nHost: a\n", 400),
    (b"GET / HTTP/1.1\r\nX: a\rb", 400),
    (b"GET / HTTP/1.1\r\nX: a\x00", 400),
    (b"\x16\x03\x01\x02\x00\x01", 400),
    (b"SSH-2.0-OpenSSH_9.2\r\n", 400),
    (b"PROXY TCP4 127.0.0.9 127.0.0.1 1 2\r\n", 400),
    (b"GET p HTTP/1.1\r\n", 400),
    (b"GET /\r\n", 400),
    (b"PRI * HTTP/2.0\r\n", 505),
    (b"GET /" + b"a" * 8192 + b" HTTP/1.1\r\n", 414),
    (b"GET /" + b"a" * 40_000, 414),
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000, 431),
]


@pytest.mark.parametrize(("data", "status"), BEGINNINGS)
def test_refused_at_once(data: bytes, status: int) -> None:
    """3.11: the beginning of a head that no byte can save is answered at once, not in 10 s."""
    with pytest.raises(MessageRefused) as refusal:
        check_partial(data, Bounds())
    assert refusal.value.status == status
    check_partial(data[:1], Bounds()) if data[:1] == b"G" else None


def test_every_beginning_of_a_good_head() -> None:
    """3.5: however its bytes are cut, a head that is fine is never refused on the way."""
    target = b"/" + b"a" * 19
    head = b"POST " + target + b" HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nContent-Length: 3"
    bounds = Bounds(head=len(head), fields=3, field_line=17, target=len(target))
    assert parse_request(head, FieldNames(kind), bounds).length == 3
    whole = head + b"\r\n\r\n"
    for end in range(len(whole)):
        check_partial(whole[:end], bounds)
    with pytest.raises(MessageRefused):
        check_partial(whole[:-1] + b"x", Bounds(head=len(head) - 1))


SLY = st.sampled_from([b"\r\n", b"\r", b"\n", b" ", b"\t", b":", b"\0", b"Host: a", LINE, b"\xff"])
HEADS = st.lists(SLY | st.binary(max_size=6), max_size=12).map(b"".join)


@given(HEADS, st.integers(0, 200))
def test_nothing_but_refusals(head: bytes, cut: int) -> None:
    """3.5: whatever comes, it is taken or refused with a status that is an answer; no crash."""
    for call in (
        lambda: parse_request(head, FieldNames(kind), Bounds()),
        lambda: check_partial(head[:cut], Bounds()),
    ):
        status = 400
        try:
            call()
        except MessageRefused as refusal:
            status = refusal.status
        assert status in (400, 414, 417, 431, 505)


@given(HEADS)
def test_partial_is_no_stricter(head: bytes) -> None:
    """3.5: what is refused as a beginning is refused as a whole too."""
    try:
        parse_request(head, FieldNames(kind), Bounds())
    except MessageRefused:
        return
    for end in range(len(head) + 1):
        check_partial(head[:end], Bounds())


FIELDS = st.lists(
    st.sampled_from(
        [
            b"Accept: */*",
            b"Connection: close",
            b"Connection: x-a",
            b"Content-Length: 0",
            b"Content-Length: 2",
            b"Expect: 100-continue",
            b"Host: b",
            b"Upgrade: websocket",
            b"X-A: 1",
            b"x_a: 2",
            b"X-B:\t3 ",
        ]
    ),
    max_size=4,
)
FIRST = st.sampled_from([b"Host: a", b"Host: a.b:80", b"Host: a,b", b"Host: ", b"host: a", b"X: y"])
LINES = st.sampled_from(
    [b"GET / HTTP/1.1", b"GET /\t HTTP/1.1", b"GET / HTTP/1.0", b"HEAD http://c/ HTTP/1.1"]
)


@given(st.lists(st.tuples(LINES, FIRST, FIELDS), min_size=2, max_size=6))
def test_a_head_is_read_alike_however_often_its_fields_came(
    heads: list[tuple[bytes, bytes, list[bytes]]],
) -> None:
    """3.5: what is remembered of fields that came before, for any host, changes no reading."""
    names = FieldNames(kind)
    for line, first, fields in heads + heads[:1] * 2:
        head = b"\r\n".join([line, first, *fields])
        read = []
        for known in (names, FieldNames(kind)):
            try:
                request = parse_request(head, known, Bounds())
                read.append(tuple(getattr(request, name) for name in request.__slots__))
            except MessageRefused as refusal:
                read.append((refusal.status, refusal.reason))
        assert read[0] == read[1]
