"""When silence counts against a host (contract 1.6, 1.7).

Owns the leases: due when the heartbeats of a term were missed, over only once the bus has
answered a PING that was sent after that. Silence of the bus and a stall of our own give every
lease a full term. Does not know states or what follows when a lease is over: pool.py does.
"""

from typing import Any

from smartgw_hosts.plain import finite, time_of
from smartgw_hosts.timers import Timers

ASK_AGAIN = 2.0
"""Seconds until an unanswered question to the bus is asked again."""


class Leases:
    """Leases by host id. All times are seconds of the receiver's monotonic clock (1.6)."""

    __slots__ = ("_asked_at", "_away_since", "_back_at", "_floor", "_term", "_timers")

    def __init__(self, term: float) -> None:
        self._term = term
        self._timers = Timers()
        # No lease is due before this, which costs nothing however many there are.
        self._floor = float("-inf")
        self._away_since: float | None = None
        self._back_at = float("-inf")
        self._asked_at = float("-inf")

    def dump(self) -> tuple[object, ...]:
        """All leases and what is known of the bus, for `load`."""
        times = finite(self._floor), self._away_since, finite(self._back_at)
        return self._timers.dump(), *times, finite(self._asked_at)

    def load(self, data: Any) -> None:
        """Take what `dump` gave."""
        due, floor, self._away_since, back_at, asked_at = data
        self._timers.load(due)
        self._floor, self._back_at = time_of(floor), time_of(back_at)
        self._asked_at = time_of(asked_at)

    def __contains__(self, host_id: str) -> bool:
        return host_id in self._timers

    @property
    def bus_away(self) -> bool:
        return self._away_since is not None

    def heard(self, host_id: str, now: float) -> None:
        """The host was heard now: its lease has a full term."""
        self._timers.set(host_id, now + self._term)

    def drop(self, host_id: str) -> None:
        """The host needs no lease any more."""
        self._timers.cancel(host_id)

    def fresh(self, heard: float, now: float) -> bool:
        """Tell whether a host that was last heard at `heard` would still have its lease."""
        return self.on_hold(now) or now < heard + self._term

    def on_hold(self, now: float) -> bool:
        """Nothing expires: the bus is away, or was, or we stalled, less than a term ago."""
        return self.bus_away or now < self._floor

    def back_within(self, seconds: float, now: float) -> bool:
        """Tell whether the bus came back less than `seconds` ago."""
        return now < self._back_at + seconds

    def wants_to_ask(self, now: float) -> bool:
        """Tell whether the bus has to be asked now, because a lease is due or it was away."""
        if now < self._asked_at + ASK_AGAIN:
            return False
        return self.bus_away or (not self.on_hold(now) and self._timers.first(now) is not None)

    def ask(self, now: float) -> bool:
        """Like `wants_to_ask`; a True counts as asked: not repeated for `ASK_AGAIN` seconds."""
        wanted = self.wants_to_ask(now)
        if wanted:
            self._asked_at = now
        return wanted

    def bus_lost(self, now: float) -> None:
        """The bus is away: nothing expires until it answers."""
        self._away_since = now

    def bus_answered(self, asked_at: float, now: float) -> list[str]:
        """The bus answered a PING of `asked_at`: the hosts whose leases are over, longest first.

        None are when the bus was away: all leases have a full term from now.
        """
        self._asked_at = float("-inf")
        if self._away_since is not None:
            if asked_at >= self._away_since:
                self._away_since = None
                self._back_at = now
                self.extend(now)
            return []
        over: list[str] = []
        while asked_at >= self._floor and (host_id := self._timers.pop(asked_at)) is not None:
            over.append(host_id)
        return over

    def extend(self, now: float) -> None:
        """Give every lease a full term from now."""
        self._floor = now + self._term
