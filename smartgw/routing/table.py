"""The routing table: how the next Snapshot comes about.

Owns how hosts and registered apps become routes, and that a change costs the change. Does not
verify hosts (smartgw_hosts.pool), choose among them (proxy/choice.py), nor say which of two apps
has a name (state/desired.py). Labels come from the app, never from an announcement (3.3).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy
from smartgw.routing.reserved import Reserved, default_label
from smartgw.routing.snapshot import HostEntry, Route, Snapshot
from smartgw_hosts.identity import PublicKey


@dataclass(frozen=True, slots=True)
class HostUpdate:
    """A new or changed host, as far as the data path is concerned.

    Attributes:
        apps: what it may serve; their hostnames exist whether or not it is routed.
        routed: it gets new requests.
        cut: nobody may speak to it any more, so what its connections carry breaks off (1.4).
    """

    host_id: str
    address: str
    key: PublicKey
    apps: tuple[str, ...]
    weight: int
    routed: bool
    cut: bool = False


@dataclass(frozen=True, slots=True)
class AppUpdate:
    """A registered app, as far as the data path is concerned.

    Attributes:
        label: what it has under each base domain, None for nothing.
        hostnames: exact ones besides. Both are only what no other app has.
        policy: what a route of it carries.
    """

    app_id: str
    label: bytes | None
    hostnames: tuple[bytes, ...]
    policy: AppPolicy


class _Draft:
    """The next Snapshot's mappings while they are made; `pending` are labels that it decides."""

    __slots__ = ("apps", "hostnames", "labels", "pending")

    def __init__(self, snapshot: Snapshot) -> None:
        self.pending: set[bytes] = set()
        self.labels = snapshot.labels.edit()
        self.hostnames = snapshot.hostnames.edit()
        self.apps = snapshot.apps.edit()


