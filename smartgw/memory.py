"""How much memory this process has and may have, and how it is kept (Linux, glibc).

Owns what is asked of the system and of the allocator. What follows from memory being short is
admission/sharing.py's.
"""

import asyncio
import contextlib
import ctypes
import gc
import resource
import time
from pathlib import Path

_STATM = "/proc/self/statm"
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# A control group without a limit says "max", or in version 1 a number beyond all machines.
_NO_LIMIT = 1 << 50

# mallopt(3). glibc gives the top of the heap back after each large body and faults it in again
# with the next, which doubled the CPU of 64 KiB answers.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
_ALLOCATOR = {
    _M_TRIM_THRESHOLD: 32 << 20,
    _M_TOP_PAD: 1 << 20,
    _M_MMAP_THRESHOLD: 4 << 20,
    # An arena for each thread reserves 64 MiB, of which the one loop has nothing.
    _M_ARENA_MAX: 1,
}
# What a request makes is gone by reference count; the collector need not look for it often.
_COLLECT_EVERY = 20_000
_FEW, _PAUSE = 32, 0.002
_MANY, _MANY_SECONDS = 1_000, 2.0


def keep_for_traffic() -> None:
    """Set allocator and collector for a process that carries requests; once, after start-up."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, value in _ALLOCATOR.items():
            libc.mallopt(option, value)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 20, 50)


def settle() -> None:
    """Let the collector leave alone what there is now: after a large table was taken in, which
    it would walk again and again for garbage that is not there."""
    gc.freeze()


class Settling:
    """Has the collector leave a table alone while much of it changes at once.

    Else one walk over the new parts of a table of a million names takes 30 ms. Not at other times:
    what is garbage just then is never freed.
    """

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count, self._since = 0, 0.0

    def note(self, entries: int) -> None:
        """So many entries have changed."""
        self._count += entries
        if self._count >= _MANY:
            now = time.monotonic()
            if now - self._since < _MANY_SECONDS:
                settle()
            self._count, self._since = 0, now


def let_go(things: list[object] | set[str]) -> None:
    """Forget these little by little, on the event loop: to free a large table all at once holds
    requests up as long as to make it."""
    if len(things) > _FEW:
        asyncio.get_running_loop().call_later(_PAUSE, _let_go_on, things)


def _let_go_on(things: list[object] | set[str]) -> None:
    # Parts of tables have hundreds of entries each, the others are single.
    some = _FEW if isinstance(things, list) else 50 * _FEW
    for _ in range(min(some, len(things))):
        things.pop()
    if things:
        asyncio.get_running_loop().call_later(_PAUSE, _let_go_on, things)


def give_back() -> None:
    """Hand free memory back to the system, when it is short."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Return the bytes that the process holds in memory."""
    return _pages()[1] * resource.getpagesize()


def limit() -> int | None:
    """Return the resident bytes at which the system would end us or refuse us memory, if any."""
    limits = []
    virtual, held, _, _, _, data, _ = (count * resource.getpagesize() for count in _pages())
    for kind, counted in ((resource.RLIMIT_AS, virtual), (resource.RLIMIT_DATA, data)):
        # These count what is mapped and never touched, too: stacks, libraries, reserves.
        value = resource.getrlimit(kind)[0]
        if 0 < value < _NO_LIMIT:
            limits.append(max(1, value - max(0, counted - held)))
    for path in _CGROUP:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return min((value for value in limits if 0 < value < _NO_LIMIT), default=None)


def _pages() -> list[int]:
    """Return size, resident, shared, text, library, data and dirty pages (proc(5), statm)."""
    with open(_STATM, "rb") as file:
        return [int(word) for word in file.read().split()]
