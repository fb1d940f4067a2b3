"""forwarding.py: marks that prove themselves, and what is wrong with all others."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from smartgw.routing.forwarding import (
    MAX_AGE_MS,
    MAX_COUNTER,
    MAX_REMAINING_MS,
    NONCE_BYTES,
    Keyring,
    Kind,
    Mark,
    MarkFault,
    PairKey,
    pair_key,
    seal,
    unseal,
)
from smartgw_hosts.identity import Identity
from tests.forwarders import altered, said

_VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "forwarding.json").read_text("utf-8")
)
_C1, _C2, _C3, _SPARE = (Identity.from_seed(bytes([n]) * 32) for n in range(1, 5))
_NONCE = bytes(range(NONCE_BYTES))
_NOW = 1_750_000_000_000
_MARK = Mark(
    sender="c1",
    audience="c2",
    kind=Kind.AFFINITY,
    client="203.0.113.9",
    scheme=b"https",
    app_id="shop",
    epoch="0123456789abcdef",
    time_ms=_NOW,
    remaining_ms=29_500,
    counter=7,
)
_AT = (b"GET", b"shop.example", b"/a%2Fb?x=1")


def _ring(cluster: str, *mine: Identity, before: Keyring | None = None, **peers: Any) -> Keyring:
    """A ring with each peer's keys as tuples of identities."""
    keys = {name: tuple(one.public_key for one in each) for name, each in peers.items()}
    return Keyring(cluster, mine, keys, before)


_SENDER = _ring("c1", _C1, c2=(_C2,), c3=(_C3,))
_RECEIVER = _ring("c2", _C2, c1=(_C1,), c3=(_C3,))


def _key(ring: Keyring, peer: str, place: int = 0) -> PairKey:
    key = ring.sent_under(peer, ring.offers(peer)[place])
    assert key is not None
    return key


_VALUE = seal(_key(_SENDER, "c2"), _MARK, *_AT, _NONCE)


def _unseal(value: bytes, ring: Keyring = _RECEIVER, **changes: Any) -> Mark | MarkFault:
    facts = {
        **{"method": _AT[0], "authority": _AT[1], "target": _AT[2], "nonce": _NONCE},
        **{"last_counter": 6, "now_ms": _NOW},
    }
    return unseal(value, ring, **{**facts, **changes})


_marks = st.builds(
    Mark,
    sender=st.just("c1"),
    audience=st.just("c2"),
    kind=st.sampled_from(Kind),
    client=st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str).filter(lambda text: "::ffff:" not in text),
    ),
    scheme=st.sampled_from((b"http", b"https")),
    app_id=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=64),
    epoch=st.binary(min_size=8, max_size=8).map(bytes.hex),
    time_ms=st.integers(_NOW - MAX_AGE_MS, _NOW + MAX_AGE_MS),
    remaining_ms=st.integers(0, MAX_REMAINING_MS),
    counter=st.integers(7, MAX_COUNTER),
)


# ---- the scheme, from its description alone ----


def _u_coordinate(key: bytes) -> bytes:
    """RFC 7748 4.1: u = (1 + y) / (1 - y) mod 2^255 - 19."""
    p = (1 << 255) - 19
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)
    return ((1 + y) * pow(1 - y, -1, p) % p).to_bytes(32, "little")


def _lengths(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(4, "big") for field in fields) + b"".join(fields)


