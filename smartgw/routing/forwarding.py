"""The signed mark of a forward: one gateway tells another who asks, and can prove it (4.5).

Owns the keys that two clusters share, the form of `x-smartgw-forward`, and when a mark is refused.
Does not decide what is forwarded (failover.py), keep connections, nor count what it refuses:
nonces, counters and times come in. docs/forwarding.md has the scheme and what it protects from.
"""

import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct

from smartgw_hosts.identity import Identity, PublicKey
from smartgw_hosts.ids import APP_ID_BYTES, check_app_id, check_id

NONCE_BYTES = 16
"""Length of the nonces of a link, the sender's and the receiver's."""
TAG_BYTES = 16
KEY_ID_BYTES = 8
MAX_AGE_MS = 30_000
"""How far the sender's clock may be from ours, either way (contract 4.5)."""
MAX_REMAINING_MS = (1 << 32) - 1
MAX_COUNTER = (1 << 64) - 1

_VERSION = 1
_CONTEXT = b"smartgw/forward-key/v1"
# Uses of one key, kept apart by BLAKE2's personalisation.
_FOR_MARKS, _FOR_LINKS = b"smartgw-mark", b"smartgw-link"
# version, key id, kind, scheme, epoch, time, remaining, counter, length of the client's address
_FIXED = Struct(">B8sBB8sQIQB")
_LENGTHS = Struct(">IIII")
_SHORTEST = _FIXED.size + 4 + 1 + 1 + 2 + 1 + TAG_BYTES
_LONGEST = _FIXED.size + 16 + 1 + 64 + 2 + APP_ID_BYTES + TAG_BYTES
_MAX_VALUE = (_LONGEST + 2) // 3 * 4


class Kind(StrEnum):
    """Why a request was forwarded."""

    AFFINITY = "affinity"
    FAILOVER = "failover"


class MarkFault(StrEnum):
    """Why a mark is refused; its request is then an ordinary one (contract 4.5)."""

    SEVERAL = "several"
    NO_LINK = "no_link"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    BAD_TAG = "bad_tag"
    OTHER_AUDIENCE = "other_audience"
    STALE = "stale"
    REPLAYED = "replayed"


_KINDS = {1: Kind.AFFINITY, 2: Kind.FAILOVER}
_KIND_CODES = {kind: code for code, kind in _KINDS.items()}
_SCHEMES = {1: b"http", 2: b"https"}
_SCHEME_CODES = {scheme: code for code, scheme in _SCHEMES.items()}


@dataclass(frozen=True, slots=True)
class Mark:
    """What one gateway tells another of a request that it forwards.

    Attributes:
        sender, audience: ids of the cluster that forwards and of the one that is to serve.
        client: IP address of the original caller, in its canonical text.
        scheme: b"http" or b"https", by which the caller came.
        epoch: the sender's, 16 hex digits (contract 4.3).
        time_ms: when it was made, Unix time in ms.
        remaining_ms: what is left of the request's deadline.
        counter: rises on the connection, from 1.
    """

    sender: str
    audience: str
    kind: Kind
    client: str
    scheme: bytes
    app_id: str
    epoch: str
    time_ms: int
    remaining_ms: int
    counter: int


@dataclass(frozen=True, slots=True, eq=False)
class PairKey:
    """What one cluster proves to another with, in one direction, under one key of each.

    Attributes:
        key_id: 8 bytes that name it, made of what is public.
        sender, receiver: the clusters' ids.
    """

    key_id: bytes
    sender: str
    receiver: str
    _secret: bytes = field(repr=False)

    def mark_tag(self, covered: bytes) -> bytes:
        """Return the tag of a mark over its fields and what it is bound to."""
        return _tag(self._secret, _FOR_MARKS, covered)

    def link_tag(self, sender_nonce: bytes, link_nonce: bytes) -> bytes:
        """Return what the receiver of a new connection proves its key with, and the link nonce
        that it gives.
        """
        return _tag(self._secret, _FOR_LINKS, _joined(sender_nonce, link_nonce, b"", b""))

    def proves_link(self, sender_nonce: bytes, link_nonce: bytes, tag: bytes) -> bool:
        """Say whether the other end of a new connection holds its cluster's key."""
        return hmac.compare_digest(self.link_tag(sender_nonce, link_nonce), tag)


