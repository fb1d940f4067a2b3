"""A gateway of several processes, from outside."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.drills.clients import Many, addresses
from tests.gateway import Cluster, Config, Gateway, wait_until
from tests.generations import children, clean, drain, end, gone, metric, status, workers
from tests.servers import alive, command

TWO: Config = {"processes": {"workers": 2, "unready_wait": 0, "drain": 2.0}}


@pytest.fixture(scope="module")
def several() -> Iterator[Cluster]:
    """A cluster of its own, whose one gateway has two workers."""
    cluster = Cluster(enrolled=20)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def pair(several: Cluster) -> Gateway:
    return several.gateway(TWO)


def serving(gateway: Gateway) -> list[int]:
    """The process ids of the workers that serve."""
    return [worker["pid"] for worker in workers(gateway) if worker["serving"]]


def test_two_workers_serve(several: Cluster, pair: Gateway) -> None:
    """11.1: several processes accept from the same sockets; status and metrics are whole."""
    host = several.host()
    pids = serving(pair)
    assert len(set(pids)) == 2
    before = metric(pair, 'smartgw_requests_total{class="2xx"}')
    clients = [pair.downstream() for _ in range(40)]
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
    for client in clients:
        client.send(request)
    assert all(client.answer().status == 200 for client in clients)
    assert metric(pair, 'smartgw_requests_total{class="2xx"}') == before + 40
    assert metric(pair, "smartgw_connections") == 40
    assert sum(worker["connections"] for worker in workers(pair)) == 40
    assert status(pair)["traffic"]["connections"] == 40
    for client in clients:
        client.close()
    wait_until(lambda: metric(pair, "smartgw_connections") == 0)


def test_a_full_worker_leaves_newcomers_to_the_other(several: Cluster) -> None:
    """3.11: a bound on connections holds for each worker, and who finds room at any is served."""
    each = 40
    gateway = several.gateway({**TWO, "limits": {"connections": each}})
    host = several.host()
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
    many = Many(gateway.port)
    try:
        # Two short of what both can hold, since an eighth of each is for when none has room.
        many.add(2 * each - 2, addresses(2 * each), request)
        wait_until(lambda: many.answered() == 2 * each - 2)
        assert many.answers == {"200": 2 * each - 2}
        assert all(worker["connections"] >= each - 2 for worker in workers(gateway))
        many.add(20, addresses(20, first=100), request)
        wait_until(lambda: many.answered() == 2 * each + 18)
        assert many.answers["503"] >= 18
    finally:
        many.close()


def test_a_killed_worker_is_replaced(several: Cluster, pair: Gateway) -> None:
    """11.1: a worker that dies is replaced, its streams alone are lost, and totals never fall."""
    host = several.host()
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
    clients = [pair.downstream() for _ in range(40)]
    for client in clients:
        client.send(request)
        assert client.answer().status == 200
    held = {worker["pid"]: worker["connections"] for worker in workers(pair)}
    before = metric(pair, 'smartgw_requests_total{class="2xx"}')
    victim = min(held, key=lambda pid: held[pid])
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(serving(pair)) == 2 and victim not in serving(pair))
    kept = [client for client in clients if not client.readable(0.0)]
    assert len(kept) == 40 - held[victim]
    for client in kept:
        client.send(request)
        assert client.answer().status == 200
    assert metric(pair, 'smartgw_requests_total{class="2xx"}') == before + len(kept)
    assert sum(worker["restarts"] for worker in workers(pair)) >= 1
    assert pair.ask(host.hostname).status == 200
    for client in clients:
        client.close()


def test_a_worker_that_dies_while_it_starts_is_replaced(several: Cluster) -> None:
    """11.1: also before there was anything to serve; the gateway starts all the same."""
    gateway = Gateway(several, TWO)
    try:
        gateway.spawn()
        wait_until(lambda: _starting(gateway))
        os.kill(_starting(gateway)[0], signal.SIGKILL)
        wait_until(gateway.ready, within=60.0)
        assert len(serving(gateway)) == 2
        assert "was ended by signal 9; replaced" in gateway.log()
    finally:
        gateway.stop()


def test_a_reload_that_is_asked_for_too_early_comes_later(several: Cluster) -> None:
    """11.1: SIGHUP while a gateway starts is heeded once it has started."""
    gateway = Gateway(several, TWO)
    try:
        gateway.spawn()
        wait_until(lambda: _starting(gateway))
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: "was read again and is in force" in gateway.log(), within=60.0)
        wait_until(gateway.ready, within=60.0)
    finally:
        gateway.stop()


def test_no_worker_starts_in_a_drain(several: Cluster) -> None:
    """11.1: whoever dies again and again is waited for, and not started into a drain."""
    gateway = several.gateway(TWO)
    try:
        stays = max(serving(gateway))
        while "replaced in 2.00 s" not in gateway.log():
            for pid in _starting(gateway):
                if pid != stays:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        assert drain(gateway)[0] == 0
        time.sleep(2.5)
        assert _starting(gateway) == [stays]
        assert drain(gateway, "--undo")[0] == 0
        wait_until(lambda: len(serving(gateway)) == 2)
    finally:
        gateway.stop()


def _starting(gateway: Gateway) -> list[int]:
    """The workers of a gateway, whether or not they have begun to serve."""
    return [child for child in sorted(children(gateway.pid)) if "worker" in command(child)]


def test_a_stuck_worker_is_replaced(several: Cluster, pair: Gateway) -> None:
    """11.1: a worker that stands still blocks nobody, and is ended and replaced."""
    victim = serving(pair)[0]
    os.kill(victim, signal.SIGSTOP)
    assert status(pair)["gateway"]["phase"] == "serving"
    assert alive(victim), "whoever waits for it waits until it is ended"
    wait_until(lambda: victim not in serving(pair) and len(serving(pair)) == 2, within=60.0)
    assert not alive(victim)
    # Whoever looks for the cause sees that it was stopped.
    assert re.search(rf"worker \d \(pid {victim}, state T in \w+\) says nothing", pair.log())


def test_a_change_reaches_every_worker(several: Cluster, pair: Gateway) -> None:
    """1.4: a removed enrolment ends routing and connections within 2 s, in every worker."""
    host = several.host()
    clients = [pair.downstream() for _ in range(20)]
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
    for client in clients:
        client.send(request)
        assert client.answer().status == 200
    entry = next(text for text in several.entries if f'"{host.host_id}"' in text)
    several.entries.remove(entry)
    several.write_enrolment()
    wait_until(lambda: pair.state(host.host_id) == "unhealthy")
    time.sleep(0.5)
    for client in clients:
        client.send(request)
        assert client.answer().status in (503, 404)
        client.close()
    several.entries.append(entry)
    several.write_enrolment()
    several.wait_healthy(host)
    answers = [pair.ask(host.hostname).status for _ in range(20)]
    assert answers == [200] * 20


def test_a_host_that_refuses_is_challenged(several: Cluster, pair: Gateway) -> None:
    """3.7: a worker tells which host refused it; that host is challenged at once."""
    host = several.host()
    assert pair.ask(host.hostname).status == 200
    host.upstream.refuse()
    wait_until(lambda: pair.ask(host.hostname).status in (502, 503), within=5.0)
    wait_until(lambda: pair.state(host.host_id) == "unhealthy", within=5.0)
    host.upstream.listen()


def test_no_worker_is_left(several: Cluster) -> None:
    """11.1: workers end with their control process, in order or by SIGKILL."""
    first, second = Gateway(several, TWO), Gateway(several, TWO)
    try:
        for gateway in (first, second):
            gateway.start()
        pids = [serving(first), serving(second)]
        assert set(pids[0]) <= children(first.pid)
        assert end(first) == 0
        gone(pids[0])
        second.kill()
        gone(pids[1])
    finally:
        clean(first, second)


def test_own_hostnames_are_answered(several: Cluster) -> None:
    """3.1: the gateway's own hostnames are served by the control process, whoever accepts."""
    gateway = Gateway(several, {**TWO, "hostnames": ["api.smart-app.test"]})
    try:
        gateway.start()
        answers = [gateway.ask("api.smart-app.test", "/healthz") for _ in range(8)]
        assert [answer.status for answer in answers] == [200] * 8
    finally:
        clean(gateway)
