"""A large mapping that never changes (smartgw/routing/shards.py)."""

from hypothesis import given
from hypothesis import strategies as st

from smartgw.routing.shards import Shards

CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.one_of(st.none(), st.integers()))), max_size=8
)


@given(CHANGES)
def test_it_is_a_mapping_and_the_ones_before_stay_as_they_are(
    changes: list[list[tuple[int, int | None]]],
) -> None:
    """Snapshot: the whole routing table at one instant, immutable."""
    shards: Shards[str, int] = Shards()
    proper: dict[str, int] = {}
    before: list[tuple[Shards[str, int], dict[str, int]]] = []
    for some in changes:
        before.append((shards, dict(proper)))
        edit = shards.edit()
        for number, value in some:
            key = str(number)
            if value is None:
                edit.drop(key)
                proper.pop(key, None)
            else:
                edit.put(key, value)
                proper[key] = value
            assert edit.get(key) == proper.get(key)
        shards = edit.done()
    for mapping, expected in [*before, (shards, proper)]:
        assert dict(mapping.items()) == expected
        assert len(mapping) == len(expected)
        assert sorted(mapping) == sorted(expected)
        assert sorted(mapping.values()) == sorted(expected.values())
        assert all(key in mapping and mapping.get(key) == expected[key] for key in expected)
        assert "absent" not in mapping
        assert mapping.get("absent", -1) == -1


def test_an_edit_that_changes_nothing_is_the_same_mapping() -> None:
    """A change costs the change: none costs nothing."""
    shards: Shards[str, int] = Shards()
    edit = shards.edit()
    edit.drop("absent")
    assert edit.done() is shards
