"""A gateway that receives forwards: whom it believes, and what everybody else's marks are worth.

The forwarding gateway is raw bytes (tests/forwarders.py); the receiving one and its hosts are real.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from smartgw.routing.forwarding import KEY_ID_BYTES, TAG_BYTES, Kind
from smartgw.routing.link_opening import question
from smartgw_hosts.identity import Identity
from tests.forwarders import ASKED, Forwarder, cluster_key, entry, write_list
from tests.gateway import Cluster, Gateway, Host, seed_file, wait_until
from tests.raw_http import Answer
from tests.servers import free_port

STRANGER = Identity.from_seed(b"stranger".ljust(32, b"."))
CLIENT = "203.0.113.9"


class Receiver:
    """A gateway of cluster c1, whose directory lists c1, c2 and c3; and a host of its own."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster("c1")
        self.file = folder / "clusters.json"
        self.tls_port = free_port()
        self.list()
        self.changes: dict[str, Any] = {
            "peers": {"file": str(self.file)},
            "identity": {"seed_file": str(seed_file(folder / "c1.seed", "cluster c1"))},
            "listen": {"links": f"127.0.0.1:{self.tls_port}"},
        }
        self.gateway = self.start()
        self.host = self.cluster.host()

    def start(self, **changes: Any) -> Gateway:
        """One more gateway, with these settings, too."""
        if self.cluster.gateways:
            changes["listen"] = {"links": f"127.0.0.1:{free_port()}"}
        return self.cluster.gateway({**self.changes, **changes})

    def list(self, *others: dict[str, Any]) -> None:
        """Have the directory list these beside c1, by default c2 and c3; nobody forwards."""
        others = others or tuple(entry(one, "http://127.0.0.1:1") for one in ("c2",))
        write_list(
            self.file, entry("c1", "http://127.0.0.1:2"), *others, affinity=False, failover=False
        )

    def put_back(self) -> None:
        """List what all tests start with again, and wait until it is in force."""
        self.list()
        wait_until(lambda: self.opens(cluster_key("c2")), within=5.0, what="the list put back")

    def opens(self, key: Identity) -> bool:
        """Whether a link of c2 with this key is opened."""
        with self.forwarder(key=key) as peer:
            return peer.ask().status == 200

    def forwarder(self, **options: Any) -> Forwarder:
        """A connection of a peer's gateway, its link not open yet."""
        if options.get("tls"):
            return Forwarder(("127.0.0.1", self.tls_port), **options)
        return Forwarder(self.gateway.public, **options)

    def count(self, metric: str) -> float:
        """The value of a metric, with its labels as they stand there."""
        for line in self.gateway.internal("/metrics")[1].decode().splitlines():
            if line.startswith(f"{metric} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {metric}")

    def refused(self, fault: str) -> float:
        """How many marks were refused for this."""
        return self.count(f'smartgw_marks_refused_total{{reason="{fault}"}}')


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """The receiving gateway that all tests share; those that change its list put it back."""
    made = Receiver(tmp_path_factory.mktemp("receiver"))
    try:
        yield made
    finally:
        made.cluster.stop()


def told(answer: Answer) -> dict[str, str]:
    """What the host was told: its request's fields, lower case; several are joined."""
    assert answer.status == 200, answer
    found: dict[str, str] = {}
    for name, value in json.loads(answer.body)["headers"]:
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def assert_plain(answer: Answer) -> None:
    """The request was served as one of the socket's address, and no mark reached the host."""
    fields = told(answer)
    assert fields["x-forwarded-for"] == "127.0.0.1"
    assert fields["x-forwarded-proto"] in ("http", "https")
    assert not any(name.startswith("x-smartgw-forward") for name in fields)


