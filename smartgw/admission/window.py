"""The sliding window: how many units one key has used in the last 60 s, exactly (contract 6.1).

Owns what is remembered of a key, when it is forgotten and how long a refused caller has to wait.
Never admits early. Whose windows there are is table.py's; window.lua does the same in the store.
Times are whole microseconds.
"""

from typing import Final

from smartgw.admission.span import SECOND, Span

DAY: Final = 86_400 * SECOND
NEVER: Final = -1
"""The wait for more than a window can ever hold."""

_MOST: Final = 255


class Window:
    """What one key has used. `charge` does all; the other methods are its parts, for charges that
    fall into several windows at once. They want a window that is settled for `now`.

    The newest stamp is kept as it is; older ones are packed, three bytes a cell of the span:
    how many cells after the one before, which place in it, how many units (255; more take further
    three bytes). So a key of 60 s and 600 units takes at most 243 * 3 bytes beside the object,
    1.3 KiB with its name and its place in a table; a stamp counts for at most 250 ms too long.

    Attributes:
        used: units that count now.
        due: when the oldest stamp leaves the window.
        newest: the newest stamp, `count` its units, `end` the end of its cell.
        gap: cells from the last packed stamp to the newest.
    """

    __slots__ = ("count", "due", "end", "gap", "newest", "packed", "used")

    def __init__(self) -> None:
        self.used = 0
        self.due = 0
        self.newest = 0
        self.count = 0
        self.end = 0
        self.gap = 0
        self.packed = b""

    def charge(self, now: int, units: int, limit: int, span: Span) -> int:
        """Charge units if they fit; return 0, or how long until they do, or NEVER."""
        at = now if self.newest <= now < self.due else self.settle(now, span)
        if self.used + units > limit:
            return self.wait(now, units, limit, span)
        self.add(at, units, span)
        return 0

    def settle(self, now: int, span: Span) -> int:
        """Forget what has left the window; return the time that a charge of now is stamped with.

        A clock that was set back takes the stamps with it, so nothing is forgotten early nor
        remembered for as long as the step was.
        """
        if now < self.newest:
            back = (self.newest - now) // span.cell * span.cell
            self.newest -= back
            self.due -= back
            self.end -= back
            now = self.newest
        if now < self.due:
            return now
        edge = now - span.length
        packed = self.packed
        if self.newest <= edge or not self.used:
            self.used = self.count = 0
            self.packed = b""
            return now
        # The newest still counts, so what is due is packed.
        stamp = self.due - span.length
        cell = stamp - packed[1] * span.place
        start = 0
        while stamp <= edge:
            self.used -= packed[start + 2]
            start += 3
            if start == len(packed):
                stamp = self.newest
                break
            cell += packed[start] * span.cell
            stamp = cell + packed[start + 1] * span.place
        self.packed = packed[start:]
        self.due = stamp + span.length
        return now

    def add(self, now: int, units: int, span: Span) -> None:
        """Charge units; `now` as `settle` returned it."""
        self.used += units
        if now < self.end and self.count:
            self.count += units
            self.newest = now
            if not self.packed:
                self.due = now + span.length
            return
        if self.count:
            self._pack(span)
        if self.packed:
            self.gap += (now // span.cell + 1) - self.end // span.cell
        else:
            self.due = now + span.length
        self.newest = now
        self.count = units
        self.end = (now // span.cell + 1) * span.cell

    def _pack(self, span: Span) -> None:
        """Put the newest stamp to the older ones, which ends its being exact."""
        start = self.end - span.cell
        place = -((start - self.newest) // span.place)
        packed = bytearray(self.packed)
        if not packed:
            self.due = start + place * span.place + span.length
            self.gap = 0
        count, gap = self.count, self.gap
        while count > 0:
            packed += bytes((gap, place, min(count, _MOST)))
            count -= _MOST
            gap = 0
        self.packed = bytes(packed)
        self.gap = 0

    def wait(self, now: int, units: int, limit: int, span: Span) -> int:
        """Return how long until so many units fit below the limit, 0 if they do, or NEVER.

        True if nothing else is charged meanwhile.
        """
        over = self.used + units - limit
        if over <= 0 or not units:
            return 0
        if units > limit:
            return NEVER
        packed = self.packed
        stamp = self.due - span.length
        if packed:
            cell = stamp - packed[1] * span.place
            start = 0
            while True:
                over -= packed[start + 2]
                if over <= 0:
                    break
                start += 3
                if start == len(packed):
                    stamp = self.newest
                    break
                cell += packed[start] * span.cell
                stamp = cell + packed[start + 1] * span.place
        return stamp + span.length - now

    def reset(self, now: int, limit: int, span: Span) -> int:
        """Return how long until what remains of the limit next rises; 0 when nothing counts."""
        if not self.used:
            return 0
        if self.used > limit > 0:
            # The limit was lowered: something remains only after more than the oldest has left.
            return self.wait(now, 1, limit, span)
        return self.due - now

    def refund(self, at: int, units: int, span: Span) -> None:
        """Give back units that were charged at `at`, in a settled window.

        Those of the newest stamp if they are in it. Else the oldest ones are given back: what
        counts on is then too late rather than too early.
        """
        units = min(units, self.used)
        if self.end - span.cell <= at < self.end and self.count >= units:
            self.count -= units
            self.used -= units
            return
        while units > 0 and self.packed:
            packed = self.packed
            taken = min(units, packed[2])
            units -= taken
            self.used -= taken
            if taken < packed[2]:
                self.packed = packed[:2] + bytes((packed[2] - taken,)) + packed[3:]
            elif len(packed) == 3:
                self.packed = b""
                self.due = self.newest + span.length
            else:
                cell = self.due - span.length - packed[1] * span.place + packed[3] * span.cell
                self.packed = packed[3:]
                self.due = cell + packed[4] * span.place + span.length
        self.count -= units
        self.used -= units


class Quota:
    """What one key has used of a day (UTC). `now` is microseconds since the epoch.

    Attributes: used: units of the day.
    """

    __slots__ = ("day", "used")

    def __init__(self) -> None:
        self.day = 0
        self.used = 0

    def settle(self, now: int) -> None:
        """Begin a new day if it has come. A clock that was set back begins none."""
        day = now // DAY
        if day > self.day:
            self.day, self.used = day, 0

    def wait(self, now: int, units: int, limit: int) -> int:
        """Return how long until so many units fit, 0 if they do, or NEVER."""
        if self.used + units <= limit or not units:
            return 0
        return NEVER if units > limit else (self.day + 1) * DAY - now

    def reset(self, now: int) -> int:
        """Return how long until the day ends; 0 when nothing was used."""
        return (self.day + 1) * DAY - now if self.used else 0
