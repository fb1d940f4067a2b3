"""Proves smartgw_dns/changes.py: which answers a write changes, and of which other names."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smartgw_dns.catalog import Catalog
from smartgw_dns.changes import MOST_LISTED, compare
from smartgw_dns.edits import Change, edit
from smartgw_dns.lookup import MOST_STEPS
from smartgw_dns.names import ASTERISK, starts, text_of
from smartgw_dns.records import read_rrset
from smartgw_dns.zone import Zone, type_text
from tests.dns.zones import CNAME, A, changed, changes, wire, zone, zones


def effects(before: Zone, *written: Change) -> list[str]:
    """Return what a write changes beside what it sets, as `name type effect [by]`."""
    found = compare(before, edit(before, written), written)
    assert found.complete
    return [
        f"{text_of(d.name)} {type_text(d.rdtype)} {d.effect and d.effect.value} {text_of(d.by)}"
        for d in found.others
    ]


def sets(name: str, rdtype: str, rdata: str) -> Change:
    """The write of one record."""
    return read_rrset(name, rdtype, 300, [rdata])


def test_a_name_below_takes_the_name_above_from_its_wildcard() -> None:
    """8.6: A write that shadows a wildcard says whose answers change (D04)."""
    before = zone("* A 192.0.2.1\n")
    tlsa = sets("_443._tcp.www.z.", "TLSA", "3 1 1 " + "ab" * 32)
    assert effects(before, tlsa) == [
        f"{name}.z. A wildcard_shadowed *.z."
        for name in (
            *("www", "*.www", "_tcp.www", "*._tcp.www", "_443._tcp.www"),
            "*._443._tcp.www",
        )
    ]
    found = compare(before, edit(before, [tlsa]), [tlsa])
    assert [str(d) for d in found.own] == ["_443._tcp.www.z. TLSA is what the write sets"]
    assert str(found.others[0]) == "www.z. A is no longer answered by *.z."
    assert (len(found.others[0].before.answer), len(found.others[0].after.answer)) == (1, 0)


@pytest.mark.parametrize(
    ("text", "written", "wanted"),
    [
        ("", sets("a.b.z.", "A", "192.0.2.1"), ["b.z. A empty_non_terminal b.z."]),
        ("a.b A 192.0.2.1\n", Change(wire("a.b.z."), 1, None), ["b.z. A name_gone b.z."]),
        (
            "* TXT x\na.b A 192.0.2.1\n",
            Change(wire("a.b.z."), 1, None),
            [f"{name}.z. TXT wildcard_answers *.z." for name in ("b", "*.b", "a.b", "*.a.b")],
        ),
        (
            "x.s A 192.0.2.1\ns TXT x\n",
            sets("s.z.", "NS", "ns.y."),
            [
                "s.z. TXT occluded s.z.",
                "*.s.z. NS occluded s.z.",
                "x.s.z. A occluded s.z.",
                "x.s.z. NS occluded s.z.",
            ],
        ),
        (
            "x.s A 192.0.2.1\ns NS ns.y.\n",
            Change(wire("s.z."), 2, None),
            ["*.s.z. NS uncovered s.z.", "x.s.z. A uncovered s.z.", "x.s.z. NS uncovered s.z."],
        ),
        (
            "x.d A 192.0.2.1\n",
            sets("d.z.", "DNAME", "y."),
            ["*.d.z. A occluded d.z.", "x.d.z. A occluded d.z."],
        ),
        (
            "c CNAME a\nd CNAME c\n*.w CNAME d\n",
            sets("a.z.", "A", "192.0.2.1"),
            [f"{name}.z. A follows {name}.z." for name in ("c", "d", "*.w")],
        ),
        (
            "d DNAME t\nt TXT x\n",
            sets("a.t.z.", "A", "192.0.2.1"),
            ["a.d.z. A follows a.d.z."],
        ),
        (
            "s NS ns.s\nns.s A 192.0.2.1\n",
            sets("ns.s.z.", "A", "192.0.2.2"),
            ["s.z. NS follows s.z.", "ns.s.z. NS follows ns.s.z."],
        ),
        ("* A 192.0.2.1\n", sets("*.z.", "A", "192.0.2.2"), []),
        ("", sets("*.e.z.", "A", "192.0.2.2"), ["e.z. A empty_non_terminal e.z."]),
        (
            "",
            sets("f.*.e.z.", "A", "192.0.2.2"),
            ["e.z. A empty_non_terminal e.z.", "*.e.z. A empty_non_terminal *.e.z."],
        ),
        ("a A 192.0.2.1\n", sets("a.z.", "A", "192.0.2.2"), []),
    ],
)
def test_a_write_says_whose_answers_it_changes(
    text: str, written: Change, wanted: list[str]
) -> None:
    """8.6: A write that changes answers of other names says which."""
    assert effects(zone(text), written) == wanted


def test_what_another_zone_answers_for_does_not_change() -> None:
    """8.6: records below the origin of another of our zones change nothing; aliases lead there."""
    before, inner = zone(""), zone("a A 192.0.2.9\n", "in.z.")
    written = [
        sets("a.in.z.", "A", "192.0.2.1"),
        sets("in.z.", "TXT", "x"),
        sets("out.z.", "CNAME", "a.in.z."),
    ]
    found = compare(before, edit(before, written), written, Catalog.of([before, inner]))
    assert [(d.name, d.rdtype) for d in found.own] == [(wire("out.z."), CNAME)]
    (led,) = (d for d in found.others if d.rdtype == A)
    assert [(owned.owner, owned.rrset.rdtype) for owned in led.after.answer] == [
        (wire("out.z."), CNAME),
        (wire("a.in.z."), A),
    ]


def test_a_large_write_is_compared_in_part() -> None:
    """8.6: What a write changes is told within a bound, and that there is more."""
    before = zone("")
    written = [sets(f"a{n}.b{n}.z.", "A", "192.0.2.1") for n in range(MOST_LISTED + 1)]
    found = compare(before, edit(before, written), written)
    assert (len(found.own), len(found.others), found.complete) == (MOST_LISTED, MOST_LISTED, False)


def test_a_chain_is_told_as_far_as_answers_follow_it() -> None:
    """8.6: names that lead to what changes, however long the chain, and no work for those that no
    answer gets there from."""
    text = "".join(f"d{n} DNAME d{n + 1}\nc{n} CNAME c{n + 1}\n" for n in range(500))
    before = zone(text + "d500 A 192.0.2.1\n")
    for name in ("a.d", "c"):
        written = sets(f"{name}500.z.", "A", "192.0.2.1")
        wanted = [f"{name}{n}.z. A follows {name}{n}.z." for n in range(500 - MOST_STEPS, 500)]
        assert effects(before, written) == wanted


def essence(zone: Zone, name: bytes, rdtype: int) -> tuple[object, ...]:
    """What of an answer a client would notice; NS and SOA of the apex are in most of them."""
    answer = Catalog.of([zone]).lookup_wire(name, rdtype)
    own = [owned for owned in answer.authority if owned.owner.lower() != zone.origin]
    return answer.rcode, answer.answer, own


@given(zones(), changes())
def test_no_answer_changes_that_is_not_told(before: Zone, written: Change) -> None:
    """8.6: Whatever the write: each name whose answer changes is told, or one for it."""
    after = changed(before, written)
    found = compare(before, after, [written] if after is not before else [])
    entries = [*before.entries.items(), *after.entries.items()]
    # A wildcard that is delegated stands for nothing (RFC 4592 4.2 leaves it undefined).
    assume(not any(key.startswith(ASTERISK) and entry.get(2) for key, entry in entries))
    told = {d.name.lower() for d in (*found.own, *found.others)}
    there = {key for key, _ in entries}
    for key in there | {b"\x03new" + key for key in there}:
        for rdtype in (1, 2, 5, 15, 16, 28, 39):
            if essence(before, key, rdtype) != essence(after, key, rdtype):
                assert not found.complete or told & {
                    key,
                    *(ASTERISK + key[at:] for at in starts(key)[1:]),
                }


@given(zones(), st.lists(changes(), min_size=1, max_size=5))
def test_what_is_told_changes(before: Zone, written: list[Change]) -> None:
    """8.6: Nothing is told that does not change, and what the write sets is told apart."""
    after, made = before, []
    for change in written:
        if changed(after, change) is not after:
            after = changed(after, change)
            made.append(change)
    found = compare(before, after, made)
    keys = {(change.owner.lower(), change.rdtype) for change in made}
    for d in (*found.own, *found.others):
        assert (d.effect is None) == ((d.name.lower(), d.rdtype) in keys)
        assert d.before != d.after
