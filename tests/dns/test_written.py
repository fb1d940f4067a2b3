"""Answers as bytes: written as dnspython writes them, to the octet, within what a packet holds."""

from __future__ import annotations

from dataclasses import replace

import dns.message
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import Answer
from smartgw_dns.names import name_of
from smartgw_dns.written import write
from smartgw_dns.zone import Zone
from tests.dns.zones import LABELS, NS, ORIGIN, SOA, zones

NAMES = st.lists(LABELS, max_size=4).map(lambda labels: b"".join(labels) + ORIGIN)
TYPES = st.sampled_from([1, 28, 16, 5, 39, 2, 15, 6, 255])


def by_dnspython(answer: Answer, qname: bytes) -> bytes:
    """What dnspython writes behind a question."""
    message = dns.message.QueryMessage(0)
    message.question.append(
        dns.rrset.RRset(name_of(qname), dns.rdataclass.IN, dns.rdatatype.RdataType.A)
    )
    message.answer, message.authority, message.additional = (
        [owned.to_dnspython() for owned in section]
        for section in (answer.answer, answer.authority, answer.additional)
    )
    return message.to_wire(max_size=65_535, want_shuffle=False)[12 + len(qname) + 4 :]


@given(zones(), NAMES, TYPES, st.booleans())
def test_an_answer_is_written_as_dnspython_writes_it(
    zone: Zone, qname: bytes, qtype: int, upper: bool
) -> None:
    """8.3, 8.4: all sections, with names compressed where they may be (RFC 1035 4.1.4)."""
    if upper and b"\x01A" not in qname.upper():
        qname = qname.upper()
    answer = Catalog.of([zone]).lookup_wire(qname, qtype)
    found = write(answer, qname, "account")
    assert found.body == by_dnspython(answer, qname)
    assert found.counts == tuple(
        sum(len(owned.rrset.rdatas) for owned in section)
        for section in (answer.answer, answer.authority, answer.additional)
    )


def test_all_record_types_are_written_so_that_everybody_can_read_them() -> None:
    """8.4: names in rdata are compressed in the types of RFC 1035 alone (RFC 3597 4)."""
    zone = master.read(
        f"$ORIGIN z.\n$TTL 300\n{SOA}{NS}"
        "a MX 10 mail.a\n@ MX 20 mail.a\na PTR x.a\na SRV 1 2 3 mail.a\na NAPTR 1 2 u s . mail.a\n"
        "a SVCB 1 mail.a\na AFSDB 1 mail.a\na RP mail.a x.a\nd DNAME mail.a\na KX 1 mail.a\n"
        "mail.a A 192.0.2.1\n",
        b"\x01z\0",
    )
    for rdtype in ("MX", "PTR", "SRV", "NAPTR", "SVCB", "AFSDB", "RP", "KX"):
        qname = b"\x01a\x01z\0"
        answer = Catalog.of([zone]).lookup_wire(qname, dns.rdatatype.from_text(rdtype))
        body = write(answer, qname, "account").body
        assert (b"\x04mail\x01a\x01z\0" in body) == (rdtype not in ("MX", "PTR")), rdtype


def test_names_beyond_what_a_pointer_reaches_are_written_out() -> None:
    """8.4: a pointer has 14 bits (RFC 1035 4.1.4)."""
    answer, qname = many(2_000, "")
    found = write(answer, qname, "account")
    assert len(found.body) > 0x4000
    assert found.body == by_dnspython(answer, qname)


def test_what_a_message_cannot_hold_is_left_out() -> None:
    """8.4: truncation: addresses that can be asked for first, without TC; then all, with it."""
    answer, qname = many(2_400, "host{number} A 192.0.2.1\n")
    found = write(answer, qname, "account")
    assert (found.flags & 0x0200, found.counts) == (0, (2_400, 1, 0))
    assert len(found.body) <= 65_535 - 12 - len(qname) - 4
    assert found.body == found.short_body
    twice = replace(answer, answer=answer.answer * 2)
    found = write(twice, qname, "account")
    assert (found.flags & 0x0200, found.counts, found.body) == (0x0200, (0, 0, 0), b"")


def many(count: int, more: str) -> tuple[Answer, bytes]:
    """The answer with so many MX records, and the name that was asked for."""
    lines = (
        f"m MX {number} host{number}\n" + more.format(number=number) for number in range(count)
    )
    zone = master.read(f"$ORIGIN z.\n$TTL 300\n{SOA}{NS}{''.join(lines)}", b"\x01z\0")
    qname = b"\x01m\x01z\0"
    return Catalog.of([zone]).lookup_wire(qname, int(dns.rdatatype.MX)), qname
