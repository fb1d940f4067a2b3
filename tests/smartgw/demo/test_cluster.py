"""The plan of a demo: ports, files and configurations that the gateway takes."""

import socket
import stat
from pathlib import Path

import pytest

from smartgw.cli.keygen import enrolment_entry
from smartgw.config import load
from smartgw.demo.app import Counter
from smartgw.demo.cluster import APPS, Ports, plan
from smartgw.demo.issuer import write_issuer
from smartgw.routing.reserved import Reserved
from smartgw_hosts import enrolment, keyfile


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "127.0.0.2"])
def test_a_port_in_use_at_any_address_is_not_chosen(address: str) -> None:
    """12.1: free ports where the wanted one is taken, also on a wildcard address."""
    with socket.create_server((address, 0)) as taken:
        wanted = taken.getsockname()[1]
        assert Ports().choose(wanted) != wanted


def test_a_port_is_chosen_once() -> None:
    """12.1: the wanted port where it is free, and never the same one twice."""
    ports = Ports()
    first = ports.choose()
    assert Ports().choose(first) == first
    assert ports.choose(first) != first
    assert 0 < ports.choose(65536 + 80) < 65536


def test_the_gateway_and_the_enrolment_take_what_is_written(tmp_path: Path) -> None:
    """1.4, 11.5: every cluster's configuration is valid, and enrols the keys of its hosts."""
    clusters = plan(3, 2, 0, tmp_path)
    write_issuer(tmp_path)
    for cluster in clusters:
        cluster.write_files(clusters)
        settings = load(cluster.file("gateway.toml"), {})
        assert settings.cluster == cluster.cluster_id
        assert settings.listen.http == (cluster.http,)
        # 12.1: each gateway prefers its own bus server.
        assert settings.bus.servers[0] == f"nats://{cluster.nats}"
        assert len(settings.bus.servers) == 3
        # The state is common to all: an app registered at any must not be called as one's API.
        reserved = Reserved.of(settings.base_domains, settings.hostnames)
        for other in clusters:
            assert reserved.has_label(other.api_hostname.partition(".")[0])
        assert settings.hostnames[0] == cluster.api_hostname
        entries = enrolment.parse(cluster.file("enrolment.toml").read_text())
        assert [entry.host_id for entry in entries] == list(cluster.host_ids)
        for entry in entries:
            key = keyfile.load(tmp_path / f"{entry.host_id}.seed").public_key
            assert (entry.key, entry.exact_apps) == (key, APPS)
        assert stat.S_IMODE(cluster.file("gateway.toml").stat().st_mode) == 0o600
        # The nats-servers form one cluster: each knows the others, not itself.
        conf = cluster.file("nats.conf").read_text()
        assert conf.count("nats-route://") == 2


def test_hosts_that_the_user_enrolled_stay(tmp_path: Path) -> None:
    """12.1: a demo that starts again keeps entries that are not its own, and its own once."""
    (cluster,) = plan(1, 2, 0, tmp_path)
    cluster.write_files([cluster])
    path = cluster.file("enrolment.toml")
    key = keyfile.generate(tmp_path / "mine.seed").public_key
    entry = enrolment_entry("mine", key, cluster.cluster_id, ["mine", "m-*"])
    with path.open("a") as file:
        file.write(entry + "expires = 2037-01-01T00:00:00Z\n")
    before = enrolment.parse(path.read_text())[-1]
    for hosts in (1, 2):
        (cluster,) = plan(1, hosts, 0, tmp_path)
        cluster.write_files([cluster])
        entries = enrolment.parse(path.read_text())
        assert [entry.host_id for entry in entries] == [*cluster.host_ids, "mine"]
        assert entries[-1] == before
    path.write_text("[[host]]\nid = ")
    cluster.write_files([cluster])
    assert len(enrolment.parse(path.read_text())) == 2
    assert path.with_name(path.name + ".refused").exists()


def test_a_counter_counts_for_its_cluster_and_app(tmp_path: Path) -> None:
    """12.3: a count kept per cluster, shared by its hosts."""
    one, other = Counter(tmp_path, "east"), Counter(tmp_path, "east")
    assert one.read("shop") == 0
    assert [one.add("shop"), other.add("shop"), one.add("shop")] == [1, 2, 3]
    assert other.read("shop") == 3
    assert one.read("a/../b") == 0
    assert one.add("a/../b") == 1
    assert Counter(tmp_path, "west").read("shop") == 0
