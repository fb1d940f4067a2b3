"""That a process does not outlive the one that started it (contract 11.1, 12.1).

Owns the word to the kernel, which only Linux takes. What must die elsewhere is its starter's.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: between fork and exec nothing may be imported or loaded.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with(parent: int) -> bool:
    """Have the kernel kill this process when the thread of `parent` that started it ends.

    False when that has ended already. May be called between fork and exec.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent
