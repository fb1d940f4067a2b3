"""What wire.py writes, reads and refuses before any key is asked."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.wire import (
    APPS,
    PAYLOAD_BYTES,
    Description,
    Kind,
    Message,
    Reason,
    Refused,
    decode,
    encode,
    subscription,
)
from tests.hosts.bus_messages import CLUSTER, Speaker, altered, identity_of, members_of, sign_raw

H1 = identity_of("h1")
SUBJECT = f"smartgw.{CLUSTER}.host.h1.announce"

TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)
APP_IDS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=64)
COUNTS = st.integers(0, 2**53 - 1)
DESCRIPTIONS = st.builds(
    Description,
    address=st.sampled_from(["http://10.0.0.1:80", "https://[fd00::1]:8443/", "http://host.lan"]),
    apps=st.lists(APP_IDS, unique=True, max_size=5).map(tuple),
    key=st.just(H1.public_key),
    weight=st.integers(1, 1000),
    region=TEXTS,
    version=TEXTS,
)


def messages() -> st.SearchStrategy[Message]:
    def build(kind: Kind, host_id: str, counts: tuple[int, ...], about: Description) -> Message:
        boot, sequence, time_ms = counts
        described = None if kind is Kind.LEAVE else about
        return Message(kind, host_id, boot, max(sequence, 1), time_ms, described)

    ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True)
    return st.builds(
        build, st.sampled_from(Kind), ids, st.tuples(COUNTS, COUNTS, COUNTS), DESCRIPTIONS
    )


def refusal(subject: str, payload: bytes) -> Reason:
    with pytest.raises(Refused) as caught:
        decode(subject, payload, cluster=CLUSTER)
    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()
    return caught.value.reason


@given(messages())
def test_round_trip(message: Message) -> None:
    """1.3: A heartbeat carries the full description."""
    subject, payload = encode(message, CLUSTER, H1)
    assert subject == f"smartgw.{CLUSTER}.host.{message.host_id}.{message.kind}"
    assert decode(subject, payload, cluster=CLUSTER).check(H1.public_key) == message


@given(messages(), st.data())
def test_every_changed_byte_is_noticed(message: Message, data: st.DataObject) -> None:
    """1.2: Every message is signed by the host's Ed25519 key over the exact payload bytes."""
    subject, payload = encode(message, CLUSTER, H1)
    at = data.draw(st.integers(0, len(payload) - 1))
    changed = bytearray(payload)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Refused):
        decode(subject, bytes(changed), cluster=CLUSTER).check(H1.public_key)


@given(st.text(max_size=80), st.binary(max_size=300), st.booleans())
def test_no_bytes_raise_anything_else(subject: str, noise: bytes, signed: bool) -> None:
    """1.2: Unsigned and badly signed messages are counted by reason and ignored."""
    subject = SUBJECT if signed else subject
    payload = sign_raw(SUBJECT, noise, H1)[1] if signed else noise
    with pytest.raises(Refused):
        decode(subject, payload, cluster=CLUSTER)


@pytest.mark.parametrize("other", [Kind.HEARTBEAT, Kind.LEAVE])
def test_one_context_a_kind(other: Kind) -> None:
    """1.2: One context a message kind, so no signature serves twice."""
    subject, payload = encode(Speaker().message(Kind.ANNOUNCE), CLUSTER, H1)
    moved = decode(subject.replace("announce", other), payload, cluster=CLUSTER)
    with pytest.raises(Refused, match="bad_signature"):
        moved.check(H1.public_key)


def test_signature_binds_cluster_and_host() -> None:
    """1.2: It carries the host id, equal to the subject's; no signature serves elsewhere."""
    subject, payload = encode(Speaker().message(), "c2", H1)
    assert refusal(subject, payload) is Reason.WRONG_CLUSTER
    moved = decode(subject.replace(".c2.", ".c1."), payload, cluster=CLUSTER)
    with pytest.raises(Refused, match="bad_signature"):
        moved.check(H1.public_key)
    assert refusal(SUBJECT.replace("h1", "h2"), payload) is Reason.MALFORMED


def test_encode_refuses_what_decode_would() -> None:
    """1.4: An announcement that a gateway would refuse is refused where it is written."""
    good = Speaker().message()
    for bad in (
        altered(good, weight=0),
        altered(good, address="ftp://x"),
        altered(good, apps=("a\n",)),
        altered(good, apps=("\ud800",)),
        replace(good, sequence=0),
        replace(good, host_id="a.b"),
    ):
        with pytest.raises(ValueError, match=r".+"):
            encode(bad, CLUSTER, H1)
    with pytest.raises(ValueError, match="cluster id"):
        encode(good, "a.b", H1)