def pair_key(
    sender: str, receiver: str, mine: Identity, peer: PublicKey, *, sending: bool
) -> PairKey:
    """Derive the key of one direction from one cluster's private and the other's public key.

    Both ends get the same: the one with `sending`, the other without. Costs about 0.1 ms.
    """
    keys = (mine.public_key, peer) if sending else (peer, mine.public_key)
    fields = _joined(sender.encode(), keys[0].value, receiver.encode(), keys[1].value)
    secret = hashlib.blake2b(_CONTEXT + fields, key=mine.agree(peer), digest_size=32).digest()
    return PairKey(key_id(sender, keys[0], receiver, keys[1]), sender, receiver, secret)


def key_id(sender: str, sender_key: PublicKey, receiver: str, receiver_key: PublicKey) -> bytes:
    """Return the id of a pair key, which says nothing that the directory does not."""
    fields = _joined(sender.encode(), sender_key.value, receiver.encode(), receiver_key.value)
    return hashlib.blake2b(_CONTEXT + fields, digest_size=KEY_ID_BYTES).digest()


class Keyring:
    """The pair keys between one cluster and those that a cluster list names; for one list.

    A cluster may have two keys while they are being replaced, and so may we: any of ours with any
    of theirs is good. Who is not listed has none, from the first moment of the new list. Keys are
    derived when they are first needed, once for each pair.
    """

    def __init__(
        self,
        cluster: str,
        identities: Sequence[Identity],
        peers: Mapping[str, Sequence[PublicKey]],
        before: "Keyring | None" = None,
    ) -> None:
        """`identities`: our own keys, the one to send with first. `peers`: the others by id, each
        with the key to send to first. `before`: the ring of the last list, whose work is kept.
        """
        self.cluster = cluster
        self._to: dict[str, tuple[bytes, ...]] = {}
        self._from: dict[bytes, tuple[str, Identity, PublicKey]] = {}
        self._sending: dict[bytes, tuple[str, Identity, PublicKey]] = {}
        for peer, keys in peers.items():
            if peer == cluster:
                continue
            pairs = [(mine, key) for mine in identities for key in keys]
            for mine, key in pairs:
                self._from[key_id(peer, key, cluster, mine.public_key)] = (peer, mine, key)
            offered = {key_id(cluster, m.public_key, peer, k): (peer, m, k) for m, k in pairs}
            self._sending.update(offered)
            self._to[peer] = tuple(offered)
        self._derived: dict[bytes, PairKey] = {}
        if before is not None:
            named = self._from.keys() | self._sending.keys()
            self._derived = {name: before._derived[name] for name in named & before._derived.keys()}

    def offers(self, peer: str) -> tuple[bytes, ...]:
        """Return the ids of the keys that prove us to a peer, best first; none: it has no key."""
        return self._to.get(peer, ())

    def sent_under(self, peer: str, name: bytes) -> PairKey | None:
        """Return the key of this id that proves us to a peer, None if there is none."""
        if name not in self._to.get(peer, ()):
            return None
        return self._key(name, self._sending[name], sending=True)

    def received_under(self, name: bytes) -> PairKey | None:
        """Return the key of this id that proves a peer to us, None if there is none."""
        pair = self._from.get(name)
        return None if pair is None else self._key(name, pair, sending=False)

    def _key(self, name: bytes, pair: tuple[str, Identity, PublicKey], *, sending: bool) -> PairKey:
        key = self._derived.get(name)
        if key is None:
            peer, mine, theirs = pair
            ends = (self.cluster, peer) if sending else (peer, self.cluster)
            key = self._derived[name] = pair_key(*ends, mine, theirs, sending=sending)
        return key


def seal(
    key: PairKey, mark: Mark, method: bytes, authority: bytes, target: bytes, nonce: bytes
) -> bytes:
    """Return the value of `x-smartgw-forward` for a request on the link of this nonce.

    Raises ValueError for a mark that no receiver would take: not of this key's clusters, or with
    a field out of its bounds.
    """
    if mark.sender != key.sender or mark.audience != key.receiver:
        raise ValueError("mark: not of the clusters whose key this is")
    client = _packed(mark.client)
    audience, app = mark.audience.encode(), mark.app_id.encode()
    if not 0 < mark.counter <= MAX_COUNTER or not 0 <= mark.remaining_ms <= MAX_REMAINING_MS:
        raise ValueError("mark: its counter or remaining time is out of bounds")
    fixed = _FIXED.pack(
        _VERSION,
        key.key_id,
        _KIND_CODES[mark.kind],
        _SCHEME_CODES[mark.scheme],
        bytes.fromhex(mark.epoch),
        mark.time_ms,
        mark.remaining_ms,
        mark.counter,
        len(client),
    )
    fields = b"%b%b%c%b%b%b" % (
        fixed,
        client,
        len(audience),
        audience,
        len(app).to_bytes(2, "big"),
        app,
    )
    tag = key.mark_tag(_joined(method, authority, target, nonce) + fields)
    return binascii.b2a_base64(fields + tag, newline=False)


