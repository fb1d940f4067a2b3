"""Which tokens count, claim by claim, and what of a JWK set."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from smartgw.api import tokens
from smartgw.api.tokens import (
    Caller,
    Issuer,
    KeysRefused,
    Refusal,
    Role,
    bearer,
    judge,
    parse_keys,
)

NOW = 1_800_000_000.0
SKEW = 30.0
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
ISSUER = "https://id.example"
AUDIENCE = "smartgw"
CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "deploy", "exp": NOW + 60, "role": "service"}


def raw(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def jwk(key: Ed25519PrivateKey = KEY, **members: object) -> dict[str, object]:
    return {"kty": "OKP", "crv": "Ed25519", "x": b64(raw(key)), "kid": "k1", **members}


def jwks(*keys: Mapping[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def issuers(*roles: Role, keys: bytes = jwks(jwk())) -> dict[str, Issuer]:
    granted = frozenset(roles or Role)
    return {ISSUER: Issuer(ISSUER, AUDIENCE, granted, parse_keys(keys))}


def token(
    claims: Mapping[str, Any] | None = None,
    *,
    key: Ed25519PrivateKey = KEY,
    header: Mapping[str, Any] | None = None,
    without: str = "",
    **changes: Any,
) -> str:
    payload = {**(claims or CLAIMS), **changes}
    payload.pop(without, None)
    return jwt.encode(payload, key, "EdDSA", headers={"kid": "k1", **(header or {})})


def by_hand(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes = b"") -> str:
    """A token with any header at all."""
    parts = [b64(json.dumps(part).encode()) for part in (header, claims)]
    return ".".join([*parts, b64(signature)])


def verdict(text: str | Refusal, roles: tuple[Role, ...] = ()) -> Caller | Refusal:
    return judge(text, issuers(*roles), now=NOW, skew=SKEW)


def test_a_token_of_the_issuer_counts() -> None:
    """10.2: services are EdDSA JWTs of configured issuers."""
    assert verdict(token()) == Caller(Role.SERVICE, ISSUER, "deploy", "deploy")
    assert verdict(token(aud=["other", AUDIENCE])) == verdict(token())
    # Without a key id the only key is meant.
    assert isinstance(verdict(jwt.encode(CLAIMS, KEY, "EdDSA")), Caller)


def test_a_session_is_its_issuer_with_sid_or_sub() -> None:
    """8.5: a session is (issuer, `sid` or `sub`), never a token's id."""
    caller = verdict(token(role="session", sid="s-1", jti="t-1"))
    assert caller == Caller(Role.SESSION, ISSUER, "deploy", "s-1")
    caller = verdict(token(role="session", jti="t-2"))
    assert caller == Caller(Role.SESSION, ISSUER, "deploy", "deploy")


def test_the_role_is_one_that_the_issuer_may_grant() -> None:
    """10.2: an issuer of sessions makes no service, whatever its tokens say."""
    only = (Role.SESSION,)
    assert verdict(token(role="service"), only) is Refusal.ROLE_NOT_GRANTED
    named = verdict(token(without="role"), only)
    assert isinstance(named, Caller)
    assert named.role is Role.SESSION
    assert verdict(token(without="role")) is Refusal.ROLE_NOT_GRANTED
    for role in ("admin", "SERVICE", ["service"], {"service": 1}, None, 1, True, ""):
        assert verdict(token(role=role)) is Refusal.ROLE_NOT_GRANTED


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"iss": "https://evil.example"}, Refusal.UNKNOWN_ISSUER),
        ({"iss": ISSUER + "/"}, Refusal.UNKNOWN_ISSUER),
        ({"aud": "other"}, Refusal.WRONG_AUDIENCE),
        ({"aud": []}, Refusal.WRONG_AUDIENCE),
        ({"aud": "smartgw2"}, Refusal.WRONG_AUDIENCE),
        ({"aud": None}, Refusal.BAD_CLAIMS),
        ({"aud": {"smartgw": 1}}, Refusal.BAD_CLAIMS),
        ({"aud": [AUDIENCE, 1]}, Refusal.BAD_CLAIMS),
        ({"aud": [AUDIENCE] * 33}, Refusal.BAD_CLAIMS),
        ({"exp": NOW - SKEW}, Refusal.EXPIRED),
        ({"exp": 0}, Refusal.EXPIRED),
        ({"exp": -1}, Refusal.BAD_CLAIMS),
        ({"exp": str(NOW + 60)}, Refusal.BAD_CLAIMS),
        ({"exp": True}, Refusal.BAD_CLAIMS),
        ({"exp": None}, Refusal.BAD_CLAIMS),
        ({"exp": 1e40}, Refusal.BAD_CLAIMS),
        ({"exp": 1 << 70}, Refusal.BAD_CLAIMS),
        ({"nbf": NOW + SKEW + 1}, Refusal.NOT_YET_VALID),
        ({"nbf": "soon"}, Refusal.BAD_CLAIMS),
        ({"nbf": None}, Refusal.BAD_CLAIMS),
        ({"iat": NOW + SKEW + 1}, Refusal.NOT_YET_VALID),
        ({"sub": ""}, Refusal.BAD_CLAIMS),
        ({"sub": "x" * 257}, Refusal.BAD_CLAIMS),
        ({"sub": "a\nb"}, Refusal.BAD_CLAIMS),
        ({"sid": ""}, Refusal.BAD_CLAIMS),
        ({"sid": None}, Refusal.BAD_CLAIMS),
        ({"sid": 7}, Refusal.BAD_CLAIMS),
    ],
)
def test_claims_have_one_shape_each(changes: dict[str, Any], refusal: Refusal) -> None:
    """10.2: audience, issuer and expiry are checked."""
    assert verdict(token(**changes)) is refusal


