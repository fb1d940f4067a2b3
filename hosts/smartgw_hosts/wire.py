"""What hosts say on the bus: subjects, payloads, signatures (contract 1.1 to 1.3).

Owns the form of a message and every refusal that needs no memory. The payload, readable with
`nats sub`, is `smartgw1 <signature>`, a newline and a JSON object; signed is the subject too,
which binds cluster, host and kind. Does not know who is enrolled or what a host said before
(pool.py), nor looks at headers and reply subjects: nothing can be claimed with them.
"""

from dataclasses import dataclass
from enum import StrEnum
from json import dumps
from typing import TypeVar

from smartgw_hosts.addresses import AddressRefused, parse_address
from smartgw_hosts.identity import (
    SIGNATURE_BYTES,
    Identity,
    KeyRefused,
    PublicKey,
    decode64,
    encode64,
)
from smartgw_hosts.ids import check_app_id, check_id
from smartgw_hosts.strict_json import parse_object

PAYLOAD_BYTES = 64 << 10
"""Our own limit, far below the bus's, and looked at before anything else."""

APPS = 1000
TEXT_BYTES = 64
WEIGHTS = range(1, 1001)
COUNTS = range(1 << 53)
"""Of boot, sequence and time: what every JSON reader keeps exactly (RFC 7493 2.2)."""

_T = TypeVar("_T")

_MAGIC = b"smartgw1 "
_SIGNATURE_CHARACTERS = len(encode64(bytes(SIGNATURE_BYTES)))
_HEAD = len(_MAGIC) + _SIGNATURE_CHARACTERS


class Kind(StrEnum):
    """The last token of the subject; each kind is signed under a context of its own."""

    ANNOUNCE = "announce"
    HEARTBEAT = "heartbeat"
    LEAVE = "leave"


_CONTEXTS = {
    Kind.ANNOUNCE: b"smartgw/bus/announce/v1",
    Kind.HEARTBEAT: b"smartgw/bus/heartbeat/v1",
    Kind.LEAVE: b"smartgw/bus/leave/v1",
}


class Reason(StrEnum):
    """Why a message, or an app in it, was refused: a closed set, for counters and status."""

    OVERSIZE = "oversize"
    BAD_SUBJECT = "bad_subject"
    WRONG_CLUSTER = "wrong_cluster"
    UNSIGNED = "unsigned"
    MALFORMED = "malformed"
    BAD_ADDRESS = "bad_address"
    BAD_KEY = "bad_key"
    TOO_MANY = "too_many"
    UNKNOWN_KEY = "unknown_key"
    KEY_CHANGED = "key_changed"
    BAD_SIGNATURE = "bad_signature"
    STALE = "stale"
    SUPERSEDED_BOOT = "superseded_boot"
    REPLAYED = "replayed"
    NOT_ENROLLED = "not_enrolled"
    EXPIRED_ENROLMENT = "expired_enrolment"
    APP_REFUSED = "app_refused"


class Refused(ValueError):
    """A message that is ignored. `reason` counts it; the text is printable ASCII, for the log."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Description:
    """What a host says of itself, whole in every announce and heartbeat (contract 1.3).

    `address` stands exactly as the host wrote it; `apps` are at most `APPS`, each once;
    `weight` is 1 to 1000; `region` and `version` are printable, at most 64 bytes, or empty.
    """

    address: str
    apps: tuple[str, ...]
    key: PublicKey
    weight: int
    region: str
    version: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of one host; `description` is None for a leave and only then.

    `boot` rises from start to start of a host, `sequence` from message to message of a boot,
    from 1; `time_ms` is the host's wall clock in ms since the epoch.
    """

    kind: Kind
    host_id: str
    boot: int
    sequence: int
    time_ms: int
    description: Description | None = None


@dataclass(frozen=True, slots=True)
class SignedMessage:
    """A well-formed message: `claims` prove nothing before `check`.

    `signed` is what the signature is over, `size` the bytes of the payload; `tried` is a key with
    which it has been looked at, and whether that made it.
    """

    claims: Message
    signed: bytes
    signature: bytes
    size: int
    tried: tuple[PublicKey, bool] | None = None

    def try_key(self, key: PublicKey) -> "SignedMessage":
        """Return the same, for which `check` of this key costs nothing."""
        tried = key, self._is_signed_by(key)
        return SignedMessage(self.claims, self.signed, self.signature, self.size, tried)

    def check(self, key: PublicKey) -> Message:
        """Give the message if `key` signed it; raises Refused (bad_signature)."""
        if self.tried is not None and self.tried[0] == key:
            good = self.tried[1]
        else:
            good = self._is_signed_by(key)
        if not good:
            raise Refused(Reason.BAD_SIGNATURE, f"not signed by key {key.key_id}")
        return self.claims

    def _is_signed_by(self, key: PublicKey) -> bool:
        return key.verify(_CONTEXTS[self.claims.kind], self.signed, self.signature)


def subscription(cluster: str) -> str:
    """The one subject that carries all messages of a cluster's hosts, and nothing deeper."""
    return f"smartgw.{check_id('cluster id', cluster)}.host.*.*"


def encode(message: Message, cluster: str, identity: Identity) -> tuple[str, bytes]:
    """Write and sign a message: its subject and its payload.

    Raises ValueError (Refused, most often) for what a gateway would refuse by its form.
    """
    kind = Kind(message.kind)
    subject = f"smartgw.{check_id('cluster id', cluster)}.host.{message.host_id}.{kind}"
    members: dict[str, object] = {
        "host": message.host_id,
        "boot": message.boot,
        "sequence": message.sequence,
        "time": message.time_ms,
    }
    if message.description is not None:
        members |= {
            "address": message.description.address,
            "apps": message.description.apps,
            "key": message.description.key.text,
            "weight": message.description.weight,
            "region": message.description.region,
            "version": message.description.version,
        }
    body = dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    signature = identity.sign(_CONTEXTS[kind], _signed(subject, body))
    payload = _MAGIC + encode64(signature).encode() + b"\n" + body
    decode(subject, payload, cluster=cluster)
    return subject, payload


