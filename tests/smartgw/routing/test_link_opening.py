"""link_opening.py: both ends of a new connection prove themselves, or it carries nothing."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.routing.forwarding import NONCE_BYTES, Keyring, MarkFault
from smartgw.routing.link_opening import Opened, answer, opened, question
from smartgw_hosts.identity import Identity

_C1, _C1_NEXT, _C2, _C2_NEXT, _C3 = (Identity.from_seed(bytes([n]) * 32) for n in range(1, 6))
_ASKED = bytes(range(NONCE_BYTES))
_GIVEN = bytes(range(100, 100 + NONCE_BYTES))
_NOW = 1_750_000_000_000
_BITS = st.integers(min_value=0)


def _ring(cluster: str, *mine: Identity, **peers: tuple[Identity, ...]) -> Keyring:
    keys = {name: tuple(one.public_key for one in each) for name, each in peers.items()}
    return Keyring(cluster, mine, keys)


_SENDER = _ring("c1", _C1, c2=(_C2,), c3=(_C3,))
_RECEIVER = _ring("c2", _C2, c1=(_C1,), c3=(_C3,))


def _question(ring: Keyring = _SENDER, peer: str = "c2") -> bytes:
    value = question(ring, peer, _ASKED)
    assert value is not None
    return value


def _answer(value: bytes, ring: Keyring = _RECEIVER, **changes: Any) -> tuple[str, bytes]:
    found = answer(value, ring, _GIVEN, _NOW, changes.get("kept", 75.0))
    assert not isinstance(found, MarkFault), found
    return found


def _refused(value: bytes, ring: Keyring = _RECEIVER) -> MarkFault:
    found = answer(value, ring, _GIVEN, _NOW, 75.0)
    assert isinstance(found, MarkFault)
    return found


def _flipped(value: bytes, bit: int) -> bytes:
    raw = bytearray(base64.b64decode(value))
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    return base64.b64encode(raw)


def test_both_ends_know_each_other_and_the_nonce() -> None:
    """4.5: the link nonce is chosen by the receiver and given when a connection opens."""
    sender, told = _answer(_question())
    link = opened(told, _SENDER, "c2", _ASKED)
    assert isinstance(link, Opened)
    assert (sender, link.nonce, link.time_ms, link.kept) == ("c1", _GIVEN, _NOW, 75)
    assert (link.key.sender, link.key.receiver) == ("c1", "c2")
    assert link.key is _SENDER.sent_under("c2", *_SENDER.offers("c2"))
    assert question(_SENDER, "c4", _ASKED) is None


@given(bit=_BITS)
def test_an_altered_question_is_refused(bit: int) -> None:
    """4.5: whoever cannot prove a listed cluster's key gets no link nonce; each bit counts."""
    value = _flipped(_question(), bit)
    assert _refused(value) in (MarkFault.MALFORMED, MarkFault.UNKNOWN_KEY, MarkFault.BAD_TAG)


@given(bit=_BITS)
def test_an_altered_answer_is_refused(bit: int) -> None:
    """4.5: the sender believes no nonce, time or keep-alive but the receiver's own."""
    value = _flipped(_answer(_question())[1], bit)
    assert isinstance(opened(value, _SENDER, "c2", _ASKED), MarkFault)


@given(st.binary(max_size=200))
def test_garbage_is_refused_on_either_side(value: bytes) -> None:
    """4.5: nothing that comes from a stranger raises."""
    for said in (value, base64.b64encode(value)):
        assert isinstance(answer(said, _RECEIVER, _GIVEN, _NOW, 75.0), MarkFault)
        assert isinstance(opened(said, _SENDER, "c2", _ASKED), MarkFault)


def test_an_answer_serves_one_question_of_one_direction() -> None:
    """4.5: neither a recorded answer nor the question itself proves the receiver's key."""
    value = _question()
    _, told = _answer(value)
    assert opened(told, _SENDER, "c2", bytes(NONCE_BYTES)) is MarkFault.BAD_TAG
    assert opened(told, _SENDER, "c3", _ASKED) is MarkFault.UNKNOWN_KEY
    assert opened(value, _SENDER, "c2", _ASKED) is MarkFault.MALFORMED
    # Sent back to its sender it is of the other direction.
    assert _refused(value, _SENDER) is MarkFault.UNKNOWN_KEY


def test_strangers_and_removed_clusters_are_refused() -> None:
    """4.5: a key that the list does not name, or names no more, opens nothing."""
    stranger = _ring("c1", _C3, c2=(_C2,))
    assert _refused(_question(stranger)) is MarkFault.UNKNOWN_KEY
    assert _refused(_question(), _ring("c2", _C2, c3=(_C3,))) is MarkFault.UNKNOWN_KEY
    # Asked in c1's name, but without its key.
    forged = base64.b64decode(_question())[:-16] + bytes(16)
    assert _refused(base64.b64encode(forged)) is MarkFault.BAD_TAG


@pytest.mark.parametrize("mine", [_C2, _C2_NEXT])
@pytest.mark.parametrize("theirs", [_C1, _C1_NEXT])
def test_keys_are_replaced_with_overlap(mine: Identity, theirs: Identity) -> None:
    """4.3: up to two keys of a cluster, so that gateways may be given the next one by one."""
    sender = _ring("c1", theirs, c2=(_C2, _C2_NEXT))
    receiver = _ring("c2", mine, c1=(_C1, _C1_NEXT))
    told = _answer(_question(sender), receiver)[1]
    link = opened(told, sender, "c2", _ASKED)
    assert isinstance(link, Opened)
    assert receiver.received_under(link.key.key_id) is not None


@pytest.mark.parametrize(("kept", "told"), [(0.5, 1), (75.9, 75), (1e9, 65_535)])
def test_the_keep_alive_is_told_in_seconds(kept: float, told: int) -> None:
    """4.5: the sender ends idle connections before the receiver does."""
    link = opened(_answer(_question(), kept=kept)[1], _SENDER, "c2", _ASKED)
    assert isinstance(link, Opened)
    assert link.kept == told


def test_more_keys_than_two_clusters_can_have_are_malformed() -> None:
    """4.5: what a question costs is bounded."""
    raw = base64.b64decode(_question())
    assert _answer(base64.b64encode(raw + raw[17:] * 3))[0] == "c1"
    assert _refused(base64.b64encode(raw + raw[17:] * 4)) is MarkFault.MALFORMED
    assert _refused(base64.b64encode(raw[:17])) is MarkFault.MALFORMED
