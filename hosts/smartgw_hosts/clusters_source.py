"""Asks a gateway of the own cluster for the list of clusters, once (contract 4.3, 4.8).

Owns how long and how much, over the standard library alone, and what an answer means to a host.
What follows from it is guard.py's, when it is asked write_guard.py's.
"""

import asyncio
import re
import ssl
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from smartgw_hosts.addresses import Address
from smartgw_hosts.chunked import ChunkedBody
from smartgw_hosts.clusters import MAX_BYTES, PATH, ClusterList, ListRefused, age_of, parse
from smartgw_hosts.http1 import (
    CHUNKED,
    NOTED,
    PASS,
    UNTIL_CLOSE,
    Bounds,
    FieldNames,
    MessageRefused,
    ResponseHead,
    parse_response,
)
from smartgw_hosts.strict_json import parse_object

TIMEOUT: Final = 2.0
"""Seconds for a gateway's whole answer, its name resolved and the connection made."""

_REASON: Final = re.compile(r"[a-z_]{1,40}")
_AGE: Final = NOTED
_BOUNDS: Final = Bounds(head=16_384)
_NAMES: Final = FieldNames(lambda name: _AGE if name == b"age" else PASS)


class NoList(Exception):
    """A gateway that gave no answer of use; the text says why."""


class Without(Enum):
    """Why a gateway, asked properly, has no list."""

    ALONE = auto()
    """It has no directory: there are no other clusters."""
    UNKNOWN = auto()
    """No list is in force there, so it serves without knowing owners."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, and how many seconds ago its origin confirmed it."""

    clusters: ClusterList
    age: float


class ClustersSource:
    """One gateway: its internal listener, or a hostname of its own. `tls` is for https."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        self.name = str(address)
        self._address = address
        self._tls = tls
        self._read: tuple[bytes, ClusterList] | None = None

    async def ask(self) -> Listed | Without:
        """Ask once. Raises NoList."""
        try:
            async with asyncio.timeout(TIMEOUT):
                head, body = await self._get()
        except TimeoutError:
            raise NoList(f"no whole answer within {TIMEOUT:g} s") from None
        except ConnectionRefusedError:
            raise NoList("it refuses connections") from None
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            said = error.strerror if isinstance(error, OSError) else None
            raise NoList(ascii(said or str(error) or "the connection ended")[1:-1]) from None
        except MessageRefused as refused:
            raise NoList(f"the answer was refused: {refused.reason}") from None
        if head.status != 200:
            return _without(head.status, body)
        if self._read is None or self._read[0] != body:
            try:
                # In a thread: a list of many clusters takes longer than the app may wait.
                self._read = body, await asyncio.to_thread(parse, body)
            except ListRefused as refused:
                raise NoList(f"the list was refused: {refused}") from None
        age = head.noted.get(_AGE)
        return Listed(self._read[1], age_of(None if age is None else age.decode("latin-1")))

    async def _get(self) -> tuple[ResponseHead, bytes]:
        address = self._address
        reader, writer = await asyncio.open_connection(
            address.host,
            address.port,
            ssl=self._tls if address.scheme == "https" else None,
            limit=_BOUNDS.head,
        )
        try:
            writer.write(
                f"GET {PATH} HTTP/1.1\r\nHost: {address.authority}\r\nAccept: application/json\r\n"
                "Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode()
            )
            raw = await reader.readuntil(b"\r\n\r\n")
            head = parse_response(raw[:-4], _NAMES, _BOUNDS, b"GET")
            return head, await _body(reader, head.length)
        finally:
            writer.transport.abort()


async def _body(reader: asyncio.StreamReader, length: int) -> bytes:
    if length > MAX_BYTES:
        raise MessageRefused(502, f"more than {MAX_BYTES} bytes")
    if length >= 0:
        return await reader.readexactly(length)
    chunks = ChunkedBody(_BOUNDS) if length == CHUNKED else None
    body = bytearray()
    while chunks is None or not chunks.done:
        data = await reader.read(65_536)
        if not data:
            if length != UNTIL_CLOSE:
                raise EOFError
            break
        body += data if chunks is None else chunks.feed(data)[0]
        if len(body) > MAX_BYTES:
            raise MessageRefused(502, f"more than {MAX_BYTES} bytes")
    return bytes(body)


def _without(status: int, body: bytes) -> Without:
    """Tell a gateway that says that it has no list from whatever else may answer there."""
    try:
        error = parse_object(body).get("error")
    except ValueError:
        error = None
    reason = error.get("reason") if isinstance(error, dict) else None
    if (status, reason) == (404, "no_directory"):
        return Without.ALONE
    if (status, reason) == (503, "directory_unknown"):
        return Without.UNKNOWN
    said = f", {reason}" if isinstance(reason, str) and _REASON.fullmatch(reason) else ""
    raise NoList(f"it answered {status}{said}; name its internal listener or its own hostname")