def decode(subject: str, payload: bytes, *, cluster: str) -> SignedMessage:
    """Read a message as far as that needs no key; raises Refused, whatever was sent.

    Members that we do not know are ignored, so that newer hosts can say more.
    """
    if len(payload) > PAYLOAD_BYTES:
        raise Refused(Reason.OVERSIZE, f"{len(payload)} bytes, may have {PAYLOAD_BYTES}")
    host_id, kind = _read_subject(subject, cluster)
    signature, body = _split(payload)
    try:
        members = parse_object(body)
        claimed = _take(members, "host", str)
        if claimed != host_id:
            raise ValueError("host: is not the host of the subject")
        message = Message(
            kind=kind,
            host_id=host_id,
            boot=_count(members, "boot"),
            sequence=_count(members, "sequence"),
            time_ms=_count(members, "time"),
            description=None if kind is Kind.LEAVE else _read_description(members),
        )
        if message.sequence == 0:
            raise ValueError("sequence: must be at least 1")
    except Refused:
        raise
    except ValueError as error:
        raise Refused(Reason.MALFORMED, _printable(str(error))) from None
    return SignedMessage(message, _signed(subject, body), signature, len(payload))


def raw(signed: SignedMessage) -> tuple[str, bytes]:
    """The subject and the payload that `decode` made this of, byte for byte."""
    subject, _, body = signed.signed.partition(b"\n")
    return subject.decode(), _MAGIC + encode64(signed.signature).encode() + b"\n" + body


def _read_subject(subject: str, cluster: str) -> tuple[str, Kind]:
    tokens = subject.split(".")
    if len(tokens) != 5 or tokens[0] != "smartgw" or tokens[2] != "host":
        raise Refused(Reason.BAD_SUBJECT, "must be smartgw.<cluster>.host.<host id>.<kind>")
    if tokens[1] != cluster:
        raise Refused(Reason.WRONG_CLUSTER, "the subject is of another cluster")
    try:
        return check_id("host id", tokens[3]), Kind(tokens[4])
    except ValueError as error:
        raise Refused(Reason.BAD_SUBJECT, _printable(str(error))) from None


def _split(payload: bytes) -> tuple[bytes, bytes]:
    if not payload:
        raise Refused(Reason.MALFORMED, "is empty")
    if not payload.startswith(_MAGIC):
        raise Refused(Reason.UNSIGNED, f"does not begin with {_MAGIC.decode()!r}")
    if payload[_HEAD : _HEAD + 1] != b"\n":
        raise Refused(Reason.UNSIGNED, f"needs {_SIGNATURE_CHARACTERS} characters of signature")
    try:
        signature = decode64(payload[len(_MAGIC) : _HEAD].decode("latin-1"))
    except ValueError as error:
        raise Refused(Reason.UNSIGNED, f"signature: {error}") from None
    return signature, payload[_HEAD + 1 :]


def _read_description(members: dict[str, object]) -> Description:
    address = _take(members, "address", str)
    try:
        parse_address(address)
    except AddressRefused as error:
        raise Refused(Reason.BAD_ADDRESS, f"address: {error}") from None
    try:
        key = PublicKey.parse(_take(members, "key", str))
    except KeyRefused as error:
        raise Refused(Reason.BAD_KEY, str(error)) from None
    weight = _take(members, "weight", int)
    if weight not in WEIGHTS:
        raise ValueError(f"weight: must be {WEIGHTS.start} to {WEIGHTS.stop - 1}")
    return Description(
        address=address,
        apps=_read_apps(members),
        key=key,
        weight=weight,
        region=_text(members, "region"),
        version=_text(members, "version"),
    )


def _read_apps(members: dict[str, object]) -> tuple[str, ...]:
    apps = _take(members, "apps", list)
    if len(apps) > APPS:
        raise Refused(Reason.TOO_MANY, f"{len(apps)} apps, may have {APPS}")
    # Printable means neither control characters nor surrogates, and 64 characters have at most
    # 256 bytes: nearly every app id is judged by this alone, and every heartbeat has them all.
    return tuple(
        dict.fromkeys(
            app
            if isinstance(app, str) and 0 < len(app) <= 64 and app.isprintable()
            else check_app_id(app)
            for app in apps
        )
    )


def _take(members: dict[str, object], name: str, kind: type[_T]) -> _T:
    value = members.get(name)
    # By the exact type, because True is an int to Python.
    if type(value) is not kind:
        raise ValueError(f"{name}: must be of type {kind.__name__}")
    return value


def _count(members: dict[str, object], name: str) -> int:
    value = _take(members, name, int)
    if value not in COUNTS:
        raise ValueError(f"{name}: must be 0 to 2**53 - 1")
    return value


def _text(members: dict[str, object], name: str) -> str:
    value = _take(members, name, str)
    if len(value.encode()) > TEXT_BYTES or not value.isprintable():
        raise ValueError(f"{name}: must be printable and at most {TEXT_BYTES} bytes")
    return value


def _signed(subject: str, body: bytes) -> bytes:
    return subject.encode() + b"\n" + body


def _printable(text: str) -> str:
    """Faults quote what was sent, and end in a log line."""
    return ascii(text[:200])[1:-1]
