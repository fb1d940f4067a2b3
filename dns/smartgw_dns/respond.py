"""The packet that answers a packet: flags, sections, EDNS, truncation, and what is kept of it.

Owns how an answer becomes a message and what may be sent to whom over UDP (RFC 1035 4.2, RFC 6891,
RFC 7873, RFC 8482). What is true of a name is lookup.py's, sockets are server.py's. dnspython
writes messages; a message that was written once serves all names that the same entry decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from smartgw_dns.catalog import Catalog
from smartgw_dns.cookies import CLIENT_BYTES, SERVER_BYTES, is_ours, server_cookie
from smartgw_dns.lookup import ANY, OFF_ZONE, Answer, Owned
from smartgw_dns.names import name_of
from smartgw_dns.query import HEADER, IN, Edns, Query, plain, read
from smartgw_dns.rates import Rates, Verdict
from smartgw_dns.zone import Fit, Place

PAYLOAD = 1_232
"""Octets of UDP that pass unfragmented nearly everywhere, which we take and send at most."""
_PLAIN_PAYLOAD = 512
_MOST_TCP = 65_535
_MOST_KEPT = 32_768
# Transfers are for TSIG keys; metatypes cannot be looked up (RFC 6895 3.1).
_NOT_ASKED = frozenset(range(249, 255)) | {int(dns.rdatatype.OPT), 0}
_QR, _AA, _TC = int(dns.flags.QR), int(dns.flags.AA), int(dns.flags.TC)
_ANSWER = Verdict.ANSWER


@dataclass(frozen=True, slots=True)
class Written:
    """An answer as it stands behind the question, for every name of one length that it serves.

    Attributes:
        flags: AA and the response code.
        counts, body: of answer, authority and additional section, without OPT.
        short_counts, short_body: the same without what may be left out.
        account: what like answers are counted by.
    """

    flags: int
    counts: tuple[int, int, int]
    body: bytes
    short_counts: tuple[int, int, int]
    short_body: bytes
    account: object


class Responder:
    """Answers packets from a catalog; `wall` gives unix seconds. Not for several threads.

    Args:
        secret: of server cookies, 32 bytes; the same in all processes that serve one address.
        rate: like answers a second for a network over UDP, 0 without limit.
    """

    def __init__(self, secret: bytes, rate: int, wall: Callable[[], float]) -> None:
        self.rates = Rates(rate)
        self._secret = secret
        self._wall = wall
        self._catalog = Catalog()
        self._written: dict[tuple[bytes, int, Fit, int], Written] = {}
        self._packets: dict[bytes, tuple[bytes, object]] = {}

    @property
    def catalog(self) -> Catalog:
        """The zones that are in force."""
        return self._catalog

    @catalog.setter
    def catalog(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._written.clear()
        self._packets.clear()

    def udp(self, packet: bytes, address: str) -> bytes | None:
        """Return the answer to a datagram, None when it gets none."""
        known = self._packets.get(packet[2:])
        if known is None:
            return self._datagram(packet, address, None)
        body, account = known
        verdict = self.rates.judge(address, account, self._wall())
        if verdict is _ANSWER:
            return packet[:2] + body
        return self._datagram(packet, address, verdict)

    def _datagram(self, packet: bytes, address: str, verdict: Verdict | None) -> bytes | None:
        query = read(packet)
        if query is None:
            return None
        edns = query.edns
        verified = edns is not None and self._is_ours(edns.cookie, address)
        written = self._look(query)
        account = query.qname.lower() if written is None else written.account
        if verified:
            verdict = _ANSWER
        elif verdict is None:
            verdict = self.rates.judge(address, account, self._wall())
        if verdict is Verdict.NOTHING:
            return None
        most = _PLAIN_PAYLOAD
        if edns is not None:
            most = min(max(edns.payload, _PLAIN_PAYLOAD), PAYLOAD)
        if query.qtype == ANY and not verified:
            # Whoever forges an address gets no more sent there than was sent here.
            most = len(packet)
        whole = self._message(query, written, address, most, cut=verdict is not _ANSWER)
        if verdict is _ANSWER and (edns is None or not edns.cookie) and plain(packet) is not None:
            if len(self._packets) >= _MOST_KEPT:
                self._packets.clear()
            self._packets[packet[2:]] = whole[2:], account
        return whole

    def tcp(self, packet: bytes, address: str) -> bytes | None:
        """Return the answer to a message of a TCP connection, None: it deserves none."""
        query = read(packet)
        if query is None:
            return None
        return self._message(query, self._look(query), address, _MOST_TCP)

    # ---- what is asked ----

    def _is_ours(self, cookie: bytes, address: str) -> bool:
        return len(cookie) > CLIENT_BYTES and is_ours(
            self._secret, cookie, address.encode(), int(self._wall())
        )

    def _look(self, query: Query) -> Written | None:
        """Return the answer to a question, from what was written for another name where that may
        be; None: there is nothing to look up.
        """
        qname, qtype = query.qname, query.qtype
        if query.error or not qname:
            return None
        if query.qclass != IN or qtype in _NOT_ASKED:
            return _REFUSED
        key = qname.lower()
        zone = self._catalog.find(key, qtype)
        if zone is None:
            return _REFUSED
        place = zone.place(key)
        known = (place.key, qtype, place.fit, len(qname))
        written = self._written.get(known)
        if written is not None:
            return written
        alike = _alike(qname, place)
        answer = self._catalog.lookup_wire(alike, qtype)
        account = (place.key, qtype)
        if not _serves_all(answer, place):
            return _write(self._catalog.lookup_wire(qname, qtype), qname, account)
        written = _write(answer, alike, account)
        if len(self._written) >= _MOST_KEPT:
            self._written.clear()
        self._written[known] = written
        return written

    # ---- the message ----

    def _message(
        self, query: Query, written: Written | None, address: str, most: int, *, cut: bool = False
    ) -> bytes:
        edns = query.edns
        opt = b"" if edns is None else self._opt(query, edns, address)
        question = b""
        if query.qname:
            question = (
                query.qname + query.qtype.to_bytes(2, "big") + query.qclass.to_bytes(2, "big")
            )
        if written is None:
            flags, counts, body = query.error & 0xF, (0, 0, 0), b""
        else:
            flags, counts, body = written.flags, written.counts, written.body
            room = most - HEADER - len(question) - len(opt)
            if len(body) > room:
                counts, body = written.short_counts, written.short_body
            if cut or len(body) > room:
                flags, counts, body = flags | _TC, (0, 0, 0), b""
        answers, authority, additional = counts
        additional += bool(opt)
        return b"".join(
            (
                query.ident,
                (query.flags | _QR | flags).to_bytes(2, "big"),
                bool(question).to_bytes(2, "big"),
                answers.to_bytes(2, "big"),
                authority.to_bytes(2, "big"),
                additional.to_bytes(2, "big"),
                question,
                body,
                opt,
            )
        )

    def _opt(self, query: Query, edns: Edns, address: str) -> bytes:
        """Return our OPT record (RFC 6891 6.1.2), with our cookie for who has one."""
        cookie = edns.cookie[:CLIENT_BYTES]
        if not cookie:
            return _opt(query.error, edns.dnssec_ok, with_cookie=False)
        mine = server_cookie(self._secret, cookie, address.encode(), int(self._wall()))
        opt = _opt(query.error, edns.dnssec_ok, with_cookie=True)
        return opt[: -CLIENT_BYTES - SERVER_BYTES] + cookie + mine


@cache
def _opt(error: int, dnssec_ok: bool, *, with_cookie: bool) -> bytes:
    """Return an OPT record; a cookie in it is its last octets, and to be replaced."""
    message = dns.message.QueryMessage(0)
    options: list[dns.edns.Option] = [
        dns.edns.CookieOption(bytes(CLIENT_BYTES), bytes(SERVER_BYTES))
    ]
    flags = int(dns.flags.EDNSFlag.DO) if dnssec_ok else 0
    message.use_edns(0, flags, PAYLOAD, options=options if with_cookie else None)
    message.set_rcode(dns.rcode.Rcode.make(error))
    return message.to_wire()[HEADER:]


def _alike(qname: bytes, place: Place) -> bytes:
    """Return a name of the same length that the same entry decides about, and of which nothing
    but the end stands anywhere in the answer: what is written for it holds for every such name.
    """
    if place.fit is Fit.WILDCARD:
        end = place.key[2:]
    elif place.fit in (Fit.MISSING, Fit.CUT):
        end = place.key
    else:
        return qname
    made, left = b"", len(qname) - len(end)
    while left:
        label = min(left - 1, 63)
        if left - 1 - label == 1:
            label -= 1  # the next label needs two octets
        made += bytes((label,)) + b"\xff" * label
        left -= label + 1
    return made + end


def _serves_all(answer: Answer, place: Place) -> bool:
    """Say whether an answer holds for every name that the same entry decides about.

    With DNAME each name is sent elsewhere; and a chain that comes back to the entry ends at the
    name that it began with.
    """
    first, *others = (step.place for step in answer.steps)
    return (
        place.fit is not Fit.DNAME
        and (first.key, first.fit) == (place.key, place.fit)
        and all(other.key != place.key for other in others)
    )


def _write(answer: Answer, qname: bytes, account: object) -> Written:
    """Have an answer written, with compression, as it stands behind the question."""
    flags = answer.rcode | (_AA if answer.authoritative else 0)
    needed = answer.additional[: answer.glue]
    try:
        counts, body = _sections(qname, answer.answer, answer.authority, answer.additional)
    except dns.exception.TooBig:
        return Written(flags | _TC, (0, 0, 0), b"", (0, 0, 0), b"", account)
    if len(needed) == len(answer.additional):
        return Written(flags, counts, body, counts, body, account)
    short_counts, short_body = _sections(qname, answer.answer, answer.authority, needed)
    return Written(flags, counts, body, short_counts, short_body, account)


def _sections(qname: bytes, *sections: tuple[Owned, ...]) -> tuple[tuple[int, int, int], bytes]:
    """Return how many records there are in each section, and their wire form behind a question."""
    message = dns.message.QueryMessage(0)
    name, rdtype = name_of(qname), dns.rdatatype.A
    message.question.append(dns.rrset.RRset(name, dns.rdataclass.IN, rdtype))
    message.answer, message.authority, message.additional = (
        [owned.to_dnspython() for owned in section] for section in sections
    )
    wire = message.to_wire(max_size=_MOST_TCP)
    answers, authority, additional = (
        sum(len(owned.rrset.rdatas) for owned in section) for section in sections
    )
    return (answers, authority, additional), wire[HEADER + len(qname) + 4 :]


_REFUSED = _write(OFF_ZONE, b"\0", "refused")
