"""The packets that answer: right for every name that shares one, never more than may be sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import dns.rrset
import dns.tsig
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns import master, respond
from smartgw_dns.catalog import Catalog
from smartgw_dns.names import name_of
from smartgw_dns.query import Query, other, read
from smartgw_dns.respond import LATER, PAYLOAD, Responder
from smartgw_dns.written import Written, write_for
from smartgw_dns.zone import Zone
from tests.dns.zones import LABELS, ORIGIN, wire, zones
from tests.dns.zones import zone as zone_of

DATA = Path(__file__).parents[1] / "data/dns"
PACKETS = json.loads((DATA / "packets/manifest.json").read_text())
CORNERS = master.read((DATA / "smart-app.test.zone").read_text())
CLIENT = "192.0.2.7"
NAMES = st.lists(LABELS | st.just(b"\x02xy") | st.just(b"\x01y"), max_size=4).map(
    lambda labels: b"".join(labels) + ORIGIN
)
TYPES = st.sampled_from([1, 28, 16, 5, 39, 2, 15, 43, 255])
BELOW = st.sets(
    st.sampled_from([b"\x01a" + ORIGIN, b"\x01b\x01a" + ORIGIN, b"\x01*" + ORIGIN])
).map(
    lambda origins: [
        master.read("@ 60 SOA ns root 1 2 3 4 5\n@ 60 NS ns\nb 60 TXT x\n* 60 MX 1 b\n", origin)
        for origin in origins
    ]
)


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


@given(zones(), BELOW, st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=12))
def test_an_answer_that_is_kept_is_the_answer_of_the_name(
    zone: Zone, below: list[Zone], questions: list[tuple[bytes, int]]
) -> None:
    """8.3: what was written for one name is sent for another only where it is its answer too."""
    kept = responder(zone, *below)
    for qname, qtype in questions * 2:
        packet = dns.message.make_query(
            name_of(qname), dns.rdatatype.RdataType(qtype), flags=0, payload=4096
        ).to_wire()
        got, fresh = kept.tcp(packet, CLIENT), responder(zone, *below).tcp(packet, CLIENT)
        assert got is not None
        assert fresh is not None
        core = Catalog.of([zone, *below]).lookup_wire(qname, qtype)
        parsed = dns.message.from_wire(got)
        assert content(got) == content(fresh), (name_of(qname), qtype, list(master.write(zone)))
        assert parsed.rcode() == core.rcode
        for ours, theirs in (
            (parsed.answer, core.answer),
            (parsed.authority, core.authority),
            (parsed.additional, core.additional),
        ):
            assert {(r.name, r.rdtype, frozenset(r)) for r in ours} == {
                (r.name, r.rdtype, frozenset(r)) for o in theirs for r in o.to_dnspython()
            }
        # Names of the question come back as they were written (0x20).
        assert dns.message.from_wire(got).question[0].name.labels == name_of(qname).labels


@given(zones(), BELOW, st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=12), st.booleans())
def test_a_datagram_from_what_was_kept_is_the_one_that_would_be_made(
    zone: Zone, below: list[Zone], questions: list[tuple[bytes, int]], edns: bool
) -> None:
    """8.3: what was sent for a name is sent for its like, as often as it is asked, in its case."""
    kept = responder(zone, *below)
    for number, (qname, qtype) in enumerate(questions * 3):
        sent = [qname, qname.upper()] if b"\x01A" not in qname else [qname]
        for name in sent:
            packet = dns.message.make_query(
                name_of(name), dns.rdatatype.RdataType(qtype), flags=0, id=number, use_edns=edns
            ).to_wire()
            fresh = responder(zone, *below).udp(packet, CLIENT)
            assert kept.udp(packet, CLIENT) == fresh, (name_of(name), qtype, zone)


@pytest.mark.parametrize(
    ("text", "asked_before", "question"),
    [
        # The zone above has a name at the apex of the one below, without a cut.
        ("x.in TXT t\n", "in.z. TXT", "in.z. DS"),
        ("x.in TXT t\n", "in.z. DS", "in.z. TXT"),
        # A chain that comes back to the wildcard, whose name is as long as that asked for.
        ("*.w CNAME b.w\n", "b.w.z. A", "c.w.z. A"),
        # A target that looks like the name that stands for all others.
        (r"*.w MX 1 \255\255.w" + "\n", "ab.w.z. MX", "cd.w.z. MX"),
        (r"*.w MX 1 a.\255\255.w" + "\n", "ab.w.z. MX", "cd.w.z. MX"),
    ],
)
@pytest.mark.parametrize("way", ["udp", "tcp"])
def test_what_was_asked_before_changes_no_answer(
    text: str, asked_before: str, question: str, way: str
) -> None:
    """8.3: an answer is that of the name, whatever was asked of the same entry before."""
    found = zone_of(text), zone_of("", "in.z.")
    kept, packet = responder(*found), asked(*question.split(), use_edns=0)
    getattr(kept, way)(asked(*asked_before.split(), use_edns=0), CLIENT)
    fresh = getattr(responder(*found), way)(packet, CLIENT)
    assert content(getattr(kept, way)(packet, CLIENT)) == content(fresh)
    name, rdtype = question.split()
    core = Catalog.of(found).lookup_wire(wire(name), dns.rdatatype.from_text(rdtype))
    shown = {(r.name, r.rdtype, frozenset(r)) for r in dns.message.from_wire(fresh).answer}
    assert shown == {
        (r.name, r.rdtype, frozenset(r)) for o in core.answer for r in o.to_dnspython()
    }


def test_a_zone_below_a_wildcard_has_its_own_answers() -> None:
    """8.3: what was sent for names of a wildcard is not sent for one that is a zone itself."""
    inner = master.read(
        "$ORIGIN in.smart-app.test.\n@ 60 SOA ns root 1 2 3 4 5\n@ 60 NS ns\n@ 60 A 192.0.2.200\n"
    )
    made = responder(CORNERS, inner)
    answers = [
        made.udp(asked(f"{name}.smart-app.test", "A"), CLIENT) for name in ("ab", "cd", "in")
    ]
    addresses = [dns.message.from_wire(a or b"").answer[0][0].to_text() for a in answers]
    assert addresses == ["192.0.2.80", "192.0.2.80", "192.0.2.200"]


def test_a_zone_that_cannot_be_read_is_servfail() -> None:
    """11.2: a resolver then asks another name server."""
    made = responder(zone_of("* A 192.0.2.1\n"), Zone.unknown(wire("u.z.")))
    for _ in range(3):
        for name, rcode in (("x.u.z", dns.rcode.SERVFAIL), ("x.z", dns.rcode.NOERROR)):
            for answer in (made.udp, made.tcp):
                got = dns.message.from_wire(answer(asked(name, "A", use_edns=0), CLIENT) or b"")
                assert (got.rcode(), bool(got.flags & dns.flags.AA)) == (rcode, rcode == 0)


def test_names_below_a_cut_share_a_referral_and_the_cut_does_not() -> None:
    """8.3: referrals of a name at and below a cut; a sibling of the cut is another name."""
    made = responder(CORNERS)
    for name in ("sub", "abc", "a.sub", "b.sub", "ns.sub", "sub"):
        packet = asked(f"{name}.smart-app.test", "A")
        assert made.udp(packet, CLIENT) == responder(CORNERS).udp(packet, CLIENT), name


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
    for name in ("smart-app.test", "missing.smart-app.test", "not-ours.example"):
        for options in ([], [cookie]):
            packet = asked(name, "ANY", use_edns=0, options=options)
            answer = made.udp(packet, CLIENT)
            assert answer is not None
            assert len(answer) <= len(packet)
            cut = bool(dns.message.from_wire(answer).flags & dns.flags.TC)
            assert cut == (name != "not-ours.example")
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


@pytest.mark.parametrize(
    ("options", "rcode"),
    [
        (b"\0\x0a\0\x02ab", dns.rcode.FORMERR),
        (b"\0\x0a\0\x09123456789", dns.rcode.FORMERR),
        (b"\0\x08\0\x02ab", dns.rcode.FORMERR),
        (b"\xfd\xe9\0\x02ab", dns.rcode.NOERROR),
        (b"\0\x0b\0\x02\0\1\0\3\0\0", dns.rcode.NOERROR),
        (b"\xfd\xe9\0\x09ab", dns.rcode.FORMERR),
    ],
)
def test_a_fault_in_an_option_is_told_by_one_that_knows_edns(
    options: bytes, rcode: dns.rcode.Rcode
) -> None:
    """8.4: EDNS: options that are not ours are skipped; an answer without OPT would say that we
    know no EDNS (RFC 6891 6.1.1, 7)."""
    packet = asked("mail.smart-app.test", "A", use_edns=0)
    packet = packet[:-2] + len(options).to_bytes(2, "big") + options
    for answer in (responder(CORNERS).udp(packet, CLIENT), responder(CORNERS).tcp(packet, CLIENT)):
        got = dns.message.from_wire(answer or b"")
        assert (got.rcode(), got.edns) == (rcode, 0)
        assert [rrset.name.to_text() for rrset in got.question] == ["mail.smart-app.test."]


@pytest.mark.parametrize("opcode", [dns.opcode.NOTIFY, dns.opcode.STATUS, dns.opcode.Opcode(9)])
def test_what_is_not_a_query_is_not_implemented(opcode: dns.opcode.Opcode) -> None:
    """8.4: other opcodes: NOTIMP, with the question and an OPT as in the message."""
    query = dns.message.make_query("smart-app.test", "SOA", use_edns=0)
    query.set_opcode(opcode)
    got = dns.message.from_wire(responder(CORNERS).udp(query.to_wire(), CLIENT) or b"")
    assert (got.rcode(), got.opcode(), got.edns) == (dns.rcode.NOTIMP, opcode, 0)
    assert got.question == query.question


def test_who_asks_for_what_is_not_ours_is_told_so() -> None:
    """8.4: no recursion: REFUSED, and where there is an OPT why (RFC 8914 4.21)."""
    for name, told in (("example.org", [20]), ("smart-app.test", [])):
        for options in ([], [dns.edns.CookieOption(b"12345678", b"")]):
            packet = asked(name, "A" if told else "AXFR", use_edns=0, options=options)
            got = dns.message.from_wire(responder(CORNERS).udp(packet, CLIENT) or b"")
            assert (got.rcode(), bool(got.flags & dns.flags.RA)) == (dns.rcode.REFUSED, False)
            codes = [o.code for o in got.options if isinstance(o, dns.edns.EDEOption)]
            assert codes == told
            assert len(got.options) == len(told) + len(options)


def test_a_transfer_is_refused_without_a_key_and_with_one_that_nobody_has() -> None:
    """8.4: AXFR/IXFR only to TSIG keys; an unknown key is told as BADKEY (RFC 8945 5.2.1)."""
    for rdtype in ("AXFR", "IXFR"):
        query = dns.message.make_query("smart-app.test", rdtype)
        if rdtype == "IXFR":
            soa = dns.rrset.from_text("smart-app.test.", 0, "IN", "SOA", "a. b. 1 2 3 4 5")
            query.authority.append(soa)
        for ask in (responder(CORNERS).udp, responder(CORNERS).tcp):
            got = dns.message.from_wire(ask(query.to_wire(), CLIENT) or b"")
            assert got.rcode() == dns.rcode.REFUSED
    key = dns.name.from_text("Some.Key.")
    query.use_tsig({key: b"secret"}, key)
    wire = query.to_wire()
    answer = responder(CORNERS).tcp(wire, CLIENT) or b""
    assert len(answer) <= len(wire)
    with pytest.raises(dns.tsig.PeerBadKey):
        dns.message.from_wire(answer, keyring=query.keyring, request_mac=query.mac)
    *_, record = answer.partition(b"\x04Some\x03Key\0\0\xfa\0\xff\0\0\0\0")
    assert int.from_bytes(record[:2], "big") == len(record) - 2
    assert record.endswith(wire[:2] + b"\0\x11\0\0")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.4: ever-new questions do not grow the memory, and are answered all the same."""
    for name in ("_MOST_KEPT", "_MOST_FAMILIES"):
        monkeypatch.setattr(respond, name, 10)
    monkeypatch.setattr(respond, "_MOST_KEPT_BYTES", 4_000)
    made = responder(CORNERS)
    for number in range(200):
        for name in (f"n{number}", f"{'x.' * (number % 50)}y", "mail", f"n{number}.sub"):
            packet = asked(f"{name}.smart-app.test", "A", payload=512 + number)
            for _ in range(2):
                assert made.udp(packet, CLIENT) is not None
        for kept in (made._packets, made._families, made._written, made._seen):
            assert len(kept) <= 10
        assert made._written_bytes <= 4_000


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


