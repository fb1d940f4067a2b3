"""Answers as JSON (dns/smartgw_dns/shown.py)."""

from typing import Any

import dns.message
import dns.rdatatype
import pytest

from smartgw_dns import shown as shown_module
from smartgw_dns.catalog import Catalog
from smartgw_dns.changes import compare
from smartgw_dns.edits import edit
from smartgw_dns.records import read_rrset
from smartgw_dns.respond import Responder
from smartgw_dns.shown import (
    answer_json,
    difference_json,
    differences_json,
    kept_seconds,
    wire_kept_seconds,
)
from tests.dns.zones import wire, zone

ZONE = zone(
    "www A 192.0.2.1\nwww A 192.0.2.2\nalias 40 CNAME www\nlost CNAME no\nlong 9999 CNAME www\n"
    '*.w TXT "a b" "c\\"d"\n'
    "sub NS ns.sub\nns.sub A 192.0.2.3\nout CNAME elsewhere.test.\n"
)
HEAD = {"TC": False, "RD": True, "RA": False, "AD": False, "CD": False}


def ask(question: str) -> dict[str, Any]:
    """Answer `NAME TYPE` as JSON."""
    name, rdtype = question.split()
    code = int(dns.rdatatype.from_text(rdtype))
    answer = Catalog.of([ZONE]).lookup_wire(wire(name), code)
    return answer_json(wire(name), code, answer, recursion=False)


def test_an_answer_has_the_members_that_others_give() -> None:
    """8.1: JSON as in Google's and Cloudflare's DNS over HTTPS."""
    shown = ask("Alias.z. A")
    servers = shown.pop("Authority")
    assert shown == HEAD | {
        "Status": 0,
        "AA": True,
        "Question": [{"name": "Alias.z.", "type": 1}],
        "Answer": [
            {"name": "Alias.z.", "type": 5, "TTL": 40, "data": "www.z."},
            {"name": "www.z.", "type": 1, "TTL": 300, "data": "192.0.2.1"},
            {"name": "www.z.", "type": 1, "TTL": 300, "data": "192.0.2.2"},
        ],
    }
    assert servers == [{"name": "z.", "type": 2, "TTL": 600, "data": "ns.elsewhere."}]
    assert ask("x.y.w.z. TXT")["Answer"][0]["data"] == r'"a b" "c\"d"'


def test_a_referral_says_where_to_go_on() -> None:
    """8.3: AA off, the servers in the authority section, their addresses beside them."""
    shown = ask("deep.sub.z. A")
    assert (shown["AA"], "Answer" in shown) == (False, False)
    assert shown["Authority"] == [{"name": "sub.z.", "type": 2, "TTL": 300, "data": "ns.sub.z."}]
    assert shown["Additional"] == [
        {"name": "ns.sub.z.", "type": 1, "TTL": 300, "data": "192.0.2.3"}
    ]


@pytest.mark.parametrize(
    ("question", "status", "seconds"),
    [
        ("www.z. A", 0, 300),
        ("alias.z. A", 0, 40),
        ("www.z. AAAA", 0, 60),
        ("long.z. A", 0, 300),
        ("long.z. AAAA", 0, 60),
        ("no.z. A", 3, 60),
        ("lost.z. A", 3, 60),
        ("out.z. A", 0, 300),
        ("deep.sub.z. A", 0, None),
        ("elsewhere.test. A", 5, None),
    ],
)
def test_an_answer_may_be_kept_for_its_lowest_ttl(
    question: str, status: int, seconds: int | None
) -> None:
    """8.1, 8.3: negative answers for as long as RFC 2308 says; a refusal not at all."""
    shown = ask(question)
    assert (shown["Status"], kept_seconds(shown)) == (status, seconds)
    responder = Responder(bytes(32), 0, lambda: 0.0)
    responder.catalog = Catalog.of([ZONE])
    name, rdtype = question.split()
    packet = responder.tcp(dns.message.make_query(name, rdtype).to_wire(), "192.0.2.7")
    assert packet is not None
    assert wire_kept_seconds(packet) == seconds


def test_what_a_write_changes_is_told_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.6: however many records each answer has that changes, a reply does not grow with all."""
    before = zone("".join(f"* A 10.0.{n >> 8}.{n & 255}\n" for n in range(1_000)))
    written = [read_rrset(f"h{n}.z.", "TXT", 300, ["x"]) for n in range(20)]
    shadowed = compare(before, edit(before, written), written).others
    assert len(shadowed) == 40
    told = differences_json(shadowed)
    assert told == [difference_json(one) for one in shadowed[:5]]
    monkeypatch.setattr(shown_module, "MOST_OCTETS", 500)
    assert len(differences_json(shadowed)) == 1


def test_long_records_count_by_their_length() -> None:
    """8.6: nor does it grow with all that records hold."""
    before = zone("")
    text = " ".join(["x" * 255] * 240)
    written = [read_rrset(f"h{n}.z.", "TXT", 300, [text]) for n in range(20)]
    assert len(differences_json(compare(before, edit(before, written), written).own)) == 5
