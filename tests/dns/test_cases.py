"""Proves the lookup core on answers on which authoritative servers agree."""

from pathlib import Path

import pytest

from tests.dns_cases import main

DATA = Path(__file__).parents[1] / "data/dns"


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
