"""SIGHUP, and sockets that a service manager passes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway import Cluster, Gateway, wait_until
from tests.generations import Activated, clean, end, status


@pytest.fixture(scope="module")
def reloading() -> Iterator[Cluster]:
    """A cluster whose gateway's configuration changes."""
    cluster = Cluster(enrolled=20)
    try:
        yield cluster
    finally:
        cluster.stop()


def hang_up(gateway: Gateway, word: str) -> None:
    """Send SIGHUP and wait until the log has one more `word`."""
    before = gateway.log().count(word)
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: gateway.log().count(word) > before, what=gateway.log())


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup(reloading: Cluster, tmp_path: Path, workers: int) -> None:
    """11.1: SIGHUP puts a new configuration in force without new sockets, names what it cannot
    change, and reopens the access log; a bad file leaves the old one in force and says so.
    """
    log = tmp_path / "access.log"
    gateway = Gateway(
        reloading,
        {
            "processes": {"unready_wait": 0, "workers": workers},
            "log": {"access": str(log)},
            "limits": {"target_bytes": 4000},
        },
    )
    try:
        gateway.start()
        reloading.gateways = [gateway]
        host = reloading.host()
        good = gateway.config.read_text()
        with gateway.downstream() as client:
            request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
            client.send(request)
            assert client.answer().status == 200

            changed = good.replace('"smart-app.test", ', '"smart-app.test", "other.test", ')
            changed = changed.replace("target_bytes = 4000", "target_bytes = 100")
            changed = changed.replace("heartbeat = 1.0", "heartbeat = 2.0")
            gateway.config.write_text(changed)
            os.rename(log, tmp_path / "access.log.1")
            hang_up(gateway, "in force only after the next start: discovery.heartbeat")
            wait_until(lambda: gateway.ask(f"{host.app}.other.test").status == 200)
            assert gateway.ask(host.hostname, "/" + "x" * 200).status == 414
            assert status(gateway)["gateway"]["base_domains"][1] == "other.test"
            client.send(request)
            assert client.answer().status == 200, "a connection goes on over it"
            wait_until(lambda: log.exists() and host.app in log.read_text())

        gateway.config.write_text(good.replace("target_bytes = 4000", "target_bytes = true"))
        hang_up(gateway, "the configuration in force stays")
        assert "limits.target_bytes" in gateway.log()
        assert gateway.ask(f"{host.app}.other.test").status == 200

        gateway.config.write_text(good)
        hang_up(gateway, "is in force")
        wait_until(lambda: gateway.ask(f"{host.app}.other.test").status == 404)
        assert gateway.ask(host.hostname, "/" + "x" * 200).status == 200
        assert end(gateway) == 0
    finally:
        reloading.gateways = []
        clean(gateway)


def test_sighup_changes_the_enrolment_file(reloading: Cluster, tmp_path: Path) -> None:
    """11.1, 1.4: another enrolment file is followed from then on; a bad one changes nothing."""
    gateway = Gateway(reloading)
    try:
        gateway.start()
        reloading.gateways = [gateway]
        host = reloading.host()
        good = gateway.config.read_text()
        other = tmp_path / "other.toml"
        other.write_text("[[host]]\nid = 1\n")
        gateway.config.write_text(good.replace(str(reloading.enrolment), str(other)))
        hang_up(gateway, "the configuration in force stays")
        assert gateway.state(host.host_id) == "healthy"
        other.write_text("")
        hang_up(gateway, "is in force")
        wait_until(lambda: gateway.state(host.host_id) == "unhealthy")
        other.write_text("\n".join(reloading.entries))
        wait_until(lambda: gateway.state(host.host_id) == "healthy", within=5.0)
    finally:
        reloading.gateways = []
        clean(gateway)


def test_socket_activation(reloading: Cluster) -> None:
    """11.1: sockets of the service manager (LISTEN_FDS, named http and internal) are listened on
    instead of those of the file, and outlive the gateway.
    """
    gateway = Activated(reloading, {"processes": {"unready_wait": 0, "workers": 2}})
    try:
        gateway.start()
        reloading.gateways = [gateway]
        host = reloading.host()
        assert gateway.ask(host.hostname).status == 200
        assert end(gateway) == 0
        with gateway.downstream() as client:
            client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
            gateway.start()
            assert client.answer().status == 200, "it waited in the queue"
        assert gateway.ask(host.hostname).status == 200
    finally:
        reloading.gateways = []
        clean(gateway)
