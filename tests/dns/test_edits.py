"""Proves smartgw_dns/edits.py: what may stand together, versions that share, serials that rise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns import edits
from smartgw_dns.edits import (
    Change,
    EditRefused,
    Why,
    build,
    difference,
    edit,
    edit_serial,
    is_higher,
    next_serial,
)
from smartgw_dns.names import parent
from smartgw_dns.zone import RRset, Zone
from tests.dns.zones import CNAME, NAMES, ORIGIN, TXT, A, changed, changes, wire, zone, zones

ADDRESS = RRset(A, 300, (b"\xc0\x00\x02\x01",))
ALIAS = RRset(CNAME, 300, (wire("y."),))
SERVER = RRset(2, 300, (wire("y."),))
DNAME = RRset(39, 300, (wire("y."),))


def test_a_change_makes_a_new_version() -> None:
    """8: Zones are immutable, edited to a new version that shares what is the same."""
    before = zone("a A 192.0.2.1\nb.c A 192.0.2.2\n")
    after = edit(before, [Change(wire("new.z."), A, ADDRESS)])
    assert before.entries.get(wire("new.z.")) is None
    assert after.entries.get(wire("a.z.")) is before.entries.get(wire("a.z."))
    assert (before.records, after.records, before.serial, after.serial) == (4, 5, 1, 2)


@pytest.mark.parametrize(
    ("name", "rrset", "why"),
    [
        ("a.z.", ALIAS, Why.CNAME_AND_OTHER_DATA),
        ("c.z.", ADDRESS, Why.CNAME_AND_OTHER_DATA),
        ("z.", ALIAS, Why.CNAME_AND_OTHER_DATA),
        ("c.z.", RRset(CNAME, 300, (wire("x."), wire("y."))), Why.SEVERAL),
        ("d.z.", RRset(39, 300, (wire("x."), wire("y."))), Why.SEVERAL),
        ("d.z.", SERVER, Why.DNAME_AND_NS),
        ("s.z.", DNAME, Why.DNAME_AND_NS),
        ("a.z.", RRset(6, 300, (b"\0\0" + bytes(20),)), Why.SOA_ELSEWHERE),
        ("n.z.", RRset(47, 300, (b"\0\0\1\x40", b"\0\0\1\x20")), Why.SEVERAL),
        ("z.", RRset(6, 300, (b"\0\0" + bytes(20), b"\0\0" + bytes(19) + b"\1")), Why.SEVERAL),
        ("other.", ADDRESS, Why.OUT_OF_ZONE),
        ("az.", ADDRESS, Why.OUT_OF_ZONE),
        ("a.z.", RRset(TXT, 300, (b"\xff" * 256,) * 240), Why.TOO_LARGE),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused(name: str, rrset: RRset, why: Why) -> None:
    """8.6: CNAME-and-other-data and out-of-zone names are refused, and what fits no answer."""
    before = zone("a A 192.0.2.1\nc CNAME y.\nd DNAME y.\ns NS y.\n")
    with pytest.raises(EditRefused) as refused:
        edit(before, [Change(wire(name), rrset.rdtype, rrset)])
    assert (refused.value.why, refused.value.owner) == (why, wire(name))
    assert str(refused.value).startswith(name)


@pytest.mark.parametrize(("rdtype", "why"), [(6, Why.SOA_MISSING), (2, Why.NS_MISSING)])
def test_an_apex_keeps_what_makes_it_one(rdtype: int, why: Why) -> None:
    """8.6: A zone keeps its SOA and its name servers."""
    with pytest.raises(EditRefused) as refused:
        edit(zone(""), [Change(wire("z."), rdtype, None)])
    assert refused.value.why is why


def test_the_names_of_a_zone_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.6: names above others take memory, too, though a file need not name them."""
    monkeypatch.setattr(edits, "MOST_NAMES", 20)
    before = zone("a.b.c.d.e.f.g.h A 192.0.2.1\n")
    assert before.entries.size == 9
    deep = Change(wire("a.b.c.d.e.f.g.h.i.z."), A, ADDRESS)
    after = edit(before, [deep])
    deeper = Change(wire("a.b.c.d.e.f.g.h.j.z."), A, ADDRESS)
    for some in ([deeper], [deeper, *(Change(wire(f"n{n}.z."), A, ADDRESS) for n in range(20))]):
        with pytest.raises(EditRefused) as refused:
            edit(after, some)
        assert refused.value.why is Why.ZONE_TOO_LARGE


