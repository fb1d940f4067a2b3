"""The benchmark of DNS: what is asked, read and written; `./run bench 'dns-*'` measures."""

from __future__ import annotations

import shutil
import time
from itertools import islice
from pathlib import Path

import pytest

from smartgw.demo.children import Guard
from tests.bench import dns_report, dns_stage
from tests.bench.__main__ import Run, arguments
from tests.bench.dns_stage import CASES, SERVERS, Load, command, parse_dnsperf, questions
from tests.bench.load import LoadFailed
from tests.bench.measure import Pace
from tests.bench.rig import Cores
from tests.bench.stats import Row

REPEATED, FRESH = CASES
DNSPERF = """\
Statistics:

  Queries sent:         51234
  Queries completed:    51230 (99.99%)
  Queries lost:         4 (0.01%)

  Response codes:       NOERROR 51000 (99.55%), SERVFAIL 230 (0.45%)
  Average packet size:  request 44, response 170
  Run time (s):         1.000412
  Queries per second:   51208.901972
"""


def test_what_dnsperf_prints_is_read() -> None:
    """12.7: queries, rate and errors: what was lost, and answers with another rcode."""
    assert parse_dnsperf(DNSPERF) == Load(51_230, 51_208.901972, 234)


@pytest.mark.parametrize("text", ["", "Error: unable to connect", DNSPERF[:120]])
def test_a_run_without_all_figures_failed(text: str) -> None:
    """12.7: no figure is made up."""
    with pytest.raises(LoadFailed):
        parse_dnsperf(text)


def test_fresh_names_are_never_asked_for_again() -> None:
    """12.7: never-repeated names: no name in two turns, and dnsperf goes once through them."""
    one, two = (set(islice(questions(FRESH, 1, turn), 1_000)) for turn in (1, 2))
    assert len(one) == len(two) == 1_000
    assert not one & two
    assert command(FRESH, 53, 2, Path("q"))[-2:] == ["-n", "1"]


def test_repeated_names_are() -> None:
    """12.7: repeated questions: the same hostnames in each turn, until the time is over."""
    assert list(questions(REPEATED, 1, 1)) == list(questions(REPEATED, 2, 9))
    assert "-n" not in command(REPEATED, 53, 2, Path("q"))


def test_ratios_are_against_bind_and_knot() -> None:
    """12.7: CPU a query, beside the others of the same case."""
    rows = [
        Row(case, name, cpu_us=cpu, cpu_us_min=cpu, cpu_us_max=cpu, rps=9.0, pss_mib=1.0)
        for case, name, cpu in (
            ("dns-repeated", "bind", 6.0),
            ("dns-repeated", "smartgw", 6.6),
            ("dns-wildcard", "knot", 4.0),
            ("dns-wildcard", "smartgw", 8.0),
        )
    ]
    text = dns_report.document(rows)
    lines = [line for line in text.splitlines() if line.startswith("| smartgw")]
    cells = [[cell.strip() for cell in line.split("|")][4:6] for line in lines]
    assert cells == [["1.10", ""], ["", "2.00"]]
    assert dns_report.document([]) == ""


@pytest.mark.parametrize(
    ("names", "cases", "servers", "http"),
    [
        ([], {"dns-repeated", "dns-wildcard"}, 5, True),
        (["dns-*"], {"dns-repeated", "dns-wildcard"}, 5, False),
        (["dns-wildcard", "bind", "smartgw"], {"dns-wildcard"}, 2, False),
        (["get-1k-c1"], set(), 5, True),
        (["caddy"], {"dns-repeated", "dns-wildcard"}, 0, True),
    ],
)
def test_names_choose_cases_and_servers(
    tmp_path: Path, names: list[str], cases: set[str], servers: int, http: bool
) -> None:
    """12.7: `./run bench [names]`."""
    guard = Guard()
    try:
        run = Run(arguments(names), tmp_path, guard)
    finally:
        guard.close()
    assert {name for name in run.cases if name.startswith("dns-")} == cases
    assert len(run._dns_servers) == servers
    assert run.has_http == http


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12.7: a program that is not there is named with how to get it, and the rest is measured."""
    cores = Cores.of_this_process()
    monkeypatch.setenv("PATH", str(tmp_path))
    pace = Pace(1, 1, 0.0)
    found = dns_stage.measured(tmp_path, cores, CASES, SERVERS, pace, 0.0)
    assert found == ([], {"dnsperf": "apt-get install -y dnsperf"})


def test_ours_is_measured(tmp_path: Path) -> None:
    """12.7: CPU a query of our wire server, without a wrong answer."""
    if shutil.which("dnsperf") is None:
        pytest.skip("dnsperf is not installed")
    (ours,) = (server for server in SERVERS if server.name == "smartgw")
    cores, pace = Cores.of_this_process(), Pace(1, 1, 0.0)
    deadline = time.monotonic() + 60
    rows, skipped = dns_stage.measured(tmp_path, cores, CASES, [ours], pace, deadline)
    assert skipped == {}
    assert [(row.case, row.proxy, row.errors) for row in rows] == [
        (case.name, "smartgw", 0) for case in CASES
    ]
    assert all(row.cpu_us is not None and row.cpu_us > 0 for row in rows)