@pytest.mark.parametrize("name", ["alias.z", "x.w.z", "out.z", "lost.z", "cut.z", "round.z"])
def test_an_alias_of_what_lacks_a_type_is_written_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.4: who asks an alias for ever-new types, over TCP too, costs no dnspython."""
    written: list[int] = []

    def noted(*args: Any) -> tuple[Written, bool]:
        written.append(args[4])
        return write_for(*args)

    monkeypatch.setattr(respond, "write_for", noted)
    text = (
        "alias CNAME a\na A 192.0.2.1\n*.w CNAME a\nout CNAME x.elsewhere.\nlost CNAME no\n"
        "cut CNAME x.c\nc NS n.c\nn.c A 192.0.2.2\nround CNAME round2\nround2 CNAME round\n"
    )
    made = responder(zone_of(text))
    for rdtype in ("TXT", "MX", "TYPE65280", "A", "TYPE65281", "A", "CNAME", "TYPE65282"):
        packet = asked(name, rdtype)
        fresh = responder(zone_of(text)).tcp(packet, CLIENT)
        assert made.tcp(packet, CLIENT) == fresh
    kept = [rdtype for rdtype in written if rdtype > 65_279]
    assert len(kept) == 3  # each by the responder that is fresh alone


def test_what_is_beyond_the_rate_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.4: a flood of questions that each have an answer of their own costs little more than one
    of a single question.
    """
    written: list[bytes] = []

    def noted(*args: Any) -> tuple[Written, bool]:
        written.append(args[3])
        return write_for(*args)

    monkeypatch.setattr(respond, "write_for", noted)
    made = responder(zone_of("alias CNAME a\na A 192.0.2.1\nd DNAME z.\n"), rate=2)
    for number in range(1_000, 1_008):
        answer = made.udp(asked("alias.z", f"TYPE{number}"), CLIENT)
        cut = answer is not None and bool(dns.message.from_wire(answer).flags & dns.flags.TC)
        assert cut == (number > 1_001 and answer is not None)
        made.udp(asked(f"n{number}.d.z", "A"), CLIENT)
    # The alias once, and the names below the DNAME as often as the rate says.
    assert len(written) == 3


