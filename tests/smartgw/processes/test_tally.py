"""Counters of several processes as one."""

import json

from smartgw.errors import Reason
from smartgw.processes.tally import add, exported
from smartgw.proxy.counters import NAMES, Counters


def counted(requests: int) -> Counters:
    counters = Counters()
    counters.requests[2] = requests
    counters.connections = 7
    counters.connections_total = requests
    counters.own_errors[Reason.NO_UPSTREAM] = 3
    counters.duration.observe(0.002)
    return counters


def test_counters_add_up() -> None:
    """11.1: metrics are whole: numbers, by class, by reason and by duration."""
    total = Counters()
    for requests in (10, 5):
        add(total, json.loads(json.dumps(exported(counted(requests)))))
    assert total.requests[2] == 15
    assert total.connections == 14
    assert total.own_errors[Reason.NO_UPSTREAM] == 6
    assert sum(total.duration.counts) == 2
    assert total.duration.total == 0.004


def test_what_a_dead_worker_had_counted_stays() -> None:
    """11.3: totals never fall; the connections of a worker that died are gone."""
    total = Counters()
    add(total, exported(counted(10)), ended=True)
    assert total.requests[2] == 10
    assert total.connections_total == 10
    assert total.connections == 0


def test_every_counter_travels() -> None:
    """11.3: a counter that is added to the data path is summed without being listed here."""
    assert set(exported(Counters())) == set(NAMES)
