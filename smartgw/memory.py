"""How much memory this process has and may have, as the system tells it (Linux)."""

import contextlib
import resource
from pathlib import Path

_STATM = "/proc/self/statm"
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# A control group without a limit says "max", or in version 1 a number beyond all machines.
_NO_LIMIT = 1 << 50


def resident() -> int:
    """Return the bytes that the process holds in memory."""
    with open(_STATM, "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def limit() -> int | None:
    """Return the bytes at which the system would end the process or refuse it memory, if any."""
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    for path in _CGROUP:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    found = [value for value in limits if 0 < value < _NO_LIMIT]
    return min(found, default=None)