def _by_the_book(vector: dict[str, Any]) -> dict[str, str]:
    """Everything of a vector computed as docs/forwarding.md says, with another library."""
    seeds = [bytes.fromhex(vector[name]) for name in ("sender_seed", "receiver_seed")]
    keys = [Identity.from_seed(seed).public_key.value for seed in seeds]
    scalar = hashlib.sha512(seeds[0]).digest()[:32]
    shared = X25519PrivateKey.from_private_bytes(scalar).exchange(
        X25519PublicKey.from_public_bytes(_u_coordinate(keys[1]))
    )
    pair = b"smartgw/forward-key/v1" + _lengths(
        *(vector["sender"].encode(), keys[0], vector["receiver"].encode(), keys[1])
    )
    secret = hashlib.blake2b(pair, key=shared, digest_size=32).digest()
    key_id = hashlib.blake2b(pair, digest_size=8).digest()
    client = bytes.fromhex(vector["client_bytes"])
    app, audience = vector["app_id"].encode(), vector["receiver"].encode()
    fields = b"".join(
        (
            *(b"\x01", key_id, bytes([("affinity", "failover").index(vector["kind"]) + 1])),
            *(bytes([("http", "https").index(vector["scheme"]) + 1]),),
            *(bytes.fromhex(vector["epoch"]), vector["time_ms"].to_bytes(8, "big")),
            *(vector["remaining_ms"].to_bytes(4, "big"), vector["counter"].to_bytes(8, "big")),
            *(bytes([len(client)]), client, bytes([len(audience)]), audience),
            *(len(app).to_bytes(2, "big"), app),
        )
    )
    nonce = bytes.fromhex(vector["nonce"])
    covered = _lengths(*(vector[n].encode() for n in ("method", "authority", "target")), nonce)

    def tag(data: bytes, use: bytes) -> bytes:
        return hashlib.blake2b(data, key=secret, digest_size=16, person=use).digest()

    proof = tag(_lengths(bytes.fromhex(vector["sender_nonce"]), nonce, b"", b""), b"smartgw-link")
    value = base64.b64encode(fields + tag(covered + fields, b"smartgw-mark"))
    return {"key_id": key_id.hex(), "link_tag": proof.hex(), "value": value.decode()}


@pytest.mark.parametrize("vector", _VECTORS, ids=lambda vector: vector["name"])
def test_a_vector(vector: dict[str, Any]) -> None:
    """4.5: the field, its key and its tag are as docs/forwarding.md says."""
    assert {name: vector[name] for name in ("key_id", "link_tag", "value")} == _by_the_book(vector)
    ends = vector["sender"], vector["receiver"]
    seeds = [bytes.fromhex(vector[name]) for name in ("sender_seed", "receiver_seed")]
    mine, theirs = (Identity.from_seed(seed) for seed in seeds)
    key = pair_key(*ends, mine, theirs.public_key, sending=True)
    names = ("client", "app_id", "epoch", "time_ms", "remaining_ms", "counter")
    mark = Mark(
        *ends,
        Kind(vector["kind"]),
        scheme=vector["scheme"].encode(),
        **{name: vector[name] for name in names},
    )
    nonce = bytes.fromhex(vector["nonce"])
    at = (vector["method"].encode(), vector["authority"].encode(), vector["target"].encode())
    value = vector["value"].encode()
    assert key.key_id.hex() == vector["key_id"]
    assert seal(key, mark, *at, nonce) == value
    assert key.link_tag(bytes.fromhex(vector["sender_nonce"]), nonce).hex() == vector["link_tag"]
    ring = Keyring(ends[1], [theirs], {ends[0]: [mine.public_key]})
    before = vector["counter"] - 1
    assert said(unseal(value, ring, *at, nonce, before, vector["time_ms"])) == said(mark)


# ---- marks ----


@given(_marks)
def test_a_mark_comes_out_as_it_went_in(mark: Mark) -> None:
    """4.5: the receiver reads what the sender said, every field of it."""
    assert said(_unseal(seal(_key(_SENDER, "c2"), mark, *_AT, _NONCE))) == said(mark)


