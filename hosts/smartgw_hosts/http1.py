"""HTTP/1 heads, strict: bytes in, values out. One file for gateway and sidecar.

Owns what is a well-formed head (RFC 9112) and how its body is framed. What is not surely framed
is refused, never repaired. Does not own which fields a proxy removes or adds: a caller's
`FieldNames` sorts them by kind. Chunked bodies are decoded in `chunked.py`.
"""

import re
from collections.abc import Callable

from smartgw_hosts.grammar import LINE_BYTES as LINE_BYTES
from smartgw_hosts.grammar import Bounds as Bounds
from smartgw_hosts.grammar import MessageRefused as MessageRefused
from smartgw_hosts.grammar import is_token as is_token
from smartgw_hosts.start_line import MAX_METHOD, request_line, split_target, status_line

# Kinds of field. From NOTED up those that a caller wants to read; from KEPT up they pass as well.
PASS, DROP, MARK, HOST, LENGTH, CODING, CONNECTION, UPGRADE, EXPECT = range(9)
NOTED, KEPT = 16, 32

CHUNKED = -1
"""Body length of a message framed by chunks."""
UNTIL_CLOSE = -2
"""Body length of a response that ends with its connection."""

_PLAIN_HOST_BYTES = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_:[]"
_OWS = b" \t"
_FRAMING = {b"host": HOST, b"content-length": LENGTH, b"transfer-encoding": CODING}
_CONTROL = {b"connection": CONNECTION, b"upgrade": UPGRADE, b"expect": EXPECT}
# What Connection cannot have taken out: where the message ends, where it goes, where it has been.
_NEVER_NOMINATED = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"connection", b"via")
)
_HOST_AND_PORT = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_.-]+)(?::[0-9]*)?\Z")
_BODILESS = (b"GET ", b"HEAD ", b"DELETE ", b"OPTIONS ")
_MAX_REMEMBERED_NAME = 64
# Sections of field lines that are remembered: in all some megabytes.
_MAX_SECTION = 1_024
_MAX_SECTIONS = 512


class FieldNames(dict[bytes, int]):
    """Field name as spelled on the wire -> kind; each spelling is judged once, in bounded memory.

    `classify` gets a name in lower case with `_` read as `-` (a CGI app cannot tell them apart)
    and returns its kind. A spelling with `_` of a name that is more than PASS is dropped: it can
    only be there to confuse.
    """

    def __init__(self, classify: Callable[[bytes], int], bound: int = 4_096) -> None:
        super().__init__()
        self._sections: dict[bytes, RequestHead] = {}
        self._classify = classify
        self._bound = bound

    def __missing__(self, name: bytes) -> int:
        if not is_token(name):
            raise MessageRefused(400, "a field name is not a token")
        lower = name.lower()
        kind = _FRAMING.get(lower) or _CONTROL.get(lower)
        if kind is None:
            plain = lower.replace(b"_", b"-")
            kind = DROP if plain in _FRAMING else self._classify(plain)
            if kind != PASS and b"_" in lower:
                kind = DROP
        if len(name) <= _MAX_REMEMBERED_NAME:
            if len(self) >= self._bound:
                self.clear()
            self[name] = kind
        return kind

    def section(self, fields: bytes) -> "RequestHead | None":
        """Return a head that had exactly these field lines behind its Host, with neither Host
        nor what stands before it; clients repeat theirs.
        """
        return self._sections.get(fields)

    def remember(self, fields: bytes, head: "RequestHead") -> None:
        """Keep what such a head says for `section`, if it is likely to come again."""
        if len(fields) <= _MAX_SECTION and not head.length and not head.expect:
            if len(self._sections) >= _MAX_SECTIONS:
                self._sections.clear()
            self._sections[fields] = head.again(b"", b"", b"", head.lines[1:])


class RequestHead:
    """A request head that kept the grammar.

    Attributes:
        method, target: as on the wire; an absolute-form target in origin-form (or `*`).
        authority: the bytes that name the host; those of an absolute-form target win over Host
            (RFC 9112 3.2.2).
        lines: the field lines of kind PASS, MARK and KEPT, Host and Content-Length, unchanged and
            in order, without CRLF. Host holds the authority of an absolute-form target.
        marked: places in `lines` of kind MARK.
        noted: kind -> value(s), joined by `, `.
        nominated: names that Connection took out, which are not for trailers either.
        length: bytes of the body, or CHUNKED.
        minor: 0 for HTTP/1.0.
        keep_alive: the sender will take another answer on this connection.
        upgrade: protocols asked for, lower case, when Connection names Upgrade.
        expect: the sender waits for 100 (Continue).
    """

    __slots__ = (
        "authority",
        "expect",
        "keep_alive",
        "length",
        "lines",
        "marked",
        "method",
        "minor",
        "nominated",
        "noted",
        "target",
        "upgrade",
    )

    method: bytes
    target: bytes
    authority: bytes
    lines: list[bytes]
    marked: list[int]
    noted: dict[int, bytes]
    nominated: frozenset[bytes]
    length: int
    minor: int
    keep_alive: bool
    upgrade: tuple[bytes, ...]
    expect: bool

    def again(
        self, method: bytes, target: bytes, authority: bytes, lines: list[bytes]
    ) -> "RequestHead":
        """Return a head whose other field lines say the same."""
        head = RequestHead()
        head.method = method
        head.target = target
        head.authority = authority
        head.lines = lines
        head.marked = self.marked
        head.noted = self.noted
        head.length = self.length
        head.minor = self.minor
        head.nominated = self.nominated
        head.keep_alive = self.keep_alive
        head.upgrade = self.upgrade
        head.expect = self.expect
        return head


