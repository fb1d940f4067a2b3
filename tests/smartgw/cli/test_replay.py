"""`smartgw replay` on the recording of a real gateway."""

import contextlib
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smartgw import cli
from smartgw_hosts.wire import Kind
from tests.gateway import Cluster, Gateway, Host, wait_until

VOLATILE = ("since", "since_seconds", "verified_at")


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Gateway, Path, list[Host]]]:
    """A gateway that recorded what happened to three hosts, and still runs."""
    path = tmp_path_factory.mktemp("replay") / "discovery.jsonl"
    cluster = Cluster()
    try:
        gateway = cluster.gateway(
            {"discovery": {"heartbeat": 0.25, "missed": 400, "record": str(path)}}
        )
        stays, leaves, fails = cluster.host(), cluster.host(), cluster.host()
        cluster.host(wait=False, host_id="stranger")
        leaves.stop()
        fails.upstream.close()
        gateway.ask(fails.hostname)
        wait_until(lambda: gateway.state(fails.host_id) == "unhealthy")
        wait_until(lambda: gateway.state(leaves.host_id) == "unhealthy")
        wait_until(lambda: gateway.state("stranger") == "provisional")
        cluster.beating.clear()
        time.sleep(0.7)
        yield gateway, path, [stays, leaves, fails]
    finally:
        cluster.stop()


def replay(*args: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(["replay", *map(str, args)])
        except SystemExit as ended:
            code = int(str(ended.code))
    return code, out.getvalue(), err.getvalue()


def table(*args: object) -> dict[str, Any]:
    code, out, err = replay(*args, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_same_table(recorded: tuple[Gateway, Path, list[Host]]) -> None:
    """1.9: The replayed table is that of the live gateway, with the same reasons and times."""
    gateway, path, _ = recorded
    live = gateway.hosts()
    found = {host["host_id"]: host for host in table(path)["hosts"]}
    assert found.keys() == live.keys()
    for host_id, host in live.items():
        for name, value in host.items():
            if name not in VOLATILE:
                assert found[host_id][name] == value, (host_id, name)
        assert found[host_id]["since"][:20] in _around(host["since"])
    states = {found[host_id]["state"] for host_id in found}
    assert states == {"healthy", "unhealthy", "provisional"}


def _around(text: str) -> set[str]:
    """The second of a time, and the one before and after: its milliseconds are rounded."""
    second = int(text[17:19])
    return {f"{text[:17]}{other:02d}." for other in (second - 1, second, second + 1)}


def test_an_earlier_moment(recorded: tuple[Gateway, Path, list[Host]]) -> None:
    """1.9: Any recorded moment can be shown, by line and by time."""
    _, path, (_, leaves, _) = recorded
    code, out, _ = replay(path, "--follow", leaves.host_id, "--json")
    assert code == 0
    steps = [json.loads(line) for line in out.splitlines()]
    assert [step["after"] for step in steps] == ["provisional", "healthy", "unhealthy"]
    healthy = steps[1]
    by_line = table(path, "--until", healthy["line"], "--host", leaves.host_id)
    assert [host["state"] for host in by_line["hosts"]] == ["healthy"]
    before = table(path, "--until", healthy["line"] - 1, "--host", leaves.host_id)
    assert [host["state"] for host in before["hosts"]] == ["provisional"]
    by_time = table(path, "--at", steps[2]["time"], "--host", leaves.host_id)
    assert by_time["line"] <= steps[2]["line"]
    assert by_time["hosts"][0]["state"] == "healthy" or by_time["line"] == steps[2]["line"]


def test_why(recorded: tuple[Gateway, Path, list[Host]]) -> None:
    """1.9: Each transition of a host is shown with the input that caused it."""
    _, path, (stays, leaves, fails) = recorded
    code, out, _ = replay(path, "--follow", leaves.host_id)
    assert code == 0
    announced, verified, left = out.splitlines()
    assert f"[message on smartgw.c1.host.{leaves.host_id}.announce]" in announced
    assert "provisional (unverified)" in announced
    assert "-> healthy (verified)" in verified
    assert "[verdict of challenge " in verified
    assert "-> unhealthy (left)" in left
    assert f"{leaves.host_id}.leave]" in left
    assert "verification: unreachable" in replay(path, "--follow", fails.host_id)[1]
    assert "unhealthy (left)" not in replay(path, "--follow", stays.host_id)[1]


def test_for_people(recorded: tuple[Gateway, Path, list[Host]]) -> None:
    """12.4: Human output by default: the table of status, with reasons."""
    _, path, (stays, leaves, _) = recorded
    code, out, _ = replay(path)
    assert code == 0
    assert out.startswith("after line ")
    rows = [line.split() for line in out.splitlines()]
    assert next(row[1] for row in rows if row[:1] == [stays.host_id]) == "healthy"
    assert next(row[-1] for row in rows if row[:1] == [leaves.host_id]) == "left"


def test_what_cannot_be_replayed(
    recorded: tuple[Gateway, Path, list[Host]], tmp_path: Path
) -> None:
    """1.9: A cut last line is tolerated, an altered file refused with its line, exit code 1."""
    _, path, _ = recorded
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(data[:-7])
    whole = len(lines) if data.endswith(b"\n") else len(lines) - 1
    assert table(copy)["line"] in (whole - 1, whole)
    lines[2] = lines[2].replace(b'["', b'["x', 1)
    copy.write_bytes(b"".join(lines))
    code, _, err = replay(copy)
    assert code == 1
    assert "line 3: is not as it was written" in err
    assert table(copy, "--until", 2)["line"] == 2
    copy.write_bytes(b"")
    assert replay(copy)[0] == 1
    assert replay(tmp_path / "none")[0] == 1
    code, _, err = replay(path, "--at", "1000000000")
    assert (code, err) == (1, f"smartgw replay: {path}: begins later\n"), "there is no older file"
    code, _, err = replay(path, "--follow", "nobody")
    known = ", ".join(sorted(host.host_id for host in recorded[2]))
    assert code == 1
    assert f"no host nobody in this recording; hosts: {known}" in err
    code, _, err = replay(path, "--at", "2026")
    assert code == 2
    assert "'2026' is not a time; write 2027-01-31T12:00:00Z" in err
    assert replay(path, "--host", "nobody")[0] == 1
    assert replay(path, "--at", "yesterday")[0] == 2
    assert replay(path, "--until", "0")[0] == 2


def test_a_message_that_was_ignored_is_told(recorded: tuple[Gateway, Path, list[Host]]) -> None:
    """1.2, 1.9: A message that a host's gateway refused is shown with its reason."""
    gateway, path, (stays, _, _) = recorded
    cluster = stays.cluster
    subject, payload = stays.message(Kind.HEARTBEAT)
    cluster.bus.publish(subject, payload)
    cluster.bus.publish(subject, payload)
    wait_until(lambda: "ignored (replayed: sequence" in replay(path, "--follow", stays.host_id)[1])
    assert gateway.state(stays.host_id) == "healthy"
