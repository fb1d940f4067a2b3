"""Proves smartgw_dns/records.py: single records, read strictly."""

import pytest

from smartgw_dns.edits import edit
from smartgw_dns.records import RecordRefused, absolute, distinct, read_name, read_rrset
from tests.dns.zones import wire, zone


@pytest.mark.parametrize(
    ("name", "rdtype", "ttl", "rdata", "field"),
    [
        ("a.z.\n*. IN NS evil.", "A", 1, "192.0.2.1", "name"),
        ("a b.z.", "A", 1, "192.0.2.1", "name"),
        ("a.z", "A", 1, "192.0.2.1", "name"),
        ("\u00fc.z.", "A", 1, "192.0.2.1", "name"),
        (None, "A", 1, "192.0.2.1", "name"),
        (f"{'a.' * 130}z.", "A", 1, "192.0.2.1", "name"),
        ("a.z.", "AXFR", 1, "x", "type"),
        ("a.z.", "TYPE65536", 1, "x", "type"),
        ("a.z.", 1, 1, "192.0.2.1", "type"),
        ("a.z.", "A", -1, "192.0.2.1", "ttl"),
        ("a.z.", "A", 1.0, "192.0.2.1", "ttl"),
        ("a.z.", "A", "1", "192.0.2.1", "ttl"),
        ("a.z.", "A", False, "192.0.2.1", "ttl"),
        ("a.z.", "A", 1, "192.0.2.1\nb.z. A 192.0.2.2", "rdata"),
        ("a.z.", "A", 1, None, "rdata"),
        ("a.z.", "A", 1, "", "rdata"),
        ("a.z.", "MX", 1, "10 mail", "rdata"),
        ("a.z.", "TXT", 1, "v=DKIM1; p=abc", "rdata"),
        ("a.z.", "TXT", 1, '"' + "a" * 256 + '"', "rdata"),
        ("a.z.", "TXT", 1, " ".join(['"' + "a" * 255 + '"'] * 257), "rdata"),
        ("a.z.", "CNAME", 1, "A.Z.", "rdata"),
        ("a.z.", "DNAME", 1, "b.a.z.", "rdata"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    name: object, rdtype: object, ttl: object, rdata: object, field: str
) -> None:
    """8.6: A record that is none is refused, with the field that is wrong."""
    with pytest.raises(RecordRefused) as refused:
        read_rrset(name, rdtype, ttl, [rdata])
    assert refused.value.field == field
    assert len(str(refused.value)) < 700


def test_a_name_may_have_any_octet_as_an_escape() -> None:
    """8.6: Labels correctly escaped, in names that come in too."""
    assert read_name(r"a\.b\032\000\@.z.") == b"\x06a.b \0@\x01z\0"


@pytest.mark.parametrize(
    ("text", "name"),
    [("a.z", "a.z."), ("a.z.", "a.z."), (".", "."), (r"a\.", r"a\.."), (r"a\\.", r"a\\.")],
)
def test_the_last_dot_of_a_name_may_be_missing(text: str, name: str) -> None:
    """8.1: a name is absolute with or without its last dot, which is none that is escaped."""
    assert absolute(text) == name
    assert read_name(absolute(text)) == wire(name)


def test_names_in_other_letters_are_to_be_sent_as_a_labels() -> None:
    """8.6: what is wrong, and what would be right."""
    with pytest.raises(RecordRefused, match="xn--"):
        read_name("b\u00fccher.z.")


def test_an_rrset_has_a_record_at_least() -> None:
    """8.6: REST over rrsets: to send none is to delete, which has a call of its own."""
    with pytest.raises(RecordRefused, match="delete it instead"):
        read_rrset("a.z.", "A", 1, [])


def test_a_record_that_is_sent_twice_is_one() -> None:
    """8.6: REST over rrsets: the same record again changes nothing, also in another spelling."""
    change = read_rrset("a.z.", "AAAA", 300, ["2001:db8::1", "2001:DB8:0::1"])
    before = zone("a AAAA 2001:db8::1\n")
    assert edit(before, [change]) is before


def test_distinct_keeps_the_first_of_the_same() -> None:
    """8.3: Two records that differ in the case of a name are one."""
    names = [wire("A.z."), wire("a.Z."), wire("b.z.")]
    assert distinct(2, names) == (wire("A.z."), wire("b.z."))