@given(_marks, st.data())
def test_a_changed_bit_is_refused(mark: Mark, data: st.DataObject) -> None:
    """4.5: each bit of the mark counts."""
    raw = bytearray(base64.b64decode(seal(_key(_SENDER, "c2"), mark, *_AT, _NONCE)))
    place = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[place // 8] ^= 1 << place % 8
    assert isinstance(_unseal(base64.b64encode(raw)), MarkFault)


def test_each_single_bit_is_refused() -> None:
    """4.5: altered in any one bit, a mark is none; which tells only how far it was read."""
    raw = base64.b64decode(_VALUE)
    faults = []
    for place in range(len(raw) * 8):
        changed = bytearray(raw)
        changed[place // 8] ^= 1 << place % 8
        faults.append(_unseal(base64.b64encode(changed)))
    assert set(faults) == {MarkFault.MALFORMED, MarkFault.UNKNOWN_KEY, MarkFault.BAD_TAG}


@given(st.sampled_from(("method", "authority", "target", "nonce")), st.data())
def test_a_mark_holds_for_its_request_only(name: str, data: st.DataObject) -> None:
    """4.5: method, authority, target and link nonce are bound, each bit of them."""
    value = dict(zip(("method", "authority", "target", "nonce"), (*_AT, _NONCE), strict=True))[name]
    changed = bytearray(value)
    place = data.draw(st.integers(0, len(value) * 8 - 1))
    changed[place // 8] ^= 1 << place % 8
    bound: dict[str, Any] = {name: bytes(changed)}
    assert _unseal(_VALUE, **bound) is MarkFault.BAD_TAG


def test_bytes_cannot_move_from_one_bound_field_to_the_next() -> None:
    """4.5: what is bound is bound field by field."""
    assert _unseal(_VALUE, method=b"GETs", authority=b"hop.example") is MarkFault.BAD_TAG
    assert _unseal(_VALUE, authority=b"shop.example/a", target=b"%2Fb?x=1") is MarkFault.BAD_TAG


@given(st.binary(max_size=700))
def test_no_bytes_raise(value: bytes) -> None:
    """4.5: whatever stands in the field, it is an answer and not an error."""
    assert isinstance(_unseal(value), MarkFault)


@given(st.binary(max_size=330))
def test_nothing_well_formed_passes_without_the_key(fields: bytes) -> None:
    """4.5: who has not the key makes no mark, though he knows its id."""
    raw = b"\x01" + _key(_SENDER, "c2").key_id + fields
    assert isinstance(_unseal(base64.b64encode(raw)), MarkFault)


@pytest.mark.parametrize(
    "value",
    [
        *(_VALUE + b"=", b" " + _VALUE, _VALUE + b"\n", _VALUE[:-4]),
        *(base64.urlsafe_b64encode(base64.b64decode(_VALUE)) + b"-", b"", b"A" * 5_000),
        b":" + _VALUE + b":",
    ],
)
def test_a_mark_has_one_spelling(value: bytes) -> None:
    """4.5: one mark is one text, so that nobody reads it in another way."""
    assert _unseal(value) in (MarkFault.MALFORMED, MarkFault.BAD_TAG)


def test_spare_bits_are_no_second_spelling() -> None:
    """4.5: bits of the last character that stand for nothing must be zero."""
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    value = seal(_key(_SENDER, "c2"), altered(_MARK, app_id="shop2"), *_AT, _NONCE)
    if not value.endswith(b"="):
        value = seal(_key(_SENDER, "c2"), altered(_MARK, app_id="shop23"), *_AT, _NONCE)
    body = value.rstrip(b"=")
    other = alphabet[alphabet.index(body[-1]) ^ 1]
    spelled = body[:-1] + bytes([other]) + value[len(body) :]
    assert base64.b64decode(spelled) == base64.b64decode(value)
    assert isinstance(_unseal(value), Mark)
    assert _unseal(spelled) is MarkFault.MALFORMED
    assert _unseal(body) is MarkFault.MALFORMED


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"now_ms": _NOW + MAX_AGE_MS + 1}, MarkFault.STALE),
        ({"now_ms": _NOW - MAX_AGE_MS - 1}, MarkFault.STALE),
        ({"now_ms": _NOW + 61_000}, MarkFault.STALE),
        ({"last_counter": 7}, MarkFault.REPLAYED),
        ({"last_counter": 8}, MarkFault.REPLAYED),
        ({"nonce": b""}, MarkFault.NO_LINK),
        ({"nonce": b"x" * NONCE_BYTES}, MarkFault.BAD_TAG),
        ({"ring": _ring("c3", _C3, c1=(_C1,))}, MarkFault.UNKNOWN_KEY),
        ({"ring": _ring("c2", _C2, c3=(_C3,))}, MarkFault.UNKNOWN_KEY),
        ({"ring": _ring("c2", _SPARE, c1=(_C1,))}, MarkFault.UNKNOWN_KEY),
    ],
)
def test_a_refusal_says_why(changes: dict[str, Any], fault: MarkFault) -> None:
    """4.5: tag, audience, time and counter are checked; each refusal has its reason."""
    assert _unseal(_VALUE, **changes) is fault