class ResponseHead:
    """A response head that kept the grammar; attributes as in `RequestHead`.

    Attributes:
        lines: as in a request head, with Content-Length but without Transfer-Encoding.
        status: 100 to 599.
        phrase: what stands behind the status code, beginning with a space.
        length: bytes of the body, CHUNKED or UNTIL_CLOSE.
        keep_alive: another request may follow on this connection once the body is over.
    """

    __slots__ = (
        "keep_alive",
        "length",
        "lines",
        "marked",
        "nominated",
        "noted",
        "phrase",
        "status",
        "upgrade",
    )

    status: int
    phrase: bytes
    lines: list[bytes]
    marked: list[int]
    noted: dict[int, bytes]
    nominated: frozenset[bytes]
    length: int
    keep_alive: bool
    upgrade: tuple[bytes, ...]


_NO_MARKS: list[int] = []
_NO_NOTES: dict[int, bytes] = {}
_NONE_NOMINATED: frozenset[bytes] = frozenset()


def lines_so_far(data: bytes) -> bool:
    """Say whether data can be the beginning of lines that end with CRLF."""
    if data[-1:] == b"\r":
        data = data[:-1]
    return data.translate(None, LINE_BYTES) == b"\r\n" * data.count(b"\r\n")


def check_partial(data: bytes, bounds: Bounds) -> None:
    """Refuse the beginning of a request head that no further byte can save; pass over the rest.

    So that a client that ends its lines with a bare LF, or speaks another protocol, gets an
    answer at once and not at the deadline. `data` holds no complete head.
    """
    if len(data) > bounds.head + 3:  # the end of a head may have come but for its last byte
        first = data.find(b"\r\n")
        if first < 0 or first > bounds.target + MAX_METHOD + 16:
            raise MessageRefused(414, f"the target is longer than {bounds.target} bytes")
        raise MessageRefused(431, f"the head is longer than {bounds.head} bytes")
    if not lines_so_far(data):
        raise MessageRefused(400, "a line holds a control character or does not end with CRLF")
    line, end, _ = data.partition(b"\r\n")
    if end and line:
        method, target, _minor = request_line(line, bounds)
        split_target(method, target)


