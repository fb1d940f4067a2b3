"""Where the keys of one issuer come from: a file or a URL, followed while the gateway runs (10.2).

Owns when they are read again, and that the last good ones count while the source fails. What a
key set may hold is tokens.py's.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from smartgw.api.tokens import MAX_JWKS_BYTES, NO_KEYS, KeySet, KeysRefused, parse_keys
from smartgw_hosts.keyfile import open_at_once
from smartgw_hosts.quiet_log import QuietLog

FILE_POLL_SECONDS = 1.0
URL_POLL_SECONDS = 300.0
RETRY_SECONDS = 15.0
"""How soon a URL is asked again that did not give keys."""
LEAST_SECONDS = 10.0
"""Between two fetches that unknown keys cause: anybody can name a key that nobody knows."""
FETCH_SECONDS = 5.0

_log = logging.getLogger(__name__)
Clock = Callable[[], float]


class IssuerKeys:
    """`name` is the issuer's; one of `file` and `url` is its source. Start it in a running loop.

    Attributes:
        source: the file and the URL.
        keys: those in force, none before the first were read.
        fault: why the newest are not in force, empty when they are.
    """

    def __init__(
        self, name: str, file: Path | None, url: str | None, *, clock: Clock = time.monotonic
    ) -> None:
        self.name = name
        self.source = (file, url)
        self.keys: KeySet = NO_KEYS
        self.fault = ""
        self._file = file
        self._url = url
        self._clock = clock
        self._say = QuietLog(600.0, _log)
        self._stamp: tuple[int, int, int] | None = None
        self._asked_at = float("-inf")
        self._good_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the source. A file is read at once, for there is no reason to wait."""
        if self._file is not None:
            self._stamp = _stamp(self._file)
            self._take(_content(self._file))
        self._following = asyncio.create_task(self._follow(), name=f"keys of {self.name}")

    async def stop(self) -> None:
        """Follow it no more."""
        tasks = [task for task in (self._following, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def renew(self) -> bool:
        """Read the source again for a key that is not known, unless that was done just now.

        Many may wait for one reading. Says whether it was read.
        """
        if self._reading is None:
            if self._clock() < self._asked_at + LEAST_SECONDS:
                return False
            self._reading = asyncio.create_task(self._read(), name=f"renewing keys of {self.name}")
        await asyncio.shield(self._reading)
        return True

    async def _follow(self) -> None:
        while True:
            if self._file is not None:
                await asyncio.sleep(FILE_POLL_SECONDS)
                stamp = await asyncio.to_thread(_stamp, self._file)
                if stamp == self._stamp:
                    continue
                self._stamp = stamp
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
            if self._url is not None:
                await asyncio.sleep(RETRY_SECONDS if self.fault else URL_POLL_SECONDS)

    async def _read(self) -> None:
        self._asked_at = self._clock()
        try:
            if self._file is not None:
                self._take(await asyncio.to_thread(_content, self._file))
            elif self._url is not None:
                self._take(await _fetched(self._url))
        finally:
            self._reading = None

    def _take(self, content: bytes | str) -> None:
        """Put keys in force; a text is why there are none."""
        if isinstance(content, bytes):
            try:
                self.keys = parse_keys(content)
            except KeysRefused as error:
                content = str(error)
            else:
                self.fault = ""
                self._good_at = self._clock()
                return
        self.fault = f"keys of {self.name}: {self._file or self._url} {content}"
        in_force = "none are in force" if self._good_at is None else "the last ones stay in force"
        self._say(logging.ERROR, "keys", f"{self.fault}; {in_force}")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _content(path: Path) -> bytes | str:
    try:
        with open(path, "rb", opener=open_at_once) as file:
            return file.read(MAX_JWKS_BYTES + 1)
    except OSError as error:
        return f"cannot be read ({error.strerror})"


async def _fetched(url: str) -> bytes | str:
    """GET the key set: no redirects, no cookies, no proxy of the environment, bounded."""
    timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                return f"answered {response.status}"
            content = b""
            while len(content) <= MAX_JWKS_BYTES:
                more = await response.content.read(MAX_JWKS_BYTES)
                if not more:
                    break
                content += more
            return content
    except TimeoutError:
        return f"did not answer within {FETCH_SECONDS:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"cannot be fetched ({type(error).__name__})"
