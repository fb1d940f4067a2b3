"""Proves on some commands that we answer dig and kdig as Knot does; `python -m tests.prove
dns-beside` takes all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dns_beside import MEANT, commands, heard, main
from tests.dns_servers import system
from tests.servers import find_binary

PAGE = Path(__file__).parents[2] / "docs/dns.md"


def test_we_answer_as_knot_does(capsys: pytest.CaptureFixture[str]) -> None:
    """8.4: EDNS, truncation, and whatever else dig and kdig can send."""
    try:
        system("knotd")
        for tool in ("dig", "kdig"):
            find_binary(tool, f"SMARTGW_TEST_{tool.upper()}")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert main(["+ednsopt", "+header-only", "+opcode", "kdig", "hmac-"]) == 0
    assert capsys.readouterr().out.endswith("0 differences that are not meant\n")


def test_all_options_are_among_the_commands() -> None:
    """8.4: what an authoritative server meets: each option of the tools is tried."""
    words = {word.partition("=")[0] for line in commands([]) for word in line}
    assert {
        *("+tcp", "+edns", "+bufsize", "+cookie", "+nsid", "+subnet", "+padding", "+keepopen"),
        *("+keepalive", "+norec", "+cd", "+ad", "+ednsflags", "+zflag", "+dnssec", "+expire"),
        *("+opcode", "+header-only", "AXFR", "IXFR", "ANY", "CH", "TYPE65280", "-y", "-b", "-x"),
    } <= words


def test_what_the_tools_print_is_read_alike() -> None:
    """8.4: the same answer, shown by two tools, is the same to us where they name it alike."""
    (by_dig,) = heard(
        ";; ->>HEADER<<- opcode: QUERY, status: NOERROR, id: 17\n"
        ";; flags: qr aa; QUERY: 1, ANSWER: 1, AUTHORITY: 0, ADDITIONAL: 0\n\n"
        ";; QUESTION SECTION:\n;z.\t\t\tIN\tA\n\n;; ANSWER SECTION:\nz.\t300\tIN\tA\t192.0.2.1\n\n"
        ";; Query time: 0 msec\n"
    )
    (by_kdig,) = heard(
        ";; ->>HEADER<<- opcode: QUERY; status: NOERROR; id: 4\n"
        ";; Flags: qr aa; QUERY: 1; ANSWER: 1; AUTHORITY: 0; ADDITIONAL: 0\n\n"
        ";; QUESTION SECTION:\n;; z.  \t\tIN\tA\n\n;; ANSWER SECTION:\nz.  300 IN A  192.0.2.1\n\n"
        ";; Received 33 B\n"
    )
    assert by_dig == by_kdig
    assert by_dig["answer"] == {"z. 300 IN A 192.0.2.1"}


def test_what_is_meant_to_differ_is_told() -> None:
    """8.4: every difference that is allowed stands in the docs with its reason."""
    text = PAGE.read_text()
    for meant in MEANT:
        assert f"| {meant.what} |" in text