def test_a_mark_serves_once() -> None:
    """4.5: the same mark again on the same link is a replay, at once and later."""
    assert said(_unseal(_VALUE, last_counter=6)) == said(_MARK)
    assert _unseal(_VALUE, last_counter=7, now_ms=_NOW + 1_000) is MarkFault.REPLAYED
    assert _unseal(_VALUE, last_counter=7, now_ms=_NOW + 61_000) is MarkFault.STALE


def test_the_edges_of_time_are_in() -> None:
    """4.5: 30 s early and late are within."""
    for now in (_NOW - MAX_AGE_MS, _NOW + MAX_AGE_MS):
        assert said(_unseal(_VALUE, now_ms=now)) == said(_MARK)


def test_a_mark_for_another_is_refused_though_its_tag_is_good() -> None:
    """4.5: the audience is checked for itself."""
    as_c9 = pair_key("c1", "c9", _C1, _C2.public_key, sending=True)
    value = seal(as_c9, altered(_MARK, audience="c9"), *_AT, _NONCE)

    class Mistaken(Keyring):
        def received_under(self, name: bytes) -> PairKey | None:
            return as_c9 if name == as_c9.key_id else None

    ring = Mistaken("c2", [_C2], {"c1": [_C1.public_key]})
    assert _unseal(value, ring) is MarkFault.OTHER_AUDIENCE


@pytest.mark.parametrize(
    "mark",
    [
        altered(_MARK, sender="c3"),
        altered(_MARK, audience="c3"),
        altered(_MARK, counter=0),
        altered(_MARK, counter=MAX_COUNTER + 1),
        altered(_MARK, remaining_ms=-1),
        altered(_MARK, remaining_ms=MAX_REMAINING_MS + 1),
        altered(_MARK, client="unix"),
        altered(_MARK, epoch="xyz"),
    ],
)
def test_a_mark_out_of_bounds_is_not_made(mark: Mark) -> None:
    """4.5: a sender learns of its own mistakes, and not by refusals elsewhere."""
    with pytest.raises(ValueError, match=r"."):
        seal(_key(_SENDER, "c2"), mark, *_AT, _NONCE)


def test_an_address_has_one_form() -> None:
    """6.1: an IPv4-mapped address counts as the IPv4 one that it holds."""
    value = seal(_key(_SENDER, "c2"), altered(_MARK, client="::ffff:203.0.113.9"), *_AT, _NONCE)
    assert value == _VALUE
    value = seal(_key(_SENDER, "c2"), altered(_MARK, client="2001:DB8:0::1"), *_AT, _NONCE)
    mark = _unseal(value)
    assert isinstance(mark, Mark)
    assert mark.client == "2001:db8::1"


# ---- keys ----


def test_both_ends_have_the_same_key_and_each_direction_its_own() -> None:
    """4.5: the two clusters compute one key for a direction, of their identities alone."""
    there = _key(_SENDER, "c2")
    at_receiver = _RECEIVER.received_under(there.key_id)
    assert at_receiver is not None
    assert at_receiver.mark_tag(b"x") == there.mark_tag(b"x")
    back = _key(_RECEIVER, "c1")
    assert back.key_id != there.key_id
    assert back.mark_tag(b"x") != there.mark_tag(b"x")


