"""Proves smartgw_dns/lint.py: advice on zones."""

import pytest
from hypothesis import given

from smartgw_dns.lint import lint
from smartgw_dns.names import text_of
from smartgw_dns.zone import Zone
from tests.dns.zones import zone, zones


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a A 192.0.2.1\nm MX 1 a\ns NS ns.s\nns.s A 192.0.2.1\nc CNAME a\no CNAME y.\n", []),
        ("a CNAME b\nb CNAME a\nc CNAME a\n", ["a.z. loop", "b.z. loop", "c.z. loop"]),
        ("a CNAME b\n", ["a.z. leads_nowhere"]),
        ("s NS ns.y.\nx.s TXT x\ng.s A 192.0.2.1\n", ["x.s.z. hidden"]),
        ("d DNAME y.\nx.d A 192.0.2.1\n", ["x.d.z. hidden"]),
        ("s NS ns.s\n", ["s.z. no_glue"]),
        ("m MX 1 a\nv SRV 1 1 1 b\nb TXT x\n", ["m.z. no_address", "v.z. no_address"]),
        ("m MX 1 a\na CNAME b\nb A 192.0.2.1\n", ["m.z. target_is_alias"]),
        ("m MX 1 x.w\n*.w A 192.0.2.1\nn MX 0 .\n", []),
        ("* NS ns.y.\n", ["*.z. undefined_wildcard"]),
        ("* A 192.0.2.1\n_a.b.www TXT x\n", ["www.z. wildcard_shadowed"]),
        ("@ NS ns\n", ["z. no_address"]),
    ],
)
def test_what_is_likely_not_meant_is_advised(text: str, wanted: list[str]) -> None:
    """8.6: An import says what is allowed and likely wrong: loops, hidden names, missing glue."""
    found = list(lint(zone(text)))
    assert [f"{text_of(f.name)} {f.advice.value}" for f in found] == wanted
    assert all(f.message.startswith(text_of(f.name)) for f in found)


@given(zones())
def test_any_zone_can_be_advised_on(zone: Zone) -> None:
    """8.6: Advice refuses nothing, whatever the zone."""
    assert all(zone.entries.get(found.name.lower()) for found in lint(zone))
