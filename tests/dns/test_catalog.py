"""Proves smartgw_dns/catalog.py: which zone answers."""

import dns.name
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns.catalog import Catalog
from smartgw_dns.names import within
from smartgw_dns.zone import Zone
from tests.dns.zones import NAMES, ask, wire, zone

ZONES = {name: zone("", name) for name in ("z.", "a.z.", "b.a.z.", "*.z.", "out.")}


def test_the_longest_zone_answers() -> None:
    """8.3: The longest matching zone answers, whatever was there first."""
    catalog = Catalog.of(ZONES.values())
    for name, origin in [("x.b.A.z.", "b.a.z."), ("x.a.z.", "a.z."), ("q.z.", "z."), ("y.", "")]:
        found = catalog.find(wire(name).lower(), 1)
        assert (found.origin if found else b"") == (wire(origin) if origin else b"")


def test_zones_come_and_go() -> None:
    """8: A catalog is immutable, and a change makes another."""
    one = Catalog.of([ZONES["z."], ZONES["a.z."]])
    two = one.changed(gone=[wire("a.z.")])
    assert ask("x.a.z. A", *one) == "NXDOMAIN | AA | ^a.z. SOA 60"
    assert ask("x.a.z. A", *two) == "NXDOMAIN | AA | ^z. SOA 60"
    assert one.zones.size == 2
    assert two.changed(gone=[wire("nobody."), wire("z.")]).lookup(dns.name.root, 1).rcode == 5


def test_the_root_is_a_zone_like_any() -> None:
    """8.3: A catalog with the root refuses nothing."""
    root = zone("", ".")
    assert ask("x.y. A", root) == "NXDOMAIN | AA | ^. SOA 60"
    assert ask(". DS", root) == "NOERROR | AA | ^. SOA 60"


@given(st.lists(st.sampled_from(sorted(ZONES)), unique=True), NAMES, st.sampled_from([1, 43]))
def test_find_is_the_longest_match(origins: list[str], name: bytes, rdtype: int) -> None:
    """8.3: The longest match by search through all, and for DS the one above."""
    key = name.lower()
    zones: list[Zone] = [ZONES[origin] for origin in origins]
    inside = sorted((z for z in zones if within(key, z.origin)), key=lambda z: len(z.origin))
    above = [z for z in inside if z.origin != key or rdtype != 43] or inside
    assert Catalog.of(zones).find(key, rdtype) is (above[-1] if above else None)
