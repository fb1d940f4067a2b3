"""What a packet asks: read strictly, and without dnspython where it is of the plain form.

Owns which packets are questions that can be answered, which get an error and which get nothing at
all (RFC 1035 4.1, RFC 6891, RFC 7873). Does not answer (respond.py). dnspython reads whatever is
not of the form that nearly all queries have: one question, and at most an OPT with a cookie.
"""

from dataclasses import dataclass

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype

from smartgw_dns.names import LONGEST, wire_of

NOERROR, FORMERR = int(dns.rcode.NOERROR), int(dns.rcode.FORMERR)
NOTIMP, NOTAUTH = int(dns.rcode.NOTIMP), int(dns.rcode.NOTAUTH)
BADVERS = int(dns.rcode.BADVERS)
IN = int(dns.rdataclass.IN)
HEADER = 12  # octets, RFC 1035 4.1.1
_ONE_QUESTION = bytes((0, 1, 0, 0, 0, 0))
_OPT_BEGINS = bytes((0, 0, int(dns.rdatatype.OPT)))
_OPT_BYTES = 11
_COOKIE = int(dns.edns.OptionType.COOKIE).to_bytes(2, "big")
# Of the query's flags, those that come back: opcode, RD and CD.
_OPCODE, _RD, _CD = 0x7800, int(dns.flags.RD), int(dns.flags.CD)


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
        flags: opcode, RD and CD as in the query.
        qname: in wire form, the case kept; empty where there is no question to repeat.
        qtype, qclass: codes.
        edns: None where the query has no OPT.
        error: the response code that it deserves without being looked up, 0 for a question.
    """

    ident: bytes
    flags: int
    qname: bytes
    qtype: int
    qclass: int
    edns: Edns | None
    error: int = NOERROR


def read(packet: bytes) -> Query | None:
    """Read a packet; None: it gets no answer, for it is a response or has no whole header."""
    return plain(packet) or _any(packet)


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
    rest = at + 4
    if additional == b"\0\1":
        edns = _plain_opt(packet, rest)
        if edns is None:
            return None
    elif additional != b"\0\0" or rest != size:
        return None
    return Query(
        packet[:2],
        (packet[2] << 8 | packet[3]) & (_RD | _CD),
        packet[HEADER:at],
        packet[at] << 8 | packet[at + 1],
        packet[at + 2] << 8 | packet[at + 3],
        edns,
    )


def _plain_opt(packet: bytes, at: int) -> Edns | None:
    """Read an OPT record that is all that follows, of version 0, with at most a cookie."""
    options = at + _OPT_BYTES
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
    payload = packet[at + 3] << 8 | packet[at + 4]
    return Edns(payload, bool(packet[at + 7] & 0x80), cookie)


def _fits(cookie: bytes) -> bool:
    """Say whether a cookie has one of the lengths of RFC 7873 4."""
    return len(cookie) == 8 or 16 <= len(cookie) <= 40


def _any(packet: bytes) -> Query | None:
    """Read whatever else comes, with dnspython."""
    if len(packet) < HEADER or packet[2] & 0x80:
        return None
    ident, sent = packet[:2], packet[2] << 8 | packet[3]
    flags = sent & (_OPCODE | _RD | _CD)
    if sent & _OPCODE:
        return Query(ident, flags, b"", 0, 0, None, NOTIMP)
    try:
        message = dns.message.from_wire(packet)
        edns, error = _edns(message)
    except dns.message.UnknownTSIGKey:
        return Query(ident, flags, b"", 0, 0, None, NOTAUTH)
    except (dns.exception.DNSException, ValueError, IndexError):
        return Query(ident, flags, b"", 0, 0, None, FORMERR)
    if not message.question and edns is not None and edns.cookie:
        # Whoever has no question may ask for a cookie (RFC 7873 5.4).
        return Query(ident, flags, b"", 0, 0, edns, error)
    if len(message.question) != 1 or message.answer or message.authority:
        return Query(ident, flags, b"", 0, 0, edns, FORMERR)
    asked = message.question[0]
    qname = wire_of(asked.name)
    return Query(ident, flags, qname, int(asked.rdtype), int(asked.rdclass), edns, error)


def _edns(message: dns.message.Message) -> tuple[Edns | None, int]:
    """Return what the OPT record says, and the error that it deserves."""
    if message.edns < 0:
        return None, NOERROR
    error = NOERROR if message.edns == 0 else BADVERS
    cookie = b""
    for option in message.options:
        if option.otype == dns.edns.OptionType.COOKIE and not cookie:
            cookie = option.to_wire() or b""
            if not _fits(cookie):
                error = error or FORMERR
                cookie = b""
    do = bool(message.ednsflags & int(dns.flags.EDNSFlag.DO))
    return Edns(message.payload, do, cookie), error
