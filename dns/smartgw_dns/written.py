"""An answer as it stands in a packet behind the question, for all names that it is right for.

Owns which names share an answer, and what of it may be left out (RFC 9471). What is true of a name
is lookup.py's, what is sent to whom is respond.py's. dnspython writes the records.
"""

from dataclasses import dataclass

import dns.exception
import dns.flags
import dns.message
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import ANY, Answer, Owned
from smartgw_dns.names import ASTERISK, name_of, starts
from smartgw_dns.query import HEADER
from smartgw_dns.zone import CNAME, DNAME, Fit, Place, Zone

MOST_BYTES = 65_535
_AA, _TC = int(dns.flags.AA), int(dns.flags.TC)
_NOTHING = (0, 0, 0), b""


@dataclass(frozen=True, slots=True)
class Written:
    """An answer as it stands behind the question.

    Attributes:
        flags: AA and the response code.
        counts, body: of answer, authority and additional section, without OPT.
        short_counts, short_body: the same without what may be left out.
        account: what like answers are counted by.
        zone: None where the answer is for one name alone; else for all names of its length that
            `place` decides about, and so for all that differ in their first label and that neither
            this zone has an entry for nor begin another zone.
    """

    flags: int
    counts: tuple[int, int, int]
    body: bytes
    short_counts: tuple[int, int, int]
    short_body: bytes
    account: object
    zone: Zone | None = None


def write_for(
    catalog: Catalog, zone: Zone, place: Place, qname: bytes, qtype: int
) -> tuple[Written, bool]:
    """Write the answer for a name that `place` of `zone` decides about, and for all others that it
    may hold for; the second value says whether it may be kept for this name's length and place.
    """
    account = account_of(place, qtype)
    alike = _alike(qname, place)
    if alike is not None:
        answer = catalog.lookup_wire(alike, qtype)
        if _serves_all(answer, place) and not _shows(answer, alike, place):
            return write(answer, alike, account, zone), True
    own = write(catalog.lookup_wire(qname, qtype), qname, account)
    return own, len(place.key) == len(qname) and place.fit in (Fit.EXACT, Fit.CUT)


def account_of(place: Place, qtype: int) -> object:
    """Return what like answers are counted by: the entry and the type of what serves the question,
    0 for what is lacking, so that 65,000 types of an alias are not 65,000 times the rate.
    """
    entry = place.entry
    if place.fit is Fit.DNAME:
        serving = DNAME
    elif place.fit in (Fit.MISSING, Fit.CUT):
        serving = 0
    elif qtype == ANY or entry.get(qtype) is not None:
        serving = qtype
    else:
        serving = CNAME if entry.get(CNAME) is not None else 0
    return place.key, serving


def _alike(qname: bytes, place: Place) -> bytes | None:
    """Return a name of the same length that the same entry decides about: what is written for it
    holds for every such name, where it stands nowhere in the answer (`_shows`). None: there is no
    other such name, or each has an answer of its own.
    """
    if place.fit in (Fit.EXACT, Fit.DNAME) or (place.fit is Fit.CUT and place.key == qname.lower()):
        return None
    end = _end(place)
    made, left = b"", len(qname) - len(end)
    while left:
        label = min(left - 1, 63)
        if left - 1 - label == 1:
            label -= 1  # the next label needs two octets
        made += bytes((label,)) + b"\xff" * label
        left -= label + 1
    return made + end


def _end(place: Place) -> bytes:
    """Return what all names end with that are answered alike."""
    return place.key[len(ASTERISK) :] if place.fit is Fit.WILDCARD else place.key


def _serves_all(answer: Answer, place: Place) -> bool:
    """Say whether an answer holds for every name that the same entry decides about: a chain that
    comes back to the entry ends at the name that it began with.
    """
    first, *others = (step.place for step in answer.steps)
    return (first.key, first.fit) == (place.key, place.fit) and all(
        other.key != place.key for other in others
    )


def _shows(answer: Answer, alike: bytes, place: Place) -> bool:
    """Say whether records hold the name that `_alike` made up, or an end of it that it made: in
    another name's answer a compression pointer there would lead into that name.
    """
    end = len(alike) - len(_end(place))
    made = alike[max(at for at in starts(alike) if at < end) :]
    shown = (*answer.answer, *answer.authority, *answer.additional)
    return any(
        (owned.owner != alike and owned.owner.lower().endswith(made))
        or any(made in rdata.lower() for rdata in owned.rrset.rdatas)
        for owned in shown
    )


def write(answer: Answer, qname: bytes, account: object, zone: Zone | None = None) -> Written:
    """Have an answer written, with compression, as it stands behind the question."""
    flags = answer.rcode | (_AA if answer.authoritative else 0)
    needed = answer.additional[: answer.glue]
    whole = _sections(qname, answer.answer, answer.authority, answer.additional)
    short = whole
    if whole is None or len(needed) < len(answer.additional):
        short = _sections(qname, answer.answer, answer.authority, needed)
        whole = whole or short
    if whole is None or short is None:
        return Written(flags | _TC, *_NOTHING, *_NOTHING, account, zone)
    return Written(flags, *whole, *short, account, zone)


def _sections(
    qname: bytes, *sections: tuple[Owned, ...]
) -> tuple[tuple[int, int, int], bytes] | None:
    """Return how many records there are in each section, and their wire form behind a question;
    None: it is more than a message holds.
    """
    message = dns.message.QueryMessage(0)
    name, rdtype = name_of(qname), dns.rdatatype.A
    message.question.append(dns.rrset.RRset(name, dns.rdataclass.IN, rdtype))
    message.answer, message.authority, message.additional = (
        [rrset for owned in section for rrset in owned.to_dnspython()] for section in sections
    )
    # In the order of the zone: what is kept would else be one order by chance, for long.
    try:
        wire = message.to_wire(max_size=MOST_BYTES, want_shuffle=False)
    except dns.exception.TooBig:
        return None
    answers, authority, additional = (
        sum(len(owned.rrset.rdatas) for owned in section) for section in sections
    )
    return (answers, authority, additional), wire[HEADER + len(qname) + 4 :]
