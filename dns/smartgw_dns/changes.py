"""What a write to a zone changes: the answers before and after, also those of other names.

Owns which names a change touches beside its own: those that a wildcard answered, that become empty
non-terminals, lie below a cut or DNAME, or lead to what changed. Makes no change (edits.py), and
tells no name of another zone. A name `*.x` stands for all names below x that do not exist.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from smartgw_dns.catalog import Catalog
from smartgw_dns.edits import Change
from smartgw_dns.lookup import MOST_STEPS, A, Answer, Owned
from smartgw_dns.names import ASTERISK, LONGEST, order, parent, starts, text_of
from smartgw_dns.zone import CNAME, DNAME, NS, SOA, Entry, Fit, Place, Zone, type_text

# A larger write is compared in part: a name costs two lookups a type, some 10 us each.
MOST_NAMES = 20_000
MOST_LISTED = 500
# A DNAME that leads to itself makes ever longer names of each name.
MOST_LED = 1_000
_LEADING = frozenset({CNAME, DNAME, NS})
_Leading = dict[bytes, list[tuple[bytes, int]]]
_HIDDEN = (Fit.CUT, Fit.DNAME)


class Effect(Enum):
    """Why an answer changes that the write does not set; the value is what an API shows."""

    SHADOWED = "wildcard_shadowed"
    CAUGHT = "wildcard_answers"
    EMPTY = "empty_non_terminal"
    GONE = "name_gone"
    OCCLUDED = "occluded"
    UNCOVERED = "uncovered"
    FOLLOWS = "follows"
    MOVED = "other_zone"


_WORDS = {
    Effect.SHADOWED: "is no longer answered by {by}",
    Effect.CAUGHT: "is now answered by {by}",
    Effect.EMPTY: "exists now, without records, for there is a name below it",
    Effect.GONE: "does not exist any more, for nothing is left below it",
    Effect.OCCLUDED: "is now hidden by the delegation or DNAME at {by}",
    Effect.UNCOVERED: "is no longer hidden by the delegation or DNAME at {by}",
    Effect.FOLLOWS: "leads to what changes",
    Effect.MOVED: "is in the zone {by} no longer, or only now",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The answer to one question before and after the write.

    Attributes:
        name: in wire form; `*.x` stands for all names below x that do not exist.
        rdtype: type code.
        before, after: the answers.
        effect: why it changes where the write does not set these records; else None.
        by: key of the wildcard, cut or DNAME that the effect is due to.
    """

    name: bytes
    rdtype: int
    before: Answer
    after: Answer
    effect: Effect | None
    by: bytes

    def __str__(self) -> str:
        question = f"{text_of(self.name)} {type_text(self.rdtype)}"
        if self.effect is None:
            return f"{question} is what the write sets"
        return f"{question} {_WORDS[self.effect].format(by=text_of(self.by))}"


@dataclass(frozen=True, slots=True)
class Differences:
    """All that a write changes, in the canonical order of names.

    Attributes:
        own: the answers that it sets.
        others: those of other names, or of other types at its names.
        complete: whether all are here; a large write is compared in part.
    """

    own: tuple[Difference, ...]
    others: tuple[Difference, ...]
    complete: bool


def compare(
    before: Zone, after: Zone, changes: Sequence[Change], around: Catalog | None = None
) -> Differences:
    """Return what differs between two versions of a zone.

    Args:
        after: what `edits.edit(before, changes)` returned.
        around: the other zones: aliases lead on there, and names below their origins are theirs.
    """
    zones = around or Catalog()
    old, new = zones.changed([before]), zones.changed([after])
    written: dict[bytes, set[int]] = {}
    for change in changes:
        written.setdefault(change.owner.lower(), set()).add(change.rdtype)
    kinds = {change.rdtype for change in changes}
    names, complete = _names(before, after, changes)
    own: list[Difference] = []
    others: list[Difference] = []
    for key in sorted(names, key=order)[:MOST_NAMES]:
        name, set_here = names[key], written.get(key, set())
        places = before.place(key), after.place(key)
        for rdtype in sorted(_types(name, (old, new), set_here, kinds)):
            one, two = old.lookup_wire(name, rdtype), new.lookup_wire(name, rdtype)
            if _essence(one) == _essence(two):
                continue
            if rdtype in set_here:
                own.append(Difference(name, rdtype, one, two, None, key))
            else:
                others.append(Difference(name, rdtype, one, two, *_effect(key, *places)))
    complete = complete and len(names) <= MOST_NAMES
    complete = complete and max(len(own), len(others)) <= MOST_LISTED
    return Differences(tuple(own[:MOST_LISTED]), tuple(others[:MOST_LISTED]), complete)


def _essence(answer: Answer) -> tuple[object, ...]:
    """Return what of an answer counts: not the apex NS and SOA, which are in most of them."""
    apexes = {step.zone.origin for step in answer.steps}
    cuts = tuple(owned for owned in answer.authority if owned.owner.lower() not in apexes)
    glue: tuple[Owned, ...] = answer.additional if cuts else ()
    return answer.rcode, answer.authoritative, answer.answer, cuts, glue


