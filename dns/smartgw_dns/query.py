"""What a packet asks: read strictly, and quickly where it is of the plain form.

Owns which packets are questions that can be answered, which get an error and which get nothing at
all (RFC 1035 4.1, RFC 6891, RFC 7873, RFC 8945). Does not answer (respond.py). Nearly all queries
are of the plain form: one question, and at most an OPT with a cookie. dnspython reads the others.
"""

import struct
from dataclasses import dataclass

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from smartgw_dns.names import LONGEST, wire_of

NOERROR, FORMERR = int(dns.rcode.NOERROR), int(dns.rcode.FORMERR)
NOTIMP, NOTAUTH = int(dns.rcode.NOTIMP), int(dns.rcode.NOTAUTH)
BADVERS = int(dns.rcode.BADVERS)
IN = int(dns.rdataclass.IN)
HEADER = 12  # octets, RFC 1035 4.1.1
_ONE_QUESTION = bytes((0, 1, 0, 0, 0, 0))
_OPT_BEGINS = bytes((0, 0, int(dns.rdatatype.OPT)))
OPT_BYTES = 11  # of an OPT record without options, RFC 6891 6.1.2
TYPE_AND_CLASS = 4  # octets of a question behind its name
_IXFR = int(dns.rdatatype.IXFR)
# A query is no longer, with padding, a cookie and a signature, and has no more records: dnspython
# takes 600 ms for a message of 65,535 octets, and 3 ms for one of these.
_MOST_OCTETS, _MOST_RECORDS = 1_232, 8
_COUNTS = struct.Struct("!4H")
_ANSWER, _AUTHORITY = 1, 2  # sections of a message
_COOKIE = int(dns.edns.OptionType.COOKIE).to_bytes(2, "big")
# Of the query's flags, those that come back; CD does not (RFC 4035 3.1.6).
_OPCODE, _RD = 0x7800, int(dns.flags.RD)


@dataclass(frozen=True, slots=True)
class Edns:
    """What an OPT record says (RFC 6891 6.1).

    Attributes:
        payload: octets of UDP that its sender takes.
        dnssec_ok: the DO bit, which comes back.
        cookie: the client's cookie with what it has of ours, empty without one (RFC 7873 4).
    """

    payload: int
    dnssec_ok: bool
    cookie: bytes = b""


@dataclass(frozen=True, slots=True)
class Query:
    """A question, or what is wrong with one.

    Attributes:
        ident: the message's id, two octets.
        flags: opcode and RD as in the query.
        qname: in wire form, the case kept; empty where there is no question to repeat.
        qtype, qclass: codes.
        edns: None where the query has no OPT.
        error: the response code that it deserves without being looked up, 0 for a question.
        tsig: the TSIG record of the answer, which says that we do not have the key.
    """

    ident: bytes
    flags: int
    qname: bytes
    qtype: int
    qclass: int
    edns: Edns | None
    error: int = NOERROR
    tsig: bytes = b""


def read(packet: bytes) -> Query | None:
    """Read a packet; None: it gets no answer, for it is a response or has no whole header."""
    return plain(packet) or other(packet)


def plain(packet: bytes) -> Query | None:
    """Read a query of the plain form; None: it is of another form, and perhaps no query."""
    size = len(packet)
    if size < HEADER + 5 or packet[2] & 0xFE or packet[4:10] != _ONE_QUESTION:
        return None
    at = HEADER
    while length := packet[at]:
        at += length + 1
        if length > 63 or at + 5 > size:
            return None
    at += 1
    if at - HEADER > LONGEST:
        return None
    edns = None
    additional = packet[10:12]
    rest = at + TYPE_AND_CLASS
    if additional == b"\0\1":
        edns = _plain_opt(packet, rest)
        if edns is None:
            return None
    elif additional != b"\0\0" or rest != size:
        return None
    return Query(
        packet[:2],
        packet[2] << 8 & _RD,
        packet[HEADER:at],
        packet[at] << 8 | packet[at + 1],
        packet[at + 2] << 8 | packet[at + 3],
        edns,
    )


