"""Questions that are asked of resolvers, over real sockets (dns/smartgw_dns/forwarder.py)."""

import asyncio
from collections.abc import Iterator

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from smartgw_dns import forwarder
from smartgw_dns.forwarder import Forwarder, reply
from smartgw_dns.shown import kept_seconds, message_json
from tests.dns.zones import wire
from tests.resolvers import Resolver, address, missing


@pytest.fixture
def resolver(request: pytest.FixtureRequest) -> Iterator[Resolver]:
    """A resolver that answers by the test's parameter."""
    made = Resolver(getattr(request, "param", address))
    yield made
    made.close()


async def test_an_answer_of_a_resolver_is_passed_on(resolver: Resolver) -> None:
    """8.2: for services, to configured upstream resolvers."""
    asking = Forwarder([resolver.address])
    answer = await asking.ask(wire("www.elsewhere.test."), 1)
    shown = message_json(wire("www.elsewhere.test."), 1, answer)
    assert shown["Answer"] == [
        {"name": "www.elsewhere.test.", "type": 1, "TTL": 77, "data": "198.51.100.7"}
    ]
    assert (shown["Status"], shown["AA"], shown["RA"]) == (0, False, True)
    assert kept_seconds(shown) == 77
    assert resolver.asked == ["www.elsewhere.test. IN A"]
    assert asking.counts == {"answered": 1, "failed": 0, "refused": 0}


@pytest.mark.parametrize("resolver", [missing], indirect=True)
async def test_a_name_that_is_not_there_is_one(resolver: Resolver) -> None:
    """8.2: NXDOMAIN is an answer, with the SOA that says how long it holds."""
    answer = await Forwarder([resolver.address]).ask(wire("no.test."), 1)
    assert answer.rcode() == dns.rcode.NXDOMAIN
    assert kept_seconds(message_json(wire("no.test."), 1, answer)) == 60


async def test_any_is_not_asked_of_others(resolver: Resolver) -> None:
    """8.2: ANY is no question for a resolver (RFC 8482): that is told, and nobody is asked."""
    asking = Forwarder([resolver.address])
    for rdtype in (255, 128):
        assert (await asking.ask(wire("www.elsewhere.test."), rdtype)).rcode() == dns.rcode.NOTIMP
    assert resolver.asked == []
    assert asking.counts == {"answered": 0, "failed": 0, "refused": 0}


@pytest.mark.parametrize("resolver", [lambda query: None], indirect=True)
async def test_who_gets_no_answer_is_told_so_in_time(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8.2: no question waits for ever, and not too many wait at once."""
    monkeypatch.setattr(forwarder, "SECONDS", 0.4)
    asking = Forwarder([resolver.address], at_once=2)
    answers = await asyncio.gather(*(asking.ask(wire("x.test."), 1) for _ in range(5)))
    assert [answer.rcode() for answer in answers] == [dns.rcode.SERVFAIL] * 5
    assert asking.counts == {"answered": 0, "failed": 2, "refused": 3}


async def test_the_answer_to_a_packet_is_of_its_id_and_question(resolver: Resolver) -> None:
    """8.1: RFC 8484: the answer of a resolver is put into a message for whoever asked."""
    query = dns.message.make_query("WWW.elsewhere.test.", "A", use_edns=True)
    answer = await Forwarder([resolver.address]).ask(wire("WWW.elsewhere.test."), 1)
    packet = reply(query.to_wire(), answer)
    assert packet is not None
    read = dns.message.from_wire(packet)
    assert query.is_response(read)
    assert read.flags & dns.flags.RA
    assert not read.flags & dns.flags.AA
    assert [rrset.to_text() for rrset in read.answer] == [
        "WWW.elsewhere.test. 77 IN A 198.51.100.7"
    ]
    assert reply(b"garbage", answer) is None


def test_an_answer_that_no_message_holds_is_cut() -> None:
    """8.1: a resolver may say as much as a message holds, and the question has an OPT besides."""
    query = dns.message.make_query("x.", "A", use_edns=True)
    answer = dns.message.make_response(query)
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(5_000)]
    answer.answer.append(dns.rrset.from_text_list("x.", 60, "IN", "A", addresses))
    packet = reply(query.to_wire(), answer)
    assert packet is not None
    read = dns.message.from_wire(packet)
    assert query.is_response(read)
    assert read.flags & dns.flags.TC
    assert not read.answer
