"""Answers as the JSON that Google's and Cloudflare's DNS over HTTPS give (contract 8.1), and what a
write changes of them (8.6).

Owns the members of both, and how long an answer may be kept (RFC 8484 5.1). Numbers are those of
the wire; names are absolute. Looks nothing up.
"""

import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from smartgw_dns.changes import Difference
from smartgw_dns.lookup import AAAA, A, Answer, Owned
from smartgw_dns.master import rdata_text
from smartgw_dns.names import text_of
from smartgw_dns.zone import SOA, type_text

LONGEST_KEPT = 86_400
MOST_OCTETS = 320_000
"""Octets of rdata that are shown of what a write changes: 5,000 short records, each of which counts
as 64. Each answer may have as many.
"""
_LEAST_OCTETS = 64
_RECORD = struct.Struct("!HHIH")
_SHORT = 300  # octets of rdata whose text is kept


def answer_json(qname: bytes, rdtype: int, answer: Answer, *, recursion: bool) -> dict[str, Any]:
    """Return an answer of our zones; `recursion`: it is available to whoever asks."""
    shown = _head(qname, rdtype, answer.rcode, aa=answer.authoritative, tc=False, ra=recursion)
    sections = (("Answer", answer.answer), ("Authority", answer.authority))
    for name, section in (*sections, ("Additional", answer.additional)):
        if section:
            shown[name] = [record for owned in section for record in _of_ours(owned)]
    return shown


def message_json(qname: bytes, rdtype: int, message: dns.message.Message) -> dict[str, Any]:
    """Return an answer of a resolver."""
    flags = message.flags
    shown = _head(
        *(qname, rdtype, int(message.rcode())),
        aa=False,
        tc=bool(flags & dns.flags.TC),
        ra=True,
    )
    shown["AD"] = bool(flags & dns.flags.AD)
    for name, section in (("Answer", message.answer), ("Authority", message.authority)):
        if section:
            shown[name] = _records(section)
    return shown


def kept_seconds(shown: dict[str, Any]) -> int | None:
    """Return for how long such JSON holds: the lowest TTL; None: it says nothing that may be kept.

    A negative answer holds for as long as its SOA says (RFC 2308 5).
    """
    if shown["Status"] not in (0, 3):
        return None
    ttls = [record["TTL"] for record in shown.get("Answer", ())]
    # Also behind an alias, whose own TTL may be far longer than nothing is known of its target.
    ttls += [record["TTL"] for record in shown.get("Authority", ()) if record["type"] == SOA]
    return min((*ttls, LONGEST_KEPT)) if ttls else None


def wire_kept_seconds(message: bytes) -> int | None:
    """Return the same for a whole message as it goes over the wire."""
    questions, answers, authority = (
        int.from_bytes(message[at : at + 2], "big") for at in (4, 6, 8)
    )
    at = 12
    for _ in range(questions):
        at = _behind_name(message, at) + 4
    sections: list[list[dict[str, int]]] = []
    for count in (answers, authority):
        sections.append([])
        for _ in range(count):
            at = _behind_name(message, at)
            rdtype, _, ttl, size = _RECORD.unpack_from(message, at)
            sections[-1].append({"type": rdtype, "TTL": ttl})
            at += _RECORD.size + size
    answer, authorities = sections
    return kept_seconds({"Status": message[3] & 0xF, "Answer": answer, "Authority": authorities})


def _behind_name(message: bytes, at: int) -> int:
    while length := message[at]:
        if length >= 0xC0:
            return at + 2
        at += length + 1
    return at + 1


def _head(qname: bytes, rdtype: int, rcode: int, *, aa: bool, tc: bool, ra: bool) -> dict[str, Any]:
    return {
        "Status": rcode,
        "AA": aa,
        "TC": tc,
        "RD": True,
        "RA": ra,
        "AD": False,
        "CD": False,
        "Question": [{"name": text_of(qname), "type": rdtype}],
    }


def _of_ours(owned: Owned) -> Iterator[dict[str, Any]]:
    rrset, name = owned.rrset, text_of(owned.owner)
    for rdata in rrset.rdatas:
        text = (_kept_text if len(rdata) <= _SHORT else _text)(rrset.rdtype, rdata)
        yield {"name": name, "type": rrset.rdtype, "TTL": rrset.ttl, "data": text}


def _text(rdtype: int, rdata: bytes) -> str:
    if rdtype in (A, AAAA):
        return rdata_text(rdtype, rdata)
    code = dns.rdatatype.RdataType.make(rdtype)
    return dns.rdata.from_wire(dns.rdataclass.IN, code, rdata, 0, len(rdata)).to_text()


# The same NS and SOA records stand in most answers, and dnspython takes 50 us for one.
_kept_text = lru_cache(4_096)(_text)


def _records(section: Iterable[dns.rrset.RRset]) -> list[dict[str, Any]]:
    return [
        {
            "name": rrset.name.to_text(),
            "type": int(rrset.rdtype),
            "TTL": rrset.ttl,
            "data": rdata.to_text(),
        }
        for rrset in section
        for rdata in rrset
    ]


def differences_json(differences: Iterable[Difference]) -> list[dict[str, Any]]:
    """Return what a write changes, as far as `MOST_OCTETS` go, but one difference at least."""
    told: list[dict[str, Any]] = []
    octets = 0
    for difference in differences:
        octets += octets_of(difference)
        if told and octets > MOST_OCTETS:
            break
        told.append(difference_json(difference))
    return told


def octets_of(difference: Difference) -> int:
    """Return how much there is to show of a difference, in octets of rdata."""
    return sum(
        max(len(rdata), _LEAST_OCTETS)
        for answer in (difference.before, difference.after)
        for owned in _telling(answer)
        for rdata in owned.rrset.rdatas
    )


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return what a write changes for one question: the records before and after, as text."""
    effect = difference.effect
    return {
        "name": text_of(difference.name),
        "type": type_text(difference.rdtype),
        "effect": None if effect is None else effect.value,
        "by": None if effect is None else text_of(difference.by),
        "message": str(difference),
        "before": _brief(difference.before),
        "after": _brief(difference.after),
    }


def _brief(answer: Answer) -> dict[str, Any]:
    return {
        "status": dns.rcode.to_text(dns.rcode.Rcode.make(answer.rcode)),
        "records": [line for owned in _telling(answer) for line in _lines(owned)],
    }


def _telling(answer: Answer) -> tuple[Owned, ...]:
    # Of a referral what it says stands in the authority section.
    return answer.answer or (() if answer.authoritative else answer.authority)


def _lines(owned: Owned) -> list[str]:
    rrset = owned.rrset
    head = f"{text_of(owned.owner)} {rrset.ttl} {type_text(rrset.rdtype)}"
    return [f"{head} {rdata_text(rrset.rdtype, rdata)}" for rdata in rrset.rdatas]