def _plain_opt(packet: bytes, at: int) -> Edns | None:
    """Read an OPT record that is all that follows, of version 0, with at most a cookie."""
    options = at + OPT_BYTES
    if packet[at : at + 3] != _OPT_BEGINS or len(packet) < options:
        return None
    length = packet[at + 9] << 8 | packet[at + 10]
    if packet[at + 6] or options + length != len(packet):
        return None
    cookie = b""
    if length:
        cookie = packet[options + 4 :]
        told = packet[options + 2] << 8 | packet[options + 3] if length >= 4 else -1
        if packet[options : options + 2] != _COOKIE or told != len(cookie) or not _fits(cookie):
            return None
    head = _opt_head(packet, at)
    return None if head is None else Edns(head.payload, head.dnssec_ok, cookie)


def _fits(cookie: bytes) -> bool:
    """Say whether a cookie has one of the lengths of RFC 7873 4."""
    return len(cookie) == 8 or 16 <= len(cookie) <= 40


def other(packet: bytes) -> Query | None:
    """Read whatever else comes, by dnspython; None: it gets no answer."""
    if len(packet) < HEADER or packet[2] & 0x80:
        return None
    sent = packet[2] << 8 | packet[3]
    error = NOTIMP if sent & _OPCODE else NOERROR
    nothing = Query(packet[:2], sent & (_OPCODE | _RD), b"", 0, 0, None, error or FORMERR)
    if len(packet) > _MOST_OCTETS or sum(_COUNTS.unpack_from(packet, 4)) > _MOST_RECORDS:
        return nothing
    try:
        # What is signed is not for us to verify: whoever signs is told that we have no such key.
        message = dns.message.from_wire(packet, keyring=False, continue_on_error=True)
    except (dns.exception.DNSException, ValueError, IndexError):
        return nothing
    faulty = bool(message.errors)
    edns, told = _edns(message)
    error = error or told
    tsig = b""
    if not faulty and message.tsig is not None:
        error, tsig = error or NOTAUTH, _unknown_key(message.tsig)
    qname, qtype, qclass = b"", 0, 0
    if len(message.question) == 1:
        asked = message.question[0]
        qname, qtype, qclass = wire_of(asked.name), int(asked.rdtype), int(asked.rdclass)
        if faulty and edns is None:
            edns = _opt_head(packet, HEADER + len(qname) + TYPE_AND_CLASS)
    if error != NOTIMP and (
        faulty
        or message.sections[_ANSWER]
        or (message.sections[_AUTHORITY] and qtype != _IXFR)
        # Whoever has no question may ask for a cookie (RFC 7873 5.4), and for nothing else.
        or (not qname and (message.question or edns is None or not edns.cookie))
    ):
        error, tsig = FORMERR, b""
    flags = sent & (_OPCODE | _RD)
    return Query(packet[:2], flags, qname, qtype, qclass, edns, error, tsig)


def _edns(message: dns.message.Message) -> tuple[Edns | None, int]:
    """Return what the OPT record says, and the error that it deserves."""
    if message.edns < 0:
        return None, NOERROR
    do = bool(message.ednsflags & int(dns.flags.EDNSFlag.DO))
    if message.edns:
        return Edns(message.payload, do), BADVERS
    for option in message.options:
        if option.otype == dns.edns.OptionType.COOKIE:
            cookie = option.to_wire() or b""
            if not _fits(cookie):
                return Edns(message.payload, do), FORMERR
            return Edns(message.payload, do, cookie), NOERROR
    return Edns(message.payload, do), NOERROR


def _opt_head(packet: bytes, at: int) -> Edns | None:
    """Return what an OPT record says before its options. Where these cannot be read, its sender
    knows EDNS all the same, and is answered so (RFC 6891 7).
    """
    if packet[at : at + 3] != _OPT_BEGINS or len(packet) < at + OPT_BYTES:
        return None
    return Edns(packet[at + 3] << 8 | packet[at + 4], bool(packet[at + 7] & 0x80))


def _unknown_key(signed: dns.rrset.RRset) -> bytes:
    """Return the TSIG record that answers one whose key nobody has: without a MAC, with error
    BADKEY (RFC 8945 5.2.1), all else as it came.
    """
    told = signed[0].replace(mac=b"", error=int(dns.rcode.BADKEY), other=b"")
    message = dns.message.QueryMessage(0)
    message.additional.append(dns.rrset.from_rdata(signed.name, 0, told))
    return message.to_wire()[HEADER:]
