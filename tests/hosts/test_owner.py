"""owner.py: the formula, against the vectors that every implementation must meet."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.owner import epoch, owner, place, sorted_ids

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data/owner.json").read_text())
IDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1)


@pytest.mark.parametrize("count", ["1", "2", "4", "7"])
@pytest.mark.parametrize("vector", CASES["vectors"], ids=lambda v: v["app_id"][:20] or "empty")
def test_vectors(vector: dict[str, Any], count: str) -> None:
    """4.1: owner(app_id) = S[u32be(sha256(utf8(app_id))[0:4]) mod N]: vectors for N = 1, 2, 4, 7
    (some of its strings are not valid ids; the function takes any).
    """
    ids = CASES["clusters"][count]
    app_id = vector["app_id"]
    assert hashlib.sha256(app_id.encode()).hexdigest()[:8] == vector["sha256_first4"]
    assert place(app_id, int(count)) == vector["index"][count]
    assert owner(app_id, reversed(ids)) == ids[vector["index"][count]]


@pytest.mark.parametrize("case", CASES["sorting"])
def test_ids_are_sorted_by_their_bytes(case: dict[str, list[str]]) -> None:
    """4.1: S is the ids sorted by their bytes, ascending."""
    assert list(sorted_ids(case["given"])) == case["sorted"]


def test_owners_are_spread_evenly() -> None:
    """4.1: 100,000 ids at N = 7 spread within 3 % of even."""
    ids = [f"c{number}" for number in range(7)]
    owners = Counter(owner(f"app-{number}", ids) for number in range(100_000))
    assert set(owners) == set(ids)
    assert all(abs(count * 7 / 100_000 - 1) < 0.03 for count in owners.values())


@given(st.text(st.characters(exclude_categories=["Cs"])), IDS, st.randoms())
def test_the_order_of_the_list_changes_nothing(app_id: str, ids: list[str], random: Any) -> None:
    """4.1: a list in any order, with an id given twice, has the same owners and the same epoch."""
    shuffled = [*ids, ids[0]]
    random.shuffle(shuffled)
    assert owner(app_id, shuffled) == owner(app_id, ids)
    assert epoch(shuffled) == epoch(ids)
    assert owner(app_id, ids) in ids


@given(IDS)
def test_ids_sort_as_their_bytes_do(ids: list[str]) -> None:
    """4.1: sorted by bytes and not by what a locale, a length or UTF-16 would say."""
    encoded = [text.encode() for text in sorted_ids(ids)]
    assert encoded == sorted({text.encode() for text in ids})


def test_the_epoch_is_of_the_ids() -> None:
    """4.3: the epoch is the first 16 hex digits of sha256 over the sorted ids joined by `\\n`."""
    assert epoch(["b", "a"]) == hashlib.sha256(b"a\nb").hexdigest()[:16]
    assert epoch([]) == "e3b0c44298fc1c14"
    assert epoch(["a", "b"]) != epoch(["a", "b", "c"])


def test_what_has_no_owner_is_said() -> None:
    """4.1: without clusters, or without UTF-8, there is no owner to guess."""
    with pytest.raises(ValueError, match="without clusters"):
        owner("shop", [])
    with pytest.raises(ValueError, match="surrogates"):
        owner("\ud800", ["a"])
    with pytest.raises(ValueError, match="surrogates"):
        sorted_ids(["a", "\ud800"])