def test_several_changes_are_one() -> None:
    """8.6: Rules hold for the result: a CNAME may take the place of an address in one write."""
    before = zone("a A 192.0.2.1\n")
    after = edit(before, [Change(wire("a.z."), CNAME, ALIAS), Change(wire("a.z."), A, None)])
    assert after.serial == 2
    assert [c.rdtype for c in difference(before, after)] == [6, A, CNAME]


def test_dnssec_data_stand_beside_a_cname() -> None:
    """8.6: CNAME and other data: RRSIG and NSEC are about the name itself (RFC 4034 2.5)."""
    after = zone("c CNAME y.\nc NSEC d.z. CNAME\n")
    assert after.records == 4


def test_what_changes_nothing_is_no_version() -> None:
    """8.6: Serials rise by themselves, when something changes."""
    before = zone("a A 192.0.2.1\n")
    assert edit(before, [Change(wire("a.z."), A, ADDRESS)]) is before
    assert edit(before, [Change(wire("b.z."), A, None)]) is before
    assert edit(before, []) is before


@pytest.mark.parametrize(
    ("given_serial", "serial"),
    [(1, 2), (5, 5), (2**31, 2**31), (2**31 + 1, 2), (0, 2)],
)
def test_a_serial_that_is_sent_counts_if_it_is_higher(given_serial: int, serial: int) -> None:
    """8.6: Serials rise by themselves (RFC 1982), also where the write sends an SOA."""
    before = zone("")
    soa = edit_serial(before, given_serial).apex.get(6)
    address = Change(wire("a.z."), A, ADDRESS)
    assert edit(before, [address, Change(wire("z."), 6, soa)]).serial == serial


def test_a_serial_wraps() -> None:
    """8.6: Serial arithmetic (RFC 1982)."""
    last = edit_serial(zone(""), 2**32 - 1)
    assert edit(last, [Change(wire("a.z."), A, ADDRESS)]).serial == 1
    assert is_higher(1, 2**32 - 1)
    assert not is_higher(2**32 - 1, 1)
    assert not is_higher(0, 2**31)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1))
def test_serials_are_ordered_as_rfc_1982_says(serial: int, added: int) -> None:
    """8.6: Serial arithmetic (RFC 1982): higher after any addition of less than half the space."""
    assert is_higher(next_serial(serial), serial)
    assert is_higher((serial + added) % 2**32, serial) == (added > 0)


def test_the_case_of_a_name_is_that_of_its_oldest_records() -> None:
    """8.3: Case is kept: of the name as first written, whoever writes it again."""
    before = zone("MiXed A 192.0.2.1\n")
    after = edit(before, [Change(wire("mixed.z."), TXT, RRset(TXT, 1, (b"\x01a",)))])
    entry = after.entries.get(wire("mixed.z."))
    assert entry is not None
    assert entry.owner == wire("MiXed.z.")


@given(zones(), st.lists(changes(), max_size=8))
def test_a_zone_is_the_same_however_it_came_about(before: Zone, edits: list[Change]) -> None:
    """8: A zone edited step by step is the zone built of its rrsets at once."""
    after = before
    for change in edits:
        after = changed(after, change)
    again = build(
        ORIGIN,
        [
            Change(entry.owner, rrset.rdtype, rrset)
            for _, entry in after.entries.items()
            for rrset in entry.rrsets
        ],
    )
    shape = {key: (e.rrsets, e.children) for key, e in after.entries.items()}
    assert {key: (e.rrsets, e.children) for key, e in again.entries.items()} == shape
    assert again.records == after.records
    for key, entry in after.entries.items():
        below = sum(parent(other) == key for other, _ in after.entries.items() if other != ORIGIN)
        assert entry.children == below
        assert entry.rrsets or entry.children


@given(zones(), zones())
def test_a_difference_leads_from_one_zone_to_the_other(old: Zone, new: Zone) -> None:
    """8.6: A whole-zone import is the changes that it makes, no more."""
    made = edit(old, difference(old, new))
    assert [c for c in difference(made, new) if c.rdtype != 6] == []


@given(zones(), NAMES)
def test_a_record_set_and_deleted_leaves_the_zone_as_it_was(before: Zone, name: bytes) -> None:
    """8.6: Deleting what a write set undoes it, also the names that it made."""
    entry = before.entries.get(name.lower())
    if entry and (entry.get(A) or entry.get(CNAME)):
        return
    after = edit(edit(before, [Change(name, A, ADDRESS)]), [Change(name, A, None)])
    assert {k: e.rrsets for k, e in after.entries.items() if k != ORIGIN} == {
        k: e.rrsets for k, e in before.entries.items() if k != ORIGIN
    }
    assert after.serial == before.serial + 2
