"""All that the platform has decided, as one immutable value, and who holds which name.

Owns how what the store says of a key becomes the next `Desired`, which costs the change, and which
of two apps that claim one name gets it: the record with the lower revision (contract 3.3, so all
gateways agree). Does not talk to the store (store.py) nor make routes (routing/table.py).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from smartgw.routing.shards import Edit, Shards
from smartgw.routing.table import AppUpdate
from smartgw.state.records import (
    App,
    Kind,
    Record,
    Unreadable,
    app_key,
    decode,
    enrolment_key,
)
from smartgw.state.zone_records import ZoneHead
from smartgw_hosts.enrolment import Enrolment

_DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * _DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the store says of a key: `value` None when it was deleted.

    `revision` rises from one write of the bucket to the next; `time` is when it was stored, Unix
    seconds. The two together name one write, also when a bucket was made anew.
    """

    key: str
    value: bytes | None
    revision: int
    time: float


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it is in force. `mark` is its share of the digest."""

    record: Record
    revision: int
    time: float
    mark: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that this version cannot read, `newer` because a later one wrote it; it is kept as
    it is and decides nothing.
    """

    value: bytes
    reason: str
    newer: bool
    revision: int
    time: float
    mark: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What is otherwise in one Desired than in the one before it.

    `apps` are the ids of apps whose record or names changed, those that are gone included, and
    `zones` the origins of zones of which something was written.
    """

    apps: frozenset[str] = frozenset()
    enrolments: bool = False
    zones: frozenset[bytes] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.apps) or self.enrolments or bool(self.zones)


def _nothing() -> Shards[str, Stored | Skipped]:
    return Shards()


def _nobody() -> Shards[str, str | tuple[str, ...]]:
    return Shards()


@dataclass(frozen=True, slots=True, eq=False)
class Desired:
    """The whole at one revision.

    Attributes:
        records: key -> what stands there.
        claims: label or hostname -> the app that claims it; several, the holder first, only when
            records contradict each other. A label has no dot, a hostname has.
        revision: of the last write that is in it; 0 before any.
        bucket: names the bucket that revisions count in; another one begins anew.
        total: see `digest`.
        skipped: how many records are `Skipped`; `newer` how many of them are apps written by a
            later version, whose names we cannot see.
        contested: how many names several apps claim.
    """

    records: Shards[str, Stored | Skipped] = field(default_factory=_nothing)
    claims: Shards[str, str | tuple[str, ...]] = field(default_factory=_nobody)
    revision: int = 0
    bucket: str = ""
    total: int = 0
    skipped: int = 0
    newer: int = 0
    contested: int = 0

    @property
    def digest(self) -> str:
        """32 hex digits, the same wherever the same records are in force at the same revisions."""
        return f"{self.total:0{2 * _DIGEST_BYTES}x}"

    def app(self, app_id: str) -> App | None:
        """Return a registered app."""
        stored = self.stored(app_key(app_id))
        return None if stored is None or not isinstance(stored.record, App) else stored.record

    def stored(self, key: str) -> Stored | None:
        """Return what is in force under a key (`records.app_key`, `records.enrolment_key`)."""
        found = self.records.get(key)
        return found if isinstance(found, Stored) else None

    def enrolment(self, cluster: str, host_id: str) -> Enrolment | None:
        """Return the enrolment of a host."""
        stored = self.stored(enrolment_key(cluster, host_id))
        if stored is None or not isinstance(stored.record, Enrolment):
            return None
        return stored.record

    def holder(self, name: str) -> str | None:
        """Return the app that has a label or a hostname; None when it is free."""
        return _first(self.claims.get(name))

    def claimants(self, name: str) -> tuple[str, ...]:
        """Return the apps that claim a name, the holder first."""
        return _all(self.claims.get(name))

    def names(self, app: App) -> tuple[str | None, tuple[str, ...]]:
        """Return the label and the hostnames that are this app's, those of others left out."""
        label = app.served_label
        if label is not None and self.holder(label) != app.app_id:
            label = None
        return label, tuple(n for n in app.hostnames if self.holder(n) == app.app_id)

    def update(self, app_id: str) -> AppUpdate | None:
        """Return an app as the data path needs it, None when it is not registered."""
        app = self.app(app_id)
        if app is None:
            return None
        label, hostnames = self.names(app)
        exact = tuple(name.encode() for name in hostnames)
        return AppUpdate(app_id, None if label is None else label.encode(), exact, app.policy)

    def apps(self) -> Iterator[App]:
        """All registered apps, in no order; O(n)."""
        for stored in self.records.values():
            if isinstance(stored, Stored) and isinstance(stored.record, App):
                yield stored.record

    def enrolments(self) -> Iterator[Enrolment]:
        """All enrolments, of every cluster, in no order; O(n)."""
        for stored in self.records.values():
            if isinstance(stored, Stored) and isinstance(stored.record, Enrolment):
                yield stored.record

    def zones(self) -> Iterator[ZoneHead]:
        """The heads of all zones, in no order; O(n)."""
        for stored in self.records.values():
            if isinstance(stored, Stored) and isinstance(stored.record, ZoneHead):
                yield stored.record

    def whole(self) -> Difference:
        """Return all of it as what is otherwise than in nothing; O(n)."""
        return Difference(
            frozenset(app.app_id for app in self.apps()),
            True,
            frozenset(head.origin for head in self.zones()),
        )

    def page(self, kind: Kind, after: str = "", limit: int = 100) -> list[tuple[str, Stored]]:
        """Return the next records of a kind whose keys are above `after`, by key; O(n).

        Keys of apps sort as the bytes of their ids.
        """
        prefix = f"{kind}."
        found = (
            (key, stored)
            for key, stored in self.records.items()
            if key > after and key.startswith(prefix) and isinstance(stored, Stored)
        )
        return heapq.nsmallest(limit, found, key=lambda pair: pair[0])