@pytest.mark.parametrize("name", ["exp", "sub", "aud"])
def test_what_a_token_must_have(name: str) -> None:
    """10.2: a token without expiry, subject or audience is none."""
    assert verdict(token(without=name)) is Refusal.BAD_CLAIMS


def test_clocks_may_differ_by_the_skew() -> None:
    """10.2: times are judged with the configured skew and not beyond."""
    assert isinstance(verdict(token(exp=NOW - SKEW + 1)), Caller)
    assert isinstance(verdict(token(nbf=NOW + SKEW, iat=NOW + SKEW)), Caller)


def test_no_other_algorithm_counts() -> None:
    """10.2: the algorithm is pinned: `none`, HS256 with the public key, Ed448 and a lie."""
    claims = dict(CLAIMS)
    header = {"alg": "none", "kid": "k1"}
    for alg in ("none", "None", "NONE", "", "eddsa", "Ed25519", "ES256", None, 1, ["EdDSA"]):
        for signature in (b"", KEY.sign(b"x")):
            text = by_hand({**header, "alg": alg}, claims, signature)
            assert verdict(text) in (Refusal.WRONG_ALGORITHM, Refusal.MALFORMED)
    # HMAC with what everybody knows: the public key, as raw bytes and as PEM.
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for secret in (raw(KEY), pem, jwks(jwk())):
        for alg in ("HS256", "EdDSA"):
            signed = by_hand({"alg": alg, "kid": "k1"}, claims).rstrip(".")
            mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
            assert not isinstance(verdict(f"{signed}.{b64(mac)}"), Caller)
    other = jwt.encode(claims, Ed448PrivateKey.generate(), "EdDSA", headers={"kid": "k1"})
    assert verdict(other) is Refusal.BAD_SIGNATURE


def test_a_key_in_the_token_is_not_asked() -> None:
    """10.2: keys come from the issuer's set alone, never from the token."""
    header = {"jwk": jwk(OTHER), "jku": "https://evil.example/jwks", "x5u": "https://evil.example"}
    assert verdict(token(key=OTHER, header=header)) is Refusal.BAD_SIGNATURE
    assert verdict(token(header={"kid": "k2"})) is Refusal.UNKNOWN_KEY
    assert verdict(token(key=OTHER)) is Refusal.BAD_SIGNATURE


@pytest.mark.parametrize(
    "header",
    [{"crit": ["exp"], "exp": 1}, {"b64": True}, {"typ": "logout+jwt"}, {"typ": 1}, {"kid": None}],
)
def test_what_must_be_understood_and_is_not_refuses_the_token(header: dict[str, Any]) -> None:
    """10.2: no extension is understood, and a token of another kind is no credential."""
    full = {"alg": "EdDSA", "kid": "k1", **header}
    signed = by_hand(full, CLAIMS).rstrip(".")
    text = f"{signed}.{b64(KEY.sign(signed.encode()))}"
    assert verdict(text) is Refusal.MALFORMED


def test_a_token_has_one_spelling() -> None:
    """10.2: what two readers could read in two ways is no token."""
    good = token()
    head, payload, signature = good.split(".")
    twice = b'{"iss":"https://id.example","iss":"https://evil.example"}'
    for text in (
        f"{head}.{payload}",
        f"{good}.",
        f"{head}.{payload}.{signature}=",
        f"{head}.{payload}.{signature[:-1]}{chr(ord(signature[-1]) + 1)}",
        f"{head}.{b64(twice)}.{signature}",
        f"{head}.{b64(b'[]')}.{signature}",
        f"{head}.{b64(b'[' * 2000)}.{signature}",
        f"{b64(b'[1]')}.{payload}.{signature}",
    ):
        assert verdict(text) in (Refusal.MALFORMED, Refusal.BAD_SIGNATURE), text


