"""Ed25519 keys: who a host is, and what it means that it signed something.

Owns the text form of keys, which keys are refused, and the domain separation of everything
that is signed: always `context + NUL + message`. PyNaCl does the cryptography, because other
libraries accept forged signatures for small-order keys. Does not read or write files
(keyfile.py), nor decide whose key is trusted (enrolment.py).
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

from nacl.bindings import (
    crypto_core_ed25519_is_valid_point,
    crypto_scalarmult,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_open,
)
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey

KEY_BYTES = 32
SEED_BYTES = 32
SIGNATURE_BYTES = 64

# RFC 8410 section 7: OneAsymmetricKey, version 1, id-Ed25519, an OCTET STRING in one.
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
_PREFIX = "ed25519:"
_HEX = re.compile(r"[0-9A-Fa-f]{64}")


class KeyRefused(ValueError):
    """A public key that must not be used; the text says why."""


def encode64(data: bytes) -> str:
    """Write bytes as base64url without padding (RFC 4648 section 5)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode64(text: str) -> bytes:
    """Read base64url without padding; raises ValueError unless `encode64` gives `text` back.

    Python's decoder skips foreign characters and ignores spare bits, so that one value would
    have many spellings and could be sent twice as two.
    """
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (UnicodeEncodeError, binascii.Error):
        raise ValueError("not base64url") from None
    if encode64(data) != text:
        raise ValueError("not base64url in its one canonical spelling, without padding")
    return data


def valid_signature(key: bytes, signed: bytes, signature: bytes) -> bool:
    """Verify an Ed25519 signature over exactly `signed` (RFC 8032 5.1.7); never raises."""
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + signed, key)
    except BadSignatureError:
        return False
    return True


@lru_cache(maxsize=65_536)
def _is_usable_point(value: bytes) -> bool:
    """On the curve, canonical, of the prime-order subgroup (so never of small order).

    Remembered, because every heartbeat carries its host's key and the check costs as much as
    the signature does.
    """
    return crypto_core_ed25519_is_valid_point(value)


@lru_cache(maxsize=65_536)
def _key_bytes(text: str) -> bytes:
    """Read a key's text; raises KeyRefused. Remembered, because every heartbeat carries it."""
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    if not text.startswith(_PREFIX):
        raise KeyRefused("public key: must be ed25519:<base64url> or 64 hex digits")
    try:
        return decode64(text.removeprefix(_PREFIX))
    except ValueError as error:
        raise KeyRefused(f"public key: {error}") from None


@dataclass(frozen=True, slots=True, repr=False)
class PublicKey:
    """A usable Ed25519 public key, 32 bytes; one that is not cannot be constructed (2.4)."""

    value: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.value, bytes) or len(self.value) != KEY_BYTES:
            raise KeyRefused(f"public key: must be {KEY_BYTES} bytes")
        if not _is_usable_point(self.value):
            raise KeyRefused(
                "public key: not a canonical point of the prime-order group "
                "(off the curve, not canonical, or of small order)"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ed25519:<43 characters of base64url>` or 64 hex digits; raises KeyRefused."""
        return cls(_key_bytes(text))

    @property
    def text(self) -> str:
        """The one form in which we write a key: `ed25519:` and 43 characters."""
        return _PREFIX + encode64(self.value)

    @property
    def key_id(self) -> str:
        """16 hex digits that stand for the key in logs and status."""
        return hashlib.sha256(self.value).hexdigest()[:16]

    def verify(self, context: bytes, message: bytes, signature: bytes) -> bool:
        """Tell whether this key signed `message` under `context`; never raises for any bytes."""
        # With a NUL in it, a context could be read as a shorter one and the message's start.
        if not context or b"\0" in context:
            return False
        return valid_signature(self.value, context + b"\0" + message, signature)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"PublicKey({self.text})"


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A private key. Neither repr nor str shows it; only `pkcs8` gives it away."""

    public_key: PublicKey
    _signing_key: SigningKey = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> Self:
        """Make the identity of a 32-byte seed (RFC 8032 5.1.5); raises ValueError for others."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"seed: must be {SEED_BYTES} bytes, is {len(seed)}")
        signing_key = SigningKey(seed)
        return cls(PublicKey(bytes(signing_key.verify_key)), signing_key)

    def sign(self, context: bytes, message: bytes) -> bytes:
        """Sign `message` under `context`, a constant of its module that ends in `/v1`: 64 bytes.

        Raises ValueError for an empty context or one with a NUL in it.
        """
        if not context or b"\0" in context:
            raise ValueError("context: must not be empty or have a NUL in it")
        return self._signing_key.sign(context + b"\0" + message).signature

    def agree(self, peer: PublicKey) -> bytes:
        """Return the 32 bytes that only this identity and the peer's can compute: X25519 (RFC 7748
        section 6.1) of both keys' Curve25519 forms. Never a key as it is: derive from it, with a
        context and both public keys.
        """
        private = bytes(self._signing_key.to_curve25519_private_key())
        # A PublicKey is of the prime-order group, so this is never the all-zero secret.
        return crypto_scalarmult(private, crypto_sign_ed25519_pk_to_curve25519(peer.value))

    def pkcs8(self) -> bytes:
        """Return the private key as PKCS #8 in DER, for a library that speaks TLS as this identity.

        What TLS 1.3 signs begins with 64 spaces (RFC 8446 4.4.3), so it is never what `sign` signs.
        """
        return _PKCS8 + bytes(self._signing_key)
