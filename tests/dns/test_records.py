"""Proves smartgw_dns/records.py: single records, read strictly."""

import pytest

from smartgw_dns.edits import EditRefused, Why, edit
from smartgw_dns.records import RecordRefused, added, distinct, read_name, read_rrset
from tests.dns.zones import ask, wire, zone


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


def test_an_rrset_has_a_record_at_least() -> None:
    """8.6: REST over rrsets: to send none is to delete, which has a call of its own."""
    with pytest.raises(RecordRefused, match="delete it instead"):
        read_rrset("a.z.", "A", 1, [])


def test_a_record_is_added_to_those_that_are_there() -> None:
    """8.6: Records are added one by one or set together; the same one twice is one."""
    before = zone("a A 192.0.2.1\n")
    after = edit(before, [added(before, "a.z.", "A", 60, "192.0.2.2")])
    assert ask("a.z. A", after) == "NOERROR | AA | a.z. A 192.0.2.1 | a.z. A 192.0.2.2"
    again = added(after, "a.z.", "A", 60, "192.0.2.2")
    assert edit(after, [again]) is after


def test_a_second_soa_is_a_conflict_before_it_is_read() -> None:
    """8.6: A zone has one SOA, whatever the second one is."""
    for rdata in ("(second SOA)", "ns.z. root.z. 2 2 3 4 5"):
        with pytest.raises(EditRefused) as refused:
            added(zone(""), "z.", "SOA", 60, rdata)
        assert refused.value.why is Why.SEVERAL


def test_distinct_keeps_the_first_of_the_same() -> None:
    """8.3: Two records that differ in the case of a name are one."""
    names = [wire("A.z."), wire("a.Z."), wire("b.z.")]
    assert distinct(2, names) == (wire("A.z."), wire("b.z."))
