"""Hosts that are not what they say: they get challenges at most, and status names why."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import pytest

from smartgw_hosts.challenge import CONTEXT, Challenge, Responder, signed_bytes
from smartgw_hosts.identity import PublicKey, decode64, encode64
from smartgw_hosts.wire import Kind
from tests.gateway import TABLE_SECONDS, Gateway, Host, MakeHost, identity_of, wait_until
from tests.upstreams import Connection, answering

Fields = Sequence[tuple[bytes, bytes]]


class Forger(Responder):
    """Answers challenges with 200 and a signature that `forge` makes."""

    def __init__(self, host: Host) -> None:
        super().__init__(
            host.identity, host.host_id, host.cluster.cluster_id, lambda: {host.address}
        )
        self.host = host
        self.last = bytes(64)

    def forge(self, asked: Challenge) -> bytes:
        """The 64 bytes to send: by themselves none that any key has made."""
        return bytes(64)

    def answer(
        self, method: bytes, raw_target: bytes, fields: Any, body: bytes, now: float, now_ms: int
    ) -> tuple[int, bytes]:
        asked = json.loads(body)
        challenge = Challenge(
            nonce=decode64(asked["nonce"]),
            gateway_id=asked["gateway"],
            cluster_id=asked["cluster"],
            host_id=asked["host"],
            address=asked["address"],
            key=PublicKey.parse(asked["key"]),
            issued_ms=asked["issued"],
        )
        signature = encode64(self.forge(challenge))
        return 200, json.dumps({"host": self.host.host_id, "signature": signature}).encode()


class Random(Forger):
    """Cannot sign."""

    def forge(self, asked: Challenge) -> bytes:
        return os.urandom(64)


class OtherKey(Forger):
    """Signs with a key that is not the enrolled one."""

    def forge(self, asked: Challenge) -> bytes:
        return identity_of("nobody").sign(CONTEXT, signed_bytes(asked))


class WrongThing(Forger):
    """Signs only the nonce."""

    def forge(self, asked: Challenge) -> bytes:
        return self.host.identity.sign(CONTEXT, asked.nonce)


class WrongContext(Forger):
    """Signs the right bytes under the context of a bus message."""

    def forge(self, asked: Challenge) -> bytes:
        return self.host.identity.sign(b"smartgw/bus/announce/v1", signed_bytes(asked))


class Replayer(Forger):
    """Answers with the good signature of the challenge before."""

    def forge(self, asked: Challenge) -> bytes:
        before, self.last = self.last, self.host.identity.sign(CONTEXT, signed_bytes(asked))
        return before


class OtherAddress(Forger):
    """Signs for an address that is not the one being verified."""

    def forge(self, asked: Challenge) -> bytes:
        elsewhere = dataclasses.replace(asked, address="http://127.0.0.1:1")
        return self.host.identity.sign(CONTEXT, signed_bytes(elsewhere))


def gets_nothing(gateway: Gateway, host: Host, reason: str) -> None:
    """The host is dialled, never routed to, and status says `reason`."""
    wait_until(
        lambda: gateway.state(host.host_id) == "unhealthy",
        what=lambda: gateway.hosts().get(host.host_id),
    )
    time.sleep(TABLE_SECONDS)
    for _ in range(3):
        assert gateway.ask(host.hostname, "/secret", "POST", body=b"secret").status == 503
    host.publish()
    time.sleep(0.1)
    assert gateway.ask(host.hostname, "/secret").status == 503
    assert host.upstream.requests == []
    assert host.upstream.challenges != []
    wait_until(lambda: reason in gateway.reason(host.host_id))


@pytest.mark.parametrize(
    "forger", [Random, OtherKey, WrongThing, WrongContext, Replayer, OtherAddress]
)
def test_bad_signatures(gateway: Gateway, make_host: MakeHost, forger: type[Forger]) -> None:
    """2.1, 2.3: a host that cannot sign, signs the wrong thing or replays gets challenges only."""
    host = make_host(wait=False, responder=forger)
    gets_nothing(gateway, host, "bad_signature")


def test_no_responder(gateway: Gateway, make_host: MakeHost) -> None:
    """2.1: a program that answers 404 to the challenge is not routed to; status names
    bad_status.
    """
    host = make_host(
        answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        wait=False,
        responds=False,
    )
    wait_until(lambda: gateway.state(host.host_id) == "unhealthy")
    time.sleep(TABLE_SECONDS)
    assert gateway.ask(host.hostname, "/secret").status == 503
    wait_until(lambda: "bad_status" in gateway.reason(host.host_id))
    assert {r.raw_target for r in host.upstream.requests} == {b"/.well-known/smartgw/challenge"}


def test_relayed_challenge(gateway: Gateway, make_host: MakeHost) -> None:
    """2.1: binding the address stops a host that relays its challenges to another with the same
    key.
    """
    honest = make_host()
    relaying = make_host(wait=False, responder=lambda host: honest.responder)
    gets_nothing(gateway, relaying, "refused")


def test_app_that_it_may_not_serve(gateway: Gateway, make_host: MakeHost) -> None:
    """1.4: an announcement for an app that its host may not serve is refused for that app, with
    a reason.
    """
    honest = make_host()
    enrolled = honest.cluster.entries
    enrolled.append(honest.cluster.entry("narrow", ["narrow-*"]))
    honest.cluster.write_enrolment()
    time.sleep(1.0)
    host = make_host(app=("narrow-1", honest.app, "unclaimed"), host_id="narrow")
    assert gateway.ask(host.hostname).status == 200
    for _ in range(20):
        assert gateway.ask(honest.hostname, "/mine").status == 200
    assert gateway.ask("unclaimed.smart-app.test", "/theirs").status == 404
    assert {r.raw_target for r in host.upstream.requests} == {b"/"}
    shown = gateway.hosts()["narrow"]
    assert shown["apps"] == ["narrow-1"]
    assert honest.app in json.dumps(shown["refused_apps"])
    assert "unclaimed" in json.dumps(shown["refused_apps"])


def test_not_enrolled(gateway: Gateway, make_host: MakeHost) -> None:
    """1.4: a key that is not enrolled stays provisional, is never dialled and never routed."""
    host = make_host(wait=False, host_id="stranger")
    wait_until(lambda: gateway.state("stranger") == "provisional")
    assert gateway.ask(host.hostname).status == 404
    time.sleep(0.5)
    assert host.upstream.accepted == 0
    wait_until(lambda: "not_enrolled" in gateway.reason("stranger"))


def test_another_key_for_an_enrolled_host(gateway: Gateway, make_host: MakeHost) -> None:
    """1.2, 1.4: a message of an enrolled host that another key signed changes nothing, a leave
    neither.
    """
    honest = make_host()
    forger = make_host(
        wait=False, host_id=honest.host_id, identity=identity_of("forger"), app=honest.app
    )
    for kind in ("announce", "heartbeat", "leave"):
        forger.publish(Kind(kind))
    time.sleep(0.3)
    assert gateway.state(honest.host_id) == "healthy"
    assert [gateway.ask(honest.hostname).status for _ in range(5)] == [200] * 5
    assert forger.upstream.accepted == 0


def test_expired_enrolment(gateway: Gateway, make_host: MakeHost) -> None:
    """1.4: an enrolment that has expired serves nobody."""
    cluster = make_host().cluster
    cluster.entries.append(cluster.entry("expired", ["*"], "2020-01-01T00:00:00Z"))
    cluster.write_enrolment()
    time.sleep(1.0)
    host = make_host(wait=False, host_id="expired")
    wait_until(lambda: gateway.state("expired"))
    time.sleep(0.3)
    assert gateway.ask(host.hostname).status in (404, 503)
    assert host.upstream.accepted == 0
    wait_until(lambda: "expired" in gateway.reason("expired"))


def test_removed_enrolment_ends_routing_and_connections(
    gateway: Gateway, make_host: MakeHost
) -> None:
    """1.4: a removed enrolment ends routing and connections within 2 s."""
    cluster = make_host().cluster
    entry = cluster.entry("removed", ["*"])
    cluster.entries.append(entry)
    cluster.write_enrolment()
    time.sleep(1.0)
    ends: list[bool] = []

    def script(connection: Connection) -> None:
        while connection.head().raw_target != b"/stream":
            connection.reply()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        ends.append(connection.ended(5))

    host = make_host(script, host_id="removed")
    assert gateway.ask(host.hostname).status == 200
    with gateway.downstream() as client:
        client.send(f"GET /stream HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        assert client.until(b"abc") is not None
        cluster.entries.remove(entry)
        cluster.write_enrolment()
        assert client.closed(2.5)
    assert gateway.ask(host.hostname).status in (404, 503)
    wait_until(lambda: ends == [True], 2)


def test_no_keepalive(gateway: Gateway, make_host: MakeHost) -> None:
    """2.3: a host that closes after each answer is unhealthy, reason no_keepalive, the remedy
    named.
    """

    def script(connection: Connection) -> None:
        connection.prove()

    host = make_host(script, wait=False)
    for _ in range(5):
        gateway.ask(host.hostname)
    wait_until(lambda: "no_keepalive" in gateway.reason(host.host_id))
    assert host.upstream.requests == []
    assert gateway.ask(host.hostname).status == 503


def test_port_takeover_100_of_100(gateway: Gateway, make_host: MakeHost) -> None:
    """2.3: a foreign program that takes over the port of a killed host gets no request, 100 of
    100.
    """
    hosts = [make_host(wait=False) for _ in range(100)]
    hosts[0].cluster.wait_healthy(*hosts)
    for host in hosts:
        assert gateway.ask(host.hostname).status == 200
        host.cluster.beating.discard(host)
        host.upstream.requests.clear()
    kept = 0
    for host in hosts:
        host.upstream.kill()
        host.upstream.responder = None
        host.upstream.script = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstolen"[:-1])
        host.upstream.listen()
        for method in ("GET", "POST"):
            answer = gateway.ask(host.hostname, "/secret", method)
            assert answer.status in (502, 503)
        paths = {r.raw_target for r in host.upstream.requests}
        kept += paths <= {b"/.well-known/smartgw/challenge"}
    assert kept == 100
