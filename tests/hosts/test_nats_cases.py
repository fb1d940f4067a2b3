"""Every case of data/nats/messages.jsonl, and sisters of them, through wire and pool.

Where a case is not about the signature, its message is signed by an enrolled key, so that
nothing but the fault can refuse it. Headers and reply subjects (N27, N28) never come this far:
the gateway takes nothing but subject and payload.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import Action, HostRecord, HostState, Ignored, Update, Verify
from smartgw_hosts.wire import Kind, Reason, Refused, decode, encode
from tests.hosts.bus_messages import (
    CLUSTER,
    WALL,
    Speaker,
    altered,
    identity_of,
    members_of,
    sign_raw,
)

FILE = Path(__file__).parents[1] / "data" / "nats" / "messages.jsonl"
ROWS = {row["id"]: row for row in map(json.loads, FILE.read_text().splitlines())}
ANNOUNCE = f"smartgw.{CLUSTER}.host.h1.announce"
NOW = 10.0
Published = tuple[str, bytes]


class Gateway:
    """Wire and pool as the listener joins them. h1 (shop) is healthy, h2 (blog) enrolled."""

    def __init__(self) -> None:
        self.pool = Pool(CLUSTER)
        self.h1 = Speaker("h1", apps=("shop",), address="http://10.0.0.1:8001")
        self.h2 = Speaker("h2", apps=("blog",), address="http://10.0.0.2:8001")
        entries = [
            Enrolment(host.host_id, host.identity.public_key, CLUSTER, host.apps)
            for host in (self.h1, self.h2)
        ]
        self.pool.enrol(entries, 0.0, WALL)
        (asked,) = self.verifies(self.publish(self.encoded(self.h1, Kind.ANNOUNCE)))
        self.pool.verdict(asked.ticket, Verdict(Proof.OK), NOW)

    def encoded(self, host: Speaker, kind: Kind) -> Published:
        return encode(host.message(kind, NOW), CLUSTER, host.identity)

    def publish(self, published: Published) -> list[Action]:
        try:
            signed = decode(*published, cluster=CLUSTER)
        except Refused as refused:
            self.pool.refuse(refused.reason)
            return [Ignored("", refused.reason, refused.detail)]
        return self.pool.receive(signed, NOW, int((WALL + NOW) * 1000))

    def verifies(self, actions: list[Action]) -> list[Verify]:
        return [action for action in actions if isinstance(action, Verify)]

    def at(self, host_id: str) -> HostRecord:
        record = self.pool.record(host_id)
        assert record is not None
        return record

    def drops(self, published: Published, *reasons: Reason) -> None:
        """The message is counted under one of `reasons`, and nothing else comes of it."""
        records, counted = self.pool.records(), sum(self.pool.counters.values())
        (ignored,) = self.publish(published)
        assert isinstance(ignored, Ignored)
        assert ignored.reason in reasons
        assert ignored.detail.isascii()
        assert ignored.detail.isprintable()
        assert self.pool.records() == records
        assert sum(self.pool.counters.values()) == counted + 1
        # The connection lives: what h1 says next is heard.
        self.h1.sequence += 1000
        assert self.publish(self.encoded(self.h1, Kind.HEARTBEAT)) == []


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def resigned(gateway: Gateway, **members: object) -> Published:
    """A good announcement of h1 with other members, signed by h1's enrolled key."""
    good = members_of(gateway.h1.message(Kind.ANNOUNCE, NOW))
    return sign_raw(ANNOUNCE, json.dumps(good | members).encode(), gateway.h1.identity)


def raw(gateway: Gateway, body: bytes) -> Published:
    return sign_raw(ANNOUNCE, body, gateway.h1.identity)


def n01(gateway: Gateway) -> None:
    (asked,) = gateway.verifies(gateway.publish(gateway.encoded(gateway.h2, Kind.ANNOUNCE)))
    assert gateway.at("h2").state is HostState.PROVISIONAL
    gateway.pool.verdict(asked.ticket, Verdict(Proof.OK), NOW)
    assert gateway.at("h2").state is HostState.HEALTHY


