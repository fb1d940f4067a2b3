"""Forwards between real gateways: what goes over a link, and what does not."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smartgw.peers import certificate
from smartgw_hosts.identity import Identity
from tests.federation import Federation
from tests.gateway import Gateway, Host, wait_until
from tests.raw_http import Answer, Downstream
from tests.servers import free_port
from tests.upstreams import HANDSHAKE, Connection, Request, accept, each

STRANGER = Identity.from_seed(b"stranger".ljust(32, b"."))


@pytest.fixture(scope="module", params=["plain", "tls"])
def clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """Two clusters; links to c2 are plain, or over TLS."""
    tls = ("c2",) if request.param == "tls" else ()
    with Federation(tmp_path_factory.mktemp("links"), ("c1", "c2"), tls=tls) as made:
        yield made


@pytest.fixture
def app(clusters: Federation) -> str:
    """An app that c2 owns."""
    return clusters.app("c2")


def told(answer: Answer) -> dict[str, str]:
    """What the host was told: its request's fields, lower case; several are joined."""
    assert answer.status == 200, answer
    found: dict[str, str] = {}
    for name, value in json.loads(answer.body)["headers"]:
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def links(gateway: Gateway) -> float:
    """How many links a gateway has opened."""
    for line in gateway.internal("/metrics")[1].decode().splitlines():
        if line.startswith('smartgw_links_total{opened_by="us"} '):
            return float(line.rpartition(" ")[2])
    raise AssertionError


# ---- what arrives ----


def test_the_owner_serves_and_its_host_is_told_the_client(clusters: Federation, app: str) -> None:
    """4.2, 4.5: one hop to the owner, same hostname, and the client's address at its host."""
    host = clusters.host("c2", app)
    raw_target = "/a%2Fb%27c%3Bd/%2520?x=%21&y=a+b&"
    for kind in ("GET", "DELETE", "OPTIONS", "PROPFIND"):
        answer = clusters.gateways["c1"].ask(host.hostname, raw_target, kind, "X-A: 1", "X-A: 2")
        fields = told(answer)
        assert fields["x-forwarded-for"] == "127.0.0.1"
        assert fields["x-forwarded-proto"] == "http"
        assert fields["host"] == host.hostname
        assert fields["via"] == "1.1 c1, 1.1 c2"
        assert fields["x-a"] == "1, 2"
        assert not [name for name in fields if name.startswith("x-smartgw-forward")]
        shown = json.loads(answer.body)
        assert (shown["method"], shown["raw_target"]) == (kind, raw_target)
    host.stop()


@pytest.mark.parametrize("what", ["bytes", "fields"])
def test_a_head_within_the_bounds_is_so_at_the_owner(
    clusters: Federation, app: str, what: str
) -> None:
    """4.2, 3.11: the largest head that a client may send is no larger for being forwarded."""
    host = clusters.host("c2", app)
    if what == "fields":
        head = f"GET / HTTP/1.1\r\nHost: {host.hostname}" + "\r\nX-A: 1" * 99
    else:
        head = f"GET http://{host.hostname}/ HTTP/1.1\r\nHost: x"
        head += f"\r\nX-A: {'a' * 16_000}" * 2 + "\r\nX-B: "
        head += "b" * (32_768 - len(head))
    with clusters.gateways["c1"].downstream() as client:
        client.send(head.encode(), b"\r\n\r\n")
        assert client.answer().status == 200
    host.stop()


@pytest.mark.parametrize("what", ["bytes", "fields"])
def test_an_answer_within_the_bounds_is_so_through_a_forward(
    clusters: Federation, app: str, what: str
) -> None:
    """4.2, 3.11: the largest head that a host may answer with is no larger for being passed on."""

    def behaviour(connection: Connection, request: Request) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 0"
        if what == "fields":
            head += b"\r\nX-A: 1" * 99
        else:
            head += (b"\r\nX-A: " + b"a" * 16_000) * 2 + b"\r\nX-B: "
            head += b"b" * (32_768 - len(head))
        connection.send(head, b"\r\n\r\n")

    host = clusters.host("c2", app, each(behaviour))
    assert clusters.gateways["c1"].ask(host.hostname, "/", "POST").status == 200
    host.stop()


