"""`smartgw status` against the real internal API."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from smartgw.api.api import Api
from smartgw.api.audit import Audit
from smartgw.api.credentials import Credentials
from smartgw.api.operator import Operator
from smartgw.cli import status
from smartgw.config_fields import Auth
from tests.apis import serving
from tests.smartgw.api.fakes import FakeGateway, FakeHost, FakeReadiness

SHOWN: Mapping[str, Any] = {
    "gateway": {
        "id": "g1",
        "cluster": "east",
        "version": "0.1.0",
        "pid": 7,
        "base_domains": ["smart-app.localhost"],
        "http": ["127.0.0.1:8080"],
        "internal": "127.0.0.1:9080",
    },
    "bus": {"connected": False, "servers": 1, "reconnects": 2},
    "traffic": {"requests": 12, "in_flight": 1, "by_status": {"2xx": 11, "5xx": 0}},
    "discovery": {"refused": {"stale": 3}},
}


def gateway() -> FakeGateway:
    """One with many hosts, and with something to worry about."""
    return FakeGateway(
        all_hosts=[
            FakeHost("h1"),
            FakeHost("h2", state="unhealthy", reason="verification: \x1b[31mtimeout", detail="2 s"),
            *(FakeHost(f"n{n:04d}") for n in range(1500)),
        ],
        now_ready=FakeReadiness(degraded=("bus: away for 3 s",)),
        shown=SHOWN,
    )


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[str]:
    operator = Operator()
    api = Api(gateway(), Credentials(Auth(), operator), Audit("off", "g1", "east"))
    async with serving(api.internal("localhost")) as address:
        operator.write([tmp_path], address)
        yield address


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    status.configure(parser)
    return parser.parse_args(words)


async def test_the_table_shows_what_an_operator_looks_for(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """12.4: human output by default; what needs a look stands first, with its reason."""
    code = await asyncio.to_thread(status.run, parse("--endpoint", endpoint))
    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[:8] == [
        "gateway   g1 of cluster east · version 0.1.0 · pid 7",
        "listens   127.0.0.1:8080 · internal 127.0.0.1:9080",
        "ready     yes",
        "degraded  bus: away for 3 s",
        "bus       away · 1 server · 2 reconnects",
        "traffic   12 requests · 1 in flight · 2xx 11",
        "refused   bus messages: stale 3",
        "",
    ]
    assert lines[8].split() == ["HOST", "STATE", "FOR", "ADDRESS", "APPS", "REASON"]
    assert lines[9].startswith("h2")
    # 1.5: the reason of a state is shown; no host can steer the terminal with one.
    assert lines[9].endswith("verification: ?[31mtimeout (2 s)")
    assert "... and 1442 more (--json shows all)" in lines
    assert lines[-1].split(maxsplit=2) == [
        "shop",
        "shop.smart-app.localhost",
        "healthy 1501, unhealthy 1",
    ]


async def test_json_holds_every_host(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: `--json` everywhere."""
    code = await asyncio.to_thread(status.run, parse("--endpoint", endpoint, "--json"))
    (gateway,) = json.loads(capsys.readouterr().out)["gateways"]
    assert code == 0
    assert gateway["endpoint"] == endpoint
    assert len(gateway["hosts"]) == 1502
    assert gateway["status"]["hosts"]["total"] == 1502


@pytest.mark.parametrize("endpoint_text", ["127.0.0.1:1", "not:a:port", "[::1", "a b:1"])
def test_nobody_there_fails_with_a_remedy(
    endpoint_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """12.4: exit code 1 for failed, and what to do."""
    assert status.run(parse("--endpoint", endpoint_text)) == 1
    error = capsys.readouterr().err
    assert f"no gateway answers at {endpoint_text}" in error
    assert "--endpoint HOST:PORT" in error


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (61, "1 m 1 s"), (3600, "1 h 0 m"), (90_000, "1 d 1 h")],
)
def test_durations(seconds: float, text: str) -> None:
    """1.5: since when, readable."""
    assert status.duration(seconds) == text


@pytest.mark.parametrize(
    ("peers", "line"),
    [
        (
            {"mode": "fresh", "states": ["active", "draining", "active"]},
            "clusters  2 active, 1 draining · fresh, epoch ac4a",
        ),
        (
            {"mode": "grace", "states": ["active"], "age_seconds": 12.3, "affinity": False},
            "clusters  1 active · grace, epoch ac4a · confirmed 12 s ago · affinity is off",
        ),
        (
            {"mode": "unknown", "states": [], "epoch": None, "failover": False},
            "clusters  none known · unknown",
        ),
        ({"mode": "none", "states": []}, None),
    ],
)
def test_the_clusters_are_shown(peers: dict[str, Any], line: str | None) -> None:
    """4.4: the mode of the directory is shown in status."""
    states = peers.pop("states")
    clusters = [{"id": f"c{n}", "state": state} for n, state in enumerate(states)]
    section = {"epoch": "ac4a", "affinity": True, "failover": True, "clusters": clusters} | peers
    shown = [text for text in status.table({"peers": section}, []) if text.startswith("clusters")]
    assert shown == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("shared", "line"),
    [
        (None, None),
        ({"age": 0.0}, "state     1 record · revision 7 · digest 0123456789ab"),
        ({"age": None}, "state     1 record · revision 7 · digest 0123456789ab · never read"),
        ({"age": 65.0}, "state     1 record · revision 7 · digest 0123456789ab · 1 m 5 s old"),
    ],
)
def test_the_shared_state_is_shown(shared: dict[str, Any] | None, line: str | None) -> None:
    """11.2: how old what the platform has decided may be."""
    facts = {"records": 1, "revision": 7, "digest": "0123456789abcdef" * 2}
    section = None if shared is None else facts | shared
    shown = [text for text in status.table({"shared": section}, []) if text.startswith("state")]
    assert shown == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("dns", "line"),
    [
        ({}, None),
        ({"zones": 1, "records": 4}, "1 zone · 4 records"),
        (
            {"zones": 2, "records": 9, "listen": ["127.0.0.1 port 53"], "queries": 7, "limited": 3},
            "2 zones · 9 records · served at 127.0.0.1 port 53 · 7 questions · 3 limited",
        ),
        (
            {"listen": ["::1 port 53"], "known": False},
            "the zones are not known yet · 0 zones · 0 records · served at ::1 port 53"
            " · 0 questions",
        ),
        (
            {"zones": 1, "records": 1, "faults": {"z.": "a part of it is not there"}},
            "1 zone · 1 record · 1 not in force as last written",
        ),
    ],
)
def test_zones_are_shown(dns: dict[str, Any], line: str | None) -> None:
    """8.4, 11.3: how many zones there are, where they are served, and what is wrong with them."""
    facts = {"zones": 0, "records": 0, "listen": [], "known": True, "queries": 0, "limited": 0}
    shown = list(status.table({"dns": {**facts, "faults": {}, **dns}}, []))
    found = [text.partition(" ")[2].strip() for text in shown if text.startswith("dns ")]
    assert found == ([] if line is None else [line])
