"""The demo's child processes, none of which outlives it: not after Ctrl-C, not after SIGKILL.

Owns how a child is started, watched and ended. Two things end children whose parent was killed:
on Linux the kernel does (parent.py); and a guard, forked first, ends the process group of
each when the pipe to the demo closes, which takes their own children too.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smartgw.processes.parent import die_with

GRACE = 3.0
TAIL_LINES = 15
TAIL_BYTES = 16 << 10


class Died(Exception):
    """A child ended before it was ready; the text shows the end of its log."""


class Guard:
    """A forked process that kills the process groups it was told of when its parent is gone.

    Make it before there are threads, and `close` it when every child has ended.
    """

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._pipe)
                _guard(read_end)
            finally:
                os._exit(0)
        os.close(read_end)

    def watch(self, group: int) -> None:
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        self._tell(b"-%d\n" % group)

    def close(self) -> None:
        os.close(self._pipe)
        os.waitpid(self._pid, 0)

    def _tell(self, line: bytes) -> None:
        # Without a guard (someone killed it) the demo goes on; the kernel still ends children.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, line)


def _guard(pipe: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # It must not keep open what whoever reads the demo's output waits for the end of.
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    text = b""
    while data := os.read(pipe, 65536):
        text += data
    groups: set[int] = set()
    for line in text.splitlines():
        if line.startswith(b"+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _die_with(parent: int) -> None:
    """In the child, between fork and exec."""
    if not die_with(parent):  # it ended before that
        os._exit(1)


class Child:
    """One child in a process group of its own, which its terminal's Ctrl-C does not reach."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, guard: Guard, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._guard = guard
        self._env = env
        parent = os.getpid()
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env),
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),
            )
        guard.watch(self.pid)
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        """Whether it has ended. What it has left in its process group ends with it."""
        if self._ended:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.pid, options) is None:
            return False
        # Before it is reaped, so that its number cannot be somebody else's already.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.forget(self.pid)
        self._ended = True
        return True

    def again(self) -> "Child":
        """Start another like it, which takes over its log."""
        return Child(self.name, self._command, self.log, self._guard, self._env)

    def report(self) -> str:
        """How it ended, with the end of its log."""
        code = self._process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        lines = tail(self.log)
        if not lines:
            return f"{self.name} {how}; its log is empty ({self.log})"
        return f"{self.name} {how}; the end of {self.log}:\n{lines}"

    def signal(self, number: signal.Signals) -> None:
        if not self.ended():
            os.kill(self.pid, number)


def tail(path: Path) -> str:
    """The last lines of a log, if it has any, indented and without what could steer a terminal."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
    shown = ("".join(char if char.isprintable() else "?" for char in line) for line in lines)
    return "\n".join(f"    {line}" for line in shown)


def wait_for(
    ready: Callable[[], bool], children: Sequence[Child], seconds: float, what: str
) -> None:
    """Poll `ready`. Raises Died when a child ends or the time is over."""
    deadline = time.monotonic() + seconds
    while not ready():
        for child in children:
            if child.ended():
                raise Died(child.report())
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"{child.log}:\n{tail(child.log) or '    it is empty'}" for child in children
            )
            raise Died(f"{what} not within {seconds:g} s; the ends of the logs:\n{logs}")
        time.sleep(0.02)


def end(children: Sequence[Child], impatient: Callable[[], bool], grace: float = GRACE) -> None:
    """SIGTERM to all, SIGKILL to those still there after `grace` seconds or when `impatient`."""
    for child in children:
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)
    deadline = time.monotonic() + grace
    while not all([child.ended() for child in children]):
        if time.monotonic() > deadline or impatient():
            break
        time.sleep(0.01)
    for child in children:
        child.signal(signal.SIGKILL)
    while not all([child.ended() for child in children]):
        time.sleep(0.01)
