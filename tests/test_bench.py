"""The benchmark's own arithmetic: what is read, counted, compared and written.

The measurements themselves are no test; `./run bench` makes them.
"""

import asyncio
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import pytest

from smartgw_hosts.challenge import Challenge, judge, request
from smartgw_hosts.challenge import Responder as ChallengeResponder
from smartgw_hosts.identity import Identity
from smartgw_hosts.owner import owner
from tests.bench import plot, report
from tests.bench.__main__ import arguments
from tests.bench.cases import APP, CASES, CROWDS, HOT_HOSTS, IDLE, MOST_APPS, NAMES, Crowd, chosen
from tests.bench.load import (
    LoadFailed,
    Result,
    microseconds,
    parse_wrk,
    read_result,
    rotation_script,
    write_result,
)
from tests.bench.ours import clusters_of
from tests.bench.proc import busy_seconds
from tests.bench.proxies import PROXIES
from tests.bench.signer import Signer
from tests.bench.stats import Row, Sample, row
from tests.bench.websocket import measure

WRK = """\
Running 2s test @ http://127.0.0.1:43210/1k
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.10ms  500.00us  12.00ms   90.00%
    Req/Sec    27.50k     1.50k   30.00k    75.00%
  Latency Distribution
     50%  850.00us
     75%    1.20ms
     90%    1.90ms
     99%    4.25ms
  54321 requests in 2.00s, 61.50MB read
"""
TOTALS = "Requests/sec:  27160.50\nTransfer/sec:     30.75MB\n"
ERRORS = """\
  Socket errors: connect 1, read 2, write 3, timeout 4
  Non-2xx or 3xx responses: 17
"""


@pytest.mark.parametrize(("middle", "errors"), [("", 0), (ERRORS, 27)])
def test_what_wrk_prints_is_read(middle: str, errors: int) -> None:
    """12.7: rate, p50, p99 and errors of a run."""
    assert parse_wrk(WRK + middle + TOTALS) == Result(54321, 27160.5, 850.0, 4250.0, errors)


@pytest.mark.parametrize("text", ["", "unable to connect to 127.0.0.1:1", WRK, TOTALS])
def test_a_run_without_all_figures_failed(text: str) -> None:
    """12.7: no figure is made up."""
    with pytest.raises(LoadFailed):
        parse_wrk(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("71.00us", 71.0), ("1.20ms", 1200.0), ("2.00s", 2e6), ("1.50m", 90e6), ("1.00h", 3.6e9)],
)
def test_times_of_wrk_are_read(text: str, value: float) -> None:
    """12.7: in microseconds, whatever unit wrk chose."""
    assert microseconds(text) == value


