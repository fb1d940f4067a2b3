"""challenge.py: both sides against each other, and against whoever stands between them."""

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts import challenge as challenge_module
from smartgw_hosts.addresses import AddressRefused
from smartgw_hosts.challenge import (
    CONTEXT,
    PATH,
    Challenge,
    Proof,
    Responder,
    Verdict,
    judge,
    request,
    signed_bytes,
)
from smartgw_hosts.identity import Identity, encode64

_ALICE = Identity.from_seed(b"a" * 32)
_BOB = Identity.from_seed(b"b" * 32)
_ADDRESS = "http://10.0.0.5:3000"
_NOW_MS = 1_800_000_000_000
_ASKED = Challenge(b"n" * 32, "gw1", "eu", "h1", _ADDRESS, _ALICE.public_key, _NOW_MS)


def _responder(
    identity: Identity = _ALICE,
    host_id: str = "h1",
    cluster_id: str = "eu",
    addresses: Collection[str] = (_ADDRESS,),
) -> Responder:
    return Responder(identity, host_id, cluster_id, lambda: addresses)


def _body(challenge: Challenge = _ASKED) -> bytes:
    return request(challenge).partition(b"\r\n\r\n")[2]


def _ask(
    responder: Responder,
    challenge: Challenge | bytes = _ASKED,
    *,
    method: bytes = b"POST",
    raw_target: bytes = PATH,
    fields: Iterable[tuple[bytes, bytes]] = ((b"Host", b"10.0.0.5:3000"),),
    now: float = 0.0,
    now_ms: int = _NOW_MS,
) -> tuple[int, bytes]:
    body = challenge if isinstance(challenge, bytes) else _body(challenge)
    return responder.answer(method, raw_target, fields, body, now, now_ms)


def _changed(**members: Any) -> bytes:
    """The challenge's body with some members written otherwise; None leaves one out."""
    written = {**json.loads(_body()), **members}
    return json.dumps(
        {name: value for name, value in written.items() if value is not None}
    ).encode()


def test_a_host_proves_its_key() -> None:
    """2.1: the host signs the challenge, and the gateway believes that."""
    status, body = _ask(_responder())
    assert status == 200
    assert judge(_ASKED, status, body) == Verdict(Proof.OK)
    assert judge(_ASKED, status, body).ok
    assert set(json.loads(body)) == {"host", "signature"}


def test_the_request_is_whole() -> None:
    """2.1: `POST /.well-known/smartgw/challenge` at the announced address, kept alive."""
    head, _, body = request(replace(_ASKED, address="https://[FD00::5]")).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /.well-known/smartgw/challenge HTTP/1.1"
    assert b"Host: [fd00::5]:443" in lines
    assert b"Content-Length: %d" % len(body) in lines
    assert not any(line.lower().startswith(b"connection:") for line in lines)
    assert len(body) <= 4096


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": b"m" * 32},
        {"gateway_id": "gw2"},
        {"cluster_id": "us"},
        {"host_id": "h2"},
        {"address": "http://10.0.0.6:3000"},
        {"address": "https://10.0.0.5:3000"},
        {"key": _BOB.public_key},
        {"issued_ms": _NOW_MS + 1},
    ],
)
def test_every_field_is_bound(changed: dict[str, Any]) -> None:
    """2.1: an answer serves for no other nonce, gateway, cluster, host, address, key or time."""
    asked = replace(_ASKED, **changed)
    assert signed_bytes(asked) != signed_bytes(_ASKED)
    status, body = _ask(_responder())
    renamed = json.dumps({**json.loads(body), "host": asked.host_id}).encode()
    assert judge(asked, status, renamed).reason is Proof.BAD_SIGNATURE


def test_what_is_signed_can_be_read_in_one_way_only() -> None:
    """2.1: bytes cannot be moved from one field into the next."""
    assert signed_bytes(replace(_ASKED, gateway_id="a", cluster_id="bc")) != signed_bytes(
        replace(_ASKED, gateway_id="ab", cluster_id="c")
    )
    parts, rest = [], signed_bytes(_ASKED)
    while rest:
        size = int.from_bytes(rest[:4], "big")
        parts.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    assert parts == [
        _ASKED.nonce,
        b"gw1",
        b"eu",
        b"h1",
        _ADDRESS.encode(),
        _ALICE.public_key.value,
        _NOW_MS.to_bytes(8, "big"),
    ]