# ---- who is believed ----


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("client", [CLIENT, "2001:db8::7"])
@pytest.mark.parametrize("scheme", [b"http", b"https"])
def test_the_host_is_told_the_client(
    receiver: Receiver, tls: bool, client: str, scheme: bytes
) -> None:
    """4.5: the client address at the owner's host is the client's, IPv4 and IPv6."""
    host, taken = receiver.host, receiver.count("smartgw_marks_total")
    with receiver.forwarder(tls=tls) as peer:
        peer.open()
        for kind in Kind:
            answer = peer.forward(
                host.app, host.hostname, "/a?b", client=client, scheme=scheme, kind=kind
            )
            fields = told(answer)
            shown = f'"[{client}]"' if ":" in client else client
            assert fields["x-forwarded-for"] == client
            assert fields["x-forwarded-proto"] == scheme.decode()
            assert fields["x-forwarded-host"] == host.hostname
            assert fields["forwarded"].startswith(f"for={shown};")
            # 3.5: Via is appended to, never replaced.
            assert fields["via"] == "1.1 c2, 1.1 c1"
            assert fields["x-request-id"] == "fw-1"
    assert receiver.count("smartgw_marks_total") == taken + 2


def test_what_a_client_says_of_itself_does_not_get_past_the_mark(receiver: Receiver) -> None:
    """3.5, 4.5: X-Forwarded-* of a forward are ours, made of the mark alone."""
    host = receiver.host
    with receiver.forwarder() as peer:
        value = peer.open().sealed(peer.mark(host.app), host.hostname)
        lies = ("X-Forwarded-For: 6.6.6.6", "Forwarded: for=6.6.6.6", "X-Forwarded-Proto: ftp")
        peer.send(value, host.hostname, "/", "GET", *lies)
        fields = told(peer.client.answer())
    assert fields["x-forwarded-for"] == CLIENT
    assert fields["x-forwarded-proto"] == "https"
    assert "6.6.6.6" not in fields["forwarded"]


def test_a_mark_also_of_a_write_with_a_body(receiver: Receiver) -> None:
    """4.5: all methods are forwarded alike; bodies stream."""
    host = receiver.host
    with receiver.forwarder() as peer:
        value = peer.open().sealed(peer.mark(host.app), host.hostname, "/up", "POST")
        peer.send(value, host.hostname, "/up", "POST", body=b"x" * 100_000)
        answer = peer.client.answer("POST")
        assert told(answer)["x-forwarded-for"] == CLIENT
        assert json.loads(answer.body)["body"] == 100_000
        # The next one on the same link.
        assert told(peer.forward(host.app, host.hostname))["x-forwarded-for"] == CLIENT


def test_many_links_of_one_address_are_not_one_client(receiver: Receiver) -> None:
    """3.11, 4.5: links stand for many clients, so they do not count against their address."""
    gateway = receiver.start(limits={"connections_per_address": 4})
    host = receiver.host
    receiver.cluster.wait_healthy(host)
    links = []
    try:
        for _ in range(12):
            peer = Forwarder(gateway.public)
            links.append(peer)
            assert told(peer.open().forward(host.app, host.hostname))["x-forwarded-for"] == CLIENT
    finally:
        for peer in links:
            peer.client.close()
        gateway.stop()


# ---- who is not ----


def test_a_mark_without_a_link_is_dropped(receiver: Receiver) -> None:
    """4.5: a client can neither pin itself to a non-owner nor have someone else charged."""
    host, before = receiver.host, receiver.refused("no_link")
    with receiver.forwarder() as peer, receiver.forwarder() as client:
        value = peer.open().sealed(peer.mark(host.app), host.hostname)
        client.send(value, host.hostname)
        assert_plain(client.client.answer())
    assert receiver.refused("no_link") == before + 1


@pytest.mark.parametrize("how", ["same link", "other link", "after 1 s", "sister process"])
def test_a_replayed_forward_is_an_ordinary_request(receiver: Receiver, how: str) -> None:
    """4.5: a forward cannot be replayed, there or at a sister process."""
    host = receiver.host
    sister = receiver.start() if how == "sister process" else None
    if sister is not None:
        receiver.cluster.wait_healthy(host)
    with receiver.forwarder() as peer:
        value = peer.open().sealed(peer.mark(host.app), host.hostname)
        peer.send(value, host.hostname)
        assert told(peer.client.answer())["x-forwarded-for"] == CLIENT
        other = peer
        if how == "after 1 s":
            time.sleep(1.0)
        elif how == "other link":
            other = receiver.forwarder().open()
        elif sister is not None:
            other = Forwarder(sister.public).open()
        with other:
            other.send(value, host.hostname)
            assert_plain(other.client.answer())
    if sister is not None:
        sister.stop()
    else:
        fault = "bad_tag" if how == "other link" else "replayed"
        assert receiver.refused(fault) >= 1