def test_subscription_is_exact() -> None:
    """1.1: Subjects carry the cluster id and the host id; nothing deeper is subscribed."""
    assert subscription("c1") == "smartgw.c1.host.*.*"
    with pytest.raises(ValueError, match="cluster id"):
        subscription("*")


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (SUBJECT + ".evil", Reason.BAD_SUBJECT),
        (SUBJECT + ".", Reason.BAD_SUBJECT),
        ("", Reason.BAD_SUBJECT),
        ("smartgw.c1.host.h1", Reason.BAD_SUBJECT),
        ("smartgw.c1.host.h1.join", Reason.BAD_SUBJECT),
        ("smartgw.c1.host.h1.Announce", Reason.BAD_SUBJECT),
        ("smartgw.c1.gateway.h1.announce", Reason.BAD_SUBJECT),
        ("SMARTGW.c1.host.h1.announce", Reason.BAD_SUBJECT),
        ("smartgw.c1.host.*.announce", Reason.BAD_SUBJECT),
        ("smartgw.c1.host.h1\n.announce", Reason.BAD_SUBJECT),
        (f"smartgw.c1.host.{'h' * 65}.announce", Reason.BAD_SUBJECT),
        ("smartgw.c1.host..announce", Reason.BAD_SUBJECT),
        ("smartgw.c2.host.h1.announce", Reason.WRONG_CLUSTER),
        ("smartgw.C1.host.h1.announce", Reason.WRONG_CLUSTER),
        ("smartgw.>.host.h1.announce", Reason.WRONG_CLUSTER),
    ],
)
def test_subjects(subject: str, reason: Reason) -> None:
    """1.1: Subjects are `smartgw.<cluster>.host.<host_id>.<kind>`, exactly."""
    assert refusal(subject, encode(Speaker().message(), CLUSTER, H1)[1]) is reason


BODY = json.dumps(members_of(Speaker().message(Kind.ANNOUNCE))).encode()
_, SIGNED = sign_raw(SUBJECT, BODY, H1)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", Reason.MALFORMED),
        (BODY, Reason.UNSIGNED),
        (b"\n" + BODY, Reason.UNSIGNED),
        (b"smartgw1 \n" + BODY, Reason.UNSIGNED),
        (b"smartgw1 " + b"=" * 86 + b"\n" + BODY, Reason.UNSIGNED),
        (b"smartgw1 " + b"\xff" * 86 + b"\n" + BODY, Reason.UNSIGNED),
        (b"smartgw2" + SIGNED[8:], Reason.UNSIGNED),
        (SIGNED.replace(b"\n", b"\r\n", 1), Reason.UNSIGNED),
        (b"\xef\xbb\xbf" + SIGNED, Reason.UNSIGNED),
        (SIGNED + b" " * PAYLOAD_BYTES, Reason.OVERSIZE),
        (b"[" * (PAYLOAD_BYTES + 1), Reason.OVERSIZE),
    ],
)
def test_envelopes(payload: bytes, reason: Reason) -> None:
    """1.2: Unsigned messages are counted by reason and ignored."""
    assert refusal(SUBJECT, payload) is reason


def test_good_body_is_accepted() -> None:
    """1.2: What the tables here spoil is good before it is spoilt."""
    decode(SUBJECT, SIGNED, cluster=CLUSTER).check(H1.public_key)


def spoilt(**changes: object) -> bytes:
    return json.dumps(members_of(Speaker().message()) | changes).encode()


def without(name: str) -> bytes:
    members = members_of(Speaker().message())
    del members[name]
    return json.dumps(members).encode()


