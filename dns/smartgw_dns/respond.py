"""The packet that answers a packet: flags, sections, EDNS, truncation, and what is kept of it.

Owns what may be sent to whom over UDP (RFC 1035 4.2, RFC 6891, RFC 7873, RFC 8482), and from what
was sent before an answer may be made. What is true of a name is lookup.py's, how its records are
written is written.py's, sockets are server.py's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import dns.edns
import dns.flags
import dns.message
import dns.rcode

from smartgw_dns.catalog import Catalog
from smartgw_dns.cookies import CLIENT_BYTES, SERVER_BYTES, is_ours, server_cookie
from smartgw_dns.lookup import ANY, DS, NOERROR, NOT_ASKED, OFF_ZONE, UNKNOWN, Answer
from smartgw_dns.query import HEADER, IN, OPT_BYTES, TYPE_AND_CLASS, Edns, Query, other, plain
from smartgw_dns.rates import Rates, Verdict
from smartgw_dns.table import Table
from smartgw_dns.written import MOST_BYTES, Written, account_of, write, write_for
from smartgw_dns.zone import CNAME, Entry, Fit, Place, Zone

PAYLOAD = 1_232
"""Octets of UDP that pass unfragmented nearly everywhere, which we take and send at most."""
_PLAIN_PAYLOAD = 512
LATER = b""
"""Instead of an answer: there is no time for the message now."""
# Whatever is not of the plain form takes dnspython a hundred times as long, so a flood of it gets
# half of the time.
_SLICE, _MOST_SPENT = 0.2, 0.1
_MOST_KEPT = 32_768
_MOST_FAMILIES = 8_192
_MOST_KEPT_BYTES = 32 << 20
_QR, _TC = int(dns.flags.QR), int(dns.flags.TC)
_ANSWER = Verdict.ANSWER
_REFUSED = write(OFF_ZONE, b"\0", "refused")
_NOT_OURS = write(OFF_ZONE, b"\0", "not ours")
_UNKNOWN = write(UNKNOWN, b"\0", "unknown")
_CUT = write(Answer(NOERROR, authoritative=True), b"\0", "cut")
_Known = tuple[bytes, bytes, int, Fit, int]
"""What a written answer is kept by: zone, place, type, fit, length of the name. The apex of a zone
is a name of the zone above, too, which answers for its DS.
"""


@dataclass(frozen=True, slots=True)
class _Family:
    """What is sent for all questions that differ in their id and first label alone.

    Attributes:
        head: the header behind the id.
        rest: what stands behind the question.
        account: what like answers are counted by.
        entries, zones: a name that one of these has is not of the family.
    """

    head: bytes
    rest: bytes
    account: object
    entries: Table[Entry]
    zones: Table[Zone]


@dataclass(frozen=True, slots=True)
class _Sought:
    """An answer that is still to be written: where it is found, what to keep it by, and what like
    answers are counted by.
    """

    zone: Zone
    place: Place
    known: _Known
    account: object


class Responder:
    """Answers packets from a catalog; `wall` gives unix seconds. Not for several threads.

    Args:
        secret: of server cookies, 32 bytes; the same in all processes that serve one address.
        rate: like answers a second for a network over UDP, 0 without limit.

    Attributes:
        odd: packets of other forms than the plain one, which take long.
        unread: datagrams of such forms that there was no time for.
    """

    def __init__(self, secret: bytes, rate: int, wall: Callable[[], float]) -> None:
        self.rates = Rates(rate)
        self._secret = secret
        self._wall = wall
        self._catalog = Catalog()
        # Three ways to an answer, each slower and for more questions than the one before: by the
        # packet but for its id, by the packet but for its first label, too, and by what decides.
        self._packets: dict[bytes, tuple[bytes, object]] = {}
        self._families: dict[bytes, _Family] = {}
        self._written: dict[_Known, Written] = {}
        self._written_bytes = 0
        self._seen: set[int] = set()
        self.odd = self.unread = 0
        self._slice, self._spent = 0, 0.0

    @property
    def catalog(self) -> Catalog:
        """The zones that are in force."""
        return self._catalog

    @catalog.setter
    def catalog(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._packets.clear()
        self._families.clear()
        self._forget_written()
        self._seen.clear()

    def udp(self, packet: bytes, address: str) -> bytes | None:
        """Return the answer to a datagram, None when it gets none."""
        asked = packet[2:]
        known = self._packets.get(asked)
        if known is None:
            known = self._by_family(packet)
            if known is None:
                return self._datagram(packet, address, None)
            self._keep(asked, known)
        body, account = known
        verdict = self.rates.judge(address, account, self._wall())
        if verdict is _ANSWER:
            return packet[:2] + body
        return self._datagram(packet, address, verdict)

    def _by_family(self, packet: bytes) -> tuple[bytes, object] | None:
        """Return what answers a packet, behind the id, where its family is known; None otherwise.

        With all but the first label as in a packet of the plain form it is of that form, too.
        """
        if len(packet) <= HEADER:
            return None
        end = len(packet) - (TYPE_AND_CLASS + OPT_BYTES if packet[11] else TYPE_AND_CLASS)
        if end <= HEADER:
            return None
        key = packet[HEADER:end].lower()
        family = self._families.get(_family_key(packet, key, end))
        if (
            family is None
            or family.entries.get(key) is not None
            or family.zones.get(key) is not None
        ):
            return None
        question = packet[HEADER : end + TYPE_AND_CLASS]
        return family.head + question + family.rest, family.account

    def _datagram(self, packet: bytes, address: str, verdict: Verdict | None) -> bytes | None:
        query = plain(packet)
        may_keep = query is not None and (query.edns is None or not query.edns.cookie)
        if query is None:
            if not self._has_time():
                self.unread += 1
                return None
            query = self._read(packet)
        if query is None:
            return None
        edns = query.edns
        verified = edns is not None and self._is_ours(edns.cookie, address)
        found = self._seek(query)
        account = query.qname.lower() if found is None else found.account
        if verified:
            verdict = _ANSWER
        elif verdict is None:
            verdict = self.rates.judge(address, account, self._wall())
        if verdict is Verdict.NOTHING:
            return None
        if not isinstance(found, _Sought):
            written = found
        else:
            # What is not sent is not written either, for that takes dnspython 300 us.
            written = self._write(found, query) if verdict is _ANSWER else _CUT
        most = _PLAIN_PAYLOAD
        if edns is not None:
            most = min(max(edns.payload, _PLAIN_PAYLOAD), PAYLOAD)
        if query.qtype == ANY and not verified:
            # Whoever forges an address gets no more sent there than was sent here.
            most = len(packet)
        whole = self._message(query, written, address, most, cut=verdict is not _ANSWER)
        if verdict is _ANSWER and may_keep and written is not None:
            if written.zone is None:
                self._keep(packet[2:], (whole[2:], account))
            else:
                self._keep_family(packet, query.qname, whole, written.zone, account)
        return whole

    def tcp(self, packet: bytes, address: str) -> bytes | None:
        """Return the answer to a message of a TCP connection; None: it deserves none; LATER."""
        query = plain(packet)
        if query is None:
            if not self._has_time():
                return LATER
            query = self._read(packet)
        return None if query is None else self.answer(query, address)

    def answer(self, query: Query, address: str) -> bytes:
        """Return the answer to a query that was read, of any length."""
        return self._message(query, self._look(query), address, MOST_BYTES)

    # ---- what is kept ----

    def _keep(self, asked: bytes, answer: tuple[bytes, object]) -> None:
        """Keep an answer from the second time on: most that is asked once never comes again."""
        digest = hash(asked)
        if digest not in self._seen:
            if len(self._seen) >= _MOST_KEPT:
                self._seen.clear()
            self._seen.add(digest)
            return
        if len(self._packets) >= _MOST_KEPT:
            self._packets.clear()
        self._packets[asked] = answer

    def _keep_family(
        self, packet: bytes, qname: bytes, whole: bytes, zone: Zone, account: object
    ) -> None:
        end = HEADER + len(qname)
        if len(self._families) >= _MOST_FAMILIES:
            self._families.clear()
        self._families[_family_key(packet, qname.lower(), end)] = _Family(
            whole[2:HEADER],
            whole[end + TYPE_AND_CLASS :],
            account,
            zone.entries,
            self._catalog.zones,
        )

    def _keep_written(self, known: _Known, written: Written) -> None:
        self._written_bytes += len(written.body) + len(written.short_body)
        if len(self._written) >= _MOST_KEPT or self._written_bytes > _MOST_KEPT_BYTES:
            self._forget_written()
        self._written[known] = written

    def _forget_written(self) -> None:
        self._written.clear()
        self._written_bytes = 0

    # ---- what is asked ----

    def _has_time(self) -> bool:
        """Say whether there is time for a packet that is not of the plain form."""
        now = int(self._wall() / _SLICE)
        if now != self._slice:
            self._slice, self._spent = now, 0.0
        return self._spent < _MOST_SPENT

    def _read(self, packet: bytes) -> Query | None:
        began = self._wall()
        self.odd += 1
        query = other(packet)
        self._spent += self._wall() - began
        return query

    def _is_ours(self, cookie: bytes, address: str) -> bool:
        return len(cookie) > CLIENT_BYTES and is_ours(
            self._secret, cookie, address.encode(), int(self._wall())
        )

    def _look(self, query: Query) -> Written | None:
        """Return the answer to a question; None: there is nothing to look up."""
        found = self._seek(query)
        return self._write(found, query) if isinstance(found, _Sought) else found

    def _seek(self, query: Query) -> Written | _Sought | None:
        """Return what was written for a question, or for another name where that may be, or else
        what is to be written; None: there is nothing to look up.
        """
        qname, qtype = query.qname, query.qtype
        if query.error or not qname:
            return None
        if query.qclass != IN or qtype in NOT_ASKED:
            return _REFUSED
        key = qname.lower()
        zone = self._catalog.find(key, qtype)
        if zone is None:
            return _NOT_OURS
        if not zone.known:
            return _UNKNOWN
        place = zone.place(key)
        # What has not this type at all is told alike of every type that is not there.
        lacks = _lacks(place, key, qtype) or self._leads_nowhere(place, qname, qtype)
        kind = 0 if lacks else qtype
        known = (zone.origin, place.key, kind, place.fit, len(qname))
        return self._written.get(known) or _Sought(zone, place, known, account_of(place, qtype))

    def _leads_nowhere(self, place: Place, qname: bytes, qtype: int) -> bool:
        """Say whether an alias leads to what has not this type, nor any other that is not there."""
        if place.fit is Fit.DNAME or qtype in (ANY, CNAME, DS) or place.entry.get(qtype):
            return False
        last = self._catalog.lookup_wire(qname, qtype).steps[-1].place
        return last.fit is Fit.CUT or (last.fit is not Fit.DNAME and not last.entry.get(qtype))

    def _write(self, sought: _Sought, query: Query) -> Written:
        written, may_keep = write_for(
            self._catalog, sought.zone, sought.place, query.qname, query.qtype
        )
        if may_keep:
            self._keep_written(sought.known, written)
        return written

    # ---- the message ----

    def _message(
        self, query: Query, written: Written | None, address: str, most: int, *, cut: bool = False
    ) -> bytes:
        edns = query.edns
        opt = b""
        if edns is not None:
            opt = self._opt(query, edns, address, not_ours=written is _NOT_OURS)
        question = b""
        if query.qname:
            question = (
                query.qname + query.qtype.to_bytes(2, "big") + query.qclass.to_bytes(2, "big")
            )
        room = most - HEADER - len(question)
        if edns is not None and len(opt) > room:
            # ANY, whose answer has no more octets than it: the cookie is given over TCP.
            opt = _opt(query.error, edns.dnssec_ok, not_ours=False, with_cookie=False)
        room -= len(opt)
        tsig = query.tsig if len(query.tsig) <= room else b""
        if written is None:
            flags, counts, body = query.error & 0xF, (0, 0, 0), b""
        else:
            flags, counts, body = written.flags, written.counts, written.body
            if len(body) > room:
                counts, body = written.short_counts, written.short_body
            if cut or (body and len(body) > room):
                flags, counts, body = flags | _TC, (0, 0, 0), b""
        answers, authority, additional = counts
        additional += bool(opt) + bool(tsig)
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
                tsig,
            )
        )

    def _opt(self, query: Query, edns: Edns, address: str, *, not_ours: bool) -> bytes:
        """Return our OPT record (RFC 6891 6.1.2), with our cookie for who has one."""
        cookie = edns.cookie[:CLIENT_BYTES]
        opt = _opt(query.error, edns.dnssec_ok, not_ours=not_ours, with_cookie=bool(cookie))
        if not cookie:
            return opt
        mine = server_cookie(self._secret, cookie, address.encode(), int(self._wall()))
        return opt[: -CLIENT_BYTES - SERVER_BYTES] + cookie + mine


def _lacks(place: Place, key: bytes, qtype: int) -> bool:
    """Say whether the answer is the same for all types that a name has not: of a name that does not
    exist, of one in another zone, or of one whose entry has neither the type nor a CNAME.
    """
    if place.fit is Fit.DNAME or qtype == ANY:
        return False
    if place.fit is Fit.CUT:
        return qtype != DS or len(place.key) < len(key)
    entry = place.entry
    return place.fit is Fit.MISSING or (entry.get(qtype) is None and entry.get(CNAME) is None)


@cache
def _opt(error: int, dnssec_ok: bool, *, not_ours: bool, with_cookie: bool) -> bytes:
    """Return an OPT record; a cookie in it is its last octets, and to be replaced."""
    message = dns.message.QueryMessage(0)
    options: list[dns.edns.Option] = []
    if not_ours:
        # Tells the REFUSED of a lame delegation from that of an access list, RFC 8914 4.21.
        options.append(dns.edns.EDEOption(dns.edns.EDECode.NOT_AUTHORITATIVE))
    if with_cookie:
        options.append(dns.edns.CookieOption(bytes(CLIENT_BYTES), bytes(SERVER_BYTES)))
    flags = int(dns.flags.EDNSFlag.DO) if dnssec_ok else 0
    message.use_edns(0, flags, PAYLOAD, options=options)
    message.set_rcode(dns.rcode.Rcode.make(error))
    return message.to_wire()[HEADER:]


def _family_key(packet: bytes, key: bytes, end: int) -> bytes:
    """Return all of a packet but id and first label, of which the length stays, in lower case as
    far as the name goes: `key`, which ends at `end`.
    """
    return packet[2 : HEADER + 1] + key[key[0] + 1 :] + packet[end:]
