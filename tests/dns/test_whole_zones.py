"""What the beginning and end of a zone changes (dns/smartgw_dns/whole_zones.py)."""

from smartgw_dns.catalog import Catalog
from smartgw_dns.changes import Differences, Effect
from smartgw_dns.shown import difference_json
from smartgw_dns.whole_zones import compare_whole
from smartgw_dns.zone import type_text
from tests.dns.zones import zone

ABOVE = zone("www A 192.0.2.1\nwww.sub A 192.0.2.2\nmail.sub MX 1 www\n*.sub A 192.0.2.9\n")
SUB = zone("www A 192.0.2.2\nnew A 192.0.2.4\n", "sub.z.")


def told(differences: Differences) -> tuple[list[str], list[str]]:
    """Names and types of what differs, of its own and of others."""
    own, others = (
        [f"{difference_json(d)['name']} {type_text(d.rdtype)}" for d in some]
        for some in (differences.own, differences.others)
    )
    return own, others


def test_a_new_zone_takes_names_over_from_the_one_above() -> None:
    """8.6: a write that changes answers of other names says which."""
    found = compare_whole(Catalog.of([ABOVE]), None, SUB)
    assert told(found) == (
        ["sub.z. NS", "sub.z. SOA", "new.sub.z. A"],
        ["*.sub.z. A", "mail.sub.z. MX"],
    )
    assert {d.effect for d in found.others} == {Effect.MOVED}
    shown = difference_json(found.others[1])
    assert shown["before"] == {
        "status": "NOERROR",
        "records": ["mail.sub.z. 300 MX 1 www.z."],
    }
    assert shown["after"] == {"status": "NXDOMAIN", "records": []}
    assert shown["by"] == "z."
    assert found.complete


def test_a_zone_that_ends_leaves_names_to_the_one_above() -> None:
    """8.6: and the other way round; without one above they are refused."""
    both = Catalog.of([ABOVE, SUB])
    own, others = told(compare_whole(both, SUB, None))
    assert own == ["sub.z. NS", "sub.z. SOA", "new.sub.z. A"]
    assert others == ["*.sub.z. A", "mail.sub.z. MX"]
    alone = compare_whole(Catalog.of([SUB]), SUB, None)
    assert alone.others == ()
    assert {difference_json(d)["after"]["status"] for d in alone.own} == {"REFUSED"}


def test_a_large_zone_is_told_in_part() -> None:
    """8.6: what is listed is bounded, and it is said that there is more."""
    large = zone("".join(f"h{n} A 192.0.2.1\n" for n in range(600)))
    found = compare_whole(Catalog(), None, large)
    assert (len(found.own), found.complete) == (500, False)
