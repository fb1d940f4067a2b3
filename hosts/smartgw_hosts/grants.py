"""What each host is trusted with at a given time (contract 1.4).

Owns the enrolment list in force, its expiries, the first-use rule and the apps that are known
by name. Trust comes from outside the announcement. Does not read lists (enrolment.py), nor
decide what becomes of a host whose trust ends: pool.py does.
"""

from collections.abc import Iterable
from typing import Any, Literal

from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.plain import enrolment_of
from smartgw_hosts.timers import Timers
from smartgw_hosts.wire import Reason

Grant = Enrolment | Reason
"""What a host is trusted with, or why with nothing."""

_ANY_APP = ("*",)


class Grants:
    """Grants by host id; `wall` is what the pool believes to be unix seconds."""

    __slots__ = ("_cluster", "_enrolments", "_expiries", "_trust")

    def __init__(self, cluster: str, trust: Literal["enrolment", "first-use"]) -> None:
        self._cluster = cluster
        self._trust = trust
        self._enrolments: dict[str, Enrolment] = {}
        self._expiries = Timers()

    @property
    def host_ids(self) -> Iterable[str]:
        """The hosts that the list names, in its order."""
        return self._enrolments

    def dump(self) -> tuple[tuple[Enrolment, ...], dict[str, float]]:
        """The list in force, and which entries have yet to expire, for `load`."""
        return tuple(self._enrolments.values()), self._expiries.dump()

    def load(self, data: Any) -> None:
        """Take what `dump` gave, after JSON or not."""
        enrolments, expiries = data
        self._enrolments = {entry.host_id: entry for entry in map(enrolment_of, enrolments)}
        self._expiries.load(expiries)

    def replace(self, enrolments: Iterable[Enrolment]) -> list[tuple[str, tuple[str, ...]]]:
        """Put a whole new list in force.

        Returns for each host whose entry is another one now its id and the apps that the entry
        before had by name.
        """
        before, self._enrolments = self._enrolments, {}
        for enrolment in enrolments:
            # A host may stand in the list for several clusters; the entry for ours counts.
            if enrolment.cluster == self._cluster or enrolment.host_id not in self._enrolments:
                self._enrolments[enrolment.host_id] = enrolment
        changed: list[tuple[str, tuple[str, ...]]] = []
        for host_id in dict.fromkeys((*before, *self._enrolments)):
            old = before.get(host_id)
            if old != self._enrolments.get(host_id):
                changed.append((host_id, self._named(old)))
                self.watch(host_id)
        return changed

    def watch(self, host_id: str) -> None:
        """Let `expired` give this host when its enrolment expires."""
        enrolment = self._enrolments.get(host_id)
        if enrolment is None or enrolment.expires is None:
            self._expiries.cancel(host_id)
        else:
            self._expiries.set(host_id, enrolment.expires)

    def expired(self, wall: float) -> str | None:
        """The next host whose enrolment has expired, each once; None when there is no more."""
        return self._expiries.pop(wall)

    def next_expiry(self, wall: float) -> str | None:
        """The host that `expired` would give, which it still will."""
        return self._expiries.first(wall)

    def listed(self, host_id: str) -> bool:
        """Tell whether the list has an entry for the host, in force or not."""
        return host_id in self._enrolments

    def named_apps(self, host_id: str) -> tuple[str, ...]:
        """The apps that the host's entry, if it is for our cluster, has by name."""
        return self._named(self._enrolments.get(host_id))

    def enrolled(self, host_id: str, wall: float) -> Grant:
        """What the list says of a host."""
        enrolment = self._enrolments.get(host_id)
        if enrolment is None:
            return Reason.NOT_ENROLLED
        if enrolment.cluster != self._cluster:
            return Reason.WRONG_CLUSTER
        if enrolment.expires is not None and enrolment.expires <= wall:
            return Reason.EXPIRED_ENROLMENT
        return enrolment

    def of(self, host_id: str, key: PublicKey | None, wall: float) -> Grant:
        """What a host may do that is known by `key`, or by its message's where it is new."""
        grant = self.enrolled(host_id, wall)
        if self._trust == "first-use" and key is not None and grant is Reason.NOT_ENROLLED:
            return Enrolment(host_id, key, self._cluster, _ANY_APP)
        return grant

    def _named(self, enrolment: Enrolment | None) -> tuple[str, ...]:
        ours = enrolment is not None and enrolment.cluster == self._cluster
        return enrolment.exact_apps if enrolment is not None and ours else ()


def divide(
    claimed: tuple[str, ...], grant: Grant
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Divide the apps that a host claims into those it may serve, and the others with why."""
    if isinstance(grant, Reason):
        return (), tuple((app, str(grant)) for app in claimed)
    apps = tuple(app for app in claimed if grant.allows(app))
    if len(apps) == len(claimed):
        return claimed, ()
    allowed = frozenset(apps)
    why = str(Reason.APP_REFUSED)
    return apps, tuple((app, why) for app in claimed if app not in allowed)
