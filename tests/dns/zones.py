"""Zones and answers as text, for the tests of lookup: `ask(zone, "x.z. A")` is one line.

Also zones at random, full of what lookup gets wrong, as hypothesis draws them.
"""

import dns.name
import dns.rcode
import dns.rdatatype
from hypothesis import strategies as st

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.edits import Change, EditRefused, build, edit
from smartgw_dns.lookup import Answer, Owned
from smartgw_dns.names import ASTERISK, text_of, wire_of
from smartgw_dns.zone import RRset, Zone, type_text

SOA = "@ 600 IN SOA ns.elsewhere. root.elsewhere. 1 7200 900 1209600 60\n"
NS = "@ 600 IN NS ns.elsewhere.\n"


def zone(text: str, origin: str = "z.") -> Zone:
    """Read a zone whose apex is as good as any, TTL 300."""
    return master.read(f"$TTL 300\n{SOA}{NS}{text}", wire(origin))


def wire(name: str) -> bytes:
    """Return the wire form of a name."""
    return wire_of(dns.name.from_text(name))


def look(question: str, *zones: Zone) -> Answer:
    """Answer `NAME TYPE`."""
    qname, rdtype = question.split()
    return Catalog.of(zones).lookup(dns.name.from_text(qname), dns.rdatatype.from_text(rdtype))


def ask(question: str, *zones: Zone) -> str:
    """Return rcode, AA, answer, and what stands in the other sections but for the NS of an apex."""
    answer = look(question, *zones)
    parts = [dns.rcode.to_text(dns.rcode.Rcode(answer.rcode))]
    parts += ["AA"] if answer.authoritative else []
    apexes = {step.zone.origin for step in answer.steps}
    for sign, section in (("", answer.answer), ("^", answer.authority), ("+", answer.additional)):
        for owned in section:
            if sign == "^" and owned.owner.lower() in apexes and owned.rrset.rdtype == 2:
                continue
            parts += [sign + line for line in lines(owned)]
    return " | ".join(parts)


def lines(owned: Owned) -> list[str]:
    """Return the records as `owner type rdata`, of an SOA the owner and the TTL."""
    head = f"{text_of(owned.owner)} {type_text(owned.rrset.rdtype)}"
    if owned.rrset.rdtype == 6:
        return [f"{head} {owned.rrset.ttl}"]
    return [f"{head} {rdata}" for found in owned.to_dnspython() for rdata in found]


# ---- zones at random ----

ORIGIN = b"\x01z\0"
LABELS = st.sampled_from([b"\x01a", b"\x01b", b"\x01A", ASTERISK])
# Most are short, so that they often meet.
NAMES = st.integers(0, 3).flatmap(
    lambda most: st.lists(LABELS, max_size=most).map(lambda labels: b"".join(labels) + ORIGIN)
)
TARGETS = st.just(b"\x03out\0") | NAMES
A, AAAA, TXT, CNAME, DNAME, MX = 1, 28, 16, 5, 39, 15
TYPES = st.sampled_from([A, AAAA, TXT, CNAME, DNAME, 2, MX])


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """One rrset set or deleted, anywhere in the zone `z.`."""
    owner, rdtype = draw(NAMES), draw(TYPES)
    if draw(st.integers(0, 3)) == 0 and not (rdtype == 2 and owner == ORIGIN):
        return Change(owner, rdtype, None)
    number = draw(st.integers(1, 3))
    rdata = {
        A: bytes((192, 0, 2, number)),
        AAAA: bytes(15) + bytes((number,)),
        TXT: b"\x01%d" % number,
        MX: b"\0\x01" + draw(TARGETS),
    }.get(rdtype) or draw(TARGETS)
    return Change(owner, rdtype, RRset(rdtype, 300, (rdata,)))


@st.composite
def zones(draw: st.DrawFn) -> Zone:
    """A zone `z.` with some ten rrsets."""
    made = build(ORIGIN, apex())
    for change in draw(st.lists(changes(), max_size=12)):
        made = changed(made, change)
    return made


def changed(before: Zone, change: Change) -> Zone:
    """Return the zone with a change, itself where the change breaks a rule."""
    try:
        return edit(before, [change])
    except EditRefused:
        return before


def apex() -> list[Change]:
    """Return what every zone has."""
    soa = b"\x02ns\0\x04root\0" + b"".join(n.to_bytes(4, "big") for n in (1, 7200, 900, 9999, 60))
    return [
        Change(ORIGIN, 6, RRset(6, 600, (soa,))),
        Change(ORIGIN, 2, RRset(2, 600, (b"\x02ns\0",))),
    ]