def test_a_mark_cannot_be_turned_back_at_its_sender() -> None:
    """4.5: what one cluster sends to another proves nothing in the other direction."""
    assert _unseal(_VALUE, _SENDER) is MarkFault.UNKNOWN_KEY


def test_a_key_is_bound_to_the_ids() -> None:
    """4.5: two clusters under other names share another key, though the identities are the same."""
    one = pair_key("c1", "c2", _C1, _C2.public_key, sending=True)
    other = pair_key("c", "1c2", _C1, _C2.public_key, sending=True)
    assert one.key_id != other.key_id
    assert one.mark_tag(b"x") != other.mark_tag(b"x")


def test_a_link_is_proven_by_the_receivers_key_over_both_nonces() -> None:
    """4.5: whoever gives a link nonce proves that it is the cluster that was meant."""
    key = _key(_SENDER, "c2")
    receiver = _RECEIVER.received_under(key.key_id)
    assert receiver is not None
    tag = receiver.link_tag(b"s" * 16, _NONCE)
    assert key.proves_link(b"s" * 16, _NONCE, tag)
    assert not key.proves_link(b"t" * 16, _NONCE, tag)
    assert not key.proves_link(b"s" * 16, b"t" * 16, tag)
    assert not key.proves_link(b"s" * 16, _NONCE, tag[:-1])
    assert not key.proves_link(b"s" * 16, _NONCE, b"")
    assert not _key(_SENDER, "c3").proves_link(b"s" * 16, _NONCE, tag)


def test_keys_are_replaced_without_a_gap() -> None:
    """4.3, 4.5: a cluster may have two keys, so that neither end has to change at the same time."""
    old, new = _C1, _SPARE
    for listed in ((old, new), (new, old)):
        receiver = _ring("c2", _C2, c1=listed)
        for mine in (old, new):
            value = seal(_key(_ring("c1", mine, c2=(_C2,)), "c2"), _MARK, *_AT, _NONCE)
            assert said(_unseal(value, receiver)) == said(_MARK)
    sender = _ring("c1", _C1, c2=(_C2, _SPARE))
    assert len(sender.offers("c2")) == 2
    for holds in ((_C2,), (_SPARE,), (_C2, _SPARE)):
        receiver = _ring("c2", *holds, c1=(_C1,))
        known = [name for name in sender.offers("c2") if receiver.received_under(name)]
        assert len(known) == len(holds)
        key = sender.sent_under("c2", known[0])
        assert key is not None
        assert said(_unseal(seal(key, _MARK, *_AT, _NONCE), receiver)) == said(_MARK)


def test_a_removed_cluster_is_refused_at_once() -> None:
    """4.5: with the list that no longer names it, a cluster's marks are none."""
    assert said(_unseal(_VALUE)) == said(_MARK)
    after = _ring("c2", _C2, before=_RECEIVER, c3=(_C3,))
    assert _unseal(_VALUE, after) is MarkFault.UNKNOWN_KEY
    assert after.offers("c1") == ()
    replaced = _ring("c2", _C2, before=_RECEIVER, c1=(_SPARE,))
    assert _unseal(_VALUE, replaced) is MarkFault.UNKNOWN_KEY


def test_a_new_list_keeps_the_work_of_the_last() -> None:
    """4.3: a list that changes a hundred times a second does not cost its keys each time."""
    key = _key(_SENDER, "c2")
    after = _ring("c1", _C1, before=_SENDER, c2=(_C2,))
    assert after.sent_under("c2", key.key_id) is key
    assert after.sent_under("c3", key.key_id) is None


def test_a_cluster_has_no_key_with_itself() -> None:
    """5.3: no gateway takes a mark of its own cluster, so none can be sent in a circle."""
    ring = _ring("c1", _C1, c1=(_C1,), c2=(_C2,))
    assert ring.offers("c1") == ()


def test_no_key_shows_its_secret() -> None:
    """House rule: secrets never stand in logs or errors."""
    assert repr(_key(_SENDER, "c2")).count("secret") == 0
