"""The demo of three clusters: one directory, one owner an app, and what stands in for whom."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smartgw_hosts.clusters import parse
from smartgw_hosts.owner import owner
from tests.demos import Demo, ask, ask_fully, left_by, pids
from tests.gateway import wait_until
from tests.servers import alive

IDS = ["east", "north", "west"]
FAILOVER = "x-failover-cluster"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with Demo(tmp_path_factory.mktemp("demo"), "--port", "0", "--hosts", "1") as running:
        yield running.ready()


def internal(cluster: dict[str, Any], path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(cluster["internal"], timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_three_clusters_by_default(demo: Demo) -> None:
    """12.1: it starts per cluster a real nats-server, a gateway and hosts that run demo apps."""
    facts = demo.facts()
    assert [cluster["id"] for cluster in facts["clusters"]] == IDS
    assert all(map(alive, pids(facts)))
    assert len(pids(facts)) == 12  # of each a gateway, a host, a bus and a store
    for cluster in facts["clusters"]:
        assert list(cluster["pids"]["hosts"]) == [f"{cluster['id']}-1"]


def test_every_gateway_tells_the_same_clusters(demo: Demo) -> None:
    """4.1, 4.3: `/api/v3/discovery/clusters` of all gateways gives the same owners; public."""
    facts = demo.facts()
    lists = []
    for place, cluster in enumerate(facts["clusters"]):
        status, public = ask(
            facts, "/api/v3/discovery/clusters", app=f"api-{cluster['id']}", by=place
        )
        assert status == 200
        assert json.loads(public) == internal(cluster, "/api/v3/discovery/clusters")[1]
        lists.append(parse(public))
        status, ready = internal(cluster, "/readyz")
        assert (status, ready["degraded"]) == (200, [])
    assert lists[0].voters == tuple(IDS)
    assert lists[0] == lists[1] == lists[2]
    for app in facts["apps"]:
        assert app["owner"] == lists[0].owner(app["app_id"]) == owner(app["app_id"], IDS)


def test_it_says_how_to_see_affinity_and_failover(demo: Demo) -> None:
    """12.1: prints what to try: the counter that shows affinity, how to stop the owner's gateway,
    hosts or bus, and what then happens.
    """
    facts = demo.facts()
    text = "".join(demo.lines)
    west = facts["clusters"][2]["pids"]
    assert "west owns shop" in text
    for cluster in facts["clusters"]:
        port = cluster["http"].rpartition(":")[2]
        assert f"  curl -X POST http://shop.smart-app.localhost:{port}/counter " in text
    for pid in (west["gateway"][0], west["hosts"]["west-1"], west["nats"]):
        assert f"  kill -9 {pid} " in text
    assert f"kill -USR1 {demo.process.pid} " in text


def test_the_command_line_finds_the_clusters(demo: Demo) -> None:
    """12.4: `smartgw owner` and `smartgw status` ask the demo's gateways."""

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "smartgw", *words, "--dir", str(demo.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(run("owner", "shop", "blog", "--json"))
    assert told["owners"] == [
        {"app_id": app["app_id"], "owner": app["owner"]} for app in demo.facts()["apps"]
    ]
    assert told["mode"] == "fresh"
    forecast = json.loads(run("owner", "--forecast", "--add", "c4", "--json"))
    assert forecast["share"] == 0.75
    assert forecast["known"] == 2
    assert all(cluster in run("status") for cluster in IDS)


def test_one_counter_whoever_is_asked(demo: Demo) -> None:
    """4.2, 12.3: a gateway that is not the owner forwards to the owner's: the count, kept per
    cluster, is the owner's, whichever gateway is asked.
    """
    facts = demo.facts()
    counts = [json.loads(ask(facts, "/counter", "POST", by=n % 3)[1])["count"] for n in range(9)]
    assert counts == list(range(counts[0], counts[0] + 9))
    for place in range(3):
        status, body, fields = ask_fully(facts, "/echo", by=place)
        assert (status, json.loads(body)["cluster"]) == (200, "west")
        assert "x-failover-cluster" not in fields


def revive(demo: Demo) -> None:
    """Have what was killed started again, and wait until the owner answers as before."""
    # The demo looks ten times a second which of its children have ended.
    wait_until(lambda: not all(map(alive, pids(demo.facts()))))
    time.sleep(0.3)
    demo.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: all(map(alive, pids(demo.facts()))))
    wait_until(lambda: _cluster_of(demo) == ("west", None), within=60.0)


