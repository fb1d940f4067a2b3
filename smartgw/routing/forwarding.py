"""The signed mark of a forward: one gateway tells another who asks, and can prove it (4.5).

Owns the keys that two clusters share, the form of `x-smartgw-forward`, and when a mark is refused.
Does not decide what is forwarded (failover.py), keep connections, nor count what it refuses:
nonces, counters and times come in. docs/forwarding.md has the scheme and what it protects from.
"""

import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
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
# A mark is: version, key id; then how the request came, which is the same for many (kind, scheme,
# epoch); numbers of its own; and who asks for what (client, audience, app), each with its length.
_KEY = Struct(">B8s")
_HOW = Struct(">BB8s")
_NUMBERS = Struct(">QIQ")
_HOW_AT, _NUMBERS_AT = _KEY.size, _KEY.size + _HOW.size
_WHO_AT = _NUMBERS_AT + _NUMBERS.size
_LENGTHS = Struct(">IIII")
_SHORTEST = _WHO_AT + 1 + 4 + 1 + 1 + 2 + 1 + TAG_BYTES
_LONGEST = _WHO_AT + 1 + 16 + 1 + 64 + 2 + APP_ID_BYTES + TAG_BYTES
_PAD = b"="[0]
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


class Mark:
    """What one gateway tells another of a request that it forwards. Never changed; no dataclass,
    for one is made for each request that comes over a link.

    Attributes:
        sender, audience: ids of the cluster that forwards and of the one that is to serve.
        client: IP address of the original caller, in its canonical text.
        scheme: b"http" or b"https", by which the caller came.
        epoch: the sender's, 16 hex digits (contract 4.3).
        time_ms: when it was made, Unix time in ms.
        remaining_ms: what is left of the request's deadline.
        counter: rises on the connection, from 1.
    """

    __slots__ = (
        "app_id",
        "audience",
        "client",
        "counter",
        "epoch",
        "kind",
        "remaining_ms",
        "scheme",
        "sender",
        "time_ms",
    )

    def __init__(
        self,
        sender: str,
        audience: str,
        kind: Kind,
        client: str,
        scheme: bytes,
        app_id: str,
        epoch: str,
        time_ms: int,
        remaining_ms: int,
        counter: int,
    ) -> None:
        self.sender = sender
        self.audience = audience
        self.kind = kind
        self.client = client
        self.scheme = scheme
        self.app_id = app_id
        self.epoch = epoch
        self.time_ms = time_ms
        self.remaining_ms = remaining_ms
        self.counter = counter


class PairKey:
    """What one cluster proves to another with, in one direction, under one key of each.

    Attributes:
        key_id: 8 bytes that name it, made of what is public.
        sender, receiver: the clusters' ids.
    """

    __slots__ = ("_links", "_marks", "key_id", "receiver", "sender")

    def __init__(self, key_id: bytes, sender: str, receiver: str, secret: bytes) -> None:
        self.key_id = key_id
        self.sender = sender
        self.receiver = receiver
        # Hashes that have taken the key in: half of what a tag costs.
        self._marks = hashlib.blake2b(key=secret, digest_size=TAG_BYTES, person=_FOR_MARKS)
        self._links = hashlib.blake2b(key=secret, digest_size=TAG_BYTES, person=_FOR_LINKS)

    def mark_tag(self, covered: bytes) -> bytes:
        """Return the tag of a mark over its fields and what it is bound to."""
        tag = self._marks.copy()
        tag.update(covered)
        return tag.digest()

    def link_tag(self, sender_nonce: bytes, link_nonce: bytes) -> bytes:
        """Return what the receiver of a new connection proves its key with, and the link nonce
        that it gives.
        """
        tag = self._links.copy()
        tag.update(_joined(sender_nonce, link_nonce, b"", b""))
        return tag.digest()

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


class Sealer:
    """Marks the requests of one link, at its sender's end."""

    __slots__ = ("_key", "_nonce", "_start")

    def __init__(self, key: PairKey, nonce: bytes) -> None:
        """`nonce`: the link's, which its receiver gave."""
        self._key = key
        self._nonce = nonce
        self._start = _KEY.pack(_VERSION, key.key_id)

    def seal(
        self,
        kind: Kind,
        scheme: bytes,
        epoch: str,
        client: str,
        app_id: str,
        time_ms: int,
        remaining_ms: int,
        counter: int,
        method: bytes,
        authority: bytes,
        target: bytes,
    ) -> bytes:
        """Return the value of `x-smartgw-forward` for a request; the first arguments as of `Mark`.

        Raises ValueError for a field that no receiver would take.
        """
        if not 0 < counter <= MAX_COUNTER or not 0 <= remaining_ms <= MAX_REMAINING_MS:
            raise ValueError("mark: its counter or remaining time is out of bounds")
        fields = b"%b%b%b%b" % (
            self._start,
            _how(kind, scheme, epoch),
            _NUMBERS.pack(time_ms, remaining_ms, counter),
            _who(client, self._key.receiver, app_id),
        )
        tag = self._key.mark_tag(_joined(method, authority, target, self._nonce) + fields)
        return binascii.b2a_base64(fields + tag, newline=False)


