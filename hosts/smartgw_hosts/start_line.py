"""The first line of an HTTP/1 message: request line and status line, strict (RFC 9112 3 and 4).

Owns which methods, targets, versions and status codes are taken. Fields are http1.py's.
"""

import re

from smartgw_hosts.grammar import Bounds, MessageRefused, is_token

_VERSION = re.compile(rb"HTTP/[0-9]\.[0-9]\Z")
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
MAX_METHOD = 64
_MAX_REMEMBERED = 64


def request_line(line: bytes, bounds: Bounds) -> tuple[bytes, bytes, int]:
    """Return method, target as sent, minor version."""
    try:
        method, target, version = line.split(b" ")
    except ValueError:
        method = target = version = b"\t"
    if b"\t" in line or version == b"\t":
        raise MessageRefused(400, "the request line is not: method, space, target, space, version")
    if version == b"HTTP/1.1":
        minor = 1
    elif version == b"HTTP/1.0":
        minor = 0
    elif _VERSION.match(version):
        raise MessageRefused(505, "the version is neither HTTP/1.1 nor HTTP/1.0")
    else:
        raise MessageRefused(400, "the request line does not end with an HTTP version")
    if method not in _METHODS and (not is_token(method) or len(method) > MAX_METHOD):
        raise MessageRefused(400, "the method is not a token")
    if len(target) > bounds.target:
        raise MessageRefused(414, f"the target is longer than {bounds.target} bytes")
    if b"#" in target:
        raise MessageRefused(400, "the target carries a fragment")
    return method, target, minor


def split_target(method: bytes, target: bytes) -> tuple[bytes, bytes | None]:
    """Return the target to send on and the authority, if the target names one (RFC 9112 3.2)."""
    if target[:1] == b"/":
        return target, None
    if target == b"*" and method == b"OPTIONS":
        return target, None
    if method == b"CONNECT":
        return target, target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise MessageRefused(400, "the target is neither a path nor an http or https URL")
    end = min(i for i in (rest.find(b"/"), rest.find(b"?"), len(rest)) if i >= 0)
    authority, path = rest[:end], rest[end:]
    if not authority:
        raise MessageRefused(400, "the target names no host")
    if not path:
        return b"*" if method == b"OPTIONS" else b"/", authority
    return path if path[:1] == b"/" else b"/" + path, authority


_STATUS_LINES: dict[bytes, tuple[int, bytes, bool]] = {}
_MAX_STATUS_LINES = 256


def status_line(line: bytes) -> tuple[int, bytes, bool]:
    """Return status, phrase with its space, and whether it is HTTP/1.1; few lines ever come."""
    known = _STATUS_LINES.get(line)
    if known is not None:
        return known
    version, code = line[:9], line[9:12]
    if version not in (b"HTTP/1.1 ", b"HTTP/1.0 "):
        raise MessageRefused(502, "the status line does not begin with an HTTP version")
    if (
        not code.isdigit()
        or len(code) != 3
        or line[12:13] not in (b" ", b"")
        or not b"100" <= code <= b"599"
    ):
        raise MessageRefused(502, "the status code is not a number from 100 to 599")
    # RFC 9112 4: the space is sent even when no phrase follows.
    known = int(code), line[12:] or b" ", version == b"HTTP/1.1 "
    if len(line) <= _MAX_REMEMBERED:
        if len(_STATUS_LINES) >= _MAX_STATUS_LINES:
            _STATUS_LINES.clear()
        _STATUS_LINES[line] = known
    return known
