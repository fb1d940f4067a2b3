"""New versions of a zone: rrsets set and deleted by the rules of a zone, serials that rise.

Owns which data may stand together (RFC 1034 3.6.2, RFC 2181, RFC 6672 2.3) and how the serial goes
up (RFC 1982). Does not read records (records.py, master.py) nor tell whose answers a change touches
(changes.py). A change costs what it changes, whatever the size of the zone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from smartgw_dns.names import parent, text_of, within
from smartgw_dns.table import Table
from smartgw_dns.zone import CNAME, DNAME, NS, SOA, Entry, RRset, Zone

# DNSSEC data about the name itself may stand beside a CNAME: RFC 2181 10.1, RFC 4034 2.5.
BESIDE_CNAME = frozenset({CNAME, 24, 25, 30, 46, 47})  # SIG, KEY, NXT, RRSIG, NSEC
# Of these a name has one record: RFC 2181 10.1, RFC 6672 2.4, RFC 1035 5.2; NXT, NSEC: RFC 4034 4.
SINGLE = frozenset({CNAME, DNAME, SOA, 30, 47})
# What of a message of 65,535 octets is left for one rrset beside header, question, OPT and TSIG.
LARGEST = 64_000
# The types of a name are looked through one by one. BIND has the same (max-types-per-name).
MOST_TYPES = 100
# A record makes up to 126 names, most of them empty, of 300 octets of memory each.
MOST_NAMES = 2_000_000
_HALF = 1 << 31


class Why(Enum):
    """Which rule of zones a change breaks; the value is what an API shows."""

    OUT_OF_ZONE = "out_of_zone"
    CNAME_AND_OTHER_DATA = "cname_and_other_data"
    SEVERAL = "several_records"
    SOA_ELSEWHERE = "soa_not_at_apex"
    SOA_MISSING = "no_soa"
    NS_MISSING = "no_ns"
    DNAME_AND_NS = "dname_and_ns"
    TOO_LARGE = "rrset_too_large"
    TOO_MANY = "too_many_types"
    ZONE_TOO_LARGE = "zone_too_large"

    @property
    def words(self) -> str:
        """What is wrong, to be put after the name."""
        return _WORDS[self]


_WORDS = {
    Why.OUT_OF_ZONE: "does not lie in the zone",
    Why.CNAME_AND_OTHER_DATA: "has a CNAME, beside which no other data stands (RFC 1034 3.6.2)",
    Why.SEVERAL: "has several records of a type of which a name has one",
    Why.SOA_ELSEWHERE: "is not the apex of the zone, where alone an SOA stands",
    Why.SOA_MISSING: "has no SOA record",
    Why.NS_MISSING: "has no NS record",
    Why.DNAME_AND_NS: "has NS and DNAME, of which it can have one below the apex (RFC 6672 2.3)",
    Why.TOO_LARGE: f"has records of one type that fit in no answer, {LARGEST} octets",
    Why.TOO_MANY: f"has records of more than {MOST_TYPES} types",
    Why.ZONE_TOO_LARGE: "has more names or records, or longer ones, than can be kept of a zone",
}


class EditRefused(ValueError):
    """A change breaks a rule of zones: which, and at which name (wire form)."""

    def __init__(self, why: Why, owner: bytes) -> None:
        super().__init__(f"{text_of(owner)} {why.words}")
        self.why = why
        self.owner = owner


@dataclass(frozen=True, slots=True)
class Change:
    """The rrset of a type at a name becomes this one, or goes.

    Attributes:
        owner: the name in wire form, its case kept.
        rdtype: type code.
        rrset: of that type, with a record at least; None deletes.
    """

    owner: bytes
    rdtype: int
    rrset: RRset | None


def build(origin: bytes, changes: Iterable[Change]) -> Zone:
    """Return a new zone of these rrsets; raises EditRefused.

    Args:
        origin: its apex in wire form.
    """
    draft = _Draft(origin.lower(), Table(), 0)
    return _finish(draft, changes)


def edit(zone: Zone, changes: Iterable[Change]) -> Zone:
    """Return the zone with these changes, its serial higher; itself where nothing changes.

    An SOA among the changes keeps its serial if that is higher than the old one; else it gets the
    old one plus 1. Raises EditRefused.
    """
    draft = _Draft(zone.origin, zone.entries, zone.records)
    made = _finish(draft, changes)
    if all(draft.before(key) == entry for key, entry in draft.changed.items()):
        return zone
    if is_higher(made.serial, zone.serial):
        return made
    soa = made.apex.get(SOA)
    assert soa is not None, "a zone has an SOA"
    return edit_serial(made, next_serial(zone.serial))


def apply(zone: Zone, changes: Iterable[Change]) -> Zone:
    """Return the zone with these changes and no other, as another server has made them: the SOA is
    what they say. Raises EditRefused.
    """
    return _finish(_Draft(zone.origin, zone.entries, zone.records), changes)


def edit_serial(zone: Zone, serial: int) -> Zone:
    """Return the zone with this serial."""
    soa = zone.apex.get(SOA)
    assert soa is not None, "a zone has an SOA"
    rdata = soa.rdatas[0]
    raised = RRset(SOA, soa.ttl, (rdata[:-20] + serial.to_bytes(4, "big") + rdata[-16:],))
    draft = _Draft(zone.origin, zone.entries, zone.records)
    draft.put(Change(zone.apex.owner, SOA, raised))
    return Zone.of(zone.origin, zone.entries.changed(draft.changed), zone.records)


def difference(old: Zone, new: Zone) -> tuple[Change, ...]:
    """Return the changes that make the rrsets of `old` those of `new`, in canonical order."""
    found = []
    for key, entry in new.sorted():
        before = old.entries.get(key)
        if before is not entry:
            was = {rrset.rdtype: rrset for rrset in before.rrsets} if before else {}
            now = {rrset.rdtype: rrset for rrset in entry.rrsets}
            found += [
                Change(entry.owner, rdtype, now.get(rdtype))
                for rdtype in sorted({*was, *now})
                if was.get(rdtype) != now.get(rdtype)
            ]
    for key, entry in old.sorted():
        if new.entries.get(key) is None:
            found += [Change(entry.owner, rrset.rdtype, None) for rrset in entry.rrsets]
    return tuple(found)


def next_serial(serial: int) -> int:
    """Return the serial after this one (RFC 1982 3.1); never 0, which some secondaries misread."""
    return (serial + 1) % (1 << 32) or 1


def is_higher(serial: int, than: int) -> bool:
    """Compare serials (RFC 1982 3.2); False where it is undefined."""
    return 0 < (serial - than) % (1 << 32) < _HALF


def refusal(rdtypes: frozenset[int], *, at_apex: bool) -> Why | None:
    """Tell which rule forbids these types at one name, if one does."""
    if CNAME in rdtypes and not rdtypes <= BESIDE_CNAME:
        return Why.CNAME_AND_OTHER_DATA
    if SOA in rdtypes and not at_apex:
        return Why.SOA_ELSEWHERE
    if DNAME in rdtypes and NS in rdtypes and not at_apex:
        return Why.DNAME_AND_NS
    if len(rdtypes) > MOST_TYPES:
        return Why.TOO_MANY
    return None


def _finish(draft: "_Draft", changes: Iterable[Change]) -> Zone:
    for change in changes:
        draft.put(change)
        if len(draft.changed) > MOST_NAMES:
            raise EditRefused(Why.ZONE_TOO_LARGE, draft.origin)
    for key, entry in draft.changed.items():
        if entry is not None:
            _check(entry, at_apex=key == draft.origin)
    apex = draft.get(draft.origin)
    for rdtype, why in ((SOA, Why.SOA_MISSING), (NS, Why.NS_MISSING)):
        if apex is None or apex.get(rdtype) is None:
            raise EditRefused(why, draft.origin)
    entries = draft.entries.changed(draft.changed)
    if entries.size > MOST_NAMES:
        raise EditRefused(Why.ZONE_TOO_LARGE, draft.origin)
    return Zone.of(draft.origin, entries, draft.records)


def _check(entry: Entry, *, at_apex: bool) -> None:
    why = refusal(frozenset(rrset.rdtype for rrset in entry.rrsets), at_apex=at_apex)
    for rrset in entry.rrsets:
        if rrset.rdtype in SINGLE and len(rrset.rdatas) > 1:
            why = Why.SEVERAL
        # Owner by reference, type, class, TTL and length stand before each: 12 octets.
        if sum(len(rdata) + 12 for rdata in rrset.rdatas) > LARGEST:
            why = Why.TOO_LARGE
    if why:
        raise EditRefused(why, entry.owner)


class _Draft:
    """Entries of a zone being changed; `changed` holds the new ones, None where one goes."""

    def __init__(self, origin: bytes, entries: Table[Entry], records: int) -> None:
        self.origin = origin
        self.entries = entries
        self.records = records
        self.changed: dict[bytes, Entry | None] = {}

    def before(self, key: bytes) -> Entry | None:
        return self.entries.get(key)

    def get(self, key: bytes) -> Entry | None:
        return self.changed[key] if key in self.changed else self.entries.get(key)

    def put(self, change: Change) -> None:
        owner, rdtype, rrset = change.owner, change.rdtype, change.rrset
        key = owner.lower()
        if not within(key, self.origin):
            raise EditRefused(Why.OUT_OF_ZONE, owner)
        entry = self.get(key)
        if entry is None:
            if rrset is None:
                return
            self._join(parent(owner), key)
            entry = Entry(key if key == owner else owner, (), 0)
        rrsets = [r for r in entry.rrsets if r.rdtype != rdtype]
        self.records -= sum(len(r.rdatas) for r in entry.rrsets if r.rdtype == rdtype)
        if rrset is not None:
            rrsets.append(rrset)
            rrsets.sort(key=lambda r: r.rdtype)
            self.records += len(rrset.rdatas)
        # The case of a name is that of its oldest records.
        name = entry.owner if entry.rrsets else owner
        self._set(key, Entry(key if key == name else name, tuple(rrsets), entry.children))

    def _set(self, key: bytes, entry: Entry) -> None:
        """Put an entry; one that has nothing and nothing below goes, and such parents with it."""
        if entry.rrsets or entry.children:
            self.changed[key] = entry
            return
        self.changed[key] = None
        if key != self.origin:
            above = self.get(parent(key))
            assert above is not None, "the parent of an entry has one"
            self._set(parent(key), Entry(above.owner, above.rrsets, above.children - 1))

    def _join(self, owner: bytes, child: bytes) -> None:
        """Count a new entry in its parent's, which is made where there is none."""
        if child == self.origin:
            return
        key = owner.lower()
        entry = self.get(key)
        if entry is None:
            self._join(parent(owner), key)
            entry = Entry(key if key == owner else owner, (), 0)
        self.changed[key] = Entry(entry.owner, entry.rrsets, entry.children + 1)
