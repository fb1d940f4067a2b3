"""Hosts that sign messages for tests of wire and pool, and ways to sign what no host would."""

import hashlib
import json
from dataclasses import dataclass, replace

from smartgw_hosts.identity import Identity, encode64
from smartgw_hosts.wire import Description, Kind, Message, SignedMessage, decode, encode

CLUSTER = "c1"
WALL = 1_800_000_000.0
"""Unix seconds at which the monotonic clock of a test stands at 0."""


def identity_of(name: str) -> Identity:
    """The same key for the same name in every run."""
    return Identity.from_seed(hashlib.sha256(name.encode()).digest())


def members_of(message: Message) -> dict[str, object]:
    """The JSON object of a message, to spoil before `sign_raw` signs it."""
    _, payload = encode(message, CLUSTER, identity_of("any"))
    members: dict[str, object] = json.loads(payload.partition(b"\n")[2])
    return members


def sign_raw(
    subject: str, body: bytes, identity: Identity, context: bytes | None = None
) -> tuple[str, bytes]:
    """Sign any bytes as if they were a message of the subject's kind."""
    if context is None:
        context = b"smartgw/bus/%b/v1" % subject.rpartition(".")[2].encode()
    signature = identity.sign(context, subject.encode() + b"\n" + body)
    return subject, b"smartgw1 " + encode64(signature).encode() + b"\n" + body


@dataclass(slots=True)
class Speaker:
    """A host's side of the bus: counts its messages; `now` is the monotonic time."""

    host_id: str = "h1"
    apps: tuple[str, ...] = ("shop",)
    address: str = "http://10.0.0.1:8001"
    boot: int = 100
    sequence: int = 0
    key_of: str = ""
    """Whose key signs; the host's own if empty."""

    @property
    def identity(self) -> Identity:
        """The key that signs."""
        return identity_of(self.key_of or self.host_id)

    def describe(self) -> Description:
        """What this host says of itself now."""
        return Description(
            address=self.address,
            apps=self.apps,
            key=self.identity.public_key,
            weight=100,
            region="eu",
            version="1",
        )

    def message(self, kind: Kind = Kind.HEARTBEAT, now: float = 0.0) -> Message:
        """The next message, not yet signed."""
        self.sequence += 1
        return Message(
            kind=kind,
            host_id=self.host_id,
            boot=self.boot,
            sequence=self.sequence,
            time_ms=int((WALL + now) * 1000),
            description=None if kind is Kind.LEAVE else self.describe(),
        )

    def signed(self, kind: Kind = Kind.HEARTBEAT, now: float = 0.0) -> SignedMessage:
        """The next message as the gateway's wire hands it over."""
        return signed(self.message(kind, now), self.identity)


def signed(message: Message, identity: Identity) -> SignedMessage:
    """Any message, signed by any key."""
    subject, payload = encode(message, CLUSTER, identity)
    return decode(subject, payload, cluster=CLUSTER)


def altered(message: Message, **changes: object) -> Message:
    """`message` with other members of its description."""
    assert message.description is not None
    return replace(message, description=replace(message.description, **changes))  # type: ignore[arg-type]
