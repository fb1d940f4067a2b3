"""The real demo: what it says, what it serves, and that it leaves nothing behind."""

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, WSMsgType

from tests.demos import Demo, ask, is_open, left_by, pids, slowness
from tests.servers import alive

pytestmark = pytest.mark.skipif(
    find_spec("smartgw.app") is None, reason="the gateway itself is not there yet"
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    options = ("--port", "0", "--hosts", "2", "--clusters", "1")
    with Demo(tmp_path_factory.mktemp("demo"), *options) as running:
        yield running.ready()


def test_demo_json_says_what_runs_where(demo: Demo) -> None:
    """12.2: it writes demo.json before READY; keys for parts that do not exist yet are null."""
    facts = demo.facts()
    (cluster,) = facts.pop("clusters")
    assert list(facts.pop("tokens")) == ["service", "session"]
    assert facts == {
        "base_domain": "smart-app.localhost",
        "apps": [
            {"app_id": "shop", "hostname": "shop.smart-app.localhost", "owner": "east"},
            {"app_id": "blog", "hostname": "blog.smart-app.localhost", "owner": "east"},
        ],
        "ca": None,
    }
    assert list(cluster) == [
        *("id", "http", "https", "internal", "api_hostname", "nats", "valkey", "dns", "pids")
    ]
    assert all(is_open(cluster[key]) for key in ("http", "internal", "nats", "valkey"))
    assert all(map(alive, pids(demo.facts())))
    assert list(cluster["pids"]["hosts"]) == ["east-1", "east-2"]


def test_it_prints_lines_to_copy_and_pages_to_open(demo: Demo) -> None:
    """12.1: prints what to try (copy-and-paste lines, the pages to open), then READY."""
    port = demo.facts()["clusters"][0]["http"].rpartition(":")[2]
    text = "".join(demo.lines)
    assert f"  http://shop.smart-app.localhost:{port}/\n" in text
    assert f"  curl http://shop.smart-app.localhost:{port}/echo " in text
    assert demo.lines[-1] == "READY\n"
    start = demo.lines.index("To try\n") + 1
    commands = demo.lines[start : demo.lines.index("\n", start)]
    assert len({line.index("  # ") for line in commands}) == 1, "comments are aligned"


def test_names_of_apps_resolve(demo: Demo) -> None:
    """12.1, 8.4: the lines that it prints resolve any app's hostname, by the wire and over HTTP."""
    printed = [line.partition("  # ")[0].split() for line in demo.lines if " dig " in line]
    (wire,) = [words for words in printed if words[0] == "dig"]
    assert wire[1:4] == [
        *("@127.0.0.1", "-p", demo.facts()["clusters"][0]["dns"].rpartition(":")[2]),
    ]
    done = subprocess.run([*wire, "+short"], capture_output=True, text=True, timeout=10)
    assert done.stdout == "127.0.0.1\n"
    for words, said in (
        (("dig", "to-come.smart-app.localhost"), "to-come.smart-app.localhost. 300 A 127.0.0.1\n"),
        (("dig", "elsewhere.test"), ";; 118 of 120 queries left of this session\n"),
        (("zones", "show", "smart-app.localhost", "--type", "NS"), " ns.smart-app.localhost.\n"),
    ):
        command = [sys.executable, "-m", "smartgw", *words, "--dir", str(demo.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert said in done.stdout


def test_ready_is_ready(tmp_path: Path) -> None:
    """12.1, 11.3: when READY is printed the gateway is ready, and an unknown hostname is a 404."""
    with Demo(tmp_path, "--port", "0", "--hosts", "1", "--clusters", "1") as demo:
        facts = demo.ready().facts()
        assert ask(facts, "/", app="nobody")[0] == 404
        demo.process.terminate()
        demo.process.communicate(timeout=20)


def test_secrets_are_for_their_owner_alone(demo: Demo) -> None:
    """12.1: keys and configurations that the demo generates are mode 0600."""
    for name in ("east-1.seed", "east-2.seed", "east-enrolment.toml", "demo.json"):
        assert stat.S_IMODE((demo.folder / name).stat().st_mode) == 0o600


def test_the_tokens_count(demo: Demo) -> None:
    """12.2, 10.1: demo.json has tokens: a service's, and a session's, which controls nothing."""
    facts = demo.facts()
    statuses = {
        role: api(facts, "/api/v3/status", {"Authorization": f"Bearer {token}"})
        for role, token in facts["tokens"].items()
    }
    assert statuses == {"service": 200, "session": 401}
    assert api(facts, "/api/v3/status", {}) == 401
    assert api(facts, "/api/v3/discovery/hosts", {}) == 200


def test_its_apps_can_be_suspended_and_stay_so(tmp_path: Path) -> None:
    """12.1, 10: the line that it prints suspends an app; a demo that starts again knows of it."""
    options = ("--port", "0", "--hosts", "1", "--clusters", "1")

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "smartgw", "apps", *words, "--dir", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout

    def status(facts: dict[str, Any]) -> int:
        deadline = time.monotonic() + 2.0
        while ask(facts, "/echo")[0] == 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        return ask(facts, "/echo")[0]

    for again in (False, True):
        with Demo(tmp_path, *options) as demo:
            demo.ready()
            assert "apps suspend shop --dir" in "".join(demo.lines)
            apps = {app["app_id"]: app["state"] for app in json.loads(run("--json"))["apps"]}
            assert apps == {"shop": "suspended" if again else "active", "blog": "active"}
            if not again:
                assert "shop is suspended" in run("suspend", "shop")
            assert status(demo.facts()) == 503
            demo.process.terminate()
            demo.process.communicate(timeout=20)


def api(facts: dict[str, Any], path: str, fields: dict[str, str]) -> int:
    """The status of a GET on the gateway's own hostname."""
    (cluster,) = facts["clusters"]
    connection = http.client.HTTPConnection(cluster["http"], timeout=5)
    try:
        connection.request("GET", path, headers={"Host": cluster["api_hostname"], **fields})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_page_shows_who_served_it(demo: Demo) -> None:
    """12.3: `/` shows app id, cluster, host id, the client address it was told, and a counter."""
    status, body = ask(demo.facts(), "/", app="blog")
    text = body.decode()
    assert status == 200
    assert "<h1>blog</h1>" in text
    assert "<dd>east</dd>" in text
    assert "<dd>east-1</dd>" in text or "<dd>east-2</dd>" in text
    assert "<dd>127.0.0.1</dd>" in text
    assert '<output id="count"' in text


def test_echo_tells_the_request_as_it_came(demo: Demo) -> None:
    """12.3: `/echo` with JSON of method, raw target, headers in order, body length and sha256."""
    status, body = ask(demo.facts(), "/echo?a=%2F%27&", "PUT", body=b"abc")
    echo = json.loads(body)
    assert status == 200
    assert (echo["method"], echo["target"]) == ("PUT", "/echo?a=%2F%27&")
    assert ["Host", "shop.smart-app.localhost"] in echo["headers"]
    assert echo["body_length"] == 3
    assert echo["body_sha256"].startswith("ba7816bf")


def test_the_counter_is_kept_per_cluster(demo: Demo) -> None:
    """12.3: `POST /counter` adds one and returns the count, whichever host serves it."""
    counts = [json.loads(ask(demo.facts(), "/counter", "POST")[1])["count"] for _ in range(20)]
    assert counts == list(range(counts[0], counts[0] + 20))


def test_status_bytes_and_slow(demo: Demo) -> None:
    """12.3: `/slow?ms=`, `/status/<code>`, `/bytes/<n>`."""
    facts = demo.facts()
    assert ask(facts, "/status/418")[0] == 418
    assert ask(facts, "/status/204") == (204, b"")
    assert ask(facts, "/status/100")[0] == 400
    assert len(ask(facts, "/bytes/200001")[1]) == 200_001
    began = time.monotonic()
    assert ask(facts, "/slow?ms=150")[0] == 200
    assert time.monotonic() - began >= 0.15


async def test_events_and_websockets_pass(demo: Demo) -> None:
    """12.3: `/sse` an event a second; `/ws` echoes WebSocket messages."""
    facts = demo.facts()
    origin = f"http://{facts['clusters'][0]['http']}"
    headers = {"Host": "shop.smart-app.localhost"}
    async with ClientSession(headers=headers) as session:
        began = time.monotonic()
        async with session.get(f"{origin}/sse") as events:
            assert events.content_type == "text/event-stream"
            text = b""
            while b"id: 2\n" not in text:
                text += await events.content.readany()
        assert time.monotonic() - began > 0.9
        async with session.ws_connect(f"{origin}/ws") as echo:
            await echo.send_str("hello")
            assert (await echo.receive()).data == "hello"
            await echo.send_bytes(b"\x00\xff")
            message = await echo.receive()
            assert (message.type, message.data) == (WSMsgType.BINARY, b"\x00\xff")


def test_smartgw_status_finds_the_demo(demo: Demo) -> None:
    """12.4: `smartgw status` shows hosts and their states."""
    command = [sys.executable, "-m", "smartgw", "status", "--dir", str(demo.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert "east-1" in done.stdout
    assert "healthy" in done.stdout


def test_one_demo_a_folder(demo: Demo) -> None:
    """12.4: refused is exit code 1, and the remedy is named."""
    with Demo(demo.folder) as second:
        _, errors = second.process.communicate(timeout=20)
        assert second.process.returncode == 1
        assert "choose another --dir" in errors
    assert (demo.folder / "demo.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_end_leaves_no_process_and_no_port(tmp_path: Path, number: signal.Signals) -> None:
    """12.1: READY comes in under 5 s; it runs until Ctrl-C, which leaves no process and no port
    behind.
    """
    began = time.monotonic()
    with Demo(tmp_path, "--port", "0", "--clusters", "1") as demo:
        facts = demo.ready().facts()
        assert time.monotonic() - began < 5.0 * slowness()
        demo.process.send_signal(number)
        _, errors = demo.process.communicate(timeout=20)
        assert demo.process.returncode == 0, errors
        assert left_by(facts) == []
        assert errors == ""
        assert not (tmp_path / "demo.json").exists()


def test_sigkill_leaves_no_process_and_no_port(tmp_path: Path) -> None:
    """12.1: also after SIGKILL; and the folder can be used again at once."""
    with Demo(tmp_path, "--port", "0", "--clusters", "2", "--hosts", "1") as demo:
        facts = demo.ready().facts()
        demo.process.kill()
        demo.process.wait()
        assert len(pids(facts)) == 8
        assert left_by(facts) == []
    with Demo(tmp_path, "--port", "0", "--hosts", "1", "--clusters", "1") as demo:
        facts = demo.ready().facts()
        demo.process.terminate()
        demo.process.communicate(timeout=20)
        assert left_by(facts) == []


def test_a_taken_port_is_left_alone_and_a_dead_child_is_reported(tmp_path: Path) -> None:
    """12.1: free ports where the wanted one is taken, on a wildcard address too."""
    with socket.create_server(("0.0.0.0", 0)) as taken:
        wanted = taken.getsockname()[1]
        with Demo(tmp_path, "--port", str(wanted), "--hosts", "1", "--clusters", "1") as demo:
            facts = demo.ready().facts()
            used = facts["clusters"][0]["http"].removeprefix("127.0.0.1:")
            assert used != str(wanted)
            assert demo.lines[0] == f"{wanted} is taken: using {used}\n"
            os.kill(facts["clusters"][0]["pids"]["nats"], signal.SIGKILL)
            time.sleep(0.5)
            demo.process.send_signal(signal.SIGINT)
            _, errors = demo.process.communicate(timeout=20)
    assert "east-nats was ended by SIGKILL; the end of" in errors
    assert "Server is ready" in errors