def unseal(
    value: bytes,
    keys: Keyring,
    method: bytes,
    authority: bytes,
    target: bytes,
    nonce: bytes,
    last_counter: int,
    now_ms: int,
) -> Mark | MarkFault:
    """Return the mark of a request, or why it has none that counts.

    Args:
        value: of the field, without surrounding white space.
        nonce: the one that we gave when the connection opened; empty: it is no link.
        last_counter: of the last mark that was good on this connection, 0 before.
        now_ms: Unix time in ms.
    """
    if len(nonce) != NONCE_BYTES:
        return MarkFault.NO_LINK
    raw = _decoded(value)
    if raw is None:
        return MarkFault.MALFORMED
    fields, tag = raw[:-TAG_BYTES], raw[-TAG_BYTES:]
    key = keys.received_under(fields[1 : 1 + KEY_ID_BYTES])
    if key is None:
        return MarkFault.UNKNOWN_KEY
    good = key.mark_tag(_joined(method, authority, target, nonce) + fields)
    if not hmac.compare_digest(good, tag):
        return MarkFault.BAD_TAG
    mark = _parsed(fields, key.sender)
    if mark is None:
        return MarkFault.MALFORMED
    if mark.audience != keys.cluster:
        return MarkFault.OTHER_AUDIENCE
    if abs(now_ms - mark.time_ms) > MAX_AGE_MS:
        return MarkFault.STALE
    if mark.counter <= last_counter:
        return MarkFault.REPLAYED
    return mark


def _decoded(value: bytes) -> bytes | None:
    """Return the bytes of a value in its one spelling, None for every other."""
    if not 0 < len(value) <= _MAX_VALUE:
        return None
    try:
        raw = binascii.a2b_base64(value, strict_mode=True)
    except binascii.Error:
        return None
    if not _SHORTEST <= len(raw) <= _LONGEST or raw[0] != _VERSION:
        return None
    # Bits that the last character does not need could be anything.
    return raw if binascii.b2a_base64(raw, newline=False) == value else None


def _parsed(fields: bytes, sender: str) -> Mark | None:
    """Read fields whose tag was good: a gateway made them, of this version or another."""
    _, _, kind, scheme, epoch, time_ms, remaining_ms, counter, size = _FIXED.unpack_from(fields)
    start = _FIXED.size
    client, start = fields[start : start + size], start + size
    size = fields[start] if start < len(fields) else 0
    audience, start = fields[start + 1 : start + 1 + size], start + 1 + size
    size, start = int.from_bytes(fields[start : start + 2], "big"), start + 2
    app = fields[start:]
    if kind not in _KINDS or scheme not in _SCHEMES or len(app) != size:
        return None
    try:
        return Mark(
            sender=sender,
            audience=_cluster_id(audience),
            kind=_KINDS[kind],
            client=_address(client),
            scheme=_SCHEMES[scheme],
            app_id=_app_id(app),
            epoch=epoch.hex(),
            time_ms=time_ms,
            remaining_ms=remaining_ms,
            counter=counter,
        )
    except ValueError:
        return None


# Callers come again; an address costs more to read than all else here.
@lru_cache(maxsize=4_096)
def _packed(client: str) -> bytes:
    """Return the 4 or 16 bytes of an address, an IPv4-mapped one as the IPv4 it holds."""
    ip = ip_address(client)
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).packed


@lru_cache(maxsize=4_096)
def _address(packed: bytes) -> str:
    """Return an address in its canonical text. Raises ValueError for what `_packed` never gives."""
    if len(packed) == 4:
        return str(IPv4Address(packed))
    ip = IPv6Address(packed)
    if ip.ipv4_mapped:
        raise ValueError("client: an IPv4 address in an IPv6 one")
    return str(ip)


@lru_cache(maxsize=256)
def _cluster_id(raw: bytes) -> str:
    return check_id("audience", raw.decode())


@lru_cache(maxsize=4_096)
def _app_id(raw: bytes) -> str:
    return check_app_id(raw.decode())


def _joined(one: bytes, two: bytes, three: bytes, four: bytes) -> bytes:
    """Return four fields so that no other four give the same: all lengths, then the fields."""
    sizes = _LENGTHS.pack(len(one), len(two), len(three), len(four))
    return sizes + one + two + three + four


def _tag(secret: bytes, use: bytes, covered: bytes) -> bytes:
    return hashlib.blake2b(covered, key=secret, digest_size=TAG_BYTES, person=use).digest()