@pytest.mark.parametrize(
    ("responder", "fault"),
    [
        (_responder(host_id="h2", identity=_BOB), "another host"),
        (_responder(host_id="h2"), "another host"),
        (_responder(cluster_id="us"), "another cluster"),
        (_responder(identity=_BOB), "another key"),
        (_responder(addresses=["http://10.0.0.6:3000"]), "announce"),
        (_responder(addresses=["https://10.0.0.5:3000"]), "announce"),
        (_responder(addresses=["http://10.0.0.5:3001"]), "announce"),
        (_responder(addresses=[]), "announce"),
    ],
)
def test_a_relayed_challenge_is_not_signed(responder: Responder, fault: str) -> None:
    """2.1: only for its own id, cluster and key, and an address it announces now."""
    status, body = _ask(responder)
    assert status == 403
    assert fault in json.loads(body)["error"]
    assert judge(_ASKED, status, body).reason is Proof.REFUSED


def test_the_announced_address_is_the_one_of_now() -> None:
    """2.1: an address counts from when it is announced until it no longer is."""
    announced = ["http://10.0.0.6:3000"]
    responder = Responder(_ALICE, "h1", "eu", lambda: announced)
    assert _ask(responder)[0] == 403
    announced.append("HTTP://10.0.0.5:3000/")  # another spelling of the same address
    assert _ask(responder)[0] == 200
    announced.clear()
    assert _ask(responder, replace(_ASKED, nonce=b"m" * 32))[0] == 403


@pytest.mark.parametrize(
    "name",
    [
        b"Via",
        b"VIA",
        b"via",
        b"V_ia",
        b"V-ia",
        b"_via",
        b"Via ",
        b"\tvia",
        b"Forwarded",
        b"For_warded",
    ],
)
def test_a_request_through_a_proxy_is_not_signed(name: bytes) -> None:
    """2.1: only a request that carries neither `Via` nor `Forwarded`, however spelled."""
    status, body = _ask(_responder(), fields=[(b"Host", b"h"), (name, b"")])
    assert status == 403
    assert "proxy" in json.loads(body)["error"]


@pytest.mark.parametrize("name", [b"Via-X", b"X-Via", b"Forwarded-For", b"", b"\xff", b"Trivia"])
def test_other_fields_do_not_matter(name: bytes) -> None:
    """2.1: it is these two fields that a proxy leaves (RFC 9110 7.6.3, RFC 7239)."""
    assert _ask(_responder(), fields=[(name, b"x")])[0] == 200


@pytest.mark.parametrize(
    "raw_target",
    [
        b"",
        b"/",
        b"*",
        PATH + b"/",
        PATH + b"?",
        PATH + b"?x",
        PATH + b"#",
        PATH + b" ",
        b"/" + PATH,
        b"/." + PATH,
        b"/x/.." + PATH,
        PATH.upper(),
        PATH.replace(b"smartgw", b"%73martgw"),
        PATH.replace(b"/smartgw/", b"%2fsmartgw%2F"),
        PATH.replace(b"/smartgw/", b"\\smartgw\\"),
        PATH.replace(b"/smartgw/", b"/smartgw//"),
        b"http://10.0.0.5:3000" + PATH,
        b"//10.0.0.5:3000" + PATH,
    ],
)
def test_the_raw_target_is_exactly_that(raw_target: bytes) -> None:
    """2.1: only a request whose raw target is exactly that, no other form of it."""
    assert _ask(_responder(), raw_target=raw_target)[0] == 400


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"post", b"POST ", b"", b"CONNECT"])
def test_only_post(method: bytes) -> None:
    """2.1: the challenge is a POST."""
    assert _ask(_responder(), method=method)[0] == 405


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        _body()[:-1],
        _body() + b"x",
        _body() + b" " * 4096,
        _body().replace(b'"host": "h1"', b'"host": "h2", "host": "h1"'),
        _body().replace(b'"h1"', b'"h1", "\\u0068ost": "h1"'),
        b'{"nonce":' + b"[" * 4000,
        _changed(nonce=None),
        _changed(nonce=""),
        _changed(nonce=encode64(b"n" * 31)),
        _changed(nonce=encode64(b"n" * 33)),
        _changed(nonce=encode64(b"n" * 32) + "="),
        _changed(nonce=encode64(b"n" * 32)[:-1] + "5"),  # the same 32 bytes, read leniently
        _changed(nonce=7),
        _changed(gateway="g w"),
        _changed(gateway=None),
        _changed(cluster="*"),
        _changed(host="h1\n"),
        _changed(host=["h1"]),
        _changed(key="ed25519:x"),
        _changed(key="01" + "00" * 31),
        _changed(address=_ADDRESS + "/x"),
        _changed(address="http://user@10.0.0.5:3000"),
        _changed(address="http://10.0.0.5:3000\ud800"),
        _changed(issued=True),
        _changed(issued=str(_NOW_MS)),
        _changed(issued=float(_NOW_MS)),
        _changed(issued=-1),
        _changed(issued=1 << 63),
        _changed(issued=None),
    ],
)
def test_a_malformed_challenge_is_not_signed(body: bytes) -> None:
    """2.1: a challenge has one reading or none."""
    status, answer = _ask(_responder(), body)
    assert status == 400
    assert json.loads(answer)["error"].isprintable()