@pytest.mark.parametrize(
    "fields",
    [
        ["Bearer a.b"],
        ["Bearer  a.b.c"],
        ["bearer a.b.c "],
        ["Basic a.b.c"],
        ["a.b.c"],
        ["Bearer a.b.c", "Bearer a.b.c"],
        ["Bearer a.b.c, Bearer a.b.c"],
        [f"Bearer a.b.{'c' * 8200}"],
        ["Bearer a.b.ü"],
        [""],
    ],
)
def test_a_request_has_one_bearer_token(fields: list[str]) -> None:
    """10.2: exactly one Authorization field of the one form, bounded in length."""
    assert bearer(fields) is Refusal.MALFORMED


def test_bearer_counts_in_any_case() -> None:
    """10.2: the scheme's name is compared without case (RFC 9110 11.1)."""
    assert bearer(["bEARER a.b.c"]) == "a.b.c"
    assert bearer([]) is Refusal.MISSING
    assert verdict(Refusal.MISSING) is Refusal.MISSING


@given(st.text(max_size=200) | st.binary(max_size=200).map(b64))
def test_nothing_makes_the_judge_fail(text: str) -> None:
    """10.2: any text at all gets a verdict."""
    for candidate in (text, f"{text}.{text}.{text}", token()[: len(text)]):
        assert isinstance(verdict(candidate), Refusal)


def test_every_verdict_costs_one_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    """10.1: one timing: whatever is shown, exactly one signature is verified."""
    verified: list[str] = []
    real = tokens._verified

    def counted(text: str, key: Any) -> bytes | None:
        verified.append(text)
        return real(text, key)

    monkeypatch.setattr(tokens, "_verified", counted)
    shown: list[str | Refusal] = [
        *(token(), token(exp=0), token(key=OTHER), token(header={"kid": "k2"})),
        *(token(iss="x"), token(role="session"), "a.b.c", "", Refusal.MISSING),
        by_hand({"alg": "none"}, CLAIMS),
    ]
    for text in shown:
        verdict(text)
    assert len(verified) == len(shown)
    assert real(tokens._DECOY_TOKEN, tokens._DECOY_KEY) is None


# ---- key sets ----


def test_keys_of_other_kinds_are_passed_over() -> None:
    """10.2: an issuer may have keys that are not for us; those for encryption are not."""
    rsa = {"kty": "RSA", "kid": "r", "n": "AQAB", "e": "AQAB"}
    found = parse_keys(
        jwks(rsa, jwk(kid="a"), jwk(OTHER, kid="b", use="enc"), jwk(OTHER, kid="c", alg="ES256"))
    )
    assert set(found.named) == {"a"}


def test_two_keys_serve_while_one_replaces_the_other() -> None:
    """10.2: an issuer rotates its keys by having both for a while."""
    known = issuers(keys=jwks(jwk(kid="old"), jwk(OTHER, kid="new")))
    for key, kid in ((KEY, "old"), (OTHER, "new")):
        text = token(key=key, header={"kid": kid})
        assert isinstance(judge(text, known, now=NOW, skew=SKEW), Caller)
    # With two keys, a token has to say which it means.
    nameless = jwt.encode(CLAIMS, KEY, "EdDSA")
    assert judge(nameless, known, now=NOW, skew=SKEW) is Refusal.UNKNOWN_KEY


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JWK set"),
        (b"[]", "no JWK set"),
        (b'{"keys": {}}', "no JWK set"),
        (b'{"keys": [1]}', "no JWK set"),
        (b'{"keys": [], "keys": []}', "twice"),
        (b'{"keys": []}', "no Ed25519 key"),
        (b" " * 65_537, "larger"),
        (jwks(*([jwk()] * 33)), "more than 32"),
        (jwks(jwk(), jwk(OTHER)), "the kid of another"),
        (jwks(jwk(d="AAAA")), "private"),
        (jwks({"kty": "oct", "k": "AAAA"}), "private"),
        (jwks(jwk(x=b64(bytes(32)))), "prime-order"),
        (jwks(jwk(x=b64(b"\1" + bytes(31)))), "prime-order"),
        (jwks(jwk(x=b64(raw(KEY)) + "=")), "canonical"),
        (jwks(jwk(x="AAAA")), "32 bytes"),
        (jwks(jwk(x=None)), "missing"),
        (jwks(jwk(kid="")), "kid must be"),
        (jwks(jwk(kid=1)), "kid must be"),
    ],
)
def test_a_key_set_that_is_refused(data: bytes, said: str) -> None:
    """10.2, 2.4: a set comes into force as a whole or not at all; weak keys never."""
    with pytest.raises(KeysRefused, match=said):
        parse_keys(data)