@pytest.mark.parametrize("text", ["", "71", "us", "1.2 ms", "-nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """12.7: no figure is made up."""
    with pytest.raises(LoadFailed):
        microseconds(text)


def test_the_websocket_clients_result_is_read_back() -> None:
    """12.7: it tells what wrk tells."""
    result = Result(10, 5.0, 1.5, 2.5, 0)
    assert read_result(write_result(result)) == result
    for text in ("", "{}", "[1]", "no upgrade"):
        with pytest.raises(LoadFailed):
            read_result(text)


def samples(*values: tuple[float, float]) -> list[Sample]:
    """Samples of (CPU µs, cores that others used)."""
    return [Sample(cpu, 1000 / cpu, cpu, cpu, 1.0, 1.0, 0.5, others, 0) for cpu, others in values]


@pytest.mark.parametrize(
    ("values", "cpu", "counted", "aside", "noisy"),
    [
        ([(10, 0.0)], 10, 1, 0, False),
        ([(10, 0.9)], 10, 1, 0, True),
        ([(10, 0.0), (12, 0.1), (11, 0.0)], 11, 3, 0, False),
        ([(10, 0.0), (12, 0.1), (11, 0.0), (50, 0.8)], 11, 3, 1, False),
        ([(50, 0.8), (10, 0.0), (40, 0.7), (12, 0.3), (30, 0.5)], 12, 3, 2, True),
    ],
)
def test_busy_samples_are_set_aside(
    values: Sequence[tuple[float, float]], cpu: float, counted: int, aside: int, noisy: bool
) -> None:
    """Issue 4: medians; samples on a busy machine are set aside and counted."""
    result = row("get-1k-c1", "nginx", samples(*values))
    found = (result.cpu_us, result.samples, result.set_aside, result.noisy)
    assert found == (cpu, counted, aside, noisy)
    assert result.cpu_us_min is not None
    assert result.cpu_us_max is not None
    assert result.cpu_us_min <= cpu <= result.cpu_us_max


def test_stolen_time_counts_as_busy() -> None:
    """Issue 4: what the hypervisor takes was not ours."""
    stat = "cpu  100 0 50 9999 800 1 2 47 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert busy_seconds(stat) == pytest.approx(2.0)


ROWS = [
    Row("get-1k-c1", "nginx", cpu_us=20.0, rps=9.0, p50_us=5.0, p99_us=6.0, rss_mib=8.0),
    Row("get-1k-c1", "nginx_tuned", cpu_us=16.0),
    Row("get-1k-c1", "caddy", cpu_us=80.0),
    Row("get-1k-c1", "smartgw", cpu_us=24.0, set_aside=2, errors=3),
    Row("get-1k-c1", "smartgw_nolog", cpu_us=22.0),
    Row(IDLE, "nginx", idle_kib=0.5),
    Row(IDLE, "smartgw", idle_kib=1.5),
    Row("get-1k-c32", "smartgw", cpu_us=25.0),
]


def test_ratios_are_against_the_best_variant() -> None:
    """Issue 4: against nginx's best, and against Caddy."""
    text = report.case_table(ROWS, "get-1k-c1")
    ours = next(line for line in text.splitlines() if line.startswith("| smartgw"))
    assert [cell.strip() for cell in ours.split("|")][4:6] == ["1.50", "0.30"]
    assert "2 set aside" in ours
    assert "3 errors" in ours
    assert "| smartgw | 1.50 | 3.00 |" in report.case_table(ROWS, IDLE)


def test_the_overview_has_a_line_for_each_case() -> None:
    """12.7: tables with ratios, with nothing where nothing was measured."""
    lines = report.overview(ROWS).splitlines()
    assert lines[2] == "| get-1k-c1 | 16.0 | 80.0 | 24.0 | 1.50 |  | 0.30 |"
    assert lines[4] == "| get-1k-c32 |  |  | 25.0 |  |  |  |"


def test_the_json_has_the_members_of_the_contract() -> None:
    """12.7: machine, and rows with case, proxy, cpu_us, rps, p50_us, p99_us, rss_mib."""
    results = report.results({"cores": "2"}, ROWS)
    rows = results["rows"]
    assert results["machine"] == {"cores": "2"}
    assert isinstance(rows, list)
    members = {"case", "proxy", "cpu_us", "rps", "p50_us", "p99_us", "rss_mib"}
    assert all(members <= set(row) for row in rows)


def test_only_what_is_between_the_markers_is_replaced() -> None:
    """Issue 4: tables for the docs are made by the command."""
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    fresh = report.replaced(page, "new\n")
    assert fresh == f"before\n{report.BEGIN}\n\nnew\n\n{report.END}\nafter\n"
    assert report.replaced(fresh, "new\n") == fresh
    with pytest.raises(ValueError, match="bench: begin"):
        report.replaced("no markers", "new")


def test_the_plot_is_well_formed() -> None:
    """Issue 4: a plot for the docs; cases without nginx have no bar."""
    root = ET.fromstring(plot.svg(ROWS))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "1.50x (24.0)" in texts
    assert "get-1k-c32" not in texts
    assert ET.fromstring(plot.svg([])) is not None


def test_names_choose_cases_and_proxies() -> None:
    """12.7: `./run bench [names]`."""
    names = [proxy.name for proxy in PROXIES]
    assert chosen(["get-1k-c*"], NAMES) == ("get-1k-c1", "get-1k-c32", "get-1k-c256")
    assert chosen(["nginx*", "caddy"], names) == ("nginx", "nginx_tuned", "nginx_log", "caddy")
    assert arguments(["get-1k-c1", "nginx*", "--quick"]).quick


@pytest.mark.parametrize(
    "argv", [["get-2k"], ["--rounds", "0"], ["--seconds", "61"], ["--docs", "nginx"]]
)
def test_wrong_usage_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: exit code 2, and what would be right."""
    with pytest.raises(SystemExit) as end:
        arguments(argv)
    assert end.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("crowd", CROWDS, ids=lambda crowd: crowd.name)
def test_a_crowd_has_as_many_hosts_and_routes_as_it_says(crowd: Crowd) -> None:
    """Issue 4: 100,000 routes and hosts."""
    apps = [app for apps in crowd.apps for app in apps]
    assert len(crowd.apps) == crowd.hosts
    assert len(apps) == len(set(apps)) == crowd.routes == len(crowd.hostnames)
    assert all(1 <= len(apps) <= MOST_APPS for apps in crowd.apps)
    assert len(crowd.asked) == sum(map(len, crowd.apps[:HOT_HOSTS]))
    assert set(crowd.asked) <= set(crowd.hostnames)


def test_wrk_asks_the_hostnames_in_turn() -> None:
    """Issue 4: 100,000 routes and hosts."""
    assert 'names = {"a.test","b.test"}' in rotation_script(["a.test", "b.test"])


def test_names_are_unique() -> None:
    """12.7: a row is found by case and proxy."""
    assert len(set(NAMES)) == len(NAMES)
    assert len({proxy.name for proxy in PROXIES}) == len(PROXIES)
    assert {case.websocket for case in CASES} == {True, False}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_the_signer_signs_and_echoes() -> None:
    """2.1: our upstream connections prove themselves in the benchmark too."""
    identity = Identity.from_seed(bytes(32))
    address = "http://127.0.0.1:9000"
    responder = ChallengeResponder(identity, "host-1", "bench", lambda: (address,))
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: Signer({"bench host-1": responder}), "127.0.0.1", 0
    )
    port = listening.sockets[0].getsockname()[1]
    try:
        challenge = Challenge(
            bytes(32), "gateway-1", "bench", "host-1", address, identity.public_key, _now_ms()
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(challenge))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.rpartition(b"Content-Length: ")[2])
        assert judge(challenge, int(head[9:12]), await reader.readexactly(length)).ok
        writer.close()
        result = await measure("ws.bench.test", port, 2, 0.1)
        assert result.requests > 10
        assert result.errors == 0
    finally:
        listening.close()
        await listening.wait_closed()


def test_forwards_are_compared_with_a_local_request() -> None:
    """12.7: total CPU of both gateways, the p50 that the hop adds, the rate with the owner dead."""
    rows = [
        Row("get-1k-c1", "smartgw", cpu_us=20.0, p50_us=100.0, rps=8_000.0),
        Row("get-1k-c1", "smartgw_forward", cpu_us=47.0, p50_us=160.0, rps=4_000.0),
        Row("get-1k-c1", "smartgw_dead-owner", cpu_us=50.0, p50_us=165.0, rps=3_600.0),
    ]
    _, _, healthy, dead = report.forwards(rows).splitlines()
    assert healthy == "| get-1k-c1: forward | 47.0 | 2.35 | 60.0 | 1.00 |"
    assert dead == "| get-1k-c1: dead-owner | 50.0 | 2.50 | 65.0 | 0.90 |"
    assert report.forwards(rows[:1]) == ""


@pytest.mark.parametrize("dead_owner", [False, True])
def test_the_right_cluster_owns_the_app_that_is_asked_for(dead_owner: bool) -> None:
    """4.1: what is measured is a forward, and with the owner dead a failover."""
    entry, *others = clusters_of("bench", dead_owner=dead_owner)
    assert owner(APP, ["bench", entry, *others]) == (others[0] if dead_owner else "bench")


def test_the_limiters_share_is_told() -> None:
    """12.7: what limits cost a request stands behind the tables, when it was measured."""
    cost = {"memory": 0.81, "shared": 4.4, "store": 9.62, "trips": 0.069}
    text = report.limiter(cost)
    assert "| in memory, CPU µs | 0.81 |" in text
    assert "| round trips to the Valkey | 0.07 |" in text
    assert report.limiter({}) == ""
    assert arguments(["limiter"]).names == ["limiter"]