@pytest.mark.parametrize("cluster", ["c1", "c2"], ids=["forwarded", "direct"])
def test_an_ipv6_client_is_told_as_such(clusters: Federation, app: str, cluster: str) -> None:
    """4.5: the client's address at the owner's host, for direct and forwarded requests alike."""
    host = clusters.host("c2", app)
    port = free_port()
    other = clusters.start(cluster, listen={"http": [f"[::1]:{port}", f"127.0.0.1:{free_port()}"]})
    clusters.clusters["c2"].wait_healthy(host)
    try:
        with socket.create_connection(("::1", port), 10) as sock:
            sock.sendall(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
            data = b""
            while b'"body"' not in data:
                more = sock.recv(1 << 16)
                assert more, data
                data += more
        fields = {n.lower(): v for n, v in json.loads(data.partition(b"\r\n\r\n")[2])["headers"]}
        assert fields["x-forwarded-for"] == "::1"
        assert fields["forwarded"].startswith('for="[::1]";')
    finally:
        other.stop()
        host.stop()


def test_links_are_kept(clusters: Federation, app: str) -> None:
    """4.5: keep-alive connections: a hundred requests one after the other open one at most."""
    host = clusters.host("c2", app)
    gateway = clusters.gateways["c1"]
    gateway.ask(host.hostname)
    opened = links(gateway)
    with gateway.downstream() as client:
        for _ in range(100):
            client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
            assert client.answer().status == 200
    assert links(gateway) <= opened + 1
    host.stop()


def test_bodies_trailers_and_interim_answers(clusters: Federation, app: str) -> None:
    """3.5, 4.5: bodies, trailers and 1xx pass a forward as they pass one gateway."""

    def behaviour(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.read_body(request)
        digest = hashlib.sha256(request.body).hexdigest().encode()
        connection.send(
            b"HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
            b"5\r\nhello\r\n0\r\nX-Sum: " + digest + b"\r\n\r\n"
        )

    host = clusters.host("c2", app, each(behaviour))
    body = b"%x\r\n%b\r\n0\r\nX-Mine: 1\r\n\r\n" % (1 << 17, bytes(1 << 17))
    with clusters.gateways["c1"].downstream() as client:
        client.send(
            f"POST /up HTTP/1.1\r\nHost: {host.hostname}\r\nTransfer-Encoding: chunked\r\n"
            "TE: trailers\r\nConnection: TE\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        first = client.head()
        second = client.head()
        assert sorted((first.status, second.status)) == [100, 103]
        client.send(body)
        answer = client.answer("POST")
    assert (answer.status, answer.body) == (201, b"hello")
    assert dict(answer.trailers)[b"X-Sum"] == hashlib.sha256(bytes(1 << 17)).hexdigest().encode()
    (request,) = host.upstream.requests
    assert (b"X-Mine", b"1") in request.trailers
    host.stop()


def test_an_early_answer_reaches_the_client(clusters: Federation, app: str) -> None:
    """3.6, 4.5: an early 413 during an upload reaches the client through a forward, too (R21)."""

    def behaviour(connection: Connection, request: Request) -> None:
        connection.reply(b"too much", "413 Content Too Large", "Connection: close")
        connection.ended(5)

    host = clusters.host("c2", app, each(behaviour))
    with clusters.gateways["c1"].downstream(timeout=20) as client:
        client.send(
            f"POST /up HTTP/1.1\r\nHost: {host.hostname}\r\n"
            f"Content-Length: {28 << 20}\r\n\r\n".encode()
        )
        sender = threading.Thread(target=_send_all, args=(client, 28 << 20), daemon=True)
        sender.start()
        answer = client.answer("POST")
        sender.join(20)
    assert (answer.status, answer.body) == (413, b"too much")
    host.stop()


def _send_all(client: Downstream, size: int) -> None:
    try:
        for _ in range(size >> 16):
            client.send(bytes(1 << 16))
    except OSError:
        pass


def test_events_arrive_one_by_one(clusters: Federation, app: str) -> None:
    """3.6, 4.5: server-sent events arrive event by event through a forward."""
    taken = threading.Semaphore(0)

    def events(connection: Connection, request: Request) -> None:
        connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(5):
            event = b"data: %d\n\n" % number
            connection.send(b"%x\r\n%b\r\n" % (len(event), event))
            assert taken.acquire(timeout=5)
        connection.send(b"0\r\n\r\n")

    host = clusters.host("c2", app, each(events))
    with clusters.gateways["c1"].downstream() as client:
        client.send(f"GET /sse HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        client.final_head()
        for number in range(5):
            assert client.until(b"data: %d\n\n\r\n" % number) is not None
            taken.release()
        assert client.until(b"0\r\n\r\n") is not None
    host.stop()


def test_websockets_pass(clusters: Federation, app: str) -> None:
    """4.5: an upgraded WebSocket through a forward is as locally: bytes, both ways, to its end."""

    def behaviour(connection: Connection, request: Request) -> None:
        accept(connection, request, b"first")
        while data := connection.socket.recv(1 << 16):
            connection.send(data.upper())
        connection.close()

    host = clusters.host("c2", app, each(behaviour))
    with clusters.gateways["c1"].downstream() as client:
        client.send(HANDSHAKE.format(hostname=host.hostname).encode())
        answer = client.head()
        assert answer.status == 101
        assert client.take(5) == b"first"
        for size in (1, 125, 70_000):
            client.send(b"a" * size)
            assert client.take(size) == b"A" * size
    wait_until(lambda: clusters.metric("c1", "smartgw_tunnels") == 0, what="the tunnel's end")
    wait_until(lambda: clusters.metric("c2", "smartgw_tunnels") == 0, what="the tunnel's end")
    host.stop()


def test_a_client_that_goes_away_cancels_the_work(clusters: Federation, app: str) -> None:
    """3.6, 4.5: the end of the client reaches the host at the other side of a forward."""
    ended = threading.Event()

    def behaviour(connection: Connection, request: Request) -> None:
        if connection.ended(10):
            ended.set()

    host = clusters.host("c2", app, each(behaviour))
    with clusters.gateways["c1"].downstream() as client:
        client.send(f"GET /slow HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        wait_until(lambda: host.upstream.requests, what="the request at the host")
    assert ended.wait(10)
    host.stop()


def test_an_answer_that_breaks_off_is_never_a_whole_one(clusters: Federation, app: str) -> None:
    """3.6, 4.5: a host that dies within its answer is seen as such through a forward."""

    def behaviour(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        time.sleep(0.1)
        connection.reset()

    host = clusters.host("c2", app, each(behaviour))
    with clusters.gateways["c1"].downstream() as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        client.final_head()
        assert client.until(b"hello\r\n") is not None
        assert not client.rest().endswith(b"0\r\n\r\n")
        assert client.ended
    host.stop()


# ---- whom nothing is sent ----


class Impostor:
    """Stands where the directory says a gateway is, and is none. `got` is all that came."""

    def __init__(self, answer: bytes = b"", tls: ssl.SSLContext | None = None) -> None:
        self.got = b""
        self.connections = 0
        self._answer = answer
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def _talk(self, sock: socket.socket) -> None:
        try:
            with sock if self._tls is None else self._tls.wrap_socket(sock, server_side=True) as it:
                it.settimeout(10)
                while data := it.recv(1 << 16):
                    self.got += data
                    if self._answer and b"\r\n\r\n" in data:
                        it.sendall(self._answer)
        except OSError:
            pass


OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
IMPOSTORS = {
    "closes": b"",
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "garbage": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "no proof": OK % (0, b""),
    "false proof": OK % (72, b"AQ" + b"A" * 68 + b"=="),
    "endless": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"5\r\nAAAAA\r\n" * 4_000,
}


@pytest.mark.parametrize("kind", IMPOSTORS)
def test_who_does_not_prove_the_key_gets_no_request(
    clusters: Federation, app: str, kind: str
) -> None:
    """4.5: requests over a link whose proof failed are never sent."""
    if clusters.tls:
        pytest.skip("TLS shows the key before anything is asked")
    impostor = Impostor(IMPOSTORS[kind])
    clusters.follow(changed={"c2": {"gateways": [f"http://127.0.0.1:{impostor.port}"]}})
    try:
        answer = clusters.gateways["c1"].ask(
            clusters.hostname(app), "/secret", "POST", "X-Secret: 1", body=b"secret"
        )
        assert answer.status in (502, 503, 504)
        assert answer.one("x-smartgw-request-sent") in ("none", "")
    finally:
        clusters.follow()
        impostor.close()
    assert b"ecret" not in impostor.got
    questions = impostor.got.count(b"POST /.well-known/smartgw/link HTTP/1.1\r\n")
    assert impostor.got.count(b"HTTP/1.1") == questions


@pytest.mark.parametrize("who", ["stranger", "c1"])
def test_tls_with_another_key_is_told_nothing(clusters: Federation, app: str, who: str) -> None:
    """4.5: TLS with the wrong key: the sender checks it before any request byte: nothing sent."""
    if not clusters.tls:
        pytest.skip("plain links have no certificate")
    key = STRANGER if who == "stranger" else clusters.key("c1")
    impostor = Impostor(OK % (0, b""), certificate.receiving(key, "c2"))
    clusters.follow(changed={"c2": {"gateways": [f"https://127.0.0.1:{impostor.port}"]}})
    try:
        answer = clusters.gateways["c1"].ask(clusters.hostname(app), "/secret", "POST", body=b"x")
        assert answer.status in (502, 503, 504)
    finally:
        clusters.follow()
        impostor.close()
    assert impostor.connections
    assert impostor.got == b""


def test_a_listener_named_in_every_field_gets_no_connection(clusters: Federation, app: str) -> None:
    """4.5: a link never goes to an address that is not in the directory, whatever a client says."""
    host = clusters.host("c2", app)
    named = Impostor()
    where = f"127.0.0.1:{named.port}"
    names = (
        *("X-Forwarded-Host", "X-Forwarded-Server", "Forwarded", "X-Original-URL", "X-Rewrite-URL"),
        *("x-smartgw-forward", "x-smartgw-link", "x-smartgw-cluster", "x-failover-cluster"),
        *(
            "x-smartgw-owner",
            "x-smartgw-answer",
            "X-Peer",
            "Referer",
            "Origin",
            "Location",
            "Alt-Svc",
        ),
    )
    fields = [f"{name}: http://{where}" for name in names]
    fields.append(f"Forwarded: for=1.2.3.4;host={where};by={where}")
    target = f"/?owner=http://{where}&cluster={where}&peer=http://{where}/&next=//{where}/"
    for gateway in clusters.gateways.values():
        assert gateway.ask(host.hostname, target, "GET", *fields).status == 200
    host.stop()
    dead = clusters.app("c2")
    for gateway in clusters.gateways.values():
        for method in ("GET", "POST"):
            gateway.ask(clusters.hostname(dead), target, method, *fields)
    time.sleep(0.2)
    assert named.connections == 0
    named.close()


def test_the_directorys_gateways_are_never_dialled_as_hosts(clusters: Federation, app: str) -> None:
    """2.5: never an address that a gateway of the directory listens on, listed by name or not."""
    impostor = Impostor()
    name = f"{'https' if clusters.tls else 'http'}://localhost:{impostor.port}"
    clusters.follow(changed={"c2": {"gateways": [*clusters.urls["c2"], name]}})
    try:
        for port in (clusters.links["c2"], impostor.port):
            host = clusters.host("c1", app, wait=False)
            before = impostor.connections
            host.address = f"http://127.0.0.1:{port}"
            host.publish()
            wait_until(
                lambda host=host: "gateway" in str(_shown(clusters, host)),  # type: ignore[misc]
                what="the address refused",
            )
            assert impostor.connections == before
            host.stop()
    finally:
        clusters.follow()
        impostor.close()


def _shown(clusters: Federation, host: Host) -> object:
    return clusters.gateways["c1"].hosts().get(host.host_id, {})


# ---- several gateways, and changes of the list ----


def test_a_gateway_that_is_away_is_asked_last(clusters: Federation, app: str) -> None:
    """4.5: several gateways of a peer: failing ones last; no request fails for one that is away."""
    host = clusters.host("c2", app)
    scheme = "https" if clusters.tls else "http"
    away = f"{scheme}://127.0.0.1:{free_port()}"
    clusters.follow(changed={"c2": {"gateways": [away, *clusters.urls["c2"]]}})
    try:
        for method in ("GET", "POST") * 15:
            assert clusters.gateways["c1"].ask(host.hostname, "/", method).status == 200
        failed = clusters.metric("c1", 'smartgw_link_failures_total{reason="unreachable"}')
        # Found to be away once, then looked at in the background.
        for _ in range(20):
            clusters.gateways["c1"].ask(host.hostname)
        later = clusters.metric("c1", 'smartgw_link_failures_total{reason="unreachable"}')
        assert later - failed <= 1
    finally:
        clusters.follow()
    host.stop()


def test_the_load_goes_to_all_gateways_of_a_peer(clusters: Federation, app: str) -> None:
    """4.5: least outstanding of two."""
    second_port = free_port()
    second = clusters.start("c2", second_port)
    slow = clusters.host("c2", app, each(_slowly))
    scheme = "https" if clusters.tls else "http"
    both = [*clusters.urls["c2"], f"{scheme}://127.0.0.1:{second_port}"]
    clusters.follow(changed={"c2": {"gateways": both}})
    try:
        clients = [clusters.gateways["c1"].downstream() for _ in range(24)]
        for client in clients:
            client.send(f"GET / HTTP/1.1\r\nHost: {slow.hostname}\r\n\r\n".encode())
        for client in clients:
            assert client.answer().status == 200
            client.close()
        assert len(slow.upstream.requests) == 24
        assert _accepted(second) >= 8
    finally:
        clusters.follow()
        slow.stop()
        second.stop()


def _slowly(connection: Connection, request: Request) -> None:
    time.sleep(0.3)
    connection.reply()


def _accepted(gateway: Gateway) -> float:
    for line in gateway.internal("/metrics")[1].decode().splitlines():
        if line.startswith('smartgw_links_total{opened_by="peer"} '):
            return float(line.rpartition(" ")[2])
    raise AssertionError


def test_a_list_without_a_peer_ends_new_requests_and_no_stream(
    clusters: Federation, app: str
) -> None:
    """4.3, 4.5: who leaves the list gets no new request at once; what it answers goes on."""
    more = threading.Event()

    def behaviour(connection: Connection, request: Request) -> None:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        more.wait(20)
        connection.send(b"later")

    host = clusters.host("c2", app, each(behaviour))
    gateway = clusters.gateways["c1"]
    with gateway.downstream(timeout=20) as client:
        client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        assert client.final_head().status == 200
        assert client.take(5) == b"first"
        clusters.follow("c2")
        try:
            before = len(host.upstream.requests)
            assert gateway.ask(host.hostname).status in (404, 503)
            assert len(host.upstream.requests) == before
            more.set()
            assert client.take(5) == b"later"
        finally:
            clusters.follow()
    assert gateway.ask(host.hostname).status == 200
    host.stop()


def test_a_new_key_is_taken_with_overlap(clusters: Federation, app: str) -> None:
    """4.3, 4.5: keys are replaced one by one while both are listed: no request fails."""
    host = clusters.host("c2", app)
    gateway = clusters.gateways["c1"]
    now, following = clusters.key("c2"), STRANGER
    both = [following.public_key.text, now.public_key.text]
    assert gateway.ask(host.hostname).status == 200
    for keys in (both, both[::-1], [both[1]]):
        clusters.follow(changed={"c2": {"keys": keys}})
        for method in ("GET", "POST"):
            assert gateway.ask(host.hostname, "/", method).status == 200
    host.stop()


def test_workers_forward_and_receive(tmp_path: Path) -> None:
    """11.1, 4.5: each of several processes opens links of its own and takes them, over TLS too."""
    # Twelve processes start and open links at once; on a busy machine that takes its time.
    workers = {
        "processes": {"workers": 2},
        "upstream": {"connect_timeout": 8, "challenge_timeout": 8},
    }
    with Federation(tmp_path, ("c1", "c2"), tls=("c2",), settings=workers) as made:
        host = made.host("c2", made.app("c2"))
        gateway = made.gateways["c1"]
        # Each worker on both sides has heard of the other cluster when so many were answered.
        wait_until(
            lambda: all(gateway.ask(host.hostname).status == 200 for _ in range(12)), within=40
        )
        forwards = made.metric("c1", 'smartgw_forwards_total{kind="affinity"}')
        marks = made.metric("c2", "smartgw_marks_total")
        clients = [gateway.downstream() for _ in range(16)]
        for client in clients:
            client.send(f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode())
        for client in clients:
            assert told(client.answer())["x-forwarded-for"] == "127.0.0.1"
            client.close()
        assert made.metric("c1", 'smartgw_forwards_total{kind="affinity"}') == forwards + 16
        assert made.metric("c2", "smartgw_marks_total") == marks + 16
