"""Questions about DNS over HTTP, for sessions and services (contract 8.1, 8.2, 8.5).

Owns who is answered from what: everybody from our zones, services also by configured resolvers
where there are any, about names that are not ours. What it costs is metering.py's, what an answer
is smartgw_dns's.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from smartgw.api import models, models_dns
from smartgw.api.answers import ApiError, BadBody, Faults
from smartgw.api.metering import CLIENT, Metering
from smartgw.api.operations import Access, Bound, Call, Operation, Outcome, Reply
from smartgw.api.tokens import Role
from smartgw.nameserver import Nameserver
from smartgw_dns.forwarder import Forwarder, reply
from smartgw_dns.lookup import NOT_ASKED
from smartgw_dns.query import IN, read
from smartgw_dns.records import RecordRefused, absolute, read_name, read_question_type
from smartgw_dns.shown import answer_json, kept_seconds, message_json, wire_kept_seconds

WIRE = "application/dns-message"
_MOST_WIRE = 65_535
_RA = 0x80
_AWAY = Outcome(503, "Zones or counters are not known now; nothing was charged.", models.Error)
_TEXT = (
    "From our own zones only, for signed-in sessions and for services; others are refused inside "
    "the answer (`Status` 5), unless a service asks and the operator has named resolvers."
)

RESOLVE = Operation(
    "resolve",
    "GET",
    "/api/v3/dns/resolve",
    "Answer a question about DNS",
    f"{_TEXT} Costs one query.",
    "dns",
    Access.SIGNED_IN,
    (Outcome(200, "The answer, whatever its response code.", models_dns.DnsAnswer), _AWAY),
    query=models_dns.ResolveQuery,
    metered=True,
)
BATCH = Operation(
    "resolve_batch",
    "POST",
    "/api/v3/dns/resolve/batch",
    "Answer up to ten questions about DNS",
    f"{_TEXT} Costs as many queries as it has, all or nothing.",
    "dns",
    Access.SIGNED_IN,
    (Outcome(200, "The answers, in the order of the questions.", models_dns.DnsAnswers), _AWAY),
    body=models_dns.Batch,
    metered=True,
)
WIRE_GET = Operation(
    "dns_query_get",
    "GET",
    "/dns-query",
    "Answer a DNS message in the address",
    f"RFC 8484. {_TEXT} Costs one query.",
    "dns",
    Access.SIGNED_IN,
    (Outcome(200, "The message that answers it."), _AWAY),
    query=models_dns.WireQuery,
    media_type=WIRE,
    metered=True,
)
WIRE_POST = Operation(
    "dns_query_post",
    "POST",
    "/dns-query",
    "Answer a DNS message",
    f"RFC 8484. {_TEXT} Costs one query.",
    "dns",
    Access.SIGNED_IN,
    (Outcome(200, "The message that answers it."), _AWAY),
    media_type=WIRE,
    takes=WIRE,
    most=_MOST_WIRE,
    metered=True,
)


class Resolve:
    """`bounds` are the operations with what they do."""

    def __init__(self, dns: Callable[[], Nameserver], metering: Metering) -> None:
        self._dns = dns
        self._metering = metering
        self.bounds: tuple[Bound, ...] = (
            (RESOLVE, self._resolve),
            (BATCH, self._batch),
            (WIRE_GET, self._wire_get),
            (WIRE_POST, self._wire_post),
        )

    async def _resolve(self, call: Call) -> Reply:
        asked: models_dns.ResolveQuery = call.query
        qname, rdtype = _question(asked, parameters=True)
        dns, forwarder = await self._paid(call, 1)
        shown = await _answer(dns, forwarder, qname, rdtype)
        return Reply(shown, fields=_cached([kept_seconds(shown)]))

    async def _batch(self, call: Call) -> Reply:
        asked: models_dns.Batch = call.body
        faults, questions = Faults(), []
        for number, query in enumerate(asked.queries):
            with faults:
                questions.append(_question(query, pointer=f"/queries/{number}"))
        faults.tell()
        dns, forwarder = await self._paid(call, len(questions))
        results = await asyncio.gather(*(_answer(dns, forwarder, *one) for one in questions))
        return Reply({"results": results}, fields=_cached(map(kept_seconds, results)))

    async def _wire_get(self, call: Call) -> web.Response:
        asked: models_dns.WireQuery = call.query
        try:
            packet = base64.b64decode(asked.dns + "=" * (-len(asked.dns) % 4), "-_", validate=True)
        except binascii.Error:
            message = "dns is not base64url without padding"
            raise ApiError(400, "bad_parameter", message, parameter="dns") from None
        return await self._wire(call, packet)

    async def _wire_post(self, call: Call) -> web.Response:
        return await self._wire(call, call.body)

    async def _wire(self, call: Call, packet: bytes) -> web.Response:
        query = read(packet)
        if query is None or len(packet) > _MOST_WIRE:
            raise ApiError(400, "bad_query", "what was sent is no DNS query")
        dns, forwarder = await self._paid(call, 1)
        made = None
        plain = not query.error and query.qname and query.qclass == IN
        if forwarder and plain and _is_foreign(dns, query.qname, query.qtype):
            made = reply(packet, await forwarder.ask(query.qname, query.qtype))
        if made is None:
            made = dns.responder.answer(query, call.request[CLIENT])
            if forwarder:
                made = made[:3] + bytes((made[3] | _RA,)) + made[4:]
        fields = _cached([wire_kept_seconds(made)])
        return web.Response(body=made, content_type=WIRE, headers=fields)

    async def _paid(self, call: Call, queries: int) -> tuple[Nameserver, Forwarder | None]:
        """Charge the caller; returns who answers, and who else may be asked for it.

        Raises ApiError.
        """
        dns, caller = self._dns(), call.caller
        assert caller is not None, "only who is known is answered"
        if not dns.known:
            message = "the zones are not known yet"
            raise ApiError(503, "zones_unknown", message, fields={"Retry-After": "1"})
        await self._metering.charge(call.request, caller, queries)
        dns.resolved[caller.role] += queries
        return dns, dns.forwarder if caller.role is Role.SERVICE else None


async def _answer(
    dns: Nameserver, forwarder: Forwarder | None, qname: bytes, rdtype: int
) -> dict[str, Any]:
    if forwarder is not None and _is_foreign(dns, qname, rdtype):
        return message_json(qname, rdtype, await forwarder.ask(qname, rdtype))
    answer = dns.zones.catalog.lookup_wire(qname, rdtype)
    return answer_json(qname, rdtype, answer, recursion=forwarder is not None)


def _is_foreign(dns: Nameserver, qname: bytes, rdtype: int) -> bool:
    """Say whether a question may be asked of others: never one about our own names."""
    return rdtype not in NOT_ASKED and dns.zones.catalog.find(qname.lower(), rdtype) is None


def _question(
    asked: models_dns.Question, *, pointer: str = "", parameters: bool = False
) -> tuple[bytes, int]:
    """Return name and type of a question. Raises ApiError, which names the one that is wrong."""
    try:
        return read_name(absolute(asked.name)), read_question_type(asked.type)
    except RecordRefused as error:
        if parameters:
            raise ApiError(400, "bad_parameter", str(error), parameter=error.field) from None
        raise BadBody((f"{pointer}/{error.field}", str(error))) from None


def _cached(seconds: Iterable[int | None]) -> dict[str, str]:
    """Return for how long an answer may be kept, by the one who asked alone (RFC 8484 5.1)."""
    found = list(seconds)
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return {"Cache-Control": "no-store"}
    return {"Cache-Control": f"private, max-age={min(known)}", "Vary": "Authorization"}