class Sweep:
    """One reading of the whole of `bucket`, beside which single changes may come in.

    `floor` is the last revision from before it began: what it does not come across, and is not
    newer, is gone. `replace`: revisions of before mean nothing, it is another bucket. `rewound`
    says that it should have been: the bucket holds less than was read from it.
    """

    __slots__ = ("bucket", "deleted", "floor", "replace", "rewound", "seen")

    def __init__(self, bucket: str, floor: int, *, replace: bool) -> None:
        self.bucket = bucket
        self.floor = floor
        self.replace = replace
        self.rewound = False
        self.seen: set[str] = set()
        self.deleted: dict[str, int] = {}

    def missed(self, key: str, stored: Stored | Skipped) -> bool:
        """Tell, when the sweep is at its end, whether a record is no longer in the bucket."""
        return key not in self.seen and (self.replace or stored.revision <= self.floor)


class Draft:
    """The next Desired while it is made, in as many steps as one likes."""

    def __init__(self, base: Desired) -> None:
        self._base = base
        self._records: Edit[str, Stored | Skipped] = base.records.edit()
        self._claims: Edit[str, str | tuple[str, ...]] = base.claims.edit()
        self._total, self._skipped, self._newer = base.total, base.skipped, base.newer
        self._contested = base.contested
        self._apps: set[str] = set()
        self._enrolments = False
        self._zones: set[bytes] = set()
        self.revision = base.revision

    def take(self, entry: Entry, sweep: Sweep | None = None, *, swept: bool = False) -> bool:
        """Take in what the store says of a key; False when that is known already, or outdated.

        `sweep` is the one under way, and `swept` tells that the entry is of its reading.
        """
        key, revision = entry.key, entry.revision
        anew = False
        if sweep is not None:
            anew = sweep.replace and key not in sweep.seen
            sweep.seen.add(key)
            if revision < sweep.deleted.get(key, 0):
                return False
            if entry.value is None:
                sweep.deleted[key] = revision
        old = self._records.get(key)
        if old is not None and old.revision == revision and old.time == entry.time:
            return False
        if old is not None and not anew and revision <= old.revision:
            if sweep is not None and swept and not sweep.replace and old.revision <= sweep.floor:
                sweep.rewound = True
            return False
        self._put(key, old, None if entry.value is None else _read(entry))
        return True

    def keep(self, key: str, stored: Stored | Skipped) -> None:
        """Put in place what was read already."""
        self._put(key, self._records.get(key), stored)

    def forget(self, key: str, sweep: Sweep) -> None:
        """Take out what the sweep missed, unless it was written since."""
        old = self._records.get(key)
        if old is not None and sweep.missed(key, old):
            self._put(key, old, None)

    @property
    def replaced(self) -> list[object]:
        """What the base has and the next has not; see `shards.Edit`."""
        return [*self._records.replaced, *self._claims.replaced]

    def done(self, revision: int, bucket: str) -> tuple[Desired, Difference]:
        """Return what came of it; the draft must not be used any more."""
        desired = Desired(
            self._records.done(),
            self._claims.done(),
            revision,
            bucket,
            self._total,
            self._skipped,
            self._newer,
            self._contested,
        )
        return desired, Difference(frozenset(self._apps), self._enrolments, frozenset(self._zones))

    # ---- what was read already ----

    def stored(self, key: str) -> Stored | Skipped | None:
        """Return what stands under a key by now."""
        return self._records.get(key)

    def claimants(self, name: str) -> tuple[str, ...]:
        """Return the apps that claim a name by now, the holder first."""
        return _all(self._claims.get(name))

    def _put(self, key: str, old: Stored | Skipped | None, new: Stored | Skipped | None) -> None:
        if old is not None:
            self._total = (self._total - old.mark) % _MODULUS
        if new is None:
            self._records.drop(key)
        else:
            self._records.put(key, new)
            self._total = (self._total + new.mark) % _MODULUS
        for stored, sign in ((old, -1), (new, 1)):
            if isinstance(stored, Skipped):
                self._skipped += sign
                self._newer += sign * (stored.newer and key.startswith(f"{Kind.APPS}."))
        before, after = _record(old), _record(new)
        for record in (before, after):
            if isinstance(record, App):
                self._apps.add(record.app_id)
            elif isinstance(record, Enrolment):
                self._enrolments = True
            elif record is not None:
                self._zones.add(record.origin)
        had = before.claims if isinstance(before, App) else ()
        has = after.claims if isinstance(after, App) else ()
        if isinstance(before, App):
            for name in had:
                if name not in has:
                    self._claim(name, before.app_id, holds=False)
        if isinstance(after, App):
            for name in has:
                self._claim(name, after.app_id, holds=True)

    def _claim(self, name: str, app_id: str, *, holds: bool) -> None:
        now = self._claims.get(name)
        if holds and now is None:
            self._claims.put(name, app_id)
            return
        if now == app_id:
            if not holds:
                self._claims.drop(name)
            return
        before = _all(now)
        claimants = {*before, app_id} if holds else {*before} - {app_id}
        after = sorted(claimants, key=self._seniority)
        self._contested += (len(after) > 1) - (len(before) > 1)
        self._claims.put(name, after[0] if len(after) == 1 else tuple(after))
        if before[0] != after[0]:
            self._apps.update((before[0], after[0]))

    def _seniority(self, app_id: str) -> tuple[int, str]:
        stored = self._records.get(app_key(app_id))
        return (0 if stored is None else stored.revision), app_id


def _read(entry: Entry) -> Stored | Skipped:
    assert entry.value is not None
    mark = mark_of(entry.key, entry.revision, entry.value)
    try:
        record = decode(entry.key, entry.value)
    except Unreadable as error:
        return Skipped(entry.value, str(error), error.newer, entry.revision, entry.time, mark)
    return Stored(record, entry.revision, entry.time, mark)


def mark_of(key: str, revision: int, value: bytes) -> int:
    """Return what one record adds to the digest."""
    text = b"%b\0%d\0%b" % (key.encode(), revision, value)
    return int.from_bytes(blake2b(text, digest_size=_DIGEST_BYTES).digest(), "big")


def _record(stored: Stored | Skipped | None) -> Record | None:
    return stored.record if isinstance(stored, Stored) else None


def _first(claim: str | tuple[str, ...] | None) -> str | None:
    return claim[0] if isinstance(claim, tuple) else claim


def _all(claim: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if claim is None:
        return ()
    return claim if isinstance(claim, tuple) else (claim,)
