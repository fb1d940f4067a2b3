"""Tokens and key sets as an issuer of one's own makes them, for development and the demo (10.2).

Owns their form. Reads no key and no clock. In production an identity provider does this.
"""

import json
from collections.abc import Sequence
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_der_private_key

from smartgw.api.tokens import ALGORITHM, Role
from smartgw_hosts.identity import Identity, PublicKey, encode64

ISSUER: Final = "smartgw-development"
AUDIENCE: Final = "smartgw"


def key_set(keys: Sequence[PublicKey]) -> str:
    """Return a JWK set (RFC 7517, RFC 8037) of public keys, each under its key id."""
    members = [
        {
            "kty": "OKP",
            "crv": "Ed25519",
            "use": "sig",
            "alg": ALGORITHM,
            "kid": key.key_id,
            "x": encode64(key.value),
        }
        for key in keys
    ]
    return json.dumps({"keys": members}, indent=2) + "\n"


def mint(
    identity: Identity,
    role: Role,
    subject: str,
    *,
    now: float,
    ttl: float,
    issuer: str = ISSUER,
    audience: str = AUDIENCE,
    session_id: str | None = None,
) -> str:
    """Return a token that counts from `now`, Unix seconds, for `ttl` seconds."""
    key = load_der_private_key(identity.pkcs8(), None)
    assert isinstance(key, Ed25519PrivateKey)
    claims: dict[str, object] = {
        "iss": issuer,
        "aud": audience,
        "sub": subject,
        "role": role.value,
        "iat": int(now),
        "exp": int(now + ttl),
    }
    if session_id is not None:
        claims["sid"] = session_id
    return jwt.encode(claims, key, ALGORITHM, headers={"kid": identity.public_key.key_id})
