"""The packets that answer: right for every name that shares one, never more than may be sent."""

from __future__ import annotations

import json
from pathlib import Path

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.names import name_of
from smartgw_dns.query import read
from smartgw_dns.respond import PAYLOAD, Responder
from smartgw_dns.zone import Zone
from tests.dns.zones import LABELS, ORIGIN, zones

DATA = Path(__file__).parents[1] / "data/dns"
PACKETS = json.loads((DATA / "packets/manifest.json").read_text())
CORNERS = master.read((DATA / "smart-app.test.zone").read_text())
CLIENT = "192.0.2.7"
NAMES = st.lists(LABELS | st.just(b"\x02xy") | st.just(b"\x01y"), max_size=4).map(
    lambda labels: b"".join(labels) + ORIGIN
)
TYPES = st.sampled_from([1, 28, 16, 5, 39, 2, 15, 255])


def responder(*zones: Zone, rate: int = 0, now: float = 1e9) -> Responder:
    made = Responder(bytes(32), rate, lambda: now)
    made.catalog = Catalog.of(zones)
    return made


def asked(name: str, rdtype: str, **options: object) -> bytes:
    flags = options.pop("flags", 0)
    return dns.message.make_query(name, rdtype, flags=flags, **options).to_wire()  # type: ignore[arg-type]


def content(wire: bytes) -> tuple[object, ...]:
    message = dns.message.from_wire(wire)
    sections = (message.answer, message.authority, message.additional)
    return (
        message.rcode(),
        message.flags,
        *(
            sorted((rrset.name.to_text(), rrset.to_text()) for rrset in section)
            for section in sections
        ),
    )


@given(zones(), st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=12))
def test_an_answer_that_is_kept_is_the_answer_of_the_name(
    zone: Zone, questions: list[tuple[bytes, int]]
) -> None:
    """8.3: what was written for one name is sent for another only where it is its answer too."""
    kept = responder(zone)
    for qname, qtype in questions * 2:
        packet = dns.message.make_query(
            name_of(qname), dns.rdatatype.RdataType(qtype), flags=0, payload=4096
        ).to_wire()
        got, fresh = kept.tcp(packet, CLIENT), responder(zone).tcp(packet, CLIENT)
        assert got is not None
        assert fresh is not None
        core = Catalog.of([zone]).lookup_wire(qname, qtype)
        parsed = dns.message.from_wire(got)
        assert content(got) == content(fresh), (name_of(qname), qtype, list(master.write(zone)))
        assert parsed.rcode() == core.rcode
        for ours, theirs in (
            (parsed.answer, core.answer),
            (parsed.authority, core.authority),
            (parsed.additional, core.additional),
        ):
            assert {(r.name, r.rdtype, frozenset(r)) for r in ours} == {
                (r.name, r.rdtype, frozenset(r)) for r in (o.to_dnspython() for o in theirs)
            }
        # Names of the question come back as they were written (0x20).
        assert dns.message.from_wire(got).question[0].name.labels == name_of(qname).labels


@pytest.mark.parametrize("case", PACKETS, ids=lambda case: str(case["file"]))
def test_packets_of_all_kinds(case: dict[str, str]) -> None:
    """8.4: malformed packets get FORMERR or nothing, odd ones what the best servers say."""
    packet, want = (DATA / "packets" / case["file"]).read_bytes(), case["want"]
    answer = responder(CORNERS).udp(packet, CLIENT)
    if want.startswith("ignored:") or want == "ignored":
        assert answer is None
        return
    assert answer is not None
    assert answer[:2] == packet[:2]
    got = dns.message.from_wire(answer)
    rcode = dns.rcode.to_text(got.rcode())
    allowed = {word for word in want.replace(",", " ").split() if word.isupper()}
    if rcode not in allowed:
        assert rcode == "NOERROR"
        assert "answered" in want or "minimal" in want or "512" in want or "ignored" in want
    assert not got.flags & dns.flags.RA
    assert len(answer) <= PAYLOAD
    if "minimal" in want:
        assert len(answer) <= len(packet)
        assert got.flags & dns.flags.TC
    if "case kept" in want:
        query = read(packet)
        assert query is not None
        assert query.qname in answer


@given(st.integers(0, 5000), st.sampled_from(["big", "dn", "missing.deep", "explicit"]))
def test_no_datagram_is_longer_than_its_client_takes(payload: int, label: str) -> None:
    """8.4: EDNS and truncation: 512 octets without it, at most 1,232 with it, TC when cut."""
    made = responder(CORNERS)
    packet = asked(f"{label}.smart-app.test", "TXT", payload=payload)
    answer = made.udp(packet, CLIENT)
    assert answer is not None
    assert len(answer) <= min(max(payload, 512), PAYLOAD)
    short = dns.message.from_wire(answer)
    whole = made.tcp(packet, CLIENT)
    assert whole is not None
    if short.flags & dns.flags.TC:
        assert not short.answer
    else:
        assert content(answer)[2] == content(whole)[2]