def parse_request(head: bytes, names: FieldNames, bounds: Bounds) -> RequestHead:
    """Read a request head.

    Args:
        head: everything up to and without the empty line, at most `bounds.head` bytes.
    Raises:
        MessageRefused: 400, 414, 417, 431 or 505; the connection cannot be used further.
    """
    fields = None
    end = head.find(b"\r\n")
    # A length changes with each body, so only fields of requests without one come again; those
    # behind Host, with which nearly all clients begin, whichever host is asked.
    if head.startswith(b"\r\nHost: ", end) and head.startswith(_BODILESS):
        host_end = head.find(b"\r\n", end + 8)
        if host_end < 0:
            host_end = len(head)
        fields = head[host_end:]
        known = names.section(fields)
        if known is not None and len(head) <= bounds.field_line:
            line, asked = head[:end], head[end + 8 : host_end]
            if (
                not line.translate(None, LINE_BYTES)
                and not asked.translate(None, _PLAIN_HOST_BYTES)
                and asked
                and fields.count(b"\r\n") < bounds.fields
            ):
                method, target, minor = request_line(line, bounds)
                if minor and target[:1] == b"/":
                    lines = [head[end + 2 : host_end]]
                    lines += known.lines
                    return known.again(method, target, asked, lines)
    lines = head.split(b"\r\n")
    if head.translate(None, LINE_BYTES) != b"\r\n" * (len(lines) - 1):
        raise MessageRefused(400, "a line holds a control character or does not end with CRLF")
    method, target, minor = request_line(lines[0], bounds)
    del lines[0]
    if len(lines) > bounds.fields or len(head) > bounds.field_line:
        _check_size(head, lines, bounds)
    request = RequestHead()
    request.method = method
    request.target, authority = (
        (target, None) if target[:1] == b"/" else split_target(method, target)
    )
    request.minor = minor
    kept: list[bytes] = []
    marked = _NO_MARKS
    noted = _NO_NOTES
    host = length = coding = connection = upgrade = expect = None
    host_place = 0
    for line in lines:
        name, colon, value = line.partition(b":")
        kind = names[name]
        if not colon:
            raise MessageRefused(400, "a field line has no colon")
        if kind == PASS:
            kept.append(line)
        elif kind == DROP:
            pass
        elif kind == HOST:
            if host is not None:
                raise MessageRefused(400, "more than one Host field")
            host = value.strip(_OWS)
            host_place = len(kept)
            kept.append(line)
        elif kind == CONNECTION:
            value = value.strip(_OWS).lower()
            connection = value if connection is None else connection + b"," + value
        elif kind >= NOTED:
            if noted is _NO_NOTES:
                noted = {}
            value = value.strip(_OWS)
            noted[kind] = noted[kind] + b", " + value if kind in noted else value
            if kind >= KEPT:
                kept.append(line)
        elif kind == LENGTH:
            if length is not None:
                raise MessageRefused(400, "more than one Content-Length field")
            length = _content_length(value.strip(_OWS))
            kept.append(line)
        elif kind == CODING:
            if coding is not None:
                raise MessageRefused(400, "more than one Transfer-Encoding field")
            coding = _transfer_coding(value)
        elif kind == MARK:
            marked = [*marked, len(kept)]
            kept.append(line)
        elif kind == UPGRADE:
            value = value.strip(_OWS).lower()
            upgrade = value if upgrade is None else upgrade + b"," + value
        elif kind == EXPECT:
            value = value.strip(_OWS).lower()
            if expect is None or value != b"100-continue":
                expect = value
    if host is None:
        if minor or authority is None:
            raise MessageRefused(400, "no Host field")
    elif b"," in host or b" " in host or b"\t" in host or not host:
        raise MessageRefused(400, "the Host field does not hold one host")
    if authority is None:
        request.authority = host or b""
    else:
        # RFC 9112 3.2.2: the target's authority replaces what Host said, which must be valid still.
        request.authority = authority
        if host is None:
            kept.insert(0, b"Host: " + authority)
            marked = [place + 1 for place in marked]
        elif _HOST_AND_PORT.match(host):
            kept[host_place] = b"Host: " + authority
        else:
            raise MessageRefused(400, "the Host field does not hold one host")
    if coding is not None:
        if length is not None:
            raise MessageRefused(400, "both Content-Length and Transfer-Encoding")
        if not minor:
            raise MessageRefused(400, "Transfer-Encoding in an HTTP/1.0 request")
        length = CHUNKED
    request.length = length or 0
    request.keep_alive = bool(minor)
    request.upgrade = ()
    nominated = _NONE_NOMINATED
    if connection is not None and connection != b"keep-alive":
        options, nominated, kept, marked = _connection_options(connection, kept, marked)
        if b"close" in options:
            request.keep_alive = False
        elif b"keep-alive" in options:
            request.keep_alive = True
        if upgrade is not None and minor and b"upgrade" in options:
            request.upgrade = tuple(part.strip(_OWS) for part in upgrade.split(b","))
    elif connection is not None:
        request.keep_alive = True
    # RFC 9110 10.1.1: an expectation in an HTTP/1.0 request is ignored. One that we do not know
    # is told last, so that what is malformed (folded, say) is 400 first.
    request.expect = bool(minor) and expect is not None
    if request.expect and expect != b"100-continue":
        raise MessageRefused(417, "Expect names something other than 100-continue")
    request.nominated = nominated
    request.lines = kept
    request.marked = marked
    request.noted = noted
    if fields is not None and minor and authority is None:
        names.remember(fields, request)
    return request