def seal(
    key: PairKey, mark: Mark, method: bytes, authority: bytes, target: bytes, nonce: bytes
) -> bytes:
    """Return what a `Sealer` makes of a mark.

    Raises ValueError for one that is not of this key's clusters, and as `Sealer.seal` does.
    """
    if mark.sender != key.sender or mark.audience != key.receiver:
        raise ValueError("mark: not of the clusters whose key this is")
    return Sealer(key, nonce).seal(
        mark.kind,
        mark.scheme,
        mark.epoch,
        mark.client,
        mark.app_id,
        mark.time_ms,
        mark.remaining_ms,
        mark.counter,
        method,
        authority,
        target,
    )


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
    time_ms, remaining_ms, counter = _NUMBERS.unpack_from(fields, _NUMBERS_AT)
    how = _how_of(fields[_HOW_AT:_NUMBERS_AT])
    who = _who_of(fields[_WHO_AT:])
    if how is None or who is None:
        # Its tag was good: a gateway made it, of this version or another.
        return MarkFault.MALFORMED
    kind, scheme, epoch = how
    client, audience, app_id = who
    if audience != keys.cluster:
        return MarkFault.OTHER_AUDIENCE
    if abs(now_ms - time_ms) > MAX_AGE_MS:
        return MarkFault.STALE
    if counter <= last_counter:
        return MarkFault.REPLAYED
    return Mark(
        key.sender,
        audience,
        kind,
        client,
        scheme,
        app_id,
        epoch,
        time_ms,
        remaining_ms,
        counter,
    )


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
    # Bits that the last character does not need, where it is padded, could be anything.
    if value[-1] == _PAD and binascii.b2a_base64(raw, newline=False) != value:
        return None
    return raw


# Callers, apps and epochs come again, and what they are costs more to read than all else here.


@lru_cache(maxsize=1_024)
def _how(kind: Kind, scheme: bytes, epoch: str) -> bytes:
    return _HOW.pack(_KIND_CODES[kind], _SCHEME_CODES[scheme], bytes.fromhex(epoch))


@lru_cache(maxsize=1_024)
def _how_of(raw: bytes) -> tuple[Kind, bytes, str] | None:
    kind, scheme, epoch = _HOW.unpack(raw)
    if kind not in _KINDS or scheme not in _SCHEMES:
        return None
    return _KINDS[kind], _SCHEMES[scheme], epoch.hex()


@lru_cache(maxsize=4_096)
def _who(client: str, audience: str, app_id: str) -> bytes:
    """Return who asks for what: the 4 or 16 bytes of an address (an IPv4-mapped one as the IPv4
    that it holds), the cluster that is to serve, the app.
    """
    ip = ip_address(client)
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    packed, receiver, app = (mapped or ip).packed, audience.encode(), app_id.encode()
    return b"%c%b%c%b%b%b" % (
        *(len(packed), packed, len(receiver), receiver),
        *(len(app).to_bytes(2, "big"), app),
    )


@lru_cache(maxsize=4_096)
def _who_of(raw: bytes) -> tuple[str, str, str] | None:
    """Read what `_who` makes; None for what it never makes."""
    size, start = raw[0], 1
    packed, start = raw[start : start + size], start + size
    size = raw[start] if start < len(raw) else 0
    audience, start = raw[start + 1 : start + 1 + size], start + 1 + size
    size, app = int.from_bytes(raw[start : start + 2], "big"), raw[start + 2 :]
    if len(app) != size:
        return None
    try:
        client = IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)
        if isinstance(client, IPv6Address) and client.ipv4_mapped:
            return None
        cluster = check_id("audience", audience.decode())
        return str(client), cluster, check_app_id(app.decode())
    except ValueError:
        return None


def _joined(one: bytes, two: bytes, three: bytes, four: bytes) -> bytes:
    """Return four fields so that no other four give the same: all lengths, then the fields."""
    sizes = _LENGTHS.pack(len(one), len(two), len(three), len(four))
    return sizes + one + two + three + four