def test_a_body_of_the_largest_size_is_read() -> None:
    """2.1: 4 KiB, not a byte more; a newer gateway may say more than we know."""
    padded = _changed(more="x")
    padded = padded.replace(b'"x"', b'"' + b"x" * (4096 - len(padded) + 1) + b'"')
    assert len(padded) == 4096
    assert _ask(_responder(), padded)[0] == 200
    assert _ask(_responder(), padded + b" ")[0] == 400


@pytest.mark.parametrize(
    ("offset_ms", "status"), [(-30_001, 403), (-30_000, 200), (30_000, 200), (30_001, 403)]
)
def test_issue_time(offset_ms: int, status: int) -> None:
    """2.1: an old challenge, or one of a clock far away, is not signed."""
    assert _ask(_responder(), now_ms=_NOW_MS - offset_ms)[0] == status


def test_a_nonce_serves_once() -> None:
    """2.1: a nonce serves once, for as long as its issue time would be accepted."""
    responder = _responder()
    early = replace(_ASKED, issued_ms=_NOW_MS + 30_000)
    assert _ask(responder, early)[0] == 200
    for seconds in (0.0, 9.9, 10.1, 59.9):
        now_ms = _NOW_MS + int(seconds * 1000)
        assert _ask(responder, early, now=seconds, now_ms=now_ms)[0] == 409
        changed = replace(early, gateway_id="gw2")
        assert _ask(responder, changed, now=seconds, now_ms=now_ms)[0] == 409
    assert _ask(responder, early, now=60.1, now_ms=_NOW_MS + 60_100)[0] == 403


def test_what_is_not_signed_uses_up_no_nonce() -> None:
    """2.1: nobody can spoil a nonce for its gateway by sending a bad challenge with it."""
    responder = _responder()
    for bad in (replace(_ASKED, host_id="h2"), replace(_ASKED, issued_ms=0)):
        assert _ask(responder, bad)[0] == 403
    assert _ask(responder)[0] == 200


def test_the_memory_for_nonces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.8: memory stays bounded, and a flood of challenges does not stop a gateway's own."""
    monkeypatch.setattr(challenge_module, "NONCES", 8)
    responder = _responder()
    for number in range(100):
        asked = replace(_ASKED, nonce=number.to_bytes(32, "big"))
        assert _ask(responder, asked)[0] == 200
        assert _ask(responder, asked)[0] == 409
    assert len(responder._nonces) <= 8


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (403, b'{"error": "this is another host"}', Proof.REFUSED),
        (409, b'{"error": "this nonce has been used"}', Proof.REFUSED),
        (403, b"<html>forbidden", Proof.BAD_STATUS),
        (403, b'{"error": {"code": 1}}', Proof.BAD_STATUS),
        (404, b'{"error": "not found"}', Proof.BAD_STATUS),
        (500, b'{"error": "oops"}', Proof.BAD_STATUS),
        (302, b"", Proof.BAD_STATUS),
        (201, b"", Proof.BAD_STATUS),
        (200, b"", Proof.BAD_ANSWER),
        (200, b"hello", Proof.BAD_ANSWER),
        (200, b'{"host": "h1"}', Proof.BAD_ANSWER),
        (200, b'{"host": "h2", "signature": ""}', Proof.BAD_ANSWER),
        (200, b'{"host": "h1", "host": "h1", "signature": ""}', Proof.BAD_ANSWER),
        (200, b'{"host": "h1", "signature": 1}', Proof.BAD_ANSWER),
        (200, b'{"host": "h1", "signature": "="}', Proof.BAD_ANSWER),
        (200, b'{"host": "h1", "signature": ""}', Proof.BAD_SIGNATURE),
        (200, b'{"host": "h1", "signature": "%b"}' % (b"A" * 86), Proof.BAD_SIGNATURE),
    ],
)
def test_other_answers_are_no_proof(status: int, body: bytes, reason: Proof) -> None:
    """1.5: a failed verification shows its reason."""
    verdict = judge(_ASKED, status, body)
    assert verdict.reason is reason
    assert not verdict.ok
    assert verdict.detail.isprintable()


