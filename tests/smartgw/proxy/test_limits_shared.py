"""Several gateways that count together in a real Valkey, and without it (contract 6.1, 6.6)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from tests.gateway import Cluster, Gateway, Host, wait_until
from tests.generations import metric
from tests.relays import Relay
from tests.servers import Valkey
from tests.smartgw.proxy.test_limits import ask, new_caller, numbers, statuses

BEHIND = {"proxy": {"trusted": ["127.0.0.1/32"]}}


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture(scope="module")
def relay(valkey: Valkey) -> Iterator[Relay]:
    with Relay(valkey.port) as relay:
        yield relay


@pytest.fixture(scope="module")
def place() -> Iterator[Cluster]:
    cluster = Cluster("shared", enrolled=40)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def three(place: Cluster, relay: Relay) -> list[Gateway]:
    """Three gateways with the usual limits and one store."""
    changes = {
        "rates": {"requests": 600, "unknown": 100, "own": 600},
        # A busy machine must not make a check late: what is late is counted by one process alone.
        "store": {"servers": [f"valkey://127.0.0.1:{relay.port}"], "budget": 1},
        **BEHIND,
    }
    return [place.gateway(changes) for _ in range(3)]


@pytest.fixture(autouse=True)
def settled(three: list[Gateway]) -> None:
    """Each test finds all gateways asking the store."""
    wait_until(lambda: not any(metric(gateway, "smartgw_store_away") for gateway in three))


def at_once(gateways: list[Gateway], host: Host, caller: str, callers: int, each: int) -> list[int]:
    """Have so many clients ask at once, each on a connection of its own; returns the statuses."""
    found: list[int] = []
    lock = threading.Lock()
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n{caller}\r\n\r\n".encode()

    def run(gateway: Gateway) -> None:
        with gateway.downstream() as client:
            for _ in range(each):
                client.send(request)
                status = client.answer().status
                with lock:
                    found.append(status)

    threads = [
        threading.Thread(target=run, args=(gateways[n % len(gateways)],)) for n in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("time", range(2))
def test_50_callers_over_3_processes(place: Cluster, three: list[Gateway], time: int) -> None:
    """6.1: 50 callers of one key over 3 processes with 600 left: exactly 600 are admitted."""
    host = place.host()
    found = at_once(three, host, new_caller(), 50, 14)
    assert found.count(200) == 600
    assert found.count(429) == 100


def test_what_one_admits_the_others_know(place: Cluster, three: list[Gateway]) -> None:
    """6.1: the count is the cluster's, shared by its gateways; preflights are told it, too."""
    host = place.host()
    caller = new_caller()
    for number, gateway in enumerate(three * 2):
        (answer,) = ask(gateway, host.hostname, caller)
        assert numbers(answer)[:2] == (600, 599 - number)
    preflight = (caller, "Origin: https://a.example", "Access-Control-Request-Method: PUT")
    for gateway in three:
        answer = gateway.ask(host.hostname, "/", "OPTIONS", *preflight)
        assert answer.status == 204
        assert numbers(answer)[:2] == (600, 594)


def test_unknown_names_are_the_clusters(three: list[Gateway]) -> None:
    """6.4: one counter for all names that no app has, shared by the gateways."""
    caller = new_caller()
    found = [
        ask(three[number % 3], f"none-{number}.smart-app.test", caller)[0].status
        for number in range(103)
    ]
    assert found == [404] * 100 + [429] * 3


def test_a_flood_of_refused_requests_never_reaches_the_store(
    place: Cluster, three: list[Gateway]
) -> None:
    """6.6: who was refused is refused until the time that was told, without asking."""
    host = place.host()
    caller = new_caller()
    gateway = three[0]
    assert statuses(ask(gateway, host.hostname, caller, count=601)) == [200] * 600 + [429]
    before = metric(gateway, "smartgw_store_checks_total")
    assert set(statuses(ask(gateway, host.hostname, caller, count=200))) == {429}
    assert metric(gateway, "smartgw_store_checks_total") == before


def test_apps_are_served_while_the_store_is_away(
    place: Cluster, three: list[Gateway], valkey: Valkey
) -> None:
    """R46: the store is down: apps are served, nobody waits, each process counts alone; it is
    shown, and used again within 2 s of its return.
    """
    host = place.host()
    caller = new_caller()
    gateway = three[0]
    assert numbers(ask(gateway, host.hostname, caller, count=3)[-1])[1] == 597
    valkey.kill()
    try:
        wait_until(lambda: metric(gateway, "smartgw_store_away") == 1)
        start = time.monotonic()
        answers = ask(gateway, host.hostname, caller, count=100)
        assert time.monotonic() - start < 5
        assert statuses(answers) == [200] * 100
        # What it had admitted itself, it has not forgotten.
        assert numbers(answers[0])[1] == 596
        assert metric(gateway, "smartgw_limit_alone_total") >= 100
        status, body = gateway.internal("/readyz")
        assert status == 200
        assert any("store" in line for line in json.loads(body)["degraded"])
    finally:
        valkey.start()
    returned = time.monotonic()
    wait_until(lambda: metric(gateway, "smartgw_store_away") == 0)
    assert time.monotonic() - returned < 2.5
    # The store knows nothing of before: whoever admitted something still counts it.
    assert statuses(ask(gateway, host.hostname, caller, count=500)).count(200) == 497


def test_a_store_that_is_slow_is_left_alone(
    place: Cluster, three: list[Gateway], relay: Relay
) -> None:
    """6.6: slow beyond the budget: some wait for as long, then nobody."""
    host = place.host()
    caller = new_caller()
    gateway = three[0]
    relay.delay = 1.6
    try:
        ask(gateway, host.hostname, caller)
        wait_until(lambda: metric(gateway, "smartgw_store_away") == 1)
        start = time.monotonic()
        assert statuses(ask(gateway, host.hostname, caller, count=50)) == [200] * 50
        assert time.monotonic() - start < 2
        assert metric(gateway, 'smartgw_store_faults_total{reason="late"}') >= 1
    finally:
        relay.delay = 0.0


def test_a_client_that_leaves_while_it_waits(
    place: Cluster, three: list[Gateway], valkey: Valkey
) -> None:
    """6.6: who goes away, or sends nonsense, while the store is asked harms nobody."""
    host = place.host()
    gateway = three[0]
    request = f"POST / HTTP/1.1\r\nHost: {host.hostname}\r\nTransfer-Encoding: chunked\r\n\r\n"
    valkey.freeze()
    try:
        with gateway.downstream() as client:
            client.send(request.encode())
            client.reset()
        with gateway.downstream() as client:
            client.send(request.encode())
            time.sleep(0.02)
            client.send(b"nonsense\r\n")
            answer = client.answer()
            assert answer.status == 400
            assert numbers(answer)[0] == 600
    finally:
        valkey.thaw()
    assert statuses(ask(gateway, host.hostname)) == [200]
    assert "Traceback" not in gateway.log()
