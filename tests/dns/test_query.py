"""What packets ask: those of the plain form are read as dnspython reads them, the rest safely."""

from __future__ import annotations

import dns.edns
import dns.exception
import dns.message
import dns.name
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns.names import wire_of
from smartgw_dns.query import Query, other, plain, read

LABELS = st.lists(st.binary(min_size=1, max_size=63), max_size=5).map(
    lambda labels: b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
)
OPTIONS = st.sampled_from(
    [
        None,
        b"",
        b"\0\x0a\0\x08" + bytes(8),
        b"\0\x0a\0\x18" + bytes(24),
        b"\0\x0a\0\x09" + bytes(9),
        b"\0\x08\0\x04\0\1\0\0",
        b"\0\x0a\0\x08" + bytes(8) + b"\0\x03\0\0",
        b"\0\x0a",
    ]
)


@st.composite
def packets(draw: st.DrawFn) -> bytes:
    """Queries, nearly all of them well formed."""
    flags = draw(st.sampled_from([0, 0x0100, 0x0110, 0x0120, 0x8000, 0x2800, 0x0400]))
    options = draw(OPTIONS)
    counts = draw(
        st.sampled_from([(1, 0, 0), (1, 0, 0), (1, 0, 0), (0, 0, 0), (2, 0, 0), (1, 1, 0)])
    )
    packet = draw(st.binary(min_size=2, max_size=2)) + flags.to_bytes(2, "big")
    packet += b"".join(count.to_bytes(2, "big") for count in counts)
    packet += (options is not None).to_bytes(2, "big")
    packet += draw(LABELS) + draw(st.sampled_from([b"\0\1\0\1", b"\0\xff\0\1", b"\0\1\0\3"]))
    if options is not None:
        head = draw(st.sampled_from([b"\0\0\x29\x04\xd0\0\0\x80\0", b"\0\0\x29\0\0\0\1\0\0"]))
        packet += head + len(options).to_bytes(2, "big") + options
    return packet + draw(st.sampled_from([b"", b"", b"", b"x"]))


def asked(counts: bytes) -> bytes:
    """The header with these counts, and a question."""
    return bytes(4) + counts + b"\1a\0\0\1\0\1"


def opt(options: bytes) -> bytes:
    """An OPT record with an option of these octets."""
    option = b"\xfd\xe9" + len(options).to_bytes(2, "big") + options
    return b"\0\0\x29\x04\xd0" + bytes(4) + len(option).to_bytes(2, "big") + option


@given(packets())
def test_the_plain_form_is_read_as_dnspython_reads_it(packet: bytes) -> None:
    """8.3: what is read without dnspython is what it would have read."""
    got = plain(packet)
    if got is None:
        return
    message = dns.message.from_wire(packet)
    (question,) = message.question
    assert (got.qname, got.qtype, got.qclass) == (
        wire_of(question.name),
        question.rdtype,
        question.rdclass,
    )
    assert (got.edns is not None) == (message.edns == 0)
    if got.edns is not None:
        assert got.edns.payload == message.payload
        assert got.edns.dnssec_ok == bool(message.ednsflags & 0x8000)
        cookies = [o.to_wire() for o in message.options if o.otype == dns.edns.OptionType.COOKIE]
        assert got.edns.cookie == b"".join(cookie or b"" for cookie in cookies)


@given(packets())
def test_every_other_form_is_read_as_dnspython_reads_it(packet: bytes) -> None:
    """8.4: what dnspython can read, we can, but for faults in options that are not ours; and what
    it refuses, we refuse."""
    got = other(packet)
    if packet[2] & 0x80:
        assert got is None
        return
    assert got is not None
    quick = plain(packet)
    assert quick in (None, got)
    if packet[2] & 0x78:
        assert got.error == 4
        return
    try:
        message = dns.message.from_wire(packet)
    except dns.exception.DNSException:
        # How the options of another version of EDNS are to be read nobody knows.
        assert got.error in (1, 16) or b"\0\x08\0\x04" in packet or b"\0\x03\0\0" in packet
        return
    if got.error in (0, 16) and got.qname:
        assert [(wire_of(q.name), q.rdtype, q.rdclass) for q in message.question] == [
            (got.qname, got.qtype, got.qclass)
        ]
    assert (got.error == 16) == (message.edns > 0) or got.error == 1
    if got.edns is not None:
        assert message.edns >= 0
        assert got.edns.payload == message.payload


@given(packets() | st.binary(max_size=80), st.integers(0, 90), st.binary(max_size=2))
def test_no_packet_is_a_crash(packet: bytes, cut: int, more: bytes) -> None:
    """8.4: whatever comes, it is a question, an error, or nothing."""
    query = read(packet[:cut] + more)
    if query is None:
        return
    assert isinstance(query, Query)
    assert query.error in (0, 1, 4, 9, 16)
    assert query.error or query.qname or query.edns


@pytest.mark.parametrize(
    "packet",
    [
        asked(b"\0\1" + bytes(4) + b"\0\1") + opt(bytes(1_200)),
        asked(b"\0\1" + bytes(4) + b"\0\x09") + (b"\0\0\1\0\1" + bytes(6)) * 9,
        asked(b"\0\x09" + bytes(6)) + b"\1a\0\0\1\0\1" * 8,
        asked(b"\0\1\xff\xff" + bytes(4)),
    ],
)
def test_what_is_no_query_by_its_size_is_not_read(
    packet: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.4: a packet that takes long to read holds nobody up."""
    monkeypatch.setattr(dns.message, "from_wire", None)
    for flags, error in ((b"\1\0", 1), (b"\x28\0", 4)):
        got = read(packet[:2] + flags + packet[4:])
        assert got is not None
        assert (got.error, got.qname, got.edns) == (error, b"", None)


def test_a_signed_query_is_told_that_we_have_no_such_key() -> None:
    """8.4: AXFR only to TSIG keys; a key that nobody has is refused (RFC 8945 5.2.1)."""
    query = dns.message.make_query("z.", "AXFR")
    query.use_tsig({dns.name.from_text("key."): b"secret"}, "key.")
    wire = query.to_wire()
    got = read(wire)
    assert got is not None
    assert got.error == 9
    assert got.tsig.startswith(b"\x03key\0\0\xfa\0\xff")
    # Another record behind it, or a length that lies, makes it a fault.
    for sent in (wire[:-1], wire + b"\0" * 11, wire[:11] + b"\2" + wire[12:] + bytes(11)):
        got = read(sent)
        assert got is not None
        assert (got.error, got.tsig) == (1, b"")


def test_a_name_is_not_followed_to_elsewhere() -> None:
    """8.4: a pointer that leads nowhere is a fault in a question, one of a record is not."""
    query = bytes(4) + b"\0\1\0\0\0\0\0\1" + b"\1a\0\0\1\0\1"
    record = b"\xc0\x0c" + b"\0\1\0\1" + bytes(4) + b"\0\4" + bytes(4)
    got = read(query + record)
    assert got is not None
    assert (got.error, got.qname) == (0, b"\1a\0")
    for name in (b"\xc0\x0c", b"\xc0\x20", b"\1a\xc0\x0c"):
        got = read(query[:12] + name + query[15:] + record)
        assert got is not None
        assert got.error == 1
