"""Limits of requests that one cluster forwards to another (contract 6.2, 6.5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.federation import Federation
from tests.gateway import wait_until
from tests.smartgw.proxy.test_limits import ask, numbers, statuses

LIMIT = 12


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder: Path = tmp_path_factory.mktemp("limits")
    settings = {"rates": {"requests": LIMIT}, "proxy": {"trusted": ["127.0.0.1/32"]}}
    with Federation(folder, settings=settings) as three:
        yield three


def test_a_caller_is_charged_where_it_is_served(three: Federation) -> None:
    """6.5: by whichever gateway it comes, a caller has one window in the cluster that serves it."""
    app = three.app("c2")
    three.host("c2", app)
    hostname = three.hostname(app)
    caller = "X-Forwarded-For: 192.0.2.1"
    answers = [
        answer
        for at in ("c1", "c2", "c3")
        for answer in ask(three.gateways[at], hostname, caller, count=4)
    ]
    assert statuses(answers) == [200] * LIMIT
    assert [numbers(answer)[:2] for answer in answers] == [
        (LIMIT, left) for left in range(LIMIT - 1, -1, -1)
    ]
    for at in ("c1", "c2", "c3"):
        (refused,) = ask(three.gateways[at], hostname, caller)
        assert refused.status == 429
        assert numbers(refused)[:2] == (LIMIT, 0)
        assert int(refused.one("retry-after")) <= 60
    # Another caller by the same gateways is another.
    assert statuses(ask(three.gateways["c1"], hostname, "X-Forwarded-For: 192.0.2.2")) == [200]


def test_no_gateway_is_a_free_amplifier(three: Federation) -> None:
    """6.5: the entry gateway counts a forward in its own window, and stops what is too much."""
    app = three.app("c2")
    host = three.host("c2", app)
    caller = "X-Forwarded-For: 192.0.2.3"
    gateway = three.gateways["c3"]
    answers = ask(gateway, three.hostname(app), caller, count=LIMIT + 5)
    assert statuses(answers) == [200] * LIMIT + [429] * 5
    assert len(host.upstream.requests) == LIMIT
    received = three.metric("c2", "smartgw_marks_total")
    ask(gateway, three.hostname(app), caller, count=5)
    assert three.metric("c2", "smartgw_marks_total") == received
    wait_until(lambda: three.metric("c3", 'smartgw_limited_total{window="app"}') >= 10)
