"""How long a sliding window is, and how finely it remembers.

Owns these numbers alone: window.py is compiled, which values with generated methods are not.
"""

from dataclasses import dataclass
from typing import Final

SECOND: Final = 1_000_000
"""Times are whole microseconds."""

_CELLS: Final = 240
_PLACES: Final = 250
"""A cell is cut into so many places, so that one byte tells where in it a stamp is."""


@dataclass(frozen=True, slots=True)
class Span:
    """How long a window is, and how finely it remembers; microseconds.

    Attributes:
        length: of the window (t-length, t].
        cell: stamps within one cell are merged into the last of them; a 240th of the length.
        place: a merged stamp is remembered as so many of these, rounded up.
    """

    length: int
    cell: int
    place: int

    @classmethod
    def of(cls, seconds: float) -> "Span":
        """Return the span of a window of so many seconds, at least one thousandth."""
        length = round(seconds * SECOND)
        place = max(1, -(-length // (_CELLS * _PLACES)))
        return cls(length, place * _PLACES, place)
