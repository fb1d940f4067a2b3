"""A host announces another address while clients ask for its app without a pause."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from smartgw_hosts.challenge import Responder
from smartgw_hosts.wire import Kind
from tests.gateway import Gateway, Host, MakeHost, wait_until
from tests.upstreams import Connection, Upstream

CLIENTS = 8
MOVES = 3


def closing(connection: Connection) -> None:
    """Serve, and end the connection with every 20th answer, so that new ones must be proven."""
    for number in range(20):
        connection.request()
        connection.reply(b"ok", "200 OK", *(["Connection: close"] if number == 19 else []))


def strict(host: Host) -> Responder:
    """Signs for the address of this moment only, as contract 2.1 has it."""
    return Host.honest(host)


def patient(host: Host) -> Responder:
    """Signs for its former addresses too, as the SDK's does for a while."""
    signed: set[str] = set()

    def addresses() -> set[str]:
        signed.add(host.address)
        return signed

    return Responder(host.identity, host.host_id, host.cluster.cluster_id, addresses)


@pytest.mark.parametrize("responder", [strict, patient])
@pytest.mark.parametrize("kind", [Kind.ANNOUNCE, Kind.HEARTBEAT])
def test_no_request_fails_while_a_host_moves(
    gateway: Gateway, make_host: MakeHost, responder: Callable[[Host], Responder], kind: Kind
) -> None:
    """2.2: what serves goes on serving until the new address is verified."""
    host = make_host(closing, responder=responder)
    answers = Counter[int]()
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            answers[gateway.ask(host.hostname).status] += 1

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    former = []
    try:
        for client in clients:
            client.start()
        for _ in range(MOVES):
            # Under full load, before and after.
            answers.clear()
            wait_until(lambda: answers.total() > 40)
            assert set(answers) == {200}
            former.append(host.upstream)
            host.upstream = Upstream(closing)
            host.upstream.responder = host.responder
            host.address = host.upstream.address
            host.publish(kind)
            wait_until(lambda: gateway.hosts()[host.host_id]["address"] == host.address)
            wait_until(lambda: len(host.upstream.requests) > 40)
    finally:
        over.set()
        for client in clients:
            client.join()
        for upstream in former:
            upstream.close()
    assert set(answers) == {200}
