"""Proves that we agree with the four servers, on a few zones; `python -m tests.prove dns-oracle`
takes 500."""

import pytest

from smartgw_dns import master
from tests.dns_oracle import generate, main
from tests.dns_servers import FOUR, system


def test_we_answer_as_the_four_do_where_they_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """8.3: Answers are those of the best authoritative servers."""
    try:
        for name in ("named", "nsd", "knotd", "pdns_server"):
            system(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert main(["--zones", "8"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"8 zones, 320 questions; {len(FOUR)} servers agree on")
    assert shown[1] == "0 differences from what all four say"


def test_generated_zones_are_as_varied_as_the_lookup() -> None:
    """8.3: Wildcards, delegations and chains are all among what is compared."""
    zones = [generate(1, number) for number in range(60)]
    lines = [line for zone in zones for line in zone.text.splitlines()]
    for rdtype in ("CNAME", "DNAME", "NS", "DS", "MX"):
        assert sum(line.split()[3] == rdtype for line in lines) > 5
    assert sum(line.startswith("*.") for line in lines) > 20
    assert all(master.read(zone.text).records >= 3 for zone in zones)
