"""Work on a large zone beside the event loop, one piece at a time.

Owns that traffic has the interpreter again within half a millisecond while such work is done: a
thread that computes would keep it for five.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SWITCH_SECONDS: Final = 0.0005


class Aside:
    """Make it in its loop."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` gives, called in a thread when its turn has come."""
        async with self._one:
            before = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
            try:
                return await asyncio.to_thread(work, *args, **kwargs)
            finally:
                sys.setswitchinterval(before)
