"""Where a list of clusters is read: a file, or a validator over HTTP (contract 4.3).

Owns how one source is read once: how long, how much, and which failure is which reason. Which
list serves is directory.py's to say, and in which order sources are asked follow.py's.
"""

import asyncio
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp

from smartgw.peers.directory import Reason
from smartgw_hosts.clusters import MAX_BYTES, PATH, ClusterList, ListRefused, age_of, parse

TIMEOUT = 2.0
"""Seconds for one validator's whole answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """A valid list; `age`: seconds since its origin confirmed it."""

    clusters: ClusterList
    age: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A source gave no list: the reason that is counted, and a line for people."""

    reason: Reason
    text: str


class Source(Protocol):
    """`name` is the file's or the validator's."""

    @property
    def name(self) -> str: ...

    async def read(self) -> Found | Failure:
        """Ask once; while a file has not changed, its failure is the very same object."""


class ListFile:
    """A file, read when it changes. One that is written in place is not judged half-way: a list
    that is refused counts once it has held still from one `read` to the next.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._stamp: object = _NEVER
        self._still = False
        self._found: Found | Failure | None = None
        self._told: Found | Failure | None = None

    async def read(self) -> Found | Failure:
        # In a thread: a disk may be slow, and traffic does not wait for it.
        return await asyncio.to_thread(self._look)

    def _look(self) -> Found | Failure:
        stamp = _stamp(self._path)
        if stamp != self._stamp or not self._still:
            # Twice, for two writes within one tick of the file system's clock have one stamp.
            self._still = stamp == self._stamp
            self._stamp = stamp
            found = self._parsed()
            if found != self._found:
                self._found = found
        assert self._found is not None
        if self._told is None or self._still or isinstance(self._found, Found):
            self._told = self._found
        return self._told

    def _parsed(self) -> Found | Failure:
        try:
            with open(self._path, "rb") as file:
                return Found(parse(file.read(MAX_BYTES + 1), by_hand=True), 0.0)
        except OSError as error:
            return Failure(Reason.UNREACHABLE, f"cannot be read: {error.strerror}")
        except ListRefused as error:
            return Failure(Reason(error.fault.value), str(error))


class Validator:
    """A list over HTTP. `url`: an origin, which is asked for `PATH`, or a whole URL."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.name = url
        parts = urlsplit(url)
        self._url = url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{PATH}"
        self._tls = tls
        self._read: tuple[bytes, ClusterList] = (b"", ClusterList(()))

    async def read(self) -> Found | Failure:
        try:
            async with asyncio.timeout(TIMEOUT):
                got = await self._get()
        except TimeoutError:
            return Failure(Reason.TIMED_OUT, f"no whole answer within {TIMEOUT:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else None
            text = said or str(error) or type(error).__name__
            return Failure(Reason.UNREACHABLE, ascii(text[:200]).strip("'\""))
        if isinstance(got, Failure):
            return got
        data, age = got
        if data != self._read[0]:
            try:
                # In a thread: a list of many clusters takes longer than traffic may wait.
                self._read = data, await asyncio.to_thread(parse, data)
            except ListRefused as error:
                return Failure(Reason(error.fault.value), str(error))
        return Found(self._read[1], age)

    async def _get(self) -> tuple[bytes, float] | Failure:
        # Redirects are not followed: who may say which clusters there are, the settings say.
        async with (
            _session(self._tls) as asking,
            asking.get(self._url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                return Failure(Reason.STATUS, f"answered {response.status}")
            data = bytearray()
            while len(data) <= MAX_BYTES and (part := await response.content.readany()):
                data += part
            if len(data) > MAX_BYTES:
                return Failure(Reason.TOO_LARGE, f"more than {MAX_BYTES} bytes")
            return bytes(data), age_of(response.headers.get("Age"))


def _session(tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """Return what a validator is asked with: nothing of the environment, no cookie, no reuse."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, ssl=True if tls is None else tls),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=TIMEOUT),
    )


_NEVER = object()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does, whether it is written in place or replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
