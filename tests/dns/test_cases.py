"""Proves the lookup core on answers on which authoritative servers agree."""

import json
from pathlib import Path

import pytest

from smartgw_dns import master
from smartgw_dns.edits import EditRefused, edit
from smartgw_dns.records import RecordRefused, added
from tests.dns_cases import main

DATA = Path(__file__).parents[1] / "data/dns"
BAD = [json.loads(line) for line in (DATA / "bad_records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("way", [[], ["--udp"]], ids=["lookup", "udp"])
def test_every_case_of_the_ferret_dataset(
    way: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """8.3: Answers are those of the best authoritative servers, in all sections."""
    assert main([str(DATA / "ferret.jsonl"), *way]) == 0
    assert capsys.readouterr().out == "2000 passed, 0 failed\n"


def test_every_question_to_the_zone_of_corners(capsys: pytest.CaptureFixture[str]) -> None:
    """8.3: Wildcards, empty non-terminals, chains, loops, referrals, case and escapes."""
    arguments = ["--queries", "queries.tsv", "--zone", "smart-app.test.zone"]
    assert main([a if a.startswith("-") else str(DATA / a) for a in arguments]) == 0
    assert capsys.readouterr().out == "21 passed, 0 failed\n"


@pytest.mark.parametrize("case", BAD, ids=lambda case: str(case["want"]))
def test_a_bad_record_is_refused(case: dict[str, object]) -> None:
    """8.6: CNAME-and-other-data, out-of-zone names and whatever is no record are refused."""
    zone = master.read((DATA / "smart-app.test.zone").read_text())
    want = str(case["want"])
    try:
        change = added(zone, case["name"], case["type"], case.get("ttl", 300), case["rdata"])
        got = "accepted" if edit(zone, [change]) is not zone else "no change"
    except RecordRefused:
        got = "400"
    except EditRefused:
        got = "409"
    assert got in want
