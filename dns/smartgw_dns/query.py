"""What a packet asks: read strictly, and quickly where it is of the plain form.

Owns which packets are questions that can be answered, which get an error and which get nothing at
all (RFC 1035 4.1, RFC 6891, RFC 7873, RFC 8945). Does not answer (respond.py). Nearly all queries
are of the plain form: one question, and at most an OPT with a cookie.
"""

from dataclasses import dataclass

import dns.edns
import dns.flags
import dns.rcode
import dns.rdataclass
import dns.rdatatype

from smartgw_dns.names import LONGEST, ROOT

NOERROR, FORMERR = int(dns.rcode.NOERROR), int(dns.rcode.FORMERR)
NOTIMP, NOTAUTH = int(dns.rcode.NOTIMP), int(dns.rcode.NOTAUTH)
BADVERS = int(dns.rcode.BADVERS)
IN = int(dns.rdataclass.IN)
HEADER = 12  # octets, RFC 1035 4.1.1
_ONE_QUESTION = bytes((0, 1, 0, 0, 0, 0))
_OPT_BEGINS = bytes((0, 0, int(dns.rdatatype.OPT)))
OPT_BYTES = 11  # of an OPT record without options, RFC 6891 6.1.2
TYPE_AND_CLASS = 4  # octets of a question behind its name
_RECORD_BYTES = 10  # of a record's head behind its owner, RFC 1035 4.1.3
_TSIG_BYTES = 16  # of its rdata behind the algorithm, without MAC and other data, RFC 8945 4.2
_OPT, _TSIG, _IXFR = int(dns.rdatatype.OPT), int(dns.rdatatype.TSIG), int(dns.rdatatype.IXFR)
_POINTER = 0xC0  # RFC 1035 4.1.4
_CLASS_ANY = int(dns.rdataclass.ANY)
_BADKEY = int(dns.rcode.BADKEY)
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


class _Malformed(ValueError):
    """A packet is not what its counts and lengths say."""


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
    payload = packet[at + 3] << 8 | packet[at + 4]
    return Edns(payload, bool(packet[at + 7] & 0x80), cookie)


def _fits(cookie: bytes) -> bool:
    """Say whether a cookie has one of the lengths of RFC 7873 4."""
    return len(cookie) == 8 or 16 <= len(cookie) <= 40


def other(packet: bytes) -> Query | None:
    """Read whatever else comes; None: it gets no answer."""
    if len(packet) < HEADER or packet[2] & 0x80:
        return None
    sent = _number(packet, 2)
    questions, answers, authority, additional = (_number(packet, at) for at in (4, 6, 8, 10))
    found = _Found(NOTIMP if sent & _OPCODE else NOERROR)
    try:
        at = HEADER
        for _ in range(questions):
            at = found.question(packet, at)
        for left in range(answers + authority + additional, 0, -1):
            at = found.record(packet, at, may_be_last=left == 1, is_additional=left <= additional)
        if at != len(packet) or answers or (authority and found.qtype != _IXFR):
            raise _Malformed
        if not found.qname and not found.error and not (found.edns and found.edns.cookie):
            # Whoever has no question may ask for a cookie (RFC 7873 5.4), and for nothing else.
            raise _Malformed
    except (_Malformed, IndexError):
        found.error = NOTIMP if sent & _OPCODE else FORMERR
    flags = sent & (_OPCODE | _RD)
    return Query(
        packet[:2],
        flags,
        found.qname,
        found.qtype,
        found.qclass,
        found.edns,
        found.error,
        found.tsig if found.error == NOTAUTH else b"",
    )


class _Found:
    """What has been read of a packet; methods return where the next part begins."""

    __slots__ = ("edns", "error", "qclass", "qname", "qtype", "tsig")

    def __init__(self, error: int) -> None:
        self.qname = b""
        self.qtype = self.qclass = 0
        self.edns: Edns | None = None
        self.error = error
        self.tsig = b""

    def question(self, packet: bytes, at: int) -> int:
        """Read a question; a second one is a fault."""
        end = _name_end(packet, at, may_point=False)
        if self.qname or end + TYPE_AND_CLASS > len(packet):
            raise _Malformed
        self.qname = packet[at:end]
        self.qtype, self.qclass = _number(packet, end), _number(packet, end + 2)
        return end + TYPE_AND_CLASS

    def record(self, packet: bytes, at: int, *, may_be_last: bool, is_additional: bool) -> int:
        """Read a record of which only OPT and TSIG say anything to us."""
        head = _name_end(packet, at, may_point=True)
        begin = head + _RECORD_BYTES
        end = begin + _number(packet, begin - 2)
        if end > len(packet):
            raise _Malformed
        owner, rdata = packet[at:head], packet[begin:end]
        rdtype = _number(packet, head)
        if rdtype == _OPT:
            # One at most, of the root (RFC 6891 6.1.1).
            if self.edns is not None or owner != ROOT or not is_additional:
                raise _Malformed
            self._opt(_number(packet, head + 2), packet[head + 4 : head + 8], rdata)
        elif rdtype == _TSIG:
            # The last record, of any class (RFC 8945 5.1).
            if not may_be_last or _number(packet, head + 2) != _CLASS_ANY or not is_additional:
                raise _Malformed
            self.tsig = owner + packet[head:begin][:-2] + _unknown_key(rdata)
            self.error = self.error or NOTAUTH
        return end

    def _opt(self, payload: int, ttl: bytes, options: bytes) -> None:
        """Read an OPT record: extended code, version and flags (RFC 6891 6.1.3), options."""
        do = bool(ttl[2] & 0x80)
        self.edns = Edns(payload, do)
        if ttl[1]:
            self.error = self.error or BADVERS
            return
        cookie = b""
        at = 0
        while at < len(options):
            begin = at + 4
            end = begin + _number(options, at + 2)
            if end > len(options):
                raise _Malformed
            if options[at : at + 2] == _COOKIE and not cookie:
                cookie = options[begin:end]
                if not _fits(cookie):
                    raise _Malformed
            at = end
        self.edns = Edns(payload, do, cookie)


def _number(data: bytes, at: int) -> int:
    """Read two octets; raises IndexError where they are not there."""
    return data[at] << 8 | data[at + 1]


def _name_end(packet: bytes, at: int, *, may_point: bool) -> int:
    """Return where the name at `at` ends; where it may, with a pointer, which is not followed."""
    begin = at
    while length := packet[at]:
        if may_point and length >= _POINTER:
            return at + 2
        at += length + 1
        if length > 63 or at - begin >= LONGEST:
            raise _Malformed
    return at + 1


def _unknown_key(rdata: bytes) -> bytes:
    """Return the length and rdata of the TSIG record that answers one whose key nobody has: without
    a MAC, with error BADKEY (RFC 8945 5.2.1), all else as it came.
    """
    end = _name_end(rdata, 0, may_point=False)
    mac = _number(rdata, end + 8)
    original = rdata[end + 10 + mac : end + 12 + mac]
    if len(rdata) < end + _TSIG_BYTES + mac:
        raise _Malformed
    made = rdata[: end + 8] + b"\0\0" + original + _BADKEY.to_bytes(2, "big") + b"\0\0"
    return len(made).to_bytes(2, "big") + made