def _cluster_of(demo: Demo) -> tuple[str, str | None]:
    """Which cluster answers for shop when east is asked, and which one is named as standing in."""
    try:
        status, body, fields = ask_fully(demo.facts(), "/echo")
    except OSError:
        return "", None
    return json.loads(body)["cluster"] if status == 200 else str(status), fields[FAILOVER]


def test_the_owners_bus_is_stopped(demo: Demo) -> None:
    """12.1: the servers form one NATS cluster: without its own bus the owner serves on."""
    west = demo.facts()["clusters"][2]["pids"]
    os.kill(west["nats"], signal.SIGKILL)
    for _ in range(20):
        assert _cluster_of(demo) == ("west", None)
        assert ask(demo.facts(), "/counter", "POST")[0] == 200
    revive(demo)


@pytest.mark.parametrize("part", ["gateway", "hosts"])
def test_the_owners_part_is_stopped(demo: Demo, part: str) -> None:
    """5: the owner cannot be reached: reads are answered by the local instance, and
    x-failover-cluster names it; a write is never sent to another cluster.
    """
    west = demo.facts()["clusters"][2]["pids"]
    for pid in west["gateway"] if part == "gateway" else west["hosts"].values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _cluster_of(demo) != ("west", None))
    before = ask(demo.facts(), "/counter")[1]
    for _ in range(5):
        assert _cluster_of(demo) == ("east", "east")
        assert ask(demo.facts(), "/counter", "POST")[0] in (502, 503)
    assert ask(demo.facts(), "/counter")[1] == before
    revive(demo)


def test_the_directory_can_be_changed(demo: Demo) -> None:
    """4.3: the file is reloaded when it changes, at every gateway; a draining cluster stays."""
    path = demo.folder / "clusters.json"
    before = path.read_bytes()
    document = json.loads(before)
    document["clusters"][1]["state"] = "draining"

    def states() -> list[str]:
        return [
            internal(cluster, "/api/v3/discovery/clusters")[1]["clusters"][1]["state"]
            for cluster in demo.facts()["clusters"]
        ]

    try:
        path.write_text(json.dumps(document))
        wait_until(lambda: states() == ["draining"] * 3)
    finally:
        path.write_bytes(before)
    wait_until(lambda: states() == ["active"] * 3)


def test_what_ended_is_started_again_when_asked(demo: Demo) -> None:
    """12.1: a part that was stopped to see what happens comes back, and demo.json names it."""
    before = demo.facts()
    north = before["clusters"][1]["pids"]
    for pid in (*north["gateway"], north["nats"], *north["hosts"].values()):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, (north["nats"], *north["gateway"]))))
    time.sleep(0.3)  # the demo looks ten times a second which of its children have ended
    demo.process.send_signal(signal.SIGUSR1)

    def back() -> bool:
        now = demo.facts()["clusters"][1]["pids"]
        return not set(now["hosts"].values()) & set(north["hosts"].values()) and all(
            map(alive, pids(demo.facts()))
        )

    wait_until(back)
    wait_until(_serving(demo, 1), within=30.0)
    kept = demo.facts()["clusters"]
    assert [kept[n] for n in (0, 2)] == [before["clusters"][n] for n in (0, 2)]


def _serving(demo: Demo, place: int) -> Callable[[], bool]:
    def serving() -> bool:
        try:
            return ask(demo.facts(), "/echo", by=place)[0] == 200
        except OSError:
            return False

    return serving


def test_three_clusters_leave_nothing_behind(tmp_path: Path) -> None:
    """12.1: Ctrl-C leaves no process and no port behind, with what was started again, too."""
    with Demo(tmp_path, "--port", "0", "--hosts", "1") as demo:
        facts = demo.ready().facts()
        os.kill(facts["clusters"][0]["pids"]["hosts"]["east-1"], signal.SIGKILL)
        wait_until(lambda: not alive(facts["clusters"][0]["pids"]["hosts"]["east-1"]))
        time.sleep(0.3)
        demo.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: demo.facts() != facts)
        facts = demo.facts()
        demo.process.send_signal(signal.SIGINT)
        demo.process.communicate(timeout=30)
        assert demo.process.returncode == 0
        assert left_by(facts) == []