def n03(gateway: Gateway) -> None:
    other = identity_of("other")
    message = gateway.h1.message(Kind.ANNOUNCE, NOW)
    changed = altered(message, key=other.public_key)
    for signer in (gateway.h1.identity, other):
        gateway.drops(encode(changed, CLUSTER, signer), Reason.KEY_CHANGED)
    gateway.drops(encode(message, CLUSTER, other), Reason.BAD_SIGNATURE)
    restarted = replace(gateway.h1, boot=10**6)
    beat = altered(restarted.message(Kind.HEARTBEAT, NOW), key=other.public_key)
    gateway.drops(encode(beat, CLUSTER, other), Reason.KEY_CHANGED)
    assert gateway.at("h1").key == gateway.h1.identity.public_key


def n04(gateway: Gateway) -> None:
    before, gateway.h1.address = gateway.h1.address, "http://10.0.0.9:8001"
    actions = gateway.publish(gateway.encoded(gateway.h1, Kind.ANNOUNCE))
    asked = {action.address: action.ticket for action in gateway.verifies(actions)}
    record = gateway.at("h1")
    assert (record.state, record.address) == (HostState.HEALTHY, before)
    assert record.pending_address == gateway.h1.address
    gateway.pool.verdict(asked[gateway.h1.address], Verdict(Proof.TIMEOUT), NOW)
    record = gateway.at("h1")
    assert (record.state, record.address) == (HostState.HEALTHY, before)


def n05(gateway: Gateway) -> None:
    gateway.h2.address = gateway.h1.address
    (asked,) = gateway.verifies(gateway.publish(gateway.encoded(gateway.h2, Kind.ANNOUNCE)))
    assert asked.key == gateway.h2.identity.public_key
    gateway.pool.verdict(asked.ticket, Verdict(Proof.BAD_SIGNATURE), NOW)
    assert gateway.at("h2").state is HostState.UNHEALTHY
    assert gateway.at("h2").reason == "verification: bad_signature"
    assert gateway.at("h1").state is HostState.HEALTHY


def n06(gateway: Gateway) -> None:
    gateway.h2.apps = ("shop", "blog")
    gateway.publish(gateway.encoded(gateway.h2, Kind.ANNOUNCE))
    assert gateway.at("h2").apps == ("blog",)
    assert gateway.at("h2").refused_apps == (("shop", "app_refused"),)
    assert gateway.pool.counters[Reason.APP_REFUSED] == 1


def n07(gateway: Gateway) -> None:
    for skew in (-600, 600, -31, 31):
        for kind in Kind:
            message = gateway.h1.message(kind, NOW + skew)
            gateway.drops(encode(message, CLUSTER, gateway.h1.identity), Reason.STALE)
    (ignored,) = gateway.publish(
        encode(gateway.h1.message(Kind.ANNOUNCE, NOW + 600), CLUSTER, gateway.h1.identity)
    )
    assert isinstance(ignored, Ignored)
    assert "+600.0 s" in ignored.detail


def n10(gateway: Gateway) -> None:
    leave = gateway.h1.message(Kind.LEAVE, NOW)
    subject, payload = encode(leave, CLUSTER, gateway.h1.identity)
    body = payload.partition(b"\n")[2]
    by_h2 = encode(leave, CLUSTER, gateway.h2.identity)
    gateway.drops(by_h2, Reason.BAD_SIGNATURE)
    gateway.drops((subject, body), Reason.UNSIGNED)
    gateway.drops((subject, b"smartgw1 \n" + body), Reason.UNSIGNED)
    gateway.drops((subject, b"smartgw1 " + b"A" * 86 + b"\n" + body), Reason.BAD_SIGNATURE)
    # h2's own leave, and h1's leave under other subjects and contexts
    gateway.drops(
        (subject, encode(gateway.h2.message(Kind.LEAVE, NOW), CLUSTER, gateway.h2.identity)[1]),
        Reason.MALFORMED,
    )
    gateway.drops((subject.replace("h1", "h2"), payload), Reason.MALFORMED)
    beat = sign_raw(subject, body, gateway.h1.identity, b"smartgw/bus/heartbeat/v1")
    gateway.drops(beat, Reason.BAD_SIGNATURE)
    h1_by_name = replace(gateway.h2, host_id="h1", key_of="h2", boot=10**15)
    gateway.drops(gateway.encoded(h1_by_name, Kind.LEAVE), Reason.BAD_SIGNATURE)


