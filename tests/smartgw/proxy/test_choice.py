"""choice.py: least outstanding of two random choices, weighted, suspects last; by seeded chance."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.proxy.choice import choose


@dataclass(slots=True)
class Link:
    """What is known of a host."""

    name: int
    weight: int = 100
    outstanding: int = 0
    suspect: bool = False


def links(*weights: int) -> list[Link]:
    """Hosts of these weights."""
    return [Link(name, weight) for name, weight in enumerate(weights)]


def shares_under_load(hosts: Sequence[Link], concurrency: int, rounds: int = 20_000) -> list[float]:
    """Give out requests, `concurrency` of them under way, each ending in a random order.

    Return each host's share of all.
    """
    random = Random(7)
    running: deque[Link] = deque()
    served: Counter[int] = Counter()
    weights = [host.weight for host in hosts]
    sums = tuple(accumulate(weights)) if len(set(weights)) > 1 else ()
    for _ in range(rounds):
        link = choose(hosts, lambda host: host, random.random, sums)
        assert link is not None
        link.outstanding += 1
        served[link.name] += 1
        running.append(link)
        if len(running) >= concurrency:
            running.rotate(random.randrange(concurrency))
            running.popleft().outstanding -= 1
    return [served[host.name] / rounds for host in hosts]


@pytest.mark.parametrize("concurrency", [1, 2, 8, 64, 400])
@pytest.mark.parametrize(
    "weights",
    [
        (1, 1),
        (100, 300),
        (100,) * 10,
        (100,) * 5 + (200,) * 5,
        (10, *[100] * 9),
        (1000, *[100] * 9),
    ],
)
def test_shares_follow_weights(weights: tuple[int, ...], concurrency: int) -> None:
    """3.7: requests are shared out by weight, from one at a time to very many at once."""
    found = shares_under_load(links(*weights), concurrency)
    for weight, share in zip(weights, found, strict=True):
        wanted = weight / sum(weights)
        assert share == pytest.approx(wanted, rel=0.35, abs=0.01)


def test_light_host_is_not_starved_nor_drowned() -> None:
    """3.7: beside one of weight 1000, a host of weight 1 gets about a thousandth."""
    for concurrency in (1, 10, 200):
        light, _ = shares_under_load(links(1, 1000), concurrency, 60_000)
        assert 0.0003 < light < 0.004


def picked(hosts: Sequence[Link], times: int = 200) -> set[int]:
    """The names of those that are ever chosen."""
    random = Random(3)
    sums = tuple(accumulate(host.weight for host in hosts))
    found = (choose(hosts, lambda host: host, random.random, sums) for _ in range(times))
    return {link.name for link in found if link is not None}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Link(0), Link(1), {0, 1}),
        (Link(0, outstanding=3), Link(1, outstanding=3), {0, 1}),
        (Link(0, outstanding=1), Link(1), {1}),
        (Link(0, outstanding=4), Link(1, outstanding=5), {0}),
        (Link(0, 300, 5), Link(1, 100, 2), {0}),
        (Link(0, 300, 9), Link(1, 100, 2), {1}),
        (Link(0, 1000, 900), Link(1, 1, 0), {0}),
        (Link(0, 1000, 1100), Link(1, 1, 0), {1}),
        (Link(0, 1000, 5), Link(1, 1, 1), {0}),
        (Link(0, suspect=True), Link(1, outstanding=1000), {1}),
        (Link(0, 1000, suspect=True), Link(1, 1, 9), {1}),
        (Link(0, suspect=True), Link(1, outstanding=1, suspect=True), {0}),
    ],
)
def test_of_two(first: Link, second: Link, expected: set[int]) -> None:
    """3.7: of two it is the one with fewer outstanding requests for its weight; suspects last."""
    assert picked([first, second]) == expected


def test_few() -> None:
    """3.7: no host, no choice; a single one is it, suspect or not."""
    assert choose([], lambda host: host, Random(1).random) is None
    assert picked([Link(7)]) == {7}
    assert picked([Link(7, suspect=True)]) == {7}


def test_suspects_get_nothing_while_others_live() -> None:
    """3.7: a host that refuses connections is chosen last, however few are left beside it."""
    hosts = [Link(name, suspect=name != 13) for name in range(50)]
    assert picked(hosts) == {13}
    hosts = [Link(name, suspect=name % 2 == 0, outstanding=name % 2) for name in range(10)]
    assert picked(hosts, 1000) == {1, 3, 5, 7, 9}
    assert picked([Link(name, suspect=True) for name in range(5)], 1000) == set(range(5))


def test_only_two_are_looked_at() -> None:
    """1.8: a choice among 10,000 hosts looks at two of them."""
    hosts = links(*[100] * 10_000)
    looked: list[int] = []

    def look(host: Link) -> Link:
        looked.append(host.name)
        return host

    sums = tuple(accumulate(host.weight for host in hosts))
    assert choose(hosts, look, Random(5).random, sums) is not None
    assert len(looked) == len(set(looked)) == 2


LINKS = st.builds(Link, st.integers(0, 9), st.integers(1, 1000), st.integers(0, 5), st.booleans())
DRAWS = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 1 - 2**-53])


@given(st.lists(LINKS, min_size=1, max_size=8), st.lists(DRAWS, min_size=8, max_size=8))
def test_never_worse_than_need_be(hosts: list[Link], draws: list[float]) -> None:
    """3.7: whatever is drawn, someone is chosen, and a suspect only where all are suspect."""
    link = choose(hosts, lambda host: host, iter(draws).__next__)
    assert link is not None
    assert any(link is host for host in hosts)
    assert not link.suspect or all(host.suspect for host in hosts)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=20), DRAWS, DRAWS, st.booleans())
def test_two_different_ones_are_compared(
    weights: list[int], first: float, second: float, by_weight: bool
) -> None:
    """3.7: the two choices are never the same host, so a busy one always meets another."""
    hosts = links(*weights)
    looked: list[int] = []

    def look(host: Link) -> Link:
        looked.append(host.name)
        return host

    shares = tuple(accumulate(weights)) if by_weight else ()
    choose(hosts, look, iter([first, second]).__next__, shares)
    assert len(set(looked)) == 2
