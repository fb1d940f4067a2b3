"""What the kernel knows about processes and the machine: CPU time, memory, who else is busy.

Owns the reading of /proc. Decides nothing about what is a good sample (stats.py).
"""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and all that descend from it, as far as they are there."""
    found = [pid]
    for parent in found:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
            for task in tasks:
                text = Path(f"/proc/{parent}/task/{task}/children").read_text()
                found.extend(int(word) for word in text.split())
        except OSError:
            continue
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of all threads of these processes, exact to the nanosecond (schedstat)."""
    total = 0
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        except OSError:
            continue
    return total / 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB of a process tree; PSS counts what processes share once."""

    rss: float
    pss: float


def memory(pid: int) -> Memory:
    """The memory of a process and its descendants."""
    sums = {"Rss": 0, "Pss": 0}
    for one in tree(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        for name, value in re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE):
            sums[name] += int(value)
    return Memory(sums["Rss"] / 1024, sums["Pss"] / 1024)


def busy_seconds(stat: str) -> float:
    """CPU time of all cores that was not idle, from the text of /proc/stat.

    Time stolen by the hypervisor counts as busy: it was not ours either.
    """
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, stat.partition("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


class Meter:
    """Measures from its making to `read`: the proxy's CPU time, and what others used.

    `ours` are the roots of all other process trees that belong to the benchmark. What children
    that have ended used counts as ours, too.
    """

    def __init__(self, proxy: int, ours: Iterable[int]) -> None:
        self._proxy = proxy
        self._ours = tuple(ours)
        self._start = self._now()

    def read(self) -> tuple[float, float, float]:
        """Seconds of CPU of the proxy; cores it used; cores that others used."""
        proxy, own, busy, wall = (
            after - before for after, before in zip(self._now(), self._start, strict=True)
        )
        return proxy, proxy / wall, max(0.0, (busy - own - proxy) / wall)

    def _now(self) -> tuple[float, float, float, float]:
        times = os.times()
        own = sum(times[:4]) + cpu_seconds(pid for root in self._ours for pid in tree(root))
        proxy = cpu_seconds(tree(self._proxy))
        return proxy, own, busy_seconds(Path("/proc/stat").read_text()), time.monotonic()


def wait_quiet(patience: float, most: float) -> None:
    """Wait until at most `most` cores are busy, for `patience` seconds at most."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before, start = busy_seconds(Path("/proc/stat").read_text()), time.monotonic()
        time.sleep(0.1)
        after = busy_seconds(Path("/proc/stat").read_text())
        if (after - before) / (time.monotonic() - start) <= most:
            return
