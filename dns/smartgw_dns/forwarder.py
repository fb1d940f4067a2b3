"""Questions about names that are not ours, asked of configured resolvers (contract 8.2).

Owns how many may be under way and for how long. Whose questions get here is not decided here, nor
which names are ours. Keeps no answers: the resolvers do.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.message
import dns.nameserver
import dns.rcode
import dns.rdatatype
import dns.resolver

from smartgw_dns.names import name_of

SECONDS: Final = 4.0
"""For one question at all resolvers together."""
_ONE_SECONDS = 1.5
_PAYLOAD = 1_232
_AT_ONCE = 100


class Forwarder:
    """Asks `resolvers`, IP addresses with ports, in their order. Make it in its loop.

    Attributes:
        counts: questions by how they ended: answered, failed, refused for too many at once.
    """

    def __init__(self, resolvers: Sequence[tuple[str, int]], *, at_once: int = _AT_ONCE) -> None:
        self.counts = dict.fromkeys(("answered", "failed", "refused"), 0)
        self._free = at_once
        self._resolver = dns.asyncresolver.Resolver(configure=False)
        self._resolver.nameservers = [
            dns.nameserver.Do53Nameserver(host, port) for host, port in resolvers
        ]
        self._resolver.timeout, self._resolver.lifetime = _ONE_SECONDS, SECONDS
        self._resolver.use_edns(0, 0, _PAYLOAD)

    async def ask(self, qname: bytes, rdtype: int) -> dns.message.Message:
        """Return what the resolvers answer, SERVFAIL where they do not.

        Args:
            qname: in wire form.
            rdtype: type code; ANY, of which a resolver gives what it has by chance, is NOTIMP.
        """
        if dns.rdatatype.is_metatype(dns.rdatatype.RdataType.make(rdtype)):
            return _failed(qname, rdtype, dns.rcode.NOTIMP)
        if not self._free:
            self.counts["refused"] += 1
            return _failed(qname, rdtype)
        self._free -= 1
        try:
            found = await self._ask(qname, rdtype)
        finally:
            self._free += 1
        self.counts["failed" if found is None else "answered"] += 1
        return _failed(qname, rdtype) if found is None else found

    async def _ask(self, qname: bytes, rdtype: int) -> dns.message.Message | None:
        name = name_of(qname)
        try:
            async with asyncio.timeout(SECONDS + 1.0):
                answer = await self._resolver.resolve(
                    name,
                    dns.rdatatype.RdataType.make(rdtype),
                    raise_on_no_answer=False,
                    search=False,
                )
        except dns.resolver.NXDOMAIN as error:
            missing: dns.message.Message = error.response(name)  # type: ignore[no-untyped-call]
            return missing
        except (dns.exception.DNSException, OSError, TimeoutError, EOFError):
            return None
        return answer.response


def reply(query: bytes, answer: dns.message.Message) -> bytes | None:
    """Return the message that answers a query by what the resolvers said; None: it is no query."""
    try:
        asked = dns.message.from_wire(query)
        made = dns.message.make_response(asked, recursion_available=True)
    except (dns.exception.DNSException, ValueError):
        return None
    made.set_rcode(answer.rcode())
    made.answer, made.authority = answer.answer, answer.authority
    try:
        return made.to_wire(max_size=65_535)
    except dns.exception.TooBig:
        # It had just room without the OPT of whoever asked.
        made.answer, made.authority = [], []
        made.flags |= dns.flags.TC
        return made.to_wire()


def _failed(
    qname: bytes, rdtype: int, rcode: dns.rcode.Rcode = dns.rcode.SERVFAIL
) -> dns.message.Message:
    code = dns.rdatatype.RdataType.make(rdtype)
    message = dns.message.make_response(dns.message.make_query(name_of(qname), code))
    message.set_rcode(rcode)
    return message
