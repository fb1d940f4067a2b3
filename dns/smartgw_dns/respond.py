"""The packet that answers a packet: flags, sections, EDNS, truncation, and what is kept of it.

Owns how an answer becomes a message and what may be sent to whom over UDP (RFC 1035 4.2, RFC 6891,
RFC 7873, RFC 8482). What is true of a name is lookup.py's, sockets are server.py's. dnspython
writes messages; a message that was written once serves all names that the same entry decides.
"""

from collections.abc import Callable
from dataclasses import dataclass

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from smartgw_dns.catalog import Catalog
from smartgw_dns.cookies import CLIENT_BYTES, SERVER_BYTES, is_ours, server_cookie
from smartgw_dns.lookup import ANY, REFUSED, Answer, Owned
from smartgw_dns.names import name_of
from smartgw_dns.query import BADVERS, HEADER, IN, NOERROR, Edns, Query, plain, read
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
_OPT_HEAD = b"\0" + int(dns.rdatatype.OPT).to_bytes(2, "big") + PAYLOAD.to_bytes(2, "big")
_COOKIE_HEAD = int(dns.edns.OptionType.COOKIE).to_bytes(2, "big") + (
    CLIENT_BYTES + SERVER_BYTES
).to_bytes(2, "big")
_TRUNCATED, _NOTHING = Verdict.TRUNCATED, Verdict.NOTHING


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
        if known is not None:
            body, account = known
            verdict = self.rates.judge(address, account, self._wall())
            if verdict is Verdict.ANSWER:
                return packet[:2] + body
        query = read(packet)
        if query is None:
            return None
        verified = self._is_verified(query, address)
        written = None if self._is_error(query) else self._look(query)
        if known is None and not verified:
            account = query.error or query.qname.lower() if written is None else written.account
            verdict = self.rates.judge(address, account, self._wall())
        elif verified:
            verdict = Verdict.ANSWER
        if verdict is _NOTHING:
            return None
        edns = query.edns
        most = _PLAIN_PAYLOAD
        if edns is not None:
            most = min(max(edns.payload, _PLAIN_PAYLOAD), PAYLOAD)
        if query.qtype == ANY and not verified:
            # Whoever forges an address gets no more sent there than was sent here.
            most = len(packet)
        whole = self._message(query, written, address, most, cut=verdict is _TRUNCATED)
        if verdict is Verdict.ANSWER and not verified and (edns is None or not edns.cookie):
            if len(self._packets) >= _MOST_KEPT:
                self._packets.clear()
            if plain(packet) is not None:
                self._packets[packet[2:]] = whole[2:], account
        return whole

    def tcp(self, packet: bytes, address: str) -> bytes | None:
        """Return the answer to a message of a TCP connection, None: it deserves none."""
        query = read(packet)
        if query is None:
            return None
        written = None if self._is_error(query) else self._look(query)
        return self._message(query, written, address, _MOST_TCP)

    # ---- what is asked ----

    def _is_verified(self, query: Query, address: str) -> bool:
        edns = query.edns
        if edns is None or len(edns.cookie) <= CLIENT_BYTES:
            return False
        return is_ours(self._secret, edns.cookie, address.encode(), int(self._wall()))

    def _is_error(self, query: Query) -> bool:
        return bool(query.error) or not query.qname or query.qclass != IN or (
            query.qtype in _NOT_ASKED
        )

    def _look(self, query: Query) -> Written:
        """Return the answer to a question, from what was written for another name if it may be."""
        qname, qtype = query.qname, query.qtype
        key = qname.lower()
        zone = self._catalog.find(key, qtype)
        if zone is None:
            return _REFUSED
        place = zone.place(key)
        if place.fit is Fit.DNAME:
            # Each name is sent elsewhere.
            return _write(self._catalog.lookup_wire(qname, qtype), qname, (place.key, qtype))
        known = (place.key, qtype, place.fit, len(qname))
        written = self._written.get(known)
        if written is None:
            stands_for = _like(qname, place)
            answer = self._catalog.lookup_wire(stands_for, qtype)
            if not answer.steps or answer.steps[0].place.key != place.key:
                answer, stands_for = self._catalog.lookup_wire(qname, qtype), qname
            written = _write(answer, stands_for, (place.key, qtype))
            if stands_for is not qname or place.fit is Fit.EXACT:
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
            question = query.qname + query.qtype.to_bytes(2, "big") + query.qclass.to_bytes(2, "big")
        if written is None:
            code = query.error or (NOERROR if not query.qname else REFUSED)
            flags, counts, body = code & 0xF, (0, 0, 0), b""
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
        """Return our OPT record (RFC 6891 6.1.2)."""
        extended = BADVERS >> 4 if query.error == BADVERS else 0
        do = 0x80 if edns.dnssec_ok else 0
        head = _OPT_HEAD + bytes((extended, 0, do, 0))
        if not edns.cookie:
            return head + b"\0\0"
        client = edns.cookie[:CLIENT_BYTES]
        mine = server_cookie(self._secret, client, address.encode(), int(self._wall()))
        option = _COOKIE_HEAD + client + mine
        return head + len(option).to_bytes(2, "big") + option