def test_any_is_not_worth_forging_an_address_for() -> None:
    """8.4: an answer to ANY is longer than its question only for who has shown that he is there."""
    made = responder(CORNERS)
    packet = asked("smart-app.test", "ANY", use_edns=0)
    answer = made.udp(packet, CLIENT)
    assert answer is not None
    assert len(answer) <= len(packet)
    assert dns.message.from_wire(answer).flags & dns.flags.TC
    cookie = dns.edns.CookieOption(b"12345678", b"")
    first = made.udp(asked("smart-app.test", "SOA", options=[cookie]), CLIENT)
    assert first is not None
    (given_cookie,) = dns.message.from_wire(first).options
    again = asked("smart-app.test", "ANY", options=[given_cookie])
    answer = made.udp(again, CLIENT)
    assert answer is not None
    assert len(dns.message.from_wire(answer).answer) == 1
    # Another address has not shown anything by it.
    elsewhere = made.udp(again, "198.51.100.1")
    assert elsewhere is not None
    assert dns.message.from_wire(elsewhere).flags & dns.flags.TC


def test_a_cookie_is_taken_for_an_hour() -> None:
    """8.4: a server cookie proves an address for an hour (RFC 9018 4.3)."""
    options = [dns.edns.CookieOption(b"12345678", b"")]
    first = responder(CORNERS, now=1e9).udp(asked("smart-app.test", "SOA", options=options), CLIENT)
    assert first is not None
    packet = asked("smart-app.test", "ANY", options=list(dns.message.from_wire(first).options))
    cut = []
    for age in (-400, -200, 0, 3_500, 3_700):
        answer = responder(CORNERS, now=1e9 + age).udp(packet, CLIENT)
        assert answer is not None
        cut.append(bool(dns.message.from_wire(answer).flags & dns.flags.TC))
    assert cut == [True, False, False, False, True]


def test_only_a_cookie_may_be_asked_for() -> None:
    """8.4: a query without a question but with a cookie gets one (RFC 7873 5.4)."""
    query = dns.message.QueryMessage()
    query.use_edns(0, options=[dns.edns.CookieOption(b"12345678", b"")])
    answer = responder(CORNERS).udp(query.to_wire(), CLIENT)
    assert answer is not None
    got = dns.message.from_wire(answer)
    assert (got.rcode(), len(got.options)) == (dns.rcode.NOERROR, 1)


def test_beyond_the_rate_answers_are_cut_or_left_out() -> None:
    """8.4: response-rate limiting: like answers to one network, with a way out for real clients."""
    made = responder(CORNERS, rate=5)
    seen = []
    for number in range(20):
        packet = asked(f"x{number}.smart-app.test", "A")
        answer = made.udp(packet, f"192.0.2.{number}")
        seen.append(
            "none"
            if answer is None
            else "cut"
            if dns.message.from_wire(answer).flags & dns.flags.TC
            else "whole"
        )
    assert seen[:5] == ["whole"] * 5
    assert {"none", "cut"} == set(seen[5:])
    # Others, other answers, and who comes over TCP are served.
    assert made.udp(asked("y.smart-app.test", "A"), "198.51.100.1") is not None
    other = made.udp(asked("mail.smart-app.test", "A"), CLIENT)
    assert other is not None
    assert dns.message.from_wire(other).answer
    assert made.tcp(asked("z.smart-app.test", "A"), CLIENT) is not None


def test_a_repeated_packet_is_limited_like_any_other() -> None:
    """8.4: an answer that is kept as it was sent counts as well."""
    made = responder(CORNERS, rate=3)
    answers = [made.udp(asked("mail.smart-app.test", "A", id=7), CLIENT) for _ in range(8)]
    whole = [a for a in answers if a is not None and dns.message.from_wire(a).answer]
    assert len(whole) == 3


def test_a_change_of_zones_is_seen_at_once() -> None:
    """8.6: nothing that was kept outlives the zones that it was made from."""
    made = responder(CORNERS)
    packet = asked("mail.smart-app.test", "A")
    before = made.udp(packet, CLIENT)
    made.catalog = Catalog()
    after = made.udp(packet, CLIENT)
    assert before is not None
    assert after is not None
    assert dns.message.from_wire(before).rcode() == dns.rcode.NOERROR
    assert dns.message.from_wire(after).rcode() == dns.rcode.REFUSED


@given(st.binary(max_size=60), st.sampled_from([CLIENT, "2001:db8::1"]))
def test_whatever_comes_the_answer_is_a_message_that_fits(packet: bytes, client: str) -> None:
    """8.4: no crash, no answer longer than allowed."""
    query = asked("Mail.smart-app.test", "A", use_edns=0)
    for sent in (packet, query[: len(packet)] + packet, packet[:12] + query[12:]):
        answer = responder(CORNERS).udp(sent, client)
        if answer is None:
            continue
        try:
            dns.message.from_wire(answer)
        except dns.exception.DNSException as error:
            raise AssertionError(answer) from error
        assert len(answer) <= PAYLOAD