class RoutingTable:
    """Turns changes of hosts and of registered apps into the next Snapshot.

    `replaced` is what the Snapshot before the last `publish` had besides; see `shards.Edit`.

    `announced`: an app that is merely announced, and not registered, has its hostname too.
    """

    def __init__(
        self,
        base_domains: Iterable[str],
        own_hostnames: Iterable[str],
        *,
        announced: bool = True,
    ) -> None:
        self._announced = announced
        self._reserved = Reserved()
        self._entries: dict[str, HostEntry] = {}
        self._apps_of: dict[str, frozenset[str]] = {}
        self._hosts_of: dict[str, set[str]] = {}
        self._declared: frozenset[str] = frozenset()
        self._registered: dict[str, AppUpdate] = {}
        self._label_holders: dict[bytes, str] = {}
        self._draft: _Draft | None = None
        self.replaced: list[object] = []
        self.snapshot = Snapshot()
        self.rename(base_domains, own_hostnames)

    def declare(self, apps: Collection[str], complete: bool) -> Snapshot:
        """Set the apps that exist whether or not a host announces them, and completeness."""
        apps = frozenset(apps)
        changed = apps ^ self._declared
        self._declared = apps
        return self._next(changed, complete=complete)

    def entry(self, host_id: str) -> HostEntry | None:
        """Return how the data path sees a host now, None when it is not routed."""
        return self._entries.get(host_id)

    def apply(self, updates: Iterable[HostUpdate], removed: Iterable[str]) -> Snapshot:
        """Take in changed and removed hosts; return the next Snapshot, which costs the change."""
        changed: set[str] = set()
        for host_id in removed:
            changed |= self._place(host_id, None, frozenset())
        for host in updates:
            entry = None
            if host.routed:
                entry = HostEntry(host.host_id, host.address, host.key, host.weight)
            changed |= self._place(host.host_id, entry, frozenset(host.apps))
        return self._next(changed)

    def register(self, updates: Iterable[AppUpdate], gone: Iterable[str]) -> None:
        """Take in registered apps, and those that are no longer; in force with `publish`.

        So a change of many can be taken in in parts, between which requests are carried, and is
        one change to them all the same.
        """
        if self._draft is None:
            self._draft = _Draft(self.snapshot)
        for app_id in gone:
            self._register(self._draft, app_id, None)
        for update in updates:
            self._register(self._draft, update.app_id, update)

    def publish(self) -> Snapshot:
        """Put in force what `register` took in."""
        draft, self._draft = self._draft, None
        if draft is None:
            return self.snapshot
        edits = draft.labels, draft.hostnames, draft.apps
        self.replaced = [part for edit in edits for part in edit.replaced]
        return self._done(draft)

    def admit(self) -> Snapshot:
        """Give announced apps their hostnames too, from now on; costs all of them once."""
        if self._announced:
            return self.snapshot
        self._announced = True
        return self._next(self._hosts_of.keys() | self._declared)

    def rename(self, base_domains: Iterable[str], own_hostnames: Iterable[str]) -> Snapshot:
        """Put other base domains and own hostnames in force."""
        bases, own = tuple(base_domains), tuple(own_hostnames)
        before, self._reserved = self._reserved, Reserved.of(bases, own)
        self.snapshot = replace(
            self.snapshot,
            bases=frozenset(base.encode() for base in bases),
            own=frozenset(name.encode() for name in own),
        )
        now = _Draft(self.snapshot)
        for label in before.labels ^ self._reserved.labels:
            for draft in (now, self._draft):
                if draft is not None:
                    self._label(draft, label.encode())
        return self._done(now)

    def _place(self, host_id: str, entry: HostEntry | None, apps: frozenset[str]) -> frozenset[str]:
        """Put a host where it now belongs; return the apps whose routes that changes."""
        before = self._apps_of.get(host_id, frozenset())
        old = self._entries.get(host_id)
        if entry is not None and old is not None and _same(old, entry):
            entry = old
        for app in before - apps:
            hosts = self._hosts_of[app]
            hosts.discard(host_id)
            if not hosts:
                del self._hosts_of[app]
        for app in apps - before:
            self._hosts_of.setdefault(app, set()).add(host_id)
        if apps:
            self._apps_of[host_id] = apps
        else:
            self._apps_of.pop(host_id, None)
        if entry is None:
            self._entries.pop(host_id, None)
        else:
            self._entries[host_id] = entry
        return before ^ apps if entry is old else before | apps

    def _register(self, draft: _Draft, app_id: str, update: AppUpdate | None) -> None:
        before = self._registered.get(app_id)
        if update is None:
            self._registered.pop(app_id, None)
        else:
            self._registered[app_id] = update
        labels = {app_id.encode()}  # that of before it was registered, or after
        had = () if before is None else before.hostnames
        has = () if update is None else update.hostnames
        if had != has:
            for hostname in had:
                # Whoever has it by now has it rightly.
                if hostname not in has and draft.hostnames.get(hostname) == app_id:
                    draft.hostnames.drop(hostname)
            for hostname in has:
                draft.hostnames.put(hostname, app_id)
        if before is not None and before.label is not None:
            labels.add(before.label)
            if self._label_holders.get(before.label) == app_id:
                del self._label_holders[before.label]
        if update is not None and update.label is not None:
            labels.add(update.label)
            self._label_holders[update.label] = app_id
        for label in labels:
            self._label(draft, label)
        draft.pending |= labels
        self._route(draft, app_id)

    def _next(self, apps: Iterable[str], *, complete: bool | None = None) -> Snapshot:
        """Return the Snapshot after apps have become known, unknown or served otherwise."""
        now, coming = _Draft(self.snapshot), self._draft
        for app_id in apps:
            label = app_id.encode()
            self._route(now, app_id)
            if coming is not None:
                self._route(coming, app_id)
                self._label(coming, label)
            if coming is None or label not in coming.pending:
                self._label(now, label)
        return self._done(now, complete)

    def _done(self, draft: _Draft, complete: bool | None = None) -> Snapshot:
        before = self.snapshot
        self.snapshot = Snapshot(
            draft.labels.done(),
            draft.hostnames.done(),
            draft.apps.done(),
            before.bases,
            before.own,
            before.complete if complete is None else complete,
        )
        return self.snapshot

    def _label(self, draft: _Draft, label: bytes) -> None:
        """Give a label to the app that has it now: the registered one, else the default (3.3)."""
        text = label.decode()
        holder = self._label_holders.get(label)
        if holder is None and default_label(text) is not None and self._unregistered(text):
            holder = text
        if holder is None or self._reserved.has_label(text):
            draft.labels.drop(label)
        else:
            draft.labels.put(label, holder)

    def _unregistered(self, app_id: str) -> bool:
        """Tell whether an app is served that is not registered."""
        if not self._announced or app_id in self._registered:
            return False
        return app_id in self._hosts_of or app_id in self._declared

    def _route(self, draft: _Draft, app_id: str) -> None:
        registered = self._registered.get(app_id)
        if registered is None and not self._unregistered(app_id):
            draft.apps.drop(app_id)
            return
        found = (self._entries.get(host_id) for host_id in sorted(self._hosts_of.get(app_id, ())))
        entries = tuple(entry for entry in found if entry is not None)
        weights = [entry.weight for entry in entries]
        shares = tuple(accumulate(weights)) if len(set(weights)) > 1 else ()
        policy = DEFAULT_POLICY if registered is None else registered.policy
        draft.apps.put(app_id, Route(app_id, entries, shares, policy))


def _same(one: HostEntry, other: HostEntry) -> bool:
    return (one.address, one.key, one.weight) == (other.address, other.key, other.weight)