def test_a_repeated_packet_is_limited_like_any_other() -> None:
    """8.4: an answer that is kept as it was sent counts as well."""
    made = responder(CORNERS, rate=3)
    answers = [made.udp(asked("mail.smart-app.test", "A", id=7), CLIENT) for _ in range(8)]
    whole = [a for a in answers if a is not None and dns.message.from_wire(a).answer]
    assert len(whole) == 3


def test_packets_that_take_long_get_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.4: a flood of packets that only dnspython reads keeps nobody else from an answer."""
    clock = [1e9]
    made = Responder(bytes(32), 0, lambda: clock[0])
    made.catalog = Catalog.of([CORNERS])

    def slowly(packet: bytes) -> Query | None:
        clock[0] += 0.03
        return other(packet)

    monkeypatch.setattr(respond, "other", slowly)
    odd = asked("smart-app.test", "SOA", options=[dns.edns.GenericOption(dns.edns.NSID, b"")])
    for _ in range(2):
        answers = [way(odd, CLIENT) for way in (made.udp, made.tcp) * 4]
        assert all(answers[:4])
        assert answers[4:] == [None, LATER] * 2
        assert made.udp(asked("smart-app.test", "SOA"), CLIENT) is not None
        clock[0] += 0.1
    assert (made.odd, made.unread) == (8, 4)


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
        assert answer[:2] == sent[:2]
        # An UPDATE has other rules for what stands as a question in it.
        plain = answer[:2] + bytes((answer[2] & 0x87,)) + answer[3:]
        try:
            dns.message.from_wire(plain)
        except dns.exception.DNSException as error:
            raise AssertionError(answer) from error
        assert len(answer) <= PAYLOAD
