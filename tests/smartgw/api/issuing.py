"""An issuer of tokens for tests: its keys, its JWK set, and tokens of every kind, good and bad."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from smartgw.config_fields import Auth

NAME = "https://platform.example"
AUDIENCE = "smartgw"
API = "api.smart-app.test"


def b64(data: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def key_of(kid: str) -> Ed25519PrivateKey:
    """The same key for the same id."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(kid.encode()).digest())


def raw(kid: str) -> bytes:
    """The public key's 32 bytes."""
    return key_of(kid).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def key_set(*kids: str) -> bytes:
    """A JWK set with these keys."""
    keys = [{"kty": "OKP", "crv": "Ed25519", "x": b64(raw(kid)), "kid": kid} for kid in kids]
    return json.dumps({"keys": keys}).encode()


def token(role: str = "service", *, kid: str = "k1", **changes: Any) -> str:
    """A token; `changes` are laid over its claims, None takes one out."""
    now = time.time()
    claims = {"iss": NAME, "aud": AUDIENCE, "sub": "tests", "exp": now + 600, "role": role}
    claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
    return jwt.encode(claims, key_of(kid), "EdDSA", headers={"kid": kid})


def by_hand(header: Mapping[str, Any], claims: Mapping[str, Any], secret: bytes | None) -> str:
    """A token with any header, signed with HMAC-SHA256 of `secret`, or not at all."""
    signed = ".".join(b64(json.dumps(part).encode()) for part in (header, claims))
    mac = b"" if secret is None else hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{b64(mac)}"


def forged() -> dict[str, list[str]]:
    """Authorization fields of everybody who is no service, by what is wrong."""
    claims = {"iss": NAME, "aud": AUDIENCE, "sub": "tests", "exp": 1 << 36, "role": "service"}
    public = key_of("k1").public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    stranger = jwt.encode(claims, key_of("stranger"), "EdDSA", headers={"kid": "k1"})
    good = token()
    head, payload, _ = good.split(".")
    return {
        "none": [],
        "empty": [""],
        "basic": ["Basic dGVzdHM6dGVzdHM="],
        "no token": ["Bearer"],
        "garbage": ["Bearer a.b.c"],
        "forged": [f"Bearer {stranger}"],
        "altered": [f"Bearer {head}.{payload[:-2]}AA.{good.split('.')[2]}"],
        "unsigned": [f"Bearer {head}.{payload}."],
        "expired": [f"Bearer {token(exp=time.time() - 3600)}"],
        "not yet": [f"Bearer {token(nbf=time.time() + 3600)}"],
        "wrong audience": [f"Bearer {token(aud='other')}"],
        "wrong issuer": [f"Bearer {token(iss='https://evil.example')}"],
        "alg none": [f"Bearer {by_hand({'alg': 'none', 'kid': 'k1'}, claims, None)}x"],
        "HS256 with the public key": [
            f"Bearer {by_hand({'alg': 'HS256', 'kid': 'k1'}, claims, raw('k1'))}"
        ],
        "HS256 with its PEM": [f"Bearer {by_hand({'alg': 'HS256', 'kid': 'k1'}, claims, pem)}"],
        "twice": [f"Bearer {good}", f"Bearer {good}"],
        "session": [f"Bearer {token('session')}"],
    }


def auth(folder: Path, *kids: str) -> Auth:
    """Settings with the one issuer, its keys in a file."""
    path = folder / "issuer.jwks.json"
    path.write_bytes(key_set(*(kids or ("k1",))))
    return Auth.model_validate(
        {"issuer": [{"issuer": NAME, "jwks_file": path, "roles": ["service", "session"]}]}
    )


def settings(folder: Path) -> dict[str, Any]:
    """The sections of a gateway's configuration that let the tests' services control it."""
    path = folder / "issuer.jwks.json"
    path.write_bytes(key_set("k1"))
    issuer = {"issuer": NAME, "jwks_file": str(path), "roles": ["service", "session"]}
    return {
        "hostnames": [API],
        "auth": {"issuer": [issuer]},
        "log": {"access": "off", "audit": str(folder / "audit.jsonl")},
        "state": {"bucket": "smartgw"},
    }
