"""Proves smartgw_dns/table.py: maps that share nearly all with the map they came from."""

from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns.table import Table

KEYS = st.binary(min_size=1, max_size=2)
CHANGES = st.dictionaries(KEYS, st.one_of(st.none(), st.integers()), max_size=300)


@given(st.lists(CHANGES, max_size=6))
def test_a_table_is_what_a_dict_would_be_and_never_changes(rounds: list[dict[bytes, int]]) -> None:
    """8: Zones are immutable and edited to a new version."""
    table: Table[int] = Table()
    plain: dict[bytes, int] = {}
    versions = [(table, dict(plain))]
    for changes in rounds:
        table = table.changed(changes)
        plain.update(changes)
        plain = {key: value for key, value in plain.items() if value is not None}
        versions.append((table, dict(plain)))
    for version, expected in versions:
        assert dict(version.items()) == expected
        assert version.size == len(expected)
        assert all(version.get(key) == value for key, value in expected.items())
        assert version.get(b"none of them") is None


def test_a_change_copies_one_part_in_a_large_table() -> None:
    """8: A change shares its structure with the version before."""
    empty: Table[int] = Table()
    before = empty.changed({b"%d" % n: n for n in range(100_000)})
    after = before.changed({b"500": -1})
    shared = sum(a is b for a, b in zip(before._parts, after._parts, strict=True))
    assert shared == len(before._parts) - 1
    assert max(map(len, before._parts)) < 150
