"""Proves smartgw_dns/names.py: names in wire form."""

import dns.name
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns.names import key_of, name_of, order, parent, starts, text_of, wire_of, within

LABELS = st.lists(st.binary(min_size=1, max_size=63), max_size=3)
NAMES = LABELS.map(lambda labels: dns.name.Name([*labels, b""]))


@given(NAMES, NAMES)
def test_a_wire_form_is_what_dnspython_makes_of_a_name(
    one: dns.name.Name, two: dns.name.Name
) -> None:
    """8.3: Names of any octets, matched without case, their case kept."""
    wire = wire_of(one)
    assert wire == one.to_wire()
    assert name_of(wire).labels == one.labels
    assert dns.name.from_text(text_of(wire)).labels == one.labels
    assert (key_of(one) == key_of(two)) == (one == two)
    assert within(key_of(one), key_of(two)) == one.is_subdomain(two)
    assert (order(key_of(one)) < order(key_of(two))) == (one < two)
    assert len(starts(wire)) == len(one) - 1
    if one != dns.name.root:
        assert name_of(parent(wire)) == one.parent()


@given(NAMES, NAMES)
def test_within_sees_no_label_inside_another(one: dns.name.Name, two: dns.name.Name) -> None:
    """8.3: A name that only ends in the same octets is not within."""
    octets = wire_of(two)[:-1]
    if 0 < len(octets) < 60:
        inside = wire_of(dns.name.Name([b"x" + octets, b""]))
        assert not within(inside, wire_of(two))


def test_a_relative_name_has_no_wire_form() -> None:
    """8: A name in a zone is absolute."""
    with pytest.raises(ValueError, match="not absolute"):
        wire_of(dns.name.from_text("a", None))
