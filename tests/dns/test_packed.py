"""A zone as bytes in places, and changed there (dns/smartgw_dns/packed.py)."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartgw_dns import packed
from smartgw_dns.edits import Change, EditRefused, apply, build, edit
from smartgw_dns.packed import Packed, difference, pack, parts, repack
from smartgw_dns.zone import RRset, Zone
from tests.dns.zones import changes, wire, zone

ORIGIN = wire("z.")


def whole(kept: Packed) -> Zone:
    """Build the zone of all that was packed."""
    contents = (kept.lead, *kept.places.values())
    return build(ORIGIN, [change for one in contents for change in difference(b"", one)])


def content(of: Zone) -> list[tuple[bytes, object]]:
    """All that a zone has, in order, owners as they are written."""
    return [(entry.owner, entry.rrsets) for _, entry in of.sorted() if entry.rrsets]


ADDRESS = RRset(1, 300, (b"\xc0\0\2\1",))


@cache
def large(names: int) -> Zone:
    """A zone of so many names."""
    made = [Change(wire(f"h{n}.z."), 1, ADDRESS) for n in range(names)]
    return apply(zone(""), made)


def keeper(kept: Packed) -> Callable[[int], bytes]:
    """What gives the content of a place."""
    return lambda number: kept.places[number]


def merged(kept: Packed, changed: Packed) -> Packed:
    """What a store has after a change."""
    if changed.count != kept.count:
        return changed
    places = {**kept.places, **changed.places}
    return Packed(changed.lead, places, changed.count, changed.size)


@given(st.lists(changes(), max_size=12))
def test_what_is_packed_is_the_same_zone_again(writes: Sequence[Change]) -> None:
    """8.6: a zone that was kept is answered from as before, the case of its names too."""
    made = zone("")
    for write in writes:
        try:
            made = edit(made, [write])
        except EditRefused:
            continue
    again = whole(pack(made))
    assert content(again) == content(made)
    assert (again.serial, again.records) == (made.serial, made.records)


@given(st.lists(changes(), min_size=1, max_size=6), st.integers(0, 1))
@settings(max_examples=50)
def test_a_change_makes_of_the_old_bytes_those_of_the_new_zone(
    writes: Sequence[Change], spread: int
) -> None:
    """8.6: by what was changed of the bytes another gateway makes the very same zone."""
    before = large(2_500 if spread else 3)
    kept = pack(before)
    assert bool(kept.count) == bool(spread)
    try:
        after = edit(before, writes)
    except EditRefused:
        return
    touched = {write.owner.lower() for write in writes} | {ORIGIN}
    changed = repack(kept, keeper(kept), after, touched)
    now = merged(kept, changed)
    assert now.size == pack(after).size == len(now.lead) + sum(map(len, now.places.values()))
    assert content(whole(now)) == content(after)
    assert len(changed.places) <= len(touched)
    told = difference(kept.lead, changed.lead)
    for number, place in changed.places.items():
        told += difference(kept.places[number], place)
    followed = apply(before, told)
    assert content(followed) == content(after)
    assert (followed.serial, followed.records) == (after.serial, after.records)


def test_a_large_zone_lies_in_places_that_a_small_value_holds() -> None:
    """8.6: a record more in a large zone costs one place and the SOA, not the zone."""
    before = large(20_000)
    kept = pack(before)
    assert kept.count == 32
    assert max(map(len, kept.places.values())) < 42_000
    after = edit(before, [Change(wire("new.z."), 1, ADDRESS)])
    changed = repack(kept, keeper(kept), after, [wire("new.z."), ORIGIN])
    assert len(changed.places) <= 2
    assert changed.lead != kept.lead


def test_a_zone_that_grows_or_shrinks_is_spread_anew() -> None:
    """8.6: places stay of a size that is quick to write."""
    small = large(1_200)
    kept = pack(small)
    assert kept.count == 0
    grown = large(2_500)
    kept = repack(kept, keeper(kept), grown, [])
    assert kept.count == 4
    shrunk = repack(kept, keeper(kept), small, [wire(f"h{n}.z.") for n in range(2_500)])
    assert (shrunk.count, shrunk.size) == (4, pack(small).size)
    tiny = large(3)
    gone = repack(kept, keeper(kept), tiny, [wire(f"h{n}.z.") for n in range(2_500)])
    assert (gone.count, gone.places) == (0, {})


def test_an_rrset_as_large_as_they_come_is_kept() -> None:
    """8.6: what an answer can hold a zone can keep."""
    text = " ".join('"' + "x" * 250 + '"' for _ in range(250))
    made = zone(f"big TXT {text}\n")
    kept = pack(made)
    assert kept.count == 4
    assert content(whole(kept)) == content(made)


@pytest.mark.parametrize(
    "content",
    [
        b"\x05\x01a\x01z",
        b"\x05\x01a\x01z\0\0\x01\0\0\1\x2c\0\x01\0\x05abc",
        b"\x05\x01a\x01z\0\0\x01\0\0\1\x2c\0\x01\0\x03abc",
        b"\x05\x01a\x01z\0\0\x0f\0\0\1\x2c\0\x01\0\x03\0\x01\xff",
        b"\x05\x01a\x01z\0\0\x0f\0\0\1\x2c\0\x01\0\x04\0\x01\xc0\x00",
        b"\x05\x01a\x01z\x05\0\x01\0\0\1\x2c\0\x01\0\x04abcd",
        b"\x05\xc0a\x01z\0\0\x01\0\0\1\x2c\0\x01\0\x04abcd",
        b"\x05\x01a\x01z\0\0\x01\xff\xff\xff\xff\0\x01\0\x04abcd",
        b"\x05\x01a\x01z\0\0\x01\0\0\1\x2c\0\0",
        b"\x05\x01a\x01z\0\0\x01\0\0\1\x2c\0\x01\0\x04abcd" * 2,
    ],
    ids=[
        *("cut name", "cut record", "short address", "cut name in rdata", "pointer in rdata"),
        *("no root", "long label", "ttl", "no record", "twice"),
    ],
)
def test_what_is_not_a_packed_zone_is_refused(content: bytes) -> None:
    """8.6: what was not written by a gateway is never answered with."""
    with pytest.raises(ValueError, match=r"\w"):
        difference(b"", content)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """8.6: and nothing else happens."""
    try:
        told = [packed.unpack(one) for one in parts(data).values()]
    except ValueError:
        return
    assert all(change.rrset for change in told)
