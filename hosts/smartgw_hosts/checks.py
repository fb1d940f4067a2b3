"""When a host is challenged: now, again, or not yet (contract 2.2).

Owns the tickets under which verdicts count, the spacing of challenges, the back-off after bad
verdicts and the spreading of repeated ones. Does not challenge, nor decide what a verdict
does to a host: pool.py does.
"""

from typing import Any, Self

from smartgw_hosts.timers import Timers, spread

SPACING = 1.0
"""Seconds between the starts of two challenges to an address, however often its host announces or
the data path suspects it."""

ADDRESSES = 4
"""Addresses of a host that may be challenged within SPACING: it may move at once, but one that
names another address each time gets no more."""

MOST_BACKOFF = 30.0

EARLY = 0.25
"""A verification is repeated up to this part of the interval early, so that hosts that came
together are not checked together for ever; never late."""


class Tickets:
    """Numbers for tickets, each given once."""

    __slots__ = ("last",)

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def dump(self) -> int:
        """The last that was given, for `load`."""
        return self.last

    def load(self, data: int) -> None:
        """Take what `dump` gave."""
        self.last = data

    def take(self) -> int:
        """The next number."""
        self.last += 1
        return self.last


class _Check:
    __slots__ = ("failures", "passes", "started", "ticket")

    def __init__(self) -> None:
        self.ticket: int | None = None
        self.started: dict[str, float] = {}  # by address, those of the last SPACING seconds
        self.failures = 0
        self.passes = 0

    def dump(self) -> tuple[object, ...]:
        return self.ticket, dict(self.started), self.failures, self.passes

    @classmethod
    def load(cls, data: Any) -> Self:
        check = cls()
        check.ticket, started, check.failures, check.passes = data
        check.started = dict(started)
        return check


class Checks:
    """Of each host at most one ticket is out and at most one check is planned.

    Several may share `tickets`, so that no two tickets are the same.
    """

    __slots__ = ("_by_host", "_by_ticket", "_plan", "_tickets")

    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets
        self._plan = Timers()
        self._by_host: dict[str, _Check] = {}
        self._by_ticket: dict[int, str] = {}

    def dump(self) -> tuple[object, ...]:
        """What is planned, and of each host what was asked and answered, for `load`."""
        by_host = {host_id: check.dump() for host_id, check in self._by_host.items()}
        return self._plan.dump(), by_host

    def load(self, data: Any) -> None:
        """Take what `dump` gave."""
        plan, by_host = data
        self._plan.load(plan)
        for host_id, values in by_host.items():
            check = self._by_host[host_id] = _Check.load(values)
            if check.ticket is not None:
                self._by_ticket[check.ticket] = host_id

    def begin(self, host_id: str, address: str, now: float) -> int | None:
        """A ticket to challenge the host at `address` under now.

        None when one is out already, or when the last began so lately that a check was planned
        instead.
        """
        check = self._by_host.setdefault(host_id, _Check())
        if check.ticket is not None:
            return None
        check.started = {at: when for at, when in check.started.items() if now < when + SPACING}
        last = check.started.get(address)
        if last is None and len(check.started) >= ADDRESSES:
            last = min(check.started.values())
        if last is not None:
            self._plan.set(host_id, last + SPACING)
            return None
        self._plan.cancel(host_id)
        check.started[address] = now
        check.ticket = self._tickets.take()
        self._by_ticket[check.ticket] = host_id
        return check.ticket

    def under_way(self, host_id: str) -> bool:
        """Tell whether a verdict will come or a check is planned."""
        check = self._by_host.get(host_id)
        return host_id in self._plan or (check is not None and check.ticket is not None)

    def valid(self, ticket: int) -> bool:
        """Tell whether a verdict under `ticket` would count."""
        return ticket in self._by_ticket

    def end(self, ticket: int) -> str | None:
        """Use up a ticket: the host whose verdict this is, None if it does not count (any more)."""
        host_id = self._by_ticket.pop(ticket, None)
        if host_id is not None:
            self._by_host[host_id].ticket = None
        return host_id

    def passed(self, host_id: str, interval: float, now: float) -> None:
        """The verdict was good: plan the next check, `interval` from now or up to EARLY before."""
        check = self._by_host.setdefault(host_id, _Check())
        check.failures = 0
        check.passes += 1
        self._plan.set(host_id, now + interval * (1 - EARLY * spread(host_id, check.passes)))

    def failed(self, host_id: str, now: float) -> None:
        """The verdict was bad: plan to try again after 1, 2, 4 and so on seconds."""
        check = self._by_host[host_id]
        check.failures += 1
        self._plan.set(host_id, now + backoff(check.failures))

    def void(self, host_id: str) -> None:
        """What was asked or planned is not to be asked any more, and no verdict on it counts."""
        self._plan.cancel(host_id)
        check = self._by_host.get(host_id)
        if check is not None:
            self._by_ticket.pop(check.ticket or 0, None)
            check.ticket = None
            check.failures = 0

    def hold(self, host_id: str, now: float) -> None:
        """No verdict counts that is yet to come; a check stays planned, but not for now."""
        check = self._by_host.setdefault(host_id, _Check())
        self._by_ticket.pop(check.ticket or 0, None)
        check.ticket = None
        self._plan.set(host_id, max(self._plan.when(host_id, now), now + SPACING))

    def succeed(self, host_id: str, other: "Checks") -> None:
        """What `other` asks and plans for the host is asked and planned here from now on.

        `other` keeps only what the spacing needs.
        """
        self.void(host_id)
        mine = self._by_host.pop(host_id, _Check())
        check = self._by_host[host_id] = other._by_host.pop(host_id)
        other._by_host[host_id] = mine
        if check.ticket is not None:
            self._by_ticket[check.ticket] = other._by_ticket.pop(check.ticket)
        if host_id in other._plan:
            self._plan.set(host_id, other._plan.when(host_id, 0.0))
            other._plan.cancel(host_id)

    def forget(self, host_id: str) -> None:
        """The host is no longer known."""
        self.void(host_id)
        self._by_host.pop(host_id, None)

    def due(self, now: float) -> str | None:
        """The next host whose planned check is due, each once; None when there is no more."""
        return self._plan.pop(now)

    def any_due(self, now: float) -> bool:
        """Tell whether some planned check is due."""
        return self._plan.first(now) is not None

    def put_off(self, host_id: str, interval: float, now: float) -> None:
        """Plan an overdue check anew, anywhere within `interval`."""
        passes = self._by_host[host_id].passes
        self._plan.set(host_id, now + interval * spread(host_id, passes))


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(2.0 ** min(failures - 1, 16), MOST_BACKOFF)