def test_the_remedy_is_named_where_no_sdk_answers() -> None:
    """1.5: 404 is the app's answer and never the SDK's, so it tells what is missing."""
    assert "SDK" in judge(_ASKED, 404, b"").detail


def test_an_answer_in_another_spelling_is_no_proof() -> None:
    """2.1: one signature, one answer: padding, spare bits and a long body are refused."""
    signature = _ALICE.sign(CONTEXT, signed_bytes(_ASKED))
    text = encode64(signature)
    lenient = text[:-1] + chr(ord(text[-1]) + 1)
    for spelled in (text + "==", text + "\n", " " + text, lenient, signature.hex()):
        answer = json.dumps({"host": "h1", "signature": spelled}).encode()
        assert judge(_ASKED, 200, answer).reason in (Proof.BAD_ANSWER, Proof.BAD_SIGNATURE)
    answer = json.dumps({"host": "h1", "signature": text}).encode()
    assert judge(_ASKED, 200, answer).ok
    assert judge(_ASKED, 200, answer + b" " * 4096).reason is Proof.BAD_ANSWER


def test_a_signature_of_another_context_is_no_proof() -> None:
    """2.1: the host signs under a context of their own."""
    for context in (b"smartgw/bus/announce/v1", b"smartgw/challenge/v2"):
        signature = _ALICE.sign(context, signed_bytes(_ASKED))
        answer = json.dumps({"host": "h1", "signature": encode64(signature)}).encode()
        assert judge(_ASKED, 200, answer).reason is Proof.BAD_SIGNATURE


def test_what_a_host_says_cannot_deceive_a_reader() -> None:
    """11.3: a refusal's text is cut and escaped before it stands in logs and status."""
    body = json.dumps({"error": "x\n\x1b[2J\u202e" + "y" * 3000}).encode()
    detail = judge(_ASKED, 403, body).detail
    assert detail.isprintable()
    assert detail.isascii()
    assert len(detail) < 300


@given(st.integers(100, 599) | st.just(200), st.binary(max_size=200))
def test_judge_never_raises(status: int, body: bytes) -> None:
    """1.5: whatever an upstream answers is a verdict."""
    assert not judge(_ASKED, status, body).ok


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda children: st.lists(children, max_size=3),
    max_leaves=5,
)


@given(
    st.binary(max_size=100)
    | st.dictionaries(st.sampled_from(sorted(json.loads(_body()))), _json).map(
        lambda members: _changed(**members)
    ),
    st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=3),
)
def test_the_responder_never_raises(body: bytes, fields: list[tuple[bytes, bytes]]) -> None:
    """2.1: whatever is asked is signed or refused, in JSON, and never 404."""
    status, answer = _ask(_responder(), body, fields=fields)
    assert status in (200, 400, 403, 405, 409)
    assert ("signature" in json.loads(answer)) == (status == 200)
    if status == 200:
        assert judge(_ASKED, status, answer).ok


def test_a_challenge_out_of_its_form_cannot_be_made() -> None:
    """2.1: 32 random bytes, ids, an address, a key, a time: or no challenge."""
    for changed in ({"nonce": b"n"}, {"gateway_id": ""}, {"host_id": "a.b"}, {"issued_ms": -1}):
        with pytest.raises(ValueError, match="must"):
            replace(_ASKED, **changed)
    with pytest.raises(AddressRefused):
        replace(_ASKED, address="ftp://h")
    with pytest.raises(ValueError, match="host id"):
        _responder(host_id="")
