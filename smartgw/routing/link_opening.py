"""How two gateways open a connection between them: each proves its cluster's key (contract 4.5).

Owns the two values that are said, and when either is refused: the sender's question, which nobody
but its cluster can make, and the receiver's answer with the link nonce, which nobody can make in
the receiver's place. Sends nothing: peers/opening.py and proxy/marks.py do.
"""

import binascii
from dataclasses import dataclass
from struct import Struct

from smartgw.routing.forwarding import (
    KEY_ID_BYTES,
    NONCE_BYTES,
    TAG_BYTES,
    Keyring,
    MarkFault,
    PairKey,
)

PATH = b"/.well-known/smartgw/link"

_VERSION = 1
_OFFER = Struct(f">{KEY_ID_BYTES}s{TAG_BYTES}s")
_MOST_OFFERS = 4
"""Either side may have two keys while they are being replaced."""
_QUESTION = Struct(f">B{NONCE_BYTES}s")
# version, key id, link nonce, the receiver's time in ms, seconds it keeps an idle connection, tag
_ANSWER = Struct(f">B{KEY_ID_BYTES}s{NONCE_BYTES}sQH{TAG_BYTES}s")
_TOLD = Struct(f">{NONCE_BYTES}sQH")
_MOST_KEPT = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A link whose other end has proven itself.

    Attributes:
        key: what requests on it are marked with.
        nonce: the receiver's, of this connection alone.
        time_ms: the receiver's clock when it answered: marks bear its time, so that neither side's
            clock need be right.
        kept: seconds that the receiver keeps the connection while nothing is sent on it.
    """

    key: PairKey
    nonce: bytes
    time_ms: int
    kept: int


def question(ring: Keyring, peer: str, nonce: bytes) -> bytes | None:
    """Return what the sender says first, in base64: `nonce`, which is random and used once, and a
    proof under each of its keys, since it cannot know which of the peer's keys a gateway has.

    None when there is no key for this peer. The proofs say nothing that could be used elsewhere;
    they spare the receiver all further work for strangers.
    """
    keys = [key for name in ring.offers(peer) if (key := ring.sent_under(peer, name))]
    if not keys:
        return None
    offers = [_OFFER.pack(key.key_id, key.link_tag(nonce, b"")) for key in keys[:_MOST_OFFERS]]
    return _encoded(_QUESTION.pack(_VERSION, nonce) + b"".join(offers))


def answer(
    value: bytes, ring: Keyring, link_nonce: bytes, now_ms: int, kept: float
) -> tuple[str, bytes] | MarkFault:
    """Judge a question: return the sender's cluster and what to answer, or what was wrong.

    Args:
        value: of the question's field, as it came.
        ring: our keys with the clusters that are listed now.
        link_nonce: `NONCE_BYTES` random bytes, for this connection only.
        now_ms: our clock; only we compare with it.
        kept: seconds that we keep an idle connection.
    """
    raw = _decoded(value)
    if raw is None or len(raw) < _QUESTION.size + _OFFER.size:
        return MarkFault.MALFORMED
    offers = raw[_QUESTION.size :]
    version, nonce = _QUESTION.unpack_from(raw)
    if version != _VERSION or len(offers) % _OFFER.size or len(offers) > _MOST_OFFERS * _OFFER.size:
        return MarkFault.MALFORMED
    known = ((ring.received_under(name), tag) for name, tag in _OFFER.iter_unpack(offers))
    key, tag = next((pair for pair in known if pair[0] is not None), (None, b""))
    if key is None:
        return MarkFault.UNKNOWN_KEY
    if not key.proves_link(nonce, b"", tag):
        return MarkFault.BAD_TAG
    told = _TOLD.pack(link_nonce, now_ms, max(1, min(int(kept), _MOST_KEPT)))
    proof = key.link_tag(nonce, told)
    return key.sender, _encoded(bytes((_VERSION,)) + key.key_id + told + proof)


def opened(value: bytes, ring: Keyring, peer: str, nonce: bytes) -> Opened | MarkFault:
    """Judge the answer to the question with `nonce`; `peer` is the cluster that was asked."""
    raw = _decoded(value)
    if raw is None or len(raw) != _ANSWER.size:
        return MarkFault.MALFORMED
    version, name, link_nonce, time_ms, kept, tag = _ANSWER.unpack(raw)
    if version != _VERSION:
        return MarkFault.MALFORMED
    key = ring.sent_under(peer, name)
    if key is None:
        return MarkFault.UNKNOWN_KEY
    if not key.proves_link(nonce, _TOLD.pack(link_nonce, time_ms, kept), tag):
        return MarkFault.BAD_TAG
    return Opened(key, link_nonce, time_ms, kept)


def _encoded(raw: bytes) -> bytes:
    return binascii.b2a_base64(raw, newline=False)


def _decoded(value: bytes) -> bytes | None:
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except binascii.Error:
        return None
