"""Clients and hosts that end at any moment, many at once: nothing of it stays in the gateway."""

from __future__ import annotations

import contextlib
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.gateway import Gateway, Host, MakeHost, wait_until
from tests.raw_http import BadAnswer
from tests.upstreams import HANDSHAKE, Connection, Request, accept, each

CLIENTS = 8
ROUNDS = 60


def traffic(gateway: Gateway) -> dict[str, Any]:
    """The traffic section of the gateway's status."""
    status, body = gateway.internal("/api/v3/status")
    assert status == 200
    section: dict[str, Any] = json.loads(body)["traffic"]
    return section


def files(gateway: Gateway) -> int:
    """How many files the gateway has open."""
    return len(os.listdir(f"/proc/{gateway.pid}/fd"))


def misbehave(connection: Connection, request: Request) -> None:
    """Answer in one of many ways, as the target's number says."""
    dice = random.Random(request.raw_target)
    if request.all("upgrade"):
        accept(connection, request, b"hello")
        if dice.random() < 0.5:
            connection.reset()
        connection.ended(dice.random() * 0.1)
        raise EOFError
    if dice.random() < 0.3:
        connection.reset()
        raise EOFError
    if dice.random() < 0.7:
        connection.read_body(request)
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", bytes(50_000))
    if dice.random() < 0.5:
        raise EOFError
    connection.send(bytes(50_000))
    if not request.whole and request.method != "GET":
        raise EOFError


def one_client(gateway: Gateway, host: Host, seed: int) -> None:
    """Requests, uploads and upgrades that end at any moment."""
    dice = random.Random(seed)
    for number in range(ROUNDS):
        with (
            contextlib.suppress(OSError, BadAnswer),
            gateway.downstream(timeout=0.3 + dice.random()) as client,
        ):
            kind = dice.randrange(4)
            head = f"POST /{seed}/{number} HTTP/1.1\r\nHost: {host.hostname}\r\n"
            if kind == 0:
                client.send(HANDSHAKE.format(hostname=host.hostname).encode())
            elif kind == 1:
                client.send(head.replace("POST", "GET").encode(), b"\r\n" * 3)
            elif kind == 2:
                client.send(head.encode(), b"Content-Length: 300000\r\n\r\n")
                client.send(bytes(dice.choice((10, 100_000, 300_000))))
            else:
                client.send(head.encode()[: dice.randrange(len(head))])
            if dice.random() < 0.7:
                client.socket.settimeout(0.2)
                client.answer("POST")
            if dice.random() < 0.5:
                client.reset()


def test_nothing_stays(gateway: Gateway, make_host: MakeHost) -> None:
    """3.6: clients that go away and hosts that die leave no request, connection or file behind,
    and the next request is served.
    """
    host = make_host(each(misbehave))
    others = [make_host(each(misbehave), app=host.app) for _ in range(2)]
    before = files(gateway)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for client in [pool.submit(one_client, gateway, host, seed) for seed in range(CLIENTS)]:
            client.result()
    wait_until(lambda: traffic(gateway)["in_flight"] == 0, what=lambda: traffic(gateway))
    wait_until(lambda: traffic(gateway)["connections"] == 0, what=lambda: traffic(gateway))
    for ended in (host, *others):
        ended.stop()
    # kept upstream connections go with their hosts
    wait_until(
        lambda: files(gateway) <= before + 2, what=lambda: f"{before} files, now {files(gateway)}"
    )
    calm = make_host()
    assert gateway.ask(calm.hostname).status == 200
    assert "Traceback" not in gateway.log()
