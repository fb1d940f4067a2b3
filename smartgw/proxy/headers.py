"""Which fields pass, which go, which are ours, in both directions (contract 3.5).

Owns the removals and additions of a proxy. Syntax is `smartgw_hosts.http1`'s; what this file
decides is a kind for each name and the lines that are added. Pure: built once from settings.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from smartgw.routing.hostname import hostname_of
from smartgw_hosts.http1 import (
    CHUNKED,
    DROP,
    KEPT,
    MARK,
    NOTED,
    PASS,
    Bounds,
    FieldNames,
    RequestHead,
    ResponseHead,
    is_token,
)

REQUEST_ID, FORWARDED_FOR, FORWARDED_PROTO, FORWARDED_HOST, FORWARDED, TE, FORWARD, LINK = range(
    NOTED, NOTED + 8
)
"""Kinds of request fields that are read and replaced."""
ORIGIN, ASKED_METHOD, ASKED_NAMES, VIA = range(KEPT, KEPT + 4)
"""Kinds of request fields that are read and pass: Origin, Access-Control-Request-*, Via."""
GUARD, ANSWER, CALLER = range(NOTED, NOTED + 3)
"""Kinds of response fields that are read and go no further: what a host's guard says (contract
4.8), what a peer's gateway says beside the answer (4.7), whom our own API takes a caller for."""

# RFC 9110 7.6.1: for one connection only. Upgrade and Connection are the parser's own kinds.
_HOP_BY_HOP = frozenset(
    (
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"http2-settings",
    )
)
_READ = {
    b"x-request-id": REQUEST_ID,
    b"x-forwarded-for": FORWARDED_FOR,
    b"x-forwarded-proto": FORWARDED_PROTO,
    b"x-forwarded-host": FORWARDED_HOST,
    b"forwarded": FORWARDED,
    b"te": TE,
    b"x-smartgw-forward": FORWARD,
    b"x-smartgw-link": LINK,
    b"origin": ORIGIN,
    b"access-control-request-method": ASKED_METHOD,
    b"access-control-request-headers": ASKED_NAMES,
    b"via": VIA,
}
_RESERVED = (b"x-smartgw-", b"x-failover-cluster")
# What an app may not say in the gateway's name (contract 6.2).
_LIMITS = (b"x-ratelimit-", b"ratelimit")
_MARKED = (b"set-cookie", b"vary")

