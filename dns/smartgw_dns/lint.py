"""Advice on a whole zone: what is allowed in it, and likely not what somebody meant.

Owns the list of such things, to be shown after an import. Refuses nothing (edits.py does), and sees
no other zone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import AAAA, NXDOMAIN, TARGET_AT, A, target_of
from smartgw_dns.names import ASTERISK, parent, text_of, within
from smartgw_dns.zone import CNAME, DNAME, NS, Entry, Fit, Zone, type_text


class Advice(Enum):
    """What may be wrong; the value is what an API shows."""

    LOOP = "loop"
    LEADS_NOWHERE = "leads_nowhere"
    HIDDEN = "hidden"
    NO_GLUE = "no_glue"
    NO_ADDRESS = "no_address"
    TARGET_IS_ALIAS = "target_is_alias"
    UNDEFINED_WILDCARD = "undefined_wildcard"
    SHADOWED = "wildcard_shadowed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice.

    Attributes:
        name: what it is about, in wire form.
        message: a sentence, with the name.
    """

    advice: Advice
    name: bytes
    message: str


def lint(zone: Zone) -> Iterator[Finding]:
    """Walk all advice on a zone, in the canonical order of names."""
    catalog = Catalog.of([zone])
    for key, entry in zone.sorted():
        place = zone.place(key)
        if place.fit is Fit.DNAME or (place.fit is Fit.CUT and place.key != key):
            if not _is_glue(entry, place.fit):
                words = f"is hidden by {text_of(place.key)}, which is delegated or redirected"
                yield _finding(Advice.HIDDEN, entry, words)
            continue
        if entry.get(CNAME):
            yield from _alias(catalog, entry)
        if key.startswith(ASTERISK) and (entry.get(NS) or entry.get(DNAME)):
            words = "is a wildcard with NS or DNAME, which servers take differently (RFC 4592 4.2)"
            yield _finding(Advice.UNDEFINED_WILDCARD, entry, words)
        if not entry.rrsets:
            yield from _shadowed(zone, key, entry)
        yield from _targets(zone, key, entry)


def _finding(advice: Advice, entry: Entry, words: str) -> Finding:
    return Finding(advice, entry.owner, f"{text_of(entry.owner)} {words}")


def _is_glue(entry: Entry, fit: Fit) -> bool:
    return fit is Fit.CUT and all(rrset.rdtype in (A, AAAA) for rrset in entry.rrsets)


def _alias(catalog: Catalog, entry: Entry) -> Iterator[Finding]:
    answer = catalog.lookup_wire(entry.owner, A)
    if answer.rcode == NXDOMAIN:
        target = answer.steps[-1].name
        yield _finding(
            Advice.LEADS_NOWHERE, entry, f"leads to {text_of(target)}, which is not there"
        )
        return
    last = answer.answer[-1].rrset
    if last.rdtype == CNAME and any(
        last.rdatas[0].lower() == step.name.lower() for step in answer.steps
    ):
        yield _finding(Advice.LOOP, entry, "leads round in a circle")


def _shadowed(zone: Zone, key: bytes, entry: Entry) -> Iterator[Finding]:
    """Advise of an empty name that the wildcard beside it would answer for if it did not exist."""
    wildcard = zone.entries.get(ASTERISK + parent(key)) if key != zone.origin else None
    if wildcard is not None and wildcard.rrsets and not key.startswith(ASTERISK):
        words = f"has no records, and {text_of(wildcard.owner)} does not answer for it: it exists"
        yield _finding(Advice.SHADOWED, entry, words)


def _targets(zone: Zone, key: bytes, entry: Entry) -> Iterator[Finding]:
    """Advise of servers without address: RFC 2181 10.3, and glue that a delegation needs."""
    for rrset in entry.rrsets:
        at = TARGET_AT.get(rrset.rdtype)
        for rdata in rrset.rdatas if at is not None else ():
            target = target_of(rdata, at or 0)
            if len(target) == 1 or not within(target.lower(), zone.origin):
                continue
            name = f"{type_text(rrset.rdtype)} {text_of(target)}"
            place = zone.place(target.lower())
            found = place.entry if place.fit in (Fit.EXACT, Fit.WILDCARD) else None
            if rrset.rdtype == NS and key != zone.origin and within(target.lower(), key):
                glue = zone.entries.get(target.lower())
                if glue is None or not (glue.get(A) or glue.get(AAAA)):
                    yield _finding(Advice.NO_GLUE, entry, f"has {name}, whose address nobody finds")
            elif found is not None and found.get(CNAME):
                yield _finding(Advice.TARGET_IS_ALIAS, entry, f"has {name}, which is an alias")
            elif place.fit is Fit.MISSING or (found and not (found.get(A) or found.get(AAAA))):
                yield _finding(Advice.NO_ADDRESS, entry, f"has {name}, which has no address")
