"""Work that takes seconds of CPU, such as on a large zone, beside the event loop, one at a time.

Owns that traffic has the interpreter again soon while such work is done: a thread that computes
would keep it for five milliseconds, and the collector, which walks all that it makes, for hundreds.
"""

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from smartgw import memory

P = ParamSpec("P")
T = TypeVar("T")

_SWITCH_SECONDS: Final = 0.0005
_MANY: Final = 100_000
"""Objects that a piece of work has made, after which they are left alone."""


class Aside:
    """One a process, for it says for all of it how the interpreter is shared."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` gives, called in a thread when its turn has come."""
        async with self._one:
            before = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
            gc.disable()
            try:
                return await asyncio.to_thread(work, *args, **kwargs)
            finally:
                if gc.get_count()[0] > _MANY:
                    # It would walk all that was made at the next occasion.
                    memory.settle()
                gc.enable()
                sys.setswitchinterval(before)
