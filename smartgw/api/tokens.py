"""Who a bearer token says its caller is, and whether that may be believed (contract 10.2).

Owns what a token must look like and what its claims mean: EdDSA of Ed25519 and nothing else, by a
key of its issuer, for our audience, in its time. PyJWT does the signature, over bytes that one
reader only can read in one way only. Does not fetch keys (credentials.py), nor know who may do
what.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jwt import InvalidTokenError, PyJWS

from smartgw_hosts.identity import PublicKey, decode64
from smartgw_hosts.strict_json import parse_object

ALGORITHM: Final = "EdDSA"
MAX_TOKEN_BYTES: Final = 8_192
MAX_JWKS_BYTES: Final = 65_536
MAX_KEYS: Final = 32
_MAX_NAME: Final = 256
# RFC 8725 3.11: a token of another kind, such as a logout token, is no credential.
_KINDS: Final = frozenset(("jwt", "at+jwt", "application/at+jwt"))
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] ([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)")
# Signed by a key that nobody trusts: verified where there is nothing to verify, so that how long
# a refusal takes tells nothing (10.1).
_DECOY_KEY = Ed25519PublicKey.from_public_bytes(
    bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
)
_DECOY_TOKEN = f"eyJhbGciOiJFZERTQSJ9.{'QUFB' * 60}.{'A' * 85}Q"


_JWS = PyJWS()


class Role(StrEnum):
    """What a caller is."""

    SERVICE = "service"
    SESSION = "session"


class Refusal(StrEnum):
    """Why a credential does not count; told to operators, never to the caller."""

    MISSING = "missing"
    MALFORMED = "malformed"
    WRONG_ALGORITHM = "wrong_algorithm"
    UNKNOWN_ISSUER = "unknown_issuer"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    WRONG_AUDIENCE = "wrong_audience"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    BAD_CLAIMS = "bad_claims"
    ROLE_NOT_GRANTED = "role_not_granted"
    NOT_A_SERVICE = "not_a_service"


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody whose credential holds.

    Attributes:
        issuer: who vouches for it; "operator" for the token of this machine's operator.
        subject: whom it names, 1 to 256 characters.
        session_id: of a session its `sid`, else its subject: with the issuer, who it is in limits
            and quotas, whatever token it shows (contract 8.5).
    """

    role: Role
    issuer: str
    subject: str
    session_id: str


class KeysRefused(ValueError):
    """A JWK set that must not come into force; the text says why."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The Ed25519 keys of one issuer: `named` by key id, `nameless` those without one."""

    named: Mapping[str, Ed25519PublicKey]
    nameless: tuple[Ed25519PublicKey, ...]

    def find(self, kid: str | None) -> Ed25519PublicKey | None:
        """Return the one key that a token means: that of its key id, or the only one there is."""
        if kid is not None:
            found = self.named.get(kid)
            if found is not None or self.named or len(self.nameless) != 1:
                return found
            return self.nameless[0]
        keys = (*self.named.values(), *self.nameless)
        return keys[0] if len(keys) == 1 else None