def n11(gateway: Gateway) -> None:
    gateway.drops((ANNOUNCE, b""), Reason.MALFORMED)
    gateway.drops(raw(gateway, b""), Reason.MALFORMED)


def n12(gateway: Gateway) -> None:
    for body in (b"null", b"true", b"0", b'""', b"[]", b"[{}]", b"{}"):
        gateway.drops((ANNOUNCE, body), Reason.UNSIGNED)
        gateway.drops(raw(gateway, body), Reason.MALFORMED)


def n14(gateway: Gateway) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "nan"):
        for member in members_of(gateway.h1.message(Kind.ANNOUNCE, NOW)):
            body = resigned(gateway, **{member: "@"})[1].partition(b"\n")[2]
            gateway.drops(raw(gateway, body.replace(b'"@"', number.encode())), Reason.MALFORMED)


def n15(gateway: Gateway) -> None:
    gateway.drops((ANNOUNCE, b"[" * 100_000), Reason.OVERSIZE)
    for opening in (b"[", b'{"a":', b'[{"a":'):
        deep = opening * (60_000 // len(opening))
        gateway.drops(raw(gateway, deep), Reason.MALFORMED)
        gateway.drops(raw(gateway, b'{"host":' + deep), Reason.MALFORMED)
    gateway.drops(raw(gateway, b"[" * 30_000 + b"]" * 30_000), Reason.MALFORMED)


def n17(gateway: Gateway) -> None:
    for member in ("host", "address", "key", "region", "version"):
        for surrogate in ("\ud800", "\udfff", "a\udc00b", "\udc00\ud800"):
            gateway.drops(resigned(gateway, **{member: surrogate}), Reason.MALFORMED)
    gateway.drops(resigned(gateway, apps=["\ud800"]), Reason.MALFORMED)
    gateway.drops(resigned(gateway, **{"\ud800": 1}), Reason.MALFORMED)
    gateway.drops(raw(gateway, b'{"host":"\xed\xa0\x80"}'), Reason.MALFORMED)


def n18(gateway: Gateway) -> None:
    for host in ("a\0b", "h1\0", "\0h1", "a\x7fb", "h1 ", " h1", "h1\u200b", "h\u0131"):
        gateway.drops(resigned(gateway, host=host), Reason.MALFORMED)
    for app in ("a\0b", "a\nb", "a\x9bb", "\t"):
        gateway.drops(resigned(gateway, apps=["shop", app]), Reason.MALFORMED)


def n21(gateway: Gateway) -> None:
    for port in ("true", "-1", "0", "65536", "80.5", '"80"', "1e400", "", " 80", "0x50", "8_0"):
        address = f"http://10.0.0.1:{port}"
        gateway.drops(resigned(gateway, address=address), Reason.BAD_ADDRESS)
    for member in ("boot", "sequence", "time", "weight"):
        numbers: tuple[object, ...] = (True, False, -1, 80.5, 1.0, "80", None, [1], {}, 2**53)
        for number in (*numbers, 10**400):
            gateway.drops(resigned(gateway, **{member: number}), Reason.MALFORMED)
    gateway.drops(resigned(gateway, weight=0), Reason.MALFORMED)
    gateway.drops(resigned(gateway, weight=1001), Reason.MALFORMED)
    gateway.drops(resigned(gateway, sequence=0), Reason.MALFORMED)


def n22(gateway: Gateway) -> None:
    good = resigned(gateway)
    padded = good[1] + b" " * ((1 << 20) - len(good[1]))
    gateway.drops((good[0], padded), Reason.OVERSIZE)
    body = good[1].partition(b"\n")[2]
    for size in (64 << 10, 1 << 20):
        gateway.drops(raw(gateway, body + b" " * size), Reason.OVERSIZE)
        gateway.drops(resigned(gateway, more="x" * size), Reason.OVERSIZE)


def n23(gateway: Gateway) -> None:
    many = [f"app-{n}" for n in range(100_000)]
    gateway.drops(resigned(gateway, apps=many), Reason.OVERSIZE)
    gateway.drops(resigned(gateway, apps=many[:1001]), Reason.TOO_MANY)
    gateway.drops(resigned(gateway, apps=["a"] * 10_000), Reason.TOO_MANY)
    gateway.drops(resigned(gateway, apps=[0] * 10_000), Reason.TOO_MANY)


def n26(gateway: Gateway) -> None:
    for tail in (".evil", ".", ".evil.worse", ".*", ".>"):
        body = resigned(gateway)[1].partition(b"\n")[2]
        for kind in Kind:
            subject = f"smartgw.{CLUSTER}.host.h1.{kind}{tail}"
            context = b"smartgw/bus/%b/v1" % kind.encode()
            spoken = sign_raw(subject, body, gateway.h1.identity, context)
            gateway.drops(spoken, Reason.BAD_SUBJECT)


def n27(gateway: Gateway) -> None:
    n01(gateway)


def n28(gateway: Gateway) -> None:
    actions = gateway.publish(gateway.encoded(gateway.h2, Kind.ANNOUNCE))
    assert {type(action) for action in actions} == {Update, Verify}


def n29(gateway: Gateway) -> None:
    for tail in ("\n2026-01-01 INFO fake line", "\x1b[31m", "\r\n", "\u2028", "\u202e", "\x9b1m"):
        gateway.drops(resigned(gateway, host="h1" + tail), Reason.MALFORMED)
        subject = f"smartgw.{CLUSTER}.host.h1{tail}.announce".replace(" ", "")
        spoken = sign_raw(subject, b"{}", gateway.h1.identity, b"smartgw/bus/announce/v1")
        gateway.drops(spoken, Reason.BAD_SUBJECT)
        for member in ("region", "version"):
            gateway.drops(resigned(gateway, **{member: "eu" + tail}), Reason.MALFORMED)
        gateway.drops(resigned(gateway, **{"x" + tail: float("nan")}), Reason.MALFORMED)


CASES: dict[str, Callable[[Gateway], None]] = {
    name.upper(): case
    for name, case in list(globals().items())
    if name[0] == "n" and name[1:].isdigit()
}


def test_every_case_is_tried() -> None:
    """1.2: Whatever stands in the file has a test here."""
    assert list(CASES) == list(ROWS)


@pytest.mark.parametrize("case", CASES)
def test_case(gateway: Gateway, case: str) -> None:
    """1.2: What comes of each message is what the file says; see `want` there."""
    CASES[case](gateway)


Publish = Callable[[Gateway], Published]


def h1_with(kind: Kind, **changes: int) -> Publish:
    """h1's next message, with its counters changed relative to what they are."""

    def publish(gateway: Gateway) -> Published:
        now = {name: getattr(gateway.h1, name) + change for name, change in changes.items()}
        return gateway.encoded(replace(gateway.h1, **now), kind)

    return publish


def h1_signed(kind: Kind, cluster: str = CLUSTER, signer: str = "h1") -> Publish:
    def publish(gateway: Gateway) -> Published:
        return encode(gateway.h1.message(kind, NOW), cluster, identity_of(signer))

    return publish


def h1_moved(kind: Kind) -> Publish:
    """A message that h1 signed for another cluster, on the subject of this one."""

    def publish(gateway: Gateway) -> Published:
        _, payload = encode(gateway.h1.message(kind, NOW), "c2", gateway.h1.identity)
        return f"smartgw.{CLUSTER}.host.h1.{kind}", payload

    return publish


def h1_saying(**members: object) -> Publish:
    return lambda gateway: resigned(gateway, **members)


def h1_writing(change: Callable[[bytes], bytes]) -> Publish:
    return lambda gateway: raw(gateway, change(resigned(gateway)[1].partition(b"\n")[2]))


def impostor(gateway: Gateway) -> Published:
    return gateway.encoded(replace(gateway.h2, key_of="x"), Kind.ANNOUNCE)


SIBLINGS: dict[str, tuple[Publish, Reason]] = {
    "enrolled id, never heard, another key": (impostor, Reason.UNKNOWN_KEY),
    "apps null": (h1_saying(apps=None), Reason.MALFORMED),
    "apps nested": (h1_saying(apps=[["shop"]]), Reason.MALFORMED),
    "app of 257 bytes": (h1_saying(apps=["a" * 257]), Reason.MALFORMED),
    "app empty": (h1_saying(apps=[""]), Reason.MALFORMED),
    "region of 66 bytes": (h1_saying(region="\u00e9" * 33), Reason.MALFORMED),
    "version a list": (h1_saying(version=["1"]), Reason.MALFORMED),
    "key the identity": (h1_saying(key="01" + "00" * 31), Reason.BAD_KEY),
    "key of order 8": (
        h1_saying(key="c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
        Reason.BAD_KEY,
    ),
    "key zero": (h1_saying(key="00" * 32), Reason.BAD_KEY),
    "key not canonical": (h1_saying(key="ff" * 32), Reason.BAD_KEY),
    "key padded": (h1_saying(key="ed25519:" + "A" * 43 + "="), Reason.BAD_KEY),
    "a member twice": (h1_writing(lambda b: b[:-1] + b',"weight":1}'), Reason.MALFORMED),
    "the host twice": (h1_writing(lambda b: b[:-1] + b',"host":"h2"}'), Reason.MALFORMED),
    "twice inside": (h1_writing(lambda b: b[:-1] + b',"x":[{"y":1,"y":1}]}'), Reason.MALFORMED),
    "byte order mark": (h1_writing(lambda b: b"\xef\xbb\xbf" + b), Reason.MALFORMED),
    "garbage behind": (h1_writing(lambda b: b + b"}"), Reason.MALFORMED),
    "utf-16": (h1_writing(lambda b: b.decode().encode("utf-16")), Reason.MALFORMED),
    "not utf-8": (h1_writing(lambda b: b.replace(b"eu", b"\xe9u")), Reason.MALFORMED),
    "gzip": (h1_writing(lambda b: b"\x1f\x8b" + b), Reason.MALFORMED),
}
for each in Kind:
    SIBLINGS |= {
        f"{each}, boot going backwards": (
            h1_with(each, boot=-1, sequence=1000),
            Reason.SUPERSEDED_BOOT,
        ),
        f"{each}, sequence equal to the last": (h1_with(each, sequence=-1), Reason.REPLAYED),
        f"{each}, signed by nobody": (h1_signed(each, signer="x"), Reason.BAD_SIGNATURE),
        f"{each}, signed by another host": (h1_signed(each, signer="h2"), Reason.BAD_SIGNATURE),
        f"{each}, of another cluster": (h1_signed(each, cluster="c2"), Reason.WRONG_CLUSTER),
        f"{each}, for another cluster": (h1_moved(each), Reason.BAD_SIGNATURE),
    }


@pytest.mark.parametrize(("publish", "reason"), SIBLINGS.values(), ids=SIBLINGS.keys())
def test_sibling(gateway: Gateway, publish: Publish, reason: Reason) -> None:
    """1.2: Refused, counted by reason and ignored."""
    gateway.drops(publish(gateway), reason)


def test_captured_stream_is_worth_nothing(gateway: Gateway) -> None:
    """1.2: Replayed messages are refused, in any order, after a leave and after a new boot."""
    kinds = (Kind.HEARTBEAT, Kind.ANNOUNCE, Kind.HEARTBEAT, Kind.LEAVE)
    captured = [gateway.encoded(gateway.h1, kind) for kind in kinds]
    for published in captured:
        gateway.publish(published)
    assert gateway.at("h1").reason == "left"
    for published in reversed(captured):
        gateway.publish(published)
    assert gateway.pool.counters[Reason.REPLAYED] == len(captured)
    gateway.h1.boot, gateway.h1.sequence = gateway.h1.boot + 1, 0
    gateway.publish(gateway.encoded(gateway.h1, Kind.HEARTBEAT))
    for published in captured:
        gateway.publish(published)
    assert gateway.pool.counters[Reason.SUPERSEDED_BOOT] == len(captured)


def test_no_apps_is_not_a_fault(gateway: Gateway) -> None:
    """1.3: A heartbeat carries the full description, be its list of apps empty."""
    actions = gateway.publish(resigned(gateway, apps=[]))
    assert any(isinstance(action, Update) for action in actions)
    assert gateway.at("h1").apps == ()