# RFC 9110 6.5.1: what steers a message, its caching, its reading or who may ask for it has to
# stand before the body, where everyone on the way looks.
_NEVER_TRAILERS = frozenset(
    (
        *(b"via", b"trailer", b"content-type", b"content-encoding", b"content-range"),
        *(b"authorization", b"www-authenticate", b"cookie", b"range", b"max-forwards"),
        *(b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range"),
        *(b"cache-control", b"pragma", b"age", b"date", b"expires", b"vary", b"warning"),
        *(b"location", b"retry-after", b"strict-transport-security", b"content-security-policy"),
    )
)

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_REQUEST_ID_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-"
_TO_ESCAPE = re.compile(rb'["\\]')
# An address with a port behind it, as some proxies write it into X-Forwarded-For.
_WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")
_COOKIE_DOMAIN = re.compile(rb"[0-9a-z_.-]+\Z")


def request_names(removed: Iterable[str]) -> FieldNames:
    """Return the names of request fields; `removed` are dropped besides those that always are."""
    dropped = _HOP_BY_HOP | {name.lower().replace("_", "-").encode() for name in removed}

    def classify(name: bytes) -> int:
        if name in dropped:
            return DROP
        if name == b"user-agent":
            return MARK
        return _READ.get(name, DROP if name.startswith(_RESERVED) else PASS)

    return FieldNames(classify)


def response_names() -> FieldNames:
    """Return the names of fields in answers of hosts.

    Set-Cookie is marked for `without_wide_domain`, Vary and Access-Control-* for routing/cors.py.
    """
    return _response_names({b"x-smartgw-owner": GUARD}, (*_RESERVED, *_LIMITS))


def peer_response_names() -> FieldNames:
    """Return the names of fields in answers of peers' gateways, whose limits are told (6.2)."""
    return _response_names({b"x-smartgw-answer": ANSWER}, _RESERVED)


def api_response_names() -> FieldNames:
    """Return the names of fields in answers of our own API, which may tell limits of its own."""
    return _response_names({b"x-smartgw-caller": CALLER}, _RESERVED)


def _response_names(read: dict[bytes, int], ours: tuple[bytes, ...]) -> FieldNames:
    def classify(name: bytes) -> int:
        if name in read:
            return read[name]
        if name in _HOP_BY_HOP or name in (b"te", b"x-request-id") or name.startswith(ours):
            return DROP
        if name in _MARKED or name.startswith(b"access-control-"):
            return MARK
        return PASS

    return FieldNames(classify)


def passing_trailers(
    trailers: Sequence[bytes], names: FieldNames, nominated: frozenset[bytes] = frozenset()
) -> list[bytes]:
    """Return the trailer lines that may pass: never framing, routing, or fields of ours, nor what
    the head's Connection had `nominated`.
    """
    stopped = _NEVER_TRAILERS | nominated if nominated else _NEVER_TRAILERS
    passing = []
    for line in trailers:
        name = line[: line.index(b":")]
        if names[name] == PASS and name.lower().replace(b"_", b"-") not in stopped:
            passing.append(line)
    return passing


def has_been_at(via: bytes, cluster: bytes) -> bool:
    """Say whether a Via field (RFC 9110 7.6.3) names a cluster, so that the request is in a loop.

    A comment that looks like an element counts as one: nobody is wronged who wrote it himself.
    """
    if cluster not in via:
        return False
    for element in via.split(b","):
        parts = element.split(None, 2)
        if len(parts) > 1 and parts[1] == cluster:
            return True
    return False


def is_request_id(sent: bytes) -> bool:
    """Say whether a client's request id has the form that is kept (contract 3.5)."""
    return 0 < len(sent) <= 64 and not sent.translate(None, _REQUEST_ID_BYTES)


def first_value(lines: Iterable[bytes], name: bytes) -> bytes | None:
    """Return the value of the first line of this lower-case name; off the hot path."""
    for line in lines:
        found, _, value = line.partition(b":")
        if found.lower() == name:
            return value.strip(b" \t")
    return None


# RFC 7239 4. What is not exactly this could swallow or forge the element that we append.
_PAIR = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+=(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|\"(?:[^\"\\]|\\.)*\")"
_ELEMENT = _PAIR + rb"(?:;" + _PAIR + rb")*"
_ELEMENTS = re.compile(_ELEMENT + rb"(?:[ \t]*,[ \t]*" + _ELEMENT + rb")*\Z")


class Forwarding:
    """Who the client is, and the lines that tell the host: X-Forwarded-*, Forwarded, Via."""

    def __init__(self, cluster: str, trusted: Sequence[IPv4Network | IPv6Network]) -> None:
        self._via = b"\r\nVia: 1.1 " + cluster.encode()
        self._trusted = tuple(trusted)

    def trusts(self, address: str) -> bool:
        """Say whether a peer is a configured proxy, whose word on its client is taken."""
        if not self._trusted:
            return False
        ip = _address(address)
        return ip is not None and any(ip in network for network in self._trusted)

    def client(self, peer: str, noted: dict[int, bytes]) -> str:
        """Return the client's address as a trusted peer tells it: the last one not trusted."""
        client = peer
        for hop in reversed(noted.get(FORWARDED_FOR, b"").decode("latin-1").split(",")):
            ip = _address(hop.strip(" \t"))
            if ip is None:
                break
            client = str(ip)
            if not self.trusts(client):
                break
        return client

    def scheme(self, scheme: bytes, noted: dict[int, bytes]) -> bytes:
        """Return the scheme that a trusted peer tells, else that of its connection."""
        told = noted.get(FORWARDED_PROTO, b"").lower()
        return told if told in (b"http", b"https") else scheme

    def lines(self, peer: str, scheme: bytes, authority: bytes) -> bytes:
        """Return the lines for a peer that is the client itself, joined by CRLF."""
        return self._lines(peer.encode(), peer, scheme, authority, b"")

    def trusted_lines(
        self, peer: str, scheme: bytes, authority: bytes, noted: dict[int, bytes]
    ) -> bytes:
        """Return the lines for a trusted peer: its word, with the peer itself appended."""
        told = noted.get(FORWARDED_FOR)
        chain = told + b", " + peer.encode() if told else peer.encode()
        scheme = self.scheme(scheme, noted)
        elements = noted.get(FORWARDED, b"")
        if not _ELEMENTS.match(elements):
            elements = b""
        told_host = noted.get(FORWARDED_HOST, b"")
        if hostname_of(told_host) is not None:
            authority = told_host
        return self._lines(chain, peer, scheme, authority, elements + b", " if elements else b"")

    def _lines(
        self, chain: bytes, peer: str, scheme: bytes, authority: bytes, elements: bytes
    ) -> bytes:
        node = b'"[%b]"' % peer.encode() if ":" in peer else peer.encode()
        host = authority
        if not is_token(host):
            # What a trusted peer passes on may have come from anyone (RFC 9110 5.6.4).
            host = b'"%b"' % _TO_ESCAPE.sub(rb"\\\g<0>", host)
        return (
            b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n"
            b"Forwarded: %bfor=%b;host=%b;proto=%b%b"
        ) % (chain, scheme, authority, elements, node, host, scheme, self._via)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address as it counts: that of an IPv4-mapped one is the IPv4 it holds."""
    found = _WITH_PORT.fullmatch(text)
    if found is not None:
        text = found[1] or found[2]
    try:
        ip = ip_address(text)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        # A zone is known only to the machine it is on, and may be any text.
        return None if ip.scope_id is not None else ip.ipv4_mapped or ip
    return ip


def upstream_head(
    request: RequestHead, forwarding: bytes, request_id: bytes, upgrade: bytes | None
) -> bytes:
    """Return the request head that a host gets, with its empty line."""
    lines = [b"%b %b HTTP/1.1" % (request.method, request.target)]
    lines += request.lines
    lines.append(forwarding)
    _add_framing(lines, request, upgrade)
    lines.append(b"X-Request-Id: %b\r\n\r\n" % request_id)
    return b"\r\n".join(lines)


# More than a gateway adds to a request that it forwards (a mark of 550 bytes, ids, Host, Via) or to
# the answer to one (limits, CORS, ids).
_MOST_ADDED, _FIELDS_ADDED = 2_048, 16
_MARK_FIELD, _ID_FIELD, _VIA_LINE = b"x-smartgw-forward: ", b"X-Request-Id: ", b"\r\nVia: "


def forward_head(
    request: RequestHead, mark: bytes, forwarding: bytes, request_id: bytes, upgrade: bytes | None
) -> bytes:
    """Return the request head that a peer's gateway gets, with its empty line.

    What differs from request to request comes first, so that `without_mark` leaves a section that
    the parser knows. Of our own lines only Via goes along: the rest the receiver makes of the mark.
    """
    lines = [
        b"%b %b HTTP/1.1\r\n%b%b\r\n%b%b"
        % (request.method, request.target, _MARK_FIELD, mark, _ID_FIELD, request_id)
    ]
    lines += request.lines
    lines.append(forwarding[forwarding.rindex(_VIA_LINE) + 2 :])
    _add_framing(lines, request, upgrade)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def bounds_on_link(bounds: Bounds) -> Bounds:
    """Return how large heads between gateways may be: what one of them takes from a client or a
    host, the other takes from it (contract 4.2).
    """
    return Bounds(
        bounds.head + _MOST_ADDED, bounds.fields + _FIELDS_ADDED, bounds.field_line, bounds.target
    )


def without_mark(head: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Take from a request head (without its empty line) what `forward_head` put first, as notes.

    A head that does not begin so is returned as it is, without notes.
    """
    parts = head.split(b"\r\n", 3)
    if len(parts) < 2 or not parts[1].startswith(_MARK_FIELD):
        return head, {}
    notes = {FORWARD: parts[1][len(_MARK_FIELD) :]}
    rest = 2
    if len(parts) > 2 and parts[2].startswith(_ID_FIELD):
        notes[REQUEST_ID] = parts[2][len(_ID_FIELD) :]
        rest = 3
    del parts[1:rest]
    return b"\r\n".join(parts), notes


def noted(request: RequestHead, notes: dict[int, bytes]) -> dict[int, bytes]:
    """Return the notes of a request together with those of `without_mark`, which come first."""
    if FORWARD in notes and FORWARD in request.noted:
        # One mark more is one too many, wherever it stands.
        notes[FORWARD] += b", " + request.noted[FORWARD]
    return {**request.noted, **notes}


def _add_framing(lines: list[bytes], request: RequestHead, upgrade: bytes | None) -> None:
    if request.length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    if request.expect:
        lines.append(b"Expect: 100-continue")
    if upgrade is not None:
        lines.append(b"Connection: Upgrade\r\nUpgrade: " + upgrade)
    elif request.noted and wants_trailers(request):
        lines.append(b"TE: trailers\r\nConnection: TE")


def switch_head(head: ResponseHead, upgrade: bytes) -> bytes:
    """Return the head of a 101 answer, with its empty line."""
    lines = [b"HTTP/1.1 101" + head.phrase, *head.lines]
    lines += [b"Connection: Upgrade", b"Upgrade: " + upgrade, b"\r\n"]
    return b"\r\n".join(lines)


def wants_trailers(request: RequestHead) -> bool:
    """Say whether the client can take trailers (RFC 9110 6.5.1)."""
    te = request.noted.get(TE)
    return te is not None and any(part.strip() == b"trailers" for part in te.lower().split(b","))


def upgrade_to_try(request: RequestHead, allowed: frozenset[bytes]) -> bytes | None:
    """Return the protocol to ask the host for, or None: then the request is an ordinary one.

    Only GET without a body is upgraded, and a WebSocket only with a key, without which no answer
    could be checked (RFC 6455 4.1). The others' Upgrade field has been removed already.
    """
    if not request.upgrade or request.method != b"GET" or request.length:
        return None
    for protocol in request.upgrade:
        if protocol in allowed:
            if protocol == b"websocket" and websocket_accept(request) is None:
                return None
            return protocol
    return None


def websocket_accept(request: RequestHead) -> bytes | None:
    """Return what Sec-WebSocket-Accept has to say (RFC 6455 4.2.2), None without a valid key."""
    keys = [
        line.partition(b":")[2].strip(b" \t")
        for line in request.lines
        if line[:18].lower() == b"sec-websocket-key:"
    ]
    if len(keys) != 1:
        return None
    try:
        if len(base64.b64decode(keys[0], validate=True)) != 16:
            return None
    except ValueError:
        return None
    return base64.b64encode(hashlib.sha1(keys[0] + _GUID, usedforsecurity=False).digest())


def without_wide_domain(line: bytes, base_domains: Sequence[bytes]) -> bytes:
    """Return a Set-Cookie line without a Domain that names a base domain or one above it.

    Such a cookie would be sent to every tenant's app (contract 3.5). Without Domain it is sent to
    the app's own hostname only (RFC 6265 4.1.2.3).
    """
    if b"domain" not in line.lower():
        return line
    parts = line.split(b";")
    kept = [part for part in parts[1:] if not _wide_domain(part, base_domains)]
    return b";".join([parts[0], *kept])


def _wide_domain(attribute: bytes, base_domains: Sequence[bytes]) -> bool:
    name, _, value = attribute.partition(b"=")
    if name.strip(b" \t").lower() != b"domain":
        return False
    domain = value.strip(b' \t"').lower()
    # Browsers decode `%2d`, full-width letters and IDN in it: what is not plain is not let through.
    if not _COOKIE_DOMAIN.match(domain):
        return True
    domain = domain.strip(b".")
    return not domain or any(
        base == domain or base.endswith(b"." + domain) for base in base_domains
    )