def _names(before: Zone, after: Zone, changes: Sequence[Change]) -> tuple[dict[bytes, bytes], bool]:
    """Return the names whose answers may differ, by key as written, and whether these are all."""
    names: dict[bytes, bytes] = {}
    covers: set[bytes] = set()
    for change in changes:
        key = change.owner.lower()
        names[key] = change.owner
        for name in _made_or_gone(before, after, change.owner):
            names.setdefault(name.lower(), name)
            _add_below(names, name)
        if change.rdtype == DNAME or (change.rdtype == NS and key != before.origin):
            covers.add(key)
            _add_below(names, change.owner)
    for zone in (before, after) if covers else ():
        for key, entry in zone.entries.items():
            if any(key[at:] in covers for at in starts(key)[1:]):
                names.setdefault(key, entry.owner)
    return names, _add_leading(names, before, after)


def _made_or_gone(before: Zone, after: Zone, owner: bytes) -> Iterator[bytes]:
    """Walk the names at and above this one that exist in one version only."""
    name = owner
    while (before.entries.get(name.lower()) is None) != (after.entries.get(name.lower()) is None):
        yield name
        name = parent(name)


def _add_below(names: dict[bytes, bytes], name: bytes) -> None:
    """Add all names below this one that do not exist."""
    if len(name) + len(ASTERISK) <= LONGEST:
        names.setdefault(ASTERISK + name.lower(), ASTERISK + name)


def _add_leading(names: dict[bytes, bytes], before: Zone, after: Zone) -> bool:
    """Add the names whose CNAME, DNAME or delegation leads to one that is there already; False
    where they are too many."""
    leading: _Leading = {}
    _index(leading, after.entries.items(), after.origin)
    # What is only in the version before leads from a name that was written.
    old = [(key, entry) for key in names if (entry := before.entries.get(key))]
    _index(leading, old, before.origin)
    most, fresh = len(names) + MOST_LED, list(names)
    # No chain is followed further, and a delegation may stand at its end.
    for _ in range(MOST_STEPS + 1):
        last, fresh = fresh, []
        for name in _led(last, leading):
            key = name.lower()
            if key not in names:
                names[key] = name
                fresh.append(key)
                if len(names) >= most:
                    return False
    return True


def _led(names: Sequence[bytes], leading: _Leading) -> Iterator[bytes]:
    """Walk the names that lead to one of these, as written."""
    below = {name[len(ASTERISK) :] for name in names if name.startswith(ASTERISK)}
    touched = leading.keys() & set(names)
    for target in leading if below else ():
        if any(target[at:] in below for at in _above(target)):
            touched.add(target)
    for target in sorted(touched):
        for owner, rdtype in leading[target]:
            if rdtype != DNAME:
                yield owner
            elif len(owner) + len(ASTERISK) <= LONGEST:
                yield ASTERISK + owner
    for name in names:
        for at in _above(name):
            for owner, rdtype in leading.get(name[at:], ()):
                if rdtype == DNAME and at + len(owner) <= LONGEST:
                    yield name[:at] + owner


def _above(name: bytes) -> Iterator[int]:
    """Walk where the names above this one begin in it."""
    if len(name) > 1:
        yield from starts(name)[1:]
        yield len(name) - 1


def _index(leading: _Leading, entries: Iterable[tuple[bytes, Entry]], origin: bytes) -> None:
    """Add what leads elsewhere, by the key of its target: owner and type."""
    for key, entry in entries:
        for rrset in entry.rrsets:
            if rrset.rdtype in _LEADING and (rrset.rdtype != NS or key != origin):
                for rdata in rrset.rdatas:
                    leading.setdefault(rdata.lower(), []).append((entry.owner, rrset.rdtype))


def _types(
    name: bytes, versions: tuple[Catalog, Catalog], set_here: set[int], kinds: set[int]
) -> set[int]:
    """Return the types to ask at a name: those that it has or leads to, or that are written."""
    types: set[int] = set()
    for catalog in versions:
        steps = catalog.lookup_wire(name, A).steps
        for step in steps:
            if step.place.fit in (Fit.EXACT, Fit.WILDCARD):
                types |= {rrset.rdtype for rrset in step.place.entry.rrsets}
            elif step.place.fit is Fit.CUT:
                types.add(NS)
        if len(steps) > 1:
            types |= {A, *kinds}
    # The serial rises with every write, so an SOA differs always.
    return ((types | set_here) - ({SOA} - set_here)) or {A}


def _effect(key: bytes, before: Place, after: Place) -> tuple[Effect, bytes]:
    """Return why the answer of a name changes that is not written, and due to which entry."""
    was, now = _fit(key, before), _fit(key, after)
    if now in _HIDDEN and (was not in _HIDDEN or len(after.key) < len(before.key)):
        return Effect.OCCLUDED, after.key
    if was in _HIDDEN and (now not in _HIDDEN or len(after.key) > len(before.key)):
        return Effect.UNCOVERED, before.key
    if now is Fit.WILDCARD and (was is not now or before.key != after.key):
        return Effect.CAUGHT, after.key
    if was is Fit.WILDCARD and now is not was:
        return Effect.SHADOWED, before.key
    if was is not now:
        return (Effect.EMPTY if was is Fit.MISSING else Effect.GONE), key
    return Effect.FOLLOWS, key


def _fit(key: bytes, place: Place) -> Fit:
    """Return how a name lies; that of a wildcard stands for those that the wildcard answers."""
    if key.startswith(ASTERISK) and place.fit is Fit.EXACT and place.entry.rrsets:
        return Fit.WILDCARD
    return place.fit
