"""Which core whom, and what the kernel knows of a gateway while a drill runs.

Owns the pinning (the gateway alone on one core, whatever harms it on the other) and the reading of
memory, descriptors and CPU time. Decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.proc import busy_seconds, cpu_seconds, tree
from tests.bench.rig import on_core
from tests.drills.paced import Phase
from tests.gateway import Cluster, Config, Gateway
from tests.generations import file_descriptors

MIB = 1 << 20
_FILES = 1 << 17


def spread() -> tuple[int, int]:
    """The core of the gateway and that of all else; the same one where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1], cores[0]


@contextlib.contextmanager
def alone(
    cluster: Cluster, changes: Config | None = None, kind: type[Gateway] = Gateway
) -> Iterator[Gateway]:
    """A gateway on a core of its own, before everything else there; we are on the other.

    One of several processes may run on all cores, as it would.
    """
    theirs, ours = spread()
    several = "workers" in str((changes or {}).get("processes"))
    with contextlib.nullcontext() if several else on_core(theirs):
        gateway = kind(cluster, changes)
        cluster.gateways.append(gateway)
        gateway.start()
    os.sched_setaffinity(0, {ours})
    if not several:
        with contextlib.suppress(OSError):
            # Not the threads that it starts: else they and its loop would not share the core.
            policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(gateway.pid, policy, os.sched_param(1))
    first(gateway.pid)
    yield gateway


def first(pid: int) -> None:
    """Put a session before all others, so that who else uses the machine is not measured.

    Where each session has a share of its own (autogroup), a process's own priority is within it.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("-20")
    with contextlib.suppress(OSError):
        for one in tree(pid):
            os.setpriority(os.PRIO_PROCESS, one, -15)


def many_files() -> int:
    """Let this process, and what it starts, open as many descriptors as may be; returns that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for files in (max(hard, _FILES), hard):  # the first only where we may raise the system's limit
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
            return files
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def resident(gateway: Gateway) -> int:
    """Bytes that the processes of the gateway hold; what several share is counted with each."""
    total = 0
    for pid in tree(gateway.pid):
        with contextlib.suppress(OSError):
            # Not smaps: to read that holds up whoever it is about.
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total * resource.getpagesize()


def cpu(gateway: Gateway) -> float:
    """CPU seconds of all the processes of the gateway so far."""
    return cpu_seconds(tree(gateway.pid))


def descriptors(gateway: Gateway) -> int:
    """How many the processes of the gateway have open."""
    total = 0
    for pid in tree(gateway.pid):
        with contextlib.suppress(OSError):
            total += file_descriptors(pid)
    return total


def metrics(gateway: Gateway) -> dict[str, float]:
    """Every sample of /metrics by its whole name."""
    status, body = gateway.internal("/metrics")
    assert status == 200, body
    lines = (line for line in body.decode().splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@dataclass(frozen=True, slots=True)
class Load:
    """Cores in use since a moment: of the control process, of its workers, of all others."""

    control: float
    workers: float
    others: float


class Meter:
    """CPU time from its making to `read`."""

    def __init__(self, gateway: Gateway) -> None:
        self._pid = gateway.pid
        self._start = self._now()

    def read(self) -> Load:
        """The load since it was made."""
        control, workers, busy, wall = (
            after - before for after, before in zip(self._now(), self._start, strict=True)
        )
        others = max(0.0, busy - control - workers)
        return Load(control / wall, workers / wall, others / wall)

    def _now(self) -> tuple[float, float, float, float]:
        control, *workers = tree(self._pid)
        busy = busy_seconds(Path("/proc/stat").read_text())
        return cpu_seconds([control]), cpu_seconds(workers), busy, time.monotonic()


SLACK_MS = 0.25
"""By so much two looks at the 99th percentile of a quiet gateway differ, whatever they are."""


def unharmed(before: Phase, during: Phase, ratio: float) -> bool:
    """Whether nothing was lost and the 99th percentile is at most `ratio` times what it was."""
    return not during.lost and during.p99 <= before.p99 * ratio + SLACK_MS


def change(before: Phase, during: Phase) -> str:
    """The two in one figure."""
    times = during.p99 / before.p99 if before.p99 else 0.0
    return f"p99 {before.p99:.2f} -> {during.p99:.2f} ms ({times:.2f}x), lost {during.lost}"


class Peak:
    """The most memory that a gateway held while it was looked at."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.start = self.most = resident(gateway)

    def look(self) -> None:
        """Look once more."""
        self.most = max(self.most, resident(self._gateway))

    @property
    def grown(self) -> float:
        """MiB above the start."""
        return (self.most - self.start) / MIB