@pytest.mark.parametrize("shift", [-61_000, -31_000, 31_000, 61_000])
def test_a_late_or_early_forward_is_an_ordinary_request(receiver: Receiver, shift: int) -> None:
    """4.5: the receiver checks the time, ±30 s: what was held back for 61 s is worth nothing."""
    host, before = receiver.host, receiver.refused("stale")
    with receiver.forwarder() as peer:
        mark = peer.open().mark(host.app)
        late = peer.sealed(peer.mark(host.app, time_ms=mark.time_ms + shift), host.hostname)
        peer.send(late, host.hostname)
        assert_plain(peer.client.answer())
        # Its counter did not count either: an honest one with the same is good.
        peer.counter = 0
        assert told(peer.forward(host.app, host.hostname))["x-forwarded-for"] == CLIENT
    assert receiver.refused("stale") == before + 1


@pytest.mark.parametrize("what", ["method", "target", "host"])
def test_a_mark_is_for_its_request_only(receiver: Receiver, what: str) -> None:
    """4.5: the tag is over method, authority and target."""
    host, before = receiver.host, receiver.refused("bad_tag")
    second = receiver.cluster.host()
    with receiver.forwarder() as peer:
        value = peer.open().sealed(peer.mark(host.app), host.hostname, "/a?b")
        method = "DELETE" if what == "method" else "GET"
        target = "/a?B" if what == "target" else "/a?b"
        hostname = second.hostname if what == "host" else host.hostname
        peer.send(value, hostname, target, method)
        assert_plain(peer.client.answer(method))
    second.stop()
    assert receiver.refused("bad_tag") == before + 1


