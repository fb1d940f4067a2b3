"""The forms of a zone in the store (smartgw/state/zone_records.py)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.state.desired import Desired, Difference, Draft, Entry
from smartgw.state.records import MAX_BYTES, Unreadable, decode, encode, key_of
from smartgw.state.zone_records import MOST_CONTENT, ZoneHead, ZonePart, head_key, part_name
from smartgw_dns.packed import MOST_PLACES
from tests.dns.zones import wire

ORIGIN = wire("shop.example.")
NAMES = st.binary(min_size=10, max_size=10).map(part_name)
LABELS = st.binary(min_size=1, max_size=20).map(lambda label: bytes((len(label),)) + label.lower())
ORIGINS = st.lists(LABELS, max_size=6).map(lambda labels: b"".join(labels) + b"\0")
PLACES = st.integers(0, 3).flatmap(
    lambda power: st.lists(
        st.lists(NAMES, max_size=3, unique=True).map(tuple),
        min_size=1 << power,
        max_size=1 << power,
    )
)
COUNTS = st.integers(0, (1 << 32) - 1)
HEADS = st.builds(
    ZoneHead,
    *(ORIGINS, COUNTS, COUNTS, COUNTS),
    st.binary(max_size=200),
    st.just(()) | PLACES.map(tuple),
)
PARTS = st.builds(ZonePart, ORIGINS, NAMES, st.binary(max_size=200))


@given(HEADS | PARTS)
def test_what_is_stored_of_a_zone_is_read_as_it_was(record: ZoneHead | ZonePart) -> None:
    """7.5: two gateways never read a record differently."""
    assert decode(key_of(record), encode(record)) == record


def test_the_largest_that_there_can_be_fit_into_a_value_of_the_bus() -> None:
    """8.6: no zone is too large for the store, whatever its names are."""
    longest = wire_of_longest()
    names = [part_name(number.to_bytes(10, "big")) for number in range(MOST_PLACES)]
    head = ZoneHead(longest, 1, 1, 1, bytes(600), tuple((name,) for name in names))
    part = ZonePart(longest, names[0], bytes(MOST_CONTENT))
    for record in (head, part):
        assert len(encode(record)) <= MAX_BYTES
        assert decode(key_of(record), encode(record)) == record


def wire_of_longest() -> bytes:
    """A name of 255 octets, every one of them to be escaped."""
    labels = [bytes([63]) + b"\x01" * 63] * 3 + [bytes([61]) + b"\x02" * 61]
    return b"".join(labels) + b"\0"


def test_zones_are_listed_by_name() -> None:
    """10.3: keys sort as names do."""
    names = ["a.example.", "a-b.example.", "b.example.", "example.", "."]
    keys = [head_key(wire(name)) for name in names]
    assert [name for _, name in sorted(zip(keys, names, strict=True))] == sorted(names)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"zone": "Shop.example."},
        {"zone": "shop.example"},
        {"zone": "other.example."},
        {"zone": "\\115hop.example."},
        {"serial": -1},
        {"serial": True},
        {"records": 1 << 32},
        {"content": "!"},
        {"content": 1},
        {"content": "A" * 60_000},
        {"places": "x"},
        {"places": [["0123456789abcdef"]] * 3},
        {"places": [["0123456789abcdeX"]]},
        {"places": [["0123456789abcdef"] * 2]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_record_of_another_form_is_left_as_it_is(change: dict[str, Any]) -> None:
    """7.5: what this version cannot read it does not serve in part."""
    head = ZoneHead(ORIGIN, 1, 2, 3, b"abc")
    value = {**json.loads(encode(head)), **change}
    with pytest.raises(Unreadable) as raised:
        decode(head_key(ORIGIN), json.dumps(value).encode())
    assert raised.value.newer == (change == {"v": 2})


def test_what_is_written_of_a_zone_is_told_as_a_change_of_it() -> None:
    """8.4: whoever serves zones hears of heads and parts, and nobody else."""
    part = ZonePart(ORIGIN, part_name(bytes(10)), b"abc")
    head = ZoneHead(ORIGIN, 1, 2, 3, b"abc", ((part.name,),))
    draft = Draft(Desired())
    draft.take(Entry(key_of(part), encode(part), 1, 1.0))
    desired, difference = draft.done(1, "b")
    assert difference == Difference(zones=frozenset((ORIGIN,)))
    draft = Draft(desired)
    draft.take(Entry(key_of(head), encode(head), 2, 1.0))
    desired, difference = draft.done(2, "b")
    assert bool(difference)
    assert list(desired.zones()) == [head]
