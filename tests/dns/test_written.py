"""Answers as bytes: readable by everybody, within what a packet holds."""

from __future__ import annotations

from dataclasses import replace

import dns.message
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import Answer
from smartgw_dns.written import write, write_for
from tests.dns.zones import NS, SOA, wire
from tests.dns.zones import zone as zone_of


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


def test_signatures_of_several_types_stand_in_one_answer() -> None:
    """8.3: RRSIG and SIG records are one rrset, whatever they cover (RFC 4034 3)."""
    signed = "8 2 300 20300101000000 20200101000000 1 z. AAAA"
    text = "".join(f"a RRSIG {kind} {signed}\n" for kind in ("A", "MX", "TXT"))
    zone = master.read(f"$ORIGIN z.\n$TTL 300\n{SOA}{NS}a A 192.0.2.1\n{text}", b"\x01z\0")
    qname = b"\x01a\x01z\0"
    answer = Catalog.of([zone]).lookup_wire(qname, int(dns.rdatatype.RRSIG))
    found = write(answer, qname, "account")
    assert found.counts == (3, 1, 0)
    question = dns.message.make_query("a.z.", "RRSIG").to_wire()
    header = question[:2] + b"\x80\0\0\1" + b"".join(n.to_bytes(2, "big") for n in found.counts)
    parsed = dns.message.from_wire(header + question[12:] + found.body)
    covered = {rdata.covers() for rrset in parsed.answer for rdata in rrset}
    assert covered == {dns.rdatatype.A, dns.rdatatype.MX, dns.rdatatype.TXT}


@pytest.mark.parametrize(
    ("name", "rdtypes", "accounts"),
    [
        ("a.z.", ("A", "MX", "ANY", "TXT", "TYPE65280"), 4),
        ("alias.z.", ("A", "TXT", "TYPE65280"), 1),
        ("x.w.z.", ("A", "TXT", "TYPE65280"), 1),
        ("x.d.z.", ("A", "TXT", "CNAME"), 1),
        ("x.c.z.", ("A", "DS", "TYPE65280"), 1),
        ("x.missing.z.", ("A", "DS", "TYPE65280"), 1),
    ],
)
def test_answers_are_like_by_what_serves_them(
    name: str, rdtypes: tuple[str, ...], accounts: int
) -> None:
    """8.4: the rate is of like answers: of an alias alike for whatever type is asked for."""
    zone = zone_of("a A 192.0.2.1\na MX 1 a\nalias CNAME a\n*.w CNAME a\nd DNAME a\nc NS n.\n")
    catalog, key = Catalog.of([zone]), wire(name)
    found = {
        write_for(catalog, zone, zone.place(key), key, dns.rdatatype.from_text(rdtype))[0].account
        for rdtype in rdtypes
    }
    assert len(found) == accounts


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
