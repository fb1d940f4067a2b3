"""identity.py: which keys and signatures count."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_der_private_key
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.identity import (
    Identity,
    KeyRefused,
    PublicKey,
    decode64,
    encode64,
    valid_signature,
)

_CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "ed25519.json").read_text("utf-8")
)
_SEED = bytes(range(32))
_ALICE = Identity.from_seed(_SEED)
_CONTEXT = b"smartgw/test/v1"


def test_every_case_is_here() -> None:
    """2.4: keys and signatures that other libraries accept are among the cases."""
    assert len(_CASES) == 29
    assert [case["want"] for case in _CASES].count("accept") == 1


@pytest.mark.parametrize("case", _CASES, ids=lambda case: case["name"])
def test_ed25519_case(case: dict[str, Any]) -> None:
    """2.4: small-order and non-canonical keys are refused; verification is PyNaCl's."""
    key, challenge, signature = (
        bytes.fromhex(case[name]) for name in ("publicKey", "challenge", "signature")
    )
    try:
        PublicKey(key)
        usable = True
    except KeyRefused:
        usable = False
    assert (usable and valid_signature(key, challenge, signature)) == (case["want"] == "accept")
    if "key," in case["name"] or "-byte key" in case["name"] or "curve" in case["name"]:
        assert not usable


def test_a_key_of_mixed_order_is_refused() -> None:
    """2.4: a key with a part of small order verifies differently from library to library."""
    from nacl.bindings import crypto_core_ed25519_add

    order_two = bytes.fromhex("ec" + "ff" * 30 + "7f")
    mixed = crypto_core_ed25519_add(_ALICE.public_key.value, order_two)
    with pytest.raises(KeyRefused):
        PublicKey(mixed)


def test_text_forms() -> None:
    """2.4: one form is written, two are read, and both name the same key."""
    key = _ALICE.public_key
    assert key.text.startswith("ed25519:")
    assert len(key.text) == len("ed25519:") + 43
    assert PublicKey.parse(key.text) == key == PublicKey.parse(key.value.hex())
    assert PublicKey.parse(key.value.hex().upper()) == key
    assert str(key) == key.text
    assert repr(key) == f"PublicKey({key.text})"
    assert len(key.key_id) == 16
    assert int(key.key_id, 16) >= 0
    assert len({key, PublicKey.parse(key.text)}) == 1


def _noncanonical(text: str) -> str:
    """The same 32 bytes to a lenient decoder: 43 characters have two bits to spare."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return text[:-1] + alphabet[alphabet.index(text[-1]) + 1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ed25519:",
        _ALICE.public_key.text.removeprefix("ed25519:"),
        _ALICE.public_key.text + "=",
        _ALICE.public_key.text + "\n",
        " " + _ALICE.public_key.text,
        _ALICE.public_key.text + "A",
        _ALICE.public_key.text[:-1],
        _ALICE.public_key.text[:20] + "!" + _ALICE.public_key.text[20:],
        _ALICE.public_key.text.replace("ed25519", "ED25519"),
        _noncanonical(_ALICE.public_key.text),
        "ed25519:" + base64.b64encode(b"\xfb\xff" * 16).decode().rstrip("="),
        "ed25519:" + "é" * 43,
        "ed25519:" + _ALICE.public_key.value.hex(),
        _ALICE.public_key.value.hex() + "\n",
        _ALICE.public_key.value.hex()[:-2],
        "٣" * 64,
        "\ud800" * 64,
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """2.4: a key has one spelling in base64url."""
    with pytest.raises(KeyRefused):
        PublicKey.parse(text)


def test_a_refused_key_cannot_be_constructed() -> None:
    """2.4: refused means that no such value exists, however it is made."""
    for value in (b"", b"\0" * 32, b"\1" + b"\0" * 31, bytearray(_ALICE.public_key.value)):
        with pytest.raises(KeyRefused):
            PublicKey(value)  # type: ignore[arg-type]


@given(st.binary(max_size=80))
def test_base64_has_one_spelling(data: bytes) -> None:
    """1.2: what decodes re-encodes to the same text."""
    assert decode64(encode64(data)) == data


@given(st.text(max_size=50) | st.text("AQgw-_+/=\n", max_size=50))
def test_only_canonical_base64_is_read(text: str) -> None:
    """1.2: a text that does not re-encode to itself is refused."""
    try:
        data = decode64(text)
    except ValueError:
        return
    assert encode64(data) == text


@given(st.binary(max_size=300))
def test_a_signature_holds(message: bytes) -> None:
    """1.2: a host's signature is over the exact bytes with a context string."""
    signature = _ALICE.sign(_CONTEXT, message)
    assert len(signature) == 64
    assert _ALICE.public_key.verify(_CONTEXT, message, signature)
    assert not _ALICE.public_key.verify(b"smartgw/other/v1", message, signature)
    assert not _ALICE.public_key.verify(_CONTEXT, message + b"\0", signature)
    assert not Identity.from_seed(b"b" * 32).public_key.verify(_CONTEXT, message, signature)


@given(st.binary(), st.binary(), st.binary() | st.binary(min_size=64, max_size=64))
def test_verify_never_raises(context: bytes, message: bytes, signature: bytes) -> None:
    """1.2: whatever comes as a signature is a bad one, not an error."""
    assert not _ALICE.public_key.verify(context, message, signature)


@given(st.integers(0, 511))
def test_one_flipped_bit_is_enough(bit: int) -> None:
    """1.2: no second signature is made of a first one."""
    signature = int.from_bytes(_ALICE.sign(_CONTEXT, b"m"), "big") ^ (1 << bit)
    assert not _ALICE.public_key.verify(_CONTEXT, b"m", signature.to_bytes(64, "big"))


def test_a_context_cannot_be_moved_into_the_message() -> None:
    """1.2: one context a kind, so no signature serves twice."""
    signature = _ALICE.sign(b"a", b"b\0c")
    assert not _ALICE.public_key.verify(b"a\0b", b"c", signature)
    for context in (b"", b"a\0b"):
        with pytest.raises(ValueError, match="context"):
            _ALICE.sign(context, b"c")


def test_the_seed_is_never_shown() -> None:
    """2.1: a host's key is its own."""
    for shown in (repr(_ALICE), str(_ALICE), f"{_ALICE}", repr([_ALICE])):
        assert _SEED.hex() not in shown
        assert encode64(_SEED) not in shown
        assert repr(_SEED)[2:-1] not in shown
        assert _ALICE.public_key.text in shown


@pytest.mark.parametrize("seed", [b"", b"x" * 31, b"x" * 33, b"x" * 64])
def test_a_seed_has_32_bytes(seed: bytes) -> None:
    """2.1: RFC 8032 5.1.5."""
    with pytest.raises(ValueError, match="32 bytes"):
        Identity.from_seed(seed)


def test_the_private_key_is_given_in_the_standard_form() -> None:
    """9.5: one identity key, of the cluster; what speaks TLS with it reads RFC 8410."""
    key = load_der_private_key(_ALICE.pkcs8(), None)
    assert isinstance(key, Ed25519PrivateKey)
    assert key.public_key().public_bytes_raw() == _ALICE.public_key.value