BODIES: dict[str, tuple[bytes, Reason]] = {
    "null": (b"null", Reason.MALFORMED),
    "a list": (b"[]", Reason.MALFORMED),
    "a string": (b'"x"', Reason.MALFORMED),
    "nothing": (b"", Reason.MALFORMED),
    "byte order mark": (b"\xef\xbb\xbf" + BODY, Reason.MALFORMED),
    "utf-16": (BODY.decode().encode("utf-16"), Reason.MALFORMED),
    "not utf-8": (BODY.replace(b"eu", b"\xff\xfe"), Reason.MALFORMED),
    "overlong utf-8": (BODY.replace(b"eu", b"\xc0\xaf"), Reason.MALFORMED),
    "trailing garbage": (BODY + b"x", Reason.MALFORMED),
    "two objects": (BODY + BODY, Reason.MALFORMED),
    "trailing comma": (BODY[:-1] + b",}", Reason.MALFORMED),
    "cut off": (BODY[:-1], Reason.MALFORMED),
    "comment": (b"/**/" + BODY, Reason.MALFORMED),
    "raw control character": (BODY.replace(b'"eu"', b'"e\nu"'), Reason.MALFORMED),
    "NUL behind": (BODY + b"\0", Reason.MALFORMED),
    "deep list": (BODY[:-1] + b',"x":' + b"[" * 60_000, Reason.MALFORMED),
    "deep closed list": (
        BODY[:-1] + b',"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        Reason.MALFORMED,
    ),
    "deep object": (BODY[:-1] + b',"x":' + b'{"a":' * 10_000, Reason.MALFORMED),
    "twice the host": (BODY[:-1] + b',"host":"h1"}', Reason.MALFORMED),
    "twice the apps": (BODY[:-1] + b',"apps":["admin"]}', Reason.MALFORMED),
    "twice, escaped": (BODY[:-1] + b',"ho\\u0073t":"h2"}', Reason.MALFORMED),
    "twice in an unknown member": (BODY[:-1] + b',"x":{"a":1,"a":2}}', Reason.MALFORMED),
    "NaN": (BODY.replace(b'"h1"', b"NaN"), Reason.MALFORMED),
    "Infinity in an unknown member": (BODY[:-1] + b',"x":-Infinity}', Reason.MALFORMED),
    "1e400 in an unknown member": (BODY[:-1] + b',"x":1e400}', Reason.MALFORMED),
    "surrogate in an unknown member": (BODY[:-1] + b',"x":"\\ud800"}', Reason.MALFORMED),
    "host of another": (spoilt(host="h2"), Reason.MALFORMED),
    "host in another case": (spoilt(host="H1"), Reason.MALFORMED),
    "host lone surrogate": (spoilt(host="\ud800"), Reason.MALFORMED),
    "host with NUL": (spoilt(host="h1\0"), Reason.MALFORMED),
    "host with a line": (spoilt(host="h1\n2026-01-01 INFO fake line"), Reason.MALFORMED),
    "host with ESC": (spoilt(host="\x1b[2Jh1"), Reason.MALFORMED),
    "host null": (spoilt(host=None), Reason.MALFORMED),
    "app surrogate": (spoilt(apps=["\udfff"]), Reason.MALFORMED),
    "app empty": (spoilt(apps=[""]), Reason.MALFORMED),
    "app with NUL": (spoilt(apps=["a\0b"]), Reason.MALFORMED),
    "app with DEL": (spoilt(apps=["a\x7f"]), Reason.MALFORMED),
    "app with C1": (spoilt(apps=["a\x85"]), Reason.MALFORMED),
    "app too long": (spoilt(apps=["a" * 257]), Reason.MALFORMED),
    "app too long in bytes": (spoilt(apps=["\u20ac" * 86]), Reason.MALFORMED),
    "app a number": (spoilt(apps=[1]), Reason.MALFORMED),
    "app a list": (spoilt(apps=[["shop"]]), Reason.MALFORMED),
    "apps a string": (spoilt(apps="shop"), Reason.MALFORMED),
    "apps an object": (spoilt(apps={"shop": 1}), Reason.MALFORMED),
    "apps null": (spoilt(apps=None), Reason.MALFORMED),
    "too many apps": (spoilt(apps=[f"a{n}" for n in range(APPS + 1)]), Reason.TOO_MANY),
    "too many of one app": (spoilt(apps=["a"] * (APPS + 1)), Reason.TOO_MANY),
    "region too long": (spoilt(region="r" * 65), Reason.MALFORMED),
    "region too long in bytes": (spoilt(region="\u20ac" * 22), Reason.MALFORMED),
    "region with a control character": (spoilt(region="a\x00"), Reason.MALFORMED),
    "region with a line separator": (spoilt(region="a\u2028b"), Reason.MALFORMED),
    "region turned around": (spoilt(region="a\u202eb"), Reason.MALFORMED),
    "region surrogate": (spoilt(region="\ud800"), Reason.MALFORMED),
    "version a number": (spoilt(version=1), Reason.MALFORMED),
    "version with an escape sequence": (spoilt(version="\x1b[31m"), Reason.MALFORMED),
    "key a number": (spoilt(key=1), Reason.MALFORMED),
    "key of small order": (spoilt(key="00" * 32), Reason.BAD_KEY),
    "key the identity": (spoilt(key="01" + "00" * 31), Reason.BAD_KEY),
    "key not canonical": (spoilt(key="ee" + "ff" * 30 + "7f"), Reason.BAD_KEY),
    "key short": (spoilt(key="ed25519:AAAA"), Reason.BAD_KEY),
    "key of another kind": (spoilt(key="rsa:AAAA"), Reason.BAD_KEY),
    "key empty": (spoilt(key=""), Reason.BAD_KEY),
    "address empty": (spoilt(address=""), Reason.BAD_ADDRESS),
    "address of another scheme": (spoilt(address="file:///etc/passwd"), Reason.BAD_ADDRESS),
    "address with userinfo": (spoilt(address="http://a@b:80"), Reason.BAD_ADDRESS),
    "address with a path": (spoilt(address="http://a:80/x"), Reason.BAD_ADDRESS),
    "address with a line": (spoilt(address="http://a:80\r\nX: y"), Reason.BAD_ADDRESS),
    "address surrogate": (spoilt(address="http://\ud800:80"), Reason.MALFORMED),
    "address too long": (spoilt(address="http://" + "a." * 200 + "b:80"), Reason.BAD_ADDRESS),
    "address null": (spoilt(address=None), Reason.MALFORMED),
}
for port in ("0", "-1", "65536", "80.5", "1e400", "true", "080", "٨٠", "99999999999999999999"):
    BODIES[f"port {port}"] = (spoilt(address=f"http://10.0.0.1:{port}"), Reason.BAD_ADDRESS)
