"""The answer of authoritative zones to one question (RFC 1034 4.3.2).

Owns what stands in each section: chains of CNAME and DNAME through all our zones, referrals with
glue, NODATA and NXDOMAIN (RFC 2308), minimal ANY (RFC 8482). Does not write messages, truncate, or
limit rates; does not sign. What it decides and why is told in docs/dns.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import dns.rcode
import dns.rdatatype
import dns.rrset

from smartgw_dns.names import LONGEST, name_of, within
from smartgw_dns.zone import CNAME, DNAME, NS, Entry, Fit, Place, RRset, Zone

NOERROR, NXDOMAIN = int(dns.rcode.NOERROR), int(dns.rcode.NXDOMAIN)
SERVFAIL = int(dns.rcode.SERVFAIL)
REFUSED, YXDOMAIN = int(dns.rcode.REFUSED), int(dns.rcode.YXDOMAIN)
ANY, DS = int(dns.rdatatype.ANY), int(dns.rdatatype.DS)
A, AAAA = int(dns.rdatatype.A), int(dns.rdatatype.AAAA)
SIGNATURES = frozenset({int(dns.rdatatype.SIG), int(dns.rdatatype.RRSIG)})
# Of messages and transfers (RFC 6895 3.1): no name has such records, nor could it.
NOT_ASKED = frozenset({0, int(dns.rdatatype.OPT), *range(249, 255)})
# How often a question is asked anew by a CNAME or DNAME; a resolver goes on from the last one. BIND
# has the same (max-query-restarts); more could chain more compression pointers than readers follow.
MOST_STEPS = 11
# Where in the rdata the name stands whose addresses a client asks for next: RFC 1035 3.3.9 and
# 3.3.11, RFC 2782, RFC 9460 4.1.
TARGET_AT = {
    NS: 0,
    int(dns.rdatatype.MX): 2,
    int(dns.rdatatype.SRV): 6,
    int(dns.rdatatype.SVCB): 2,
    int(dns.rdatatype.HTTPS): 2,
}


@dataclass(frozen=True, slots=True)
class Owned:
    """An rrset in a message: its owner in wire form, and the records."""

    owner: bytes
    rrset: RRset

    def to_dnspython(self) -> list[dns.rrset.RRset]:
        """Return the same as dnspython has it: of signatures one rrset for each record, for it puts
        those that cover different types in no common one.
        """
        name, ttl, rdatas = name_of(self.owner), self.rrset.ttl, self.rrset.to_dnspython()
        sets = [[rdata] for rdata in rdatas] if self.rrset.rdtype in SIGNATURES else [rdatas]
        return [dns.rrset.from_rdata_list(name, ttl, one) for one in sets]


@dataclass(frozen=True, slots=True)
class Served:
    """One step of an answer: which zone, and which entry of it, decided about which name.

    Attributes:
        name: the name asked for in this step, wire form: the question's, then targets of CNAMEs.
    """

    name: bytes
    zone: Zone
    place: Place


@dataclass(frozen=True, slots=True)
class Answer:
    """What to answer.

    Attributes:
        rcode: response code.
        authoritative: the AA bit.
        answer, authority, additional: the sections, rrsets in their order.
        glue: so many rrsets at the start of `additional` cannot be found elsewhere; without room
            for them the TC bit is set (RFC 9471 3.1). The rest may be left out.
        steps: how it came about, empty where no zone of ours has the name; for caches and signing.
    """

    rcode: int
    authoritative: bool
    answer: tuple[Owned, ...] = ()
    authority: tuple[Owned, ...] = ()
    additional: tuple[Owned, ...] = ()
    glue: int = 0
    steps: tuple[Served, ...] = ()


OFF_ZONE = Answer(REFUSED, authoritative=False)
UNKNOWN = Answer(SERVFAIL, authoritative=False)


def answer(find: Callable[[bytes, int], Zone | None], qname: bytes, qtype: int) -> Answer:
    """Answer a question of class IN.

    Args:
        find: the zone that answers for a name (by its key) and type, or None.
        qname: the name in wire form, in the case of the question, which the answer keeps.
        qtype: type code; one of NOT_ASKED is refused.
    """
    name, key = qname, qname.lower()
    zone = find(key, qtype)
    if zone is None or qtype in NOT_ASKED:
        return OFF_ZONE
    if not zone.known:
        return UNKNOWN
    made = _Made()
    while zone is not None and zone.known:
        place = zone.place(key)
        made.steps.append(Served(name, zone, place))
        target = _step(made, zone, place, name, qtype)
        if target is None:
            break
        name, key = target, target.lower()
        if len(made.steps) > MOST_STEPS or any(key == s.name.lower() for s in made.steps):
            break
        zone = find(key, qtype)
    return made.done()


class _Made:
    """An answer in the making."""

    __slots__ = ("added", "additional", "answer", "authority", "glue", "rcode", "referral", "steps")

    def __init__(self) -> None:
        self.rcode = NOERROR
        self.glue = 0
        self.referral = False
        self.answer: list[Owned] = []
        self.authority: list[Owned] = []
        self.additional: list[Owned] = []
        # Which rrsets these are: an MX may have thousands of targets.
        self.added: set[int] = set()
        self.steps: list[Served] = []

    def done(self) -> Answer:
        # AA speaks of the first owner in the answer, RFC 1035 4.1.1: ours where a CNAME led away.
        return Answer(
            self.rcode,
            bool(self.answer) or not self.referral,
            tuple(self.answer),
            tuple(self.authority),
            tuple(self.additional),
            self.glue,
            tuple(self.steps),
        )


def _step(made: _Made, zone: Zone, place: Place, name: bytes, qtype: int) -> bytes | None:
    """Add what one zone has to say of one name; returns the name to go on with, or None."""
    fit, entry = place.fit, place.entry
    if fit is Fit.CUT and not (qtype == DS and len(place.key) == len(name)):
        _refer(made, zone, place)
        return None
    if fit is Fit.DNAME:
        target = _redirect(made, entry, name)
        # The CNAME that was made is itself the answer to a question for one.
        return None if qtype in (CNAME, ANY) else target
    if fit is Fit.MISSING:
        made.rcode = NXDOMAIN
        made.authority.append(Owned(zone.apex.owner, zone.negative))
        return None
    found = _smallest(entry) if qtype == ANY else entry.get(qtype)
    if found is None:
        cname = entry.get(CNAME)
        if cname is not None:
            made.answer.append(Owned(name, cname))
            return cname.rdatas[0]
        made.authority.append(Owned(zone.apex.owner, zone.negative))
        return None
    if qtype != DNAME or all(owned.rrset is not found for owned in made.answer):
        # A chain may come to the DNAME that it began with.
        made.answer.append(Owned(name, found))
    _add_addresses(made, zone, found)
    servers = zone.apex.get(NS)
    if servers is not None and found is not servers and qtype != DS:
        made.authority.append(Owned(zone.apex.owner, servers))
        _add_addresses(made, zone, servers)
    return None


def _refer(made: _Made, zone: Zone, place: Place) -> None:
    servers = place.entry.get(NS)
    assert servers is not None, "a cut has NS records"
    made.referral = True
    made.authority.append(Owned(place.entry.owner, servers))
    _add_addresses(made, zone, servers)
    made.additional.sort(key=lambda owned: not within(owned.owner.lower(), place.key))
    made.glue = sum(within(owned.owner.lower(), place.key) for owned in made.additional)


def _redirect(made: _Made, entry: Entry, name: bytes) -> bytes | None:
    """Substitute the target of a DNAME for its owner (RFC 6672 2.2, 3.1)."""
    dname = entry.get(DNAME)
    assert dname is not None, "a redirection has a DNAME record"
    if all(owned.rrset is not dname for owned in made.answer):
        made.answer.append(Owned(entry.owner, dname))
    target = name[: -len(entry.owner)] + dname.rdatas[0]
    if len(target) > LONGEST:
        made.rcode = YXDOMAIN
        return None
    made.answer.append(Owned(name, RRset(CNAME, dname.ttl, (target,))))
    return target


def _smallest(entry: Entry) -> RRset | None:
    """Choose the rrset that stands for ANY (RFC 8482 4.1): the one that amplifies least."""
    return min(entry.rrsets, key=lambda r: sum(map(len, r.rdatas)), default=None)


def _add_addresses(made: _Made, zone: Zone, rrset: RRset) -> None:
    """Add the addresses that the zone has for the targets of NS, MX, SRV, SVCB records, as glue
    also those below a cut; what a DNAME hides is nobody's address (RFC 6672 2.4).
    """
    at = TARGET_AT.get(rrset.rdtype)
    if at is None:
        return
    for rdata in rrset.rdatas:
        key = target_of(rdata, at).lower()
        entry = zone.entries.get(key)
        if entry is None or zone.place(key).fit is Fit.DNAME:
            continue
        for rdtype in (A, AAAA):
            addresses = entry.get(rdtype)
            if addresses is None or any(o.rrset is addresses for o in made.answer):
                continue
            if id(addresses) not in made.added:
                made.added.add(id(addresses))
                made.additional.append(Owned(entry.owner, addresses))


def target_of(rdata: bytes, at: int) -> bytes:
    """Return the name that stands at an offset of rdata."""
    end = at
    while length := rdata[end]:
        end += length + 1
    return rdata[at : end + 1]