def test_each_bit_of_a_mark_counts(receiver: Receiver) -> None:
    """4.5: altered in client, audience, app, epoch, budget, counter, tag: each bit."""
    host = receiver.host
    faults = ("bad_tag", "malformed", "unknown_key")
    before = sum(map(receiver.refused, faults))
    with receiver.forwarder() as peer:
        value = peer.open().sealed(peer.mark(host.app), host.hostname)
        raw = base64.b64decode(value)
        for bit in range(len(raw) * 8):
            altered = bytearray(raw)
            altered[bit // 8] ^= 1 << bit % 8
            peer.send(base64.b64encode(altered), host.hostname)
            assert_plain(peer.client.answer())
        # None of them has used up the counter of the honest one.
        peer.send(value, host.hostname)
        assert told(peer.client.answer())["x-forwarded-for"] == CLIENT
    assert sum(map(receiver.refused, faults)) == before + len(raw) * 8


@pytest.mark.parametrize(
    "value",
    [b"", b"x", b"=", b"A" * 4096, base64.b64encode(bytes(120)), b"\xff" * 40, b"a b", b"a,b"],
)
def test_garbage_is_dropped(receiver: Receiver, value: bytes) -> None:
    """4.5: if anything is wrong the header is dropped, and the request is an ordinary one."""
    with receiver.forwarder() as peer:
        peer.open().send(value, receiver.host.hostname)
        assert_plain(peer.client.answer())


def test_two_marks_are_none(receiver: Receiver) -> None:
    """4.5: the forward carries one header."""
    host, before = receiver.host, receiver.refused("several")
    with receiver.forwarder() as peer:
        value = peer.open().sealed(peer.mark(host.app), host.hostname)
        again = f"X-Smartgw-Forward: {value.decode()}"
        peer.send(value, host.hostname, "/", "GET", again)
        assert_plain(peer.client.answer())
        peer.send(None, host.hostname, "/", "GET", again, again)
        assert_plain(peer.client.answer())
    assert receiver.refused("several") == before + 2


def test_a_mark_may_stand_anywhere_in_the_head(receiver: Receiver) -> None:
    """4.5: it is a header like any other; only the project's own gateways put it first."""
    host = receiver.host
    with receiver.forwarder() as peer:
        value = peer.open().sealed(peer.mark(host.app), host.hostname)
        peer.send(None, host.hostname, "/", "GET", f"x-SmartGW-forward: {value.decode()}")
        assert told(peer.client.answer())["x-forwarded-for"] == CLIENT


def test_a_mark_under_another_key_is_dropped(receiver: Receiver) -> None:
    """4.5: foreign-key forwards are plain requests: not of a listed cluster, or to another."""
    host, before = receiver.host, receiver.refused("unknown_key")
    with receiver.forwarder() as peer:
        peer.open()
        link = peer.link
        for sender, receiver_id, key in (
            ("c2", "c1", STRANGER),  # in c2's name
            ("c9", "c1", STRANGER),  # nobody knows c9
            ("c2", "c3", cluster_key("c2")),  # c2's own, but for c3
        ):
            with receiver.forwarder(sender=sender, receiver=receiver_id, key=key) as other:
                other.link = link
                stolen = other.ring.sent_under(receiver_id, *other.ring.offers(receiver_id))
                assert stolen is not None
                assert link is not None
                mark = peer.mark(host.app)
                raw = base64.b64decode(peer.sealed(mark, host.hostname))
                foreign = raw[:1] + stolen.key_id + raw[1 + KEY_ID_BYTES : -TAG_BYTES]
                peer.send(base64.b64encode(foreign + bytes(TAG_BYTES)), host.hostname)
                assert_plain(peer.client.answer())
    assert receiver.refused("unknown_key") == before + 3


# ---- the opening ----


def test_a_question_of_a_stranger_gets_what_every_reserved_path_gets(receiver: Receiver) -> None:
    """3.1, 4.5: whoever proves no listed cluster's key learns nothing."""
    host = receiver.host
    refused = 'smartgw_links_refused_total{reason="unknown_key"}'
    before = receiver.count(refused)
    with receiver.forwarder(key=STRANGER) as peer:
        shown = [peer.ask(host=hostname.encode()) for hostname in ("gw", host.hostname)]
        assert [answer.status for answer in shown] == [404, 404]
        for hostname, refusal in zip(("gw", host.hostname), shown, strict=True):
            peer.client.send(
                f"POST /.well-known/smartgw/other HTTP/1.1\r\nHost: {hostname}\r\n"
                "Content-Length: 0\r\n\r\n".encode()
            )
            other = peer.client.answer("POST")
            assert (other.status, other.framing) == (refusal.status, refusal.framing)
            reason = json.loads(refusal.body)["error"]["reason"]
            assert json.loads(other.body)["error"]["reason"] == reason
    assert receiver.count(refused) == before + 2
    assert not [r for r in host.upstream.requests if b"well-known" in r.raw_target]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/.well-known/smartgw/link", ""),
        ("POST", "/.well-known/smartgw/link?x", ""),
        ("POST", "/.well-known/smartgw/link/", ""),
        ("POST", "/.well-known/smartgw/%6cink", ""),
        ("POST", "//.well-known/smartgw/link", ""),
        ("POST", "/.well-known/smartgw/link", "a body"),
    ],
)
def test_only_the_exact_question_opens_a_link(
    receiver: Receiver, method: str, path: str, body: str
) -> None:
    """3.1: the reserved path answers for the opening only, and otherwise 404."""
    host = receiver.host
    with receiver.forwarder() as peer:
        value = question(peer.ring, "c1", ASKED)
        assert value is not None
        peer.client.send(
            f"{method} {path} HTTP/1.1\r\nHost: {host.hostname}\r\n"
            f"x-smartgw-link: {value.decode()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        assert peer.client.answer(method).status == 404


def test_a_question_serves_on_its_connection_only(receiver: Receiver) -> None:
    """4.5: the link nonce is given when a connection opens, once, and never the same twice."""
    with receiver.forwarder() as one, receiver.forwarder() as other:
        first, second = one.open().link, other.open().link
        assert first is not None
        assert second is not None
        assert first.nonce != second.nonce
        assert one.ask().status == 404


def test_a_link_over_tls_is_of_the_clusters_key(receiver: Receiver) -> None:
    """4.5: TLS with the peer's key pinned by the directory: it is the identity's own."""
    with receiver.forwarder(tls=True) as peer:
        shown = peer.tls.getpeercert(binary_form=True)
        assert shown is not None
        key = x509.load_der_x509_certificate(shown).public_key()
        assert isinstance(key, Ed25519PublicKey)
        assert key.public_bytes_raw() == cluster_key("c1").public_key.value
        assert peer.tls.version() == "TLSv1.3"
        # Who marks nothing is a client there as well.
        peer.send(None, receiver.host.hostname)
        assert_plain(peer.client.answer())
    with pytest.raises(ssl.SSLError), receiver.forwarder() as plain:
        # The public listener does not speak TLS.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(
            plain.client.socket, server_hostname="c1"
        )


