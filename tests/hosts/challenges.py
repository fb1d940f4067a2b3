"""Challenges for tests of whatever answers them: one host, one gateway, fresh nonces."""

import os
import time

from smartgw_hosts import challenge
from smartgw_hosts.challenge import Challenge, Proof, Responder
from tests.hosts.bus_messages import identity_of

IDENTITY = identity_of("h1")
ADDRESS = "http://127.0.0.1:9000"


def responder() -> Responder:
    return Responder(IDENTITY, "h1", "c1", lambda: (ADDRESS,))


def ask(address: str = ADDRESS) -> Challenge:
    """A fresh challenge to that host."""
    return Challenge(
        nonce=os.urandom(32),
        gateway_id="g1",
        cluster_id="c1",
        host_id="h1",
        address=address,
        key=IDENTITY.public_key,
        issued_ms=time.time_ns() // 1_000_000,
    )


def body_of(asked: Challenge) -> bytes:
    return challenge.request(asked).partition(b"\r\n\r\n")[2]


def proves(asked: Challenge, status: int, body: bytes) -> bool:
    return challenge.judge(asked, status, body).reason is Proof.OK