def parse_response(
    head: bytes, names: FieldNames, bounds: Bounds, request_method: bytes
) -> ResponseHead:
    """Read a response head; its request's method decides whether a body follows (RFC 9112 6.3).

    Raises:
        MessageRefused: its status is meaningless here; the answer is a 502.
    """
    lines = head.split(b"\r\n")
    if head.translate(None, LINE_BYTES) != b"\r\n" * (len(lines) - 1):
        raise MessageRefused(502, "a line holds a control character or does not end with CRLF")
    status, phrase, keep_alive = status_line(lines[0])
    del lines[0]
    if len(lines) > bounds.fields or len(head) > bounds.field_line:
        _check_size(head, lines, bounds)
    response = ResponseHead()
    modern = keep_alive
    kept: list[bytes] = []
    marked = _NO_MARKS
    noted = _NO_NOTES
    length = coding = connection = upgrade = None
    length_place = 0
    for line in lines:
        name, colon, value = line.partition(b":")
        kind = names[name]
        if not colon:
            raise MessageRefused(502, "a field line has no colon")
        if kind == PASS:
            kept.append(line)
        elif kind == LENGTH:
            if length is not None:
                raise MessageRefused(502, "more than one Content-Length field")
            length = _content_length(value.strip(_OWS))
            length_place = len(kept)
            kept.append(line)
        elif kind == DROP:
            pass
        elif kind == MARK:
            marked = [*marked, len(kept)]
            kept.append(line)
        elif kind == CONNECTION:
            value = value.strip(_OWS).lower()
            connection = value if connection is None else connection + b"," + value
        elif kind >= NOTED:
            if noted is _NO_NOTES:
                noted = {}
            value = value.strip(_OWS)
            noted[kind] = noted[kind] + b", " + value if kind in noted else value
        elif kind == CODING:
            if coding is not None:
                raise MessageRefused(502, "more than one Transfer-Encoding field")
            coding = _transfer_coding(value)
        elif kind == UPGRADE:
            value = value.strip(_OWS).lower()
            upgrade = value if upgrade is None else upgrade + b"," + value
        else:  # Host and Expect mean nothing in a response
            kept.append(line)
    if coding is not None:
        if length is not None:
            raise MessageRefused(502, "both Content-Length and Transfer-Encoding")
        if not modern:
            raise MessageRefused(502, "Transfer-Encoding in an HTTP/1.0 response")
    if length is not None and (status < 200 or status == 204):
        # RFC 9110 8.6: these never carry a length.
        del kept[length_place]
        marked = [place - (place > length_place) for place in marked]
    response.upgrade = ()
    nominated = _NONE_NOMINATED
    if connection == b"keep-alive":
        keep_alive = True
    elif connection is not None:
        options, nominated, kept, marked = _connection_options(connection, kept, marked)
        if b"close" in options:
            keep_alive = False
        elif b"keep-alive" in options:
            keep_alive = True
        if upgrade is not None and b"upgrade" in options and modern:
            response.upgrade = tuple(part.strip(_OWS) for part in upgrade.split(b","))
    if status < 200 or status == 204:
        response.length = 0
        if length or coding is not None:
            # No body follows (RFC 9112 6.3), but this sender may think that one does, and llhttp
            # would read one behind some interim answers.
            if status < 200:
                raise MessageRefused(502, "an interim answer announces a body")
            keep_alive = False
    elif request_method == b"HEAD" or status == 304:
        # Content-Length tells what a GET would have had (RFC 9110 8.6); no body follows.
        response.length = 0
    elif coding is not None:
        response.length = CHUNKED
    elif length is not None:
        response.length = length
    else:
        response.length = UNTIL_CLOSE
        keep_alive = False
    response.status = status
    response.phrase = phrase
    response.keep_alive = keep_alive
    response.nominated = nominated
    response.lines = kept
    response.marked = marked
    response.noted = noted
    return response


def _check_size(head: bytes, lines: list[bytes], bounds: Bounds) -> None:
    if len(lines) > bounds.fields:
        raise MessageRefused(431, f"more than {bounds.fields} fields")
    if len(head) > bounds.field_line:
        if len(head) > bounds.head:
            raise MessageRefused(431, f"the head is longer than {bounds.head} bytes")
        if max(map(len, lines), default=0) > bounds.field_line:
            raise MessageRefused(431, f"a field line is longer than {bounds.field_line} bytes")


def _content_length(value: bytes) -> int:
    # bytes.isdigit takes ASCII digits only; 18 of them fit a signed 64-bit number everywhere.
    if not value.isdigit() or len(value) > 18:
        raise MessageRefused(400, "Content-Length is not a number of at most 18 digits")
    return int(value)


def _transfer_coding(value: bytes) -> bytes:
    # A tab may stand there too (RFC 9112 5), but llhttp takes it for a part of the coding's name.
    value = value.strip(b" ")
    if value.lower() != b"chunked":
        raise MessageRefused(400, "Transfer-Encoding is not exactly: chunked")
    return value


def _connection_options(
    value: bytes, lines: list[bytes], marked: list[int]
) -> tuple[frozenset[bytes], frozenset[bytes], list[bytes], list[int]]:
    """Return the connection options, the fields they name, and lines and marks without these
    (RFC 9110 7.6.1).
    """
    options = frozenset(part.strip(_OWS).replace(b"_", b"-") for part in value.split(b","))
    nominated = options - _NEVER_NOMINATED - {b"close", b"keep-alive", b"upgrade", b"te", b""}
    if not nominated:
        return options, nominated, lines, marked
    kept: list[bytes] = []
    still_marked: list[int] = []
    for place, line in enumerate(lines):
        if line[: line.index(b":")].lower().replace(b"_", b"-") in nominated:
            continue
        if place in marked:
            still_marked.append(len(kept))
        kept.append(line)
    return options, nominated, kept, still_marked