NO_KEYS: Final = KeySet({}, ())


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer whose tokens count.

    Attributes:
        name, audience: what `iss` and `aud` must be, exactly.
        roles: which it may grant; where it is one only, a token need not name it.
    """

    name: str
    audience: str
    roles: frozenset[Role]
    keys: KeySet


def parse_keys(data: bytes) -> KeySet:
    """Read a JWK set (RFC 7517, RFC 8037). Keys of other kinds are passed over.

    Raises KeysRefused: too large, not JSON, a private key, a key that is not usable (contract
    2.4), two of one id, or none left.
    """
    if len(data) > MAX_JWKS_BYTES:
        raise KeysRefused(f"is larger than {MAX_JWKS_BYTES} bytes")
    try:
        keys = parse_object(data).get("keys")
    except ValueError as error:
        raise KeysRefused(f"is no JWK set: {error}") from None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise KeysRefused('is no JWK set: write {"keys": [...]}')
    if len(keys) > MAX_KEYS:
        raise KeysRefused(f"has more than {MAX_KEYS} keys")
    named: dict[str, Ed25519PublicKey] = {}
    nameless: list[Ed25519PublicKey] = []
    for number, jwk in enumerate(keys, 1):
        if {"d", "k", "p", "q"} & jwk.keys():
            raise KeysRefused(f"key {number} is a private one, which is nobody else's business")
        if not _is_for_us(jwk):
            continue
        key, kid = _key(number, jwk.get("x")), jwk.get("kid")
        if kid is None:
            nameless.append(key)
        elif not isinstance(kid, str) or not 1 <= len(kid) <= _MAX_NAME:
            raise KeysRefused(f"key {number}: kid must be 1 to {_MAX_NAME} characters of text")
        elif kid in named:
            raise KeysRefused(f"key {number} has the kid of another")
        else:
            named[kid] = key
    if not named and not nameless:
        raise KeysRefused("holds no Ed25519 key for signatures")
    return KeySet(named, tuple(nameless))


def _is_for_us(jwk: Mapping[str, object]) -> bool:
    operations = jwk.get("key_ops", ["verify"])
    return (
        jwk.get("kty") == "OKP"
        and jwk.get("crv") == "Ed25519"
        and jwk.get("use", "sig") == "sig"
        and jwk.get("alg", ALGORITHM) in (ALGORITHM, "Ed25519")
        and isinstance(operations, list)
        and "verify" in operations
    )


def _key(number: int, x: object) -> Ed25519PublicKey:
    try:
        if not isinstance(x, str):
            raise ValueError("x is missing")
        return Ed25519PublicKey.from_public_bytes(PublicKey(decode64(x)).value)
    except ValueError as error:
        raise KeysRefused(f"key {number}: {error}") from None


def bearer(fields: Sequence[str]) -> str | Refusal:
    """Return the token of a request's Authorization fields (RFC 6750 2.1), or why there is none."""
    if not fields:
        return Refusal.MISSING
    found = _BEARER.fullmatch(fields[0])
    if len(fields) > 1 or found is None or len(found[1]) > MAX_TOKEN_BYTES:
        return Refusal.MALFORMED
    return found[1]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a token says of itself before it is verified: enough to find its key."""

    issuer: str
    kid: str | None


def claimed(token: str) -> Claimed | Refusal:
    """Return whose key would verify a token, or why none can."""
    try:
        header_part, payload_part, _ = token.split(".")
        header = parse_object(decode64(header_part))
        payload = parse_object(decode64(payload_part))
    except ValueError:
        return Refusal.MALFORMED
    if header.get("alg") != ALGORITHM:
        return Refusal.WRONG_ALGORITHM
    kid, kind = header.get("kid", ""), header.get("typ", "JWT")
    issuer = payload.get("iss")
    if not isinstance(kid, str) or not isinstance(kind, str) or not isinstance(issuer, str):
        return Refusal.MALFORMED
    if kind.lower() not in _KINDS or {"crit", "b64"} & header.keys():
        return Refusal.MALFORMED
    return Claimed(issuer, kid or None)


def judge(
    token: str | Refusal, issuers: Mapping[str, Issuer], *, now: float, skew: float
) -> Caller | Refusal:
    """Say who calls, or why that is not known. `now` is Unix seconds, `skew` seconds.

    Whatever the token is, exactly one signature is verified.
    """
    found = token if isinstance(token, Refusal) else claimed(token)
    issuer = key = None
    refusal = found if isinstance(found, Refusal) else None
    if isinstance(found, Claimed):
        issuer = issuers.get(found.issuer)
        key = None if issuer is None else issuer.keys.find(found.kid)
        if issuer is None:
            refusal = Refusal.UNKNOWN_ISSUER
        elif key is None:
            refusal = Refusal.UNKNOWN_KEY
    if refusal is not None or key is None or issuer is None or isinstance(token, Refusal):
        _verified(_DECOY_TOKEN, _DECOY_KEY)
        return refusal or Refusal.MALFORMED
    payload = _verified(token, key)
    if payload is None:
        return Refusal.BAD_SIGNATURE
    return _caller(parse_object(payload), issuer, now, skew)


def _verified(token: str, key: Ed25519PublicKey) -> bytes | None:
    """Return the payload that `key` has signed. The algorithm is that of the key's type."""
    try:
        payload: bytes = _JWS.decode_complete(token, key, algorithms=[ALGORITHM])["payload"]
    except InvalidTokenError:
        return None
    return payload


def _caller(claims: Mapping[str, Any], issuer: Issuer, now: float, skew: float) -> Caller | Refusal:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(one, str) for one in audiences) or len(audiences) > MAX_KEYS:
        return Refusal.BAD_CLAIMS
    expires = _time(claims.get("exp"))
    begins, issued = (_time(claims.get(name, 0)) for name in ("nbf", "iat"))
    subject, session_id = claims.get("sub"), claims.get("sid", claims.get("sub"))
    if expires is None or begins is None or issued is None:
        return Refusal.BAD_CLAIMS
    if not _is_name(subject) or not _is_name(session_id):
        return Refusal.BAD_CLAIMS
    if issuer.audience not in audiences:
        return Refusal.WRONG_AUDIENCE
    if now >= expires + skew:
        return Refusal.EXPIRED
    if now < max(begins, issued) - skew:
        return Refusal.NOT_YET_VALID
    role = claims.get("role", next(iter(issuer.roles)) if len(issuer.roles) == 1 else None)
    if not isinstance(role, str) or role not in issuer.roles:
        return Refusal.ROLE_NOT_GRANTED
    return Caller(Role(role), issuer.name, str(subject), str(session_id))


def _time(value: object) -> float | None:
    """Return a NumericDate (RFC 7519 2); a year that no clock shows is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(value) if 0 <= value < 1 << 40 else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= _MAX_NAME and value.isprintable()