# ---- changes of the list ----


def test_a_removed_cluster_is_refused_at_once(receiver: Receiver) -> None:
    """4.5: removed clusters are refused at once, on links that are open as well."""
    host = receiver.host
    with receiver.forwarder() as peer:
        peer.open()
        assert told(peer.forward(host.app, host.hostname))["x-forwarded-for"] == CLIENT
        receiver.list(entry("c2", "http://127.0.0.1:1", state="gone"))
        try:
            refused = receiver.refused("unknown_key")

            def dropped() -> bool:
                fields = told(peer.forward(host.app, host.hostname))
                return fields["x-forwarded-for"] == "127.0.0.1"

            wait_until(dropped, within=5.0, what="the marks of a cluster that is gone dropped")
            assert receiver.refused("unknown_key") > refused
            with receiver.forwarder() as late:
                assert late.ask().status == 404
        finally:
            receiver.put_back()


def test_keys_are_replaced_with_overlap(receiver: Receiver) -> None:
    """4.3: up to two public keys, for rotation: either is good while both are listed."""
    host, following = receiver.host, cluster_key("c2-next")
    now = cluster_key("c2")
    with receiver.forwarder() as before:
        before.open()
        receiver.list(entry("c2", "http://127.0.0.1:1", keys=(now, following)))
        try:
            wait_until(lambda: receiver.opens(following), within=5.0, what="the next key known")
            assert receiver.opens(now)
            assert told(before.forward(host.app, host.hostname))["x-forwarded-for"] == CLIENT
            receiver.list(entry("c2", "http://127.0.0.1:1", keys=(following,)))
            wait_until(lambda: not receiver.opens(now), within=5.0, what="the key before forgotten")
            assert receiver.opens(following)
            assert_plain(before.forward(host.app, host.hostname))
        finally:
            receiver.put_back()


def test_the_list_last_seen_verifies_when_it_is_away(receiver: Receiver) -> None:
    """4.3: keys last seen keep verifying forwards until a newer list replaces them."""
    host = receiver.host
    gateway = receiver.start(peers={"file": str(receiver.file), "interval": 0.2, "grace": 0.5})
    receiver.cluster.wait_healthy(host)
    try:
        with Forwarder(gateway.public) as peer:
            peer.open()
            receiver.file.write_text("broken")
            wait_until(
                lambda: b"no list of clusters" in gateway.internal("/readyz")[1],
                what="the grace over",
            )
            assert told(peer.forward(host.app, host.hostname))["x-forwarded-for"] == CLIENT
            with Forwarder(gateway.public) as late:
                late.open()
    finally:
        receiver.put_back()
        gateway.stop()


# ---- deadlines ----


def test_what_is_left_of_the_deadline_is_obeyed(receiver: Receiver) -> None:
    """5.1: the rest of the one deadline travels in the forward, and the peer obeys it."""

    def hang(connection: Any) -> None:
        connection.head()
        connection.ended(20)

    host: Host = receiver.cluster.host(hang)
    with receiver.forwarder() as peer:
        peer.open()
        for method, sent in (("GET", b""), ("POST", b"x")):
            value = peer.sealed(peer.mark(host.app, remaining_ms=600), host.hostname, "/", method)
            peer.send(value, host.hostname, "/", method, body=sent)
            # Well below the 30 s of the gateway's own.
            peer.client.socket.settimeout(6)
            answer = peer.client.answer(method)
            assert answer.status == 504
            if "close" in answer.one("connection"):
                break
    host.stop()
