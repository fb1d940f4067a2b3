"""Log lines that anybody can cause again and again, and that must not fill a disk.

Owns how often a line of one kind is told. Does not decide what is worth a line.
"""

import logging
import time


class QuietLog:
    """Passes one log line of a kind in `seconds`, then says how many it held back."""

    def __init__(self, seconds: float, logger: logging.Logger) -> None:
        self._seconds = seconds
        self._logger = logger
        self._kinds: dict[str, tuple[float, int]] = {}

    def __call__(
        self, level: int, kind: str, text: str, *, error: BaseException | None = None
    ) -> None:
        now = time.monotonic()
        due, held = self._kinds.get(kind, (now, 0))
        if now < due:
            self._kinds[kind] = (due, held + 1)
            return
        if len(self._kinds) > 256:  # texts of others are among the kinds
            self._kinds.clear()
        self._kinds[kind] = (now + self._seconds, 0)
        self._logger.log(
            level, "%s%s", text, f" ({held} more of these)" if held else "", exc_info=error
        )