for member in ("boot", "sequence", "time", "weight"):
    for number in (
        "true",
        "false",
        "null",
        "-1",
        "1.0",
        "1e2",
        "1e400",
        "NaN",
        '"1"',
        "[1]",
        str(2**53),
        "9" * 5000,
    ):
        raw = spoilt(**{member: "@"}).replace(b'"@"', number.encode())
        BODIES[f"{member} {number[:20]}"] = (raw, Reason.MALFORMED)
BODIES["sequence 0"] = (spoilt(sequence=0), Reason.MALFORMED)
BODIES["weight 0"] = (spoilt(weight=0), Reason.MALFORMED)
BODIES["weight 1001"] = (spoilt(weight=1001), Reason.MALFORMED)
for member in members_of(Speaker().message()):
    BODIES[f"no {member}"] = (without(member), Reason.MALFORMED)


@pytest.mark.parametrize(("body", "reason"), BODIES.values(), ids=BODIES.keys())
def test_bodies(body: bytes, reason: Reason) -> None:
    """1.2: What is not exactly a message is refused, well signed or not."""
    assert refusal(*sign_raw(SUBJECT, body, H1)) is reason


@pytest.mark.parametrize(
    "body",
    [
        spoilt(apps=[]),
        spoilt(apps=[f"a{n}" for n in range(APPS)]),
        spoilt(apps=["Ünïcode \u20ac", "a" * 256, "*"]),
        spoilt(region="", version=""),
        spoilt(weight=1),
        spoilt(weight=1000),
        spoilt(boot=0, sequence=2**53 - 1),
        spoilt(newer={"x": [1, 2.5, None]}),
        b" " + BODY + b"\r\n",
    ],
)
def test_bodies_that_are_good(body: bytes) -> None:
    """1.3: A heartbeat carries the full description; what newer hosts add is ignored."""
    decode(*sign_raw(SUBJECT, body, H1), cluster=CLUSTER).check(H1.public_key)


def test_app_named_twice_is_one() -> None:
    """1.3: Each app of the description stands in it once."""
    signed = decode(*sign_raw(SUBJECT, spoilt(apps=["b", "a", "b"]), H1), cluster=CLUSTER)
    assert signed.claims.description is not None
    assert signed.claims.description.apps == ("b", "a")


def test_leave_needs_no_description() -> None:
    """1.1: Hosts publish leave on NATS; it may say more than we know."""
    subject = SUBJECT.replace("announce", "leave")
    members = members_of(Speaker().message(Kind.LEAVE)) | {"reason": "bye", "address": 7}
    signed = decode(*sign_raw(subject, json.dumps(members).encode(), H1), cluster=CLUSTER)
    assert signed.check(H1.public_key).description is None
