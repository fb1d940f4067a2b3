"""The words of JetStream that a key-value bucket takes: subjects, questions, what comes back.

Owns their form (NATS ADR-8, ADR-13, ADR-37), so that `nats kv` reads what we write and the other
way round. Sends nothing (follow.py and store.py do), and knows nothing of what values mean.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from smartgw.state.desired import Entry

HISTORY: Final = 5
"""Versions of a record that the bucket keeps, so that an operator can look at what was before."""
MARKER_SECONDS: Final = 14 * 86_400
"""How long a deletion is remembered, where the bucket lets it be forgotten (NATS 2.11 and later);
whoever was away for longer learns of it by reading the whole."""
LARGEST: Final = 65_536

ALIVE: Final = 100
PULL_ENDED: Final = 408

NOT_FOUND: Final = 10_059
IN_USE: Final = 10_058
WRONG_SEQUENCE: Final = frozenset((10_070, 10_071, 10_164))
_DISABLED: Final = frozenset((10_039, 10_076, 10_023))
_LAST = re.compile(r"wrong last sequence: ([0-9]+)")
_STATUS = re.compile(rb"NATS/1\.0 ([0-9]{3})(?: ([^\r\n]{0,100}))?")
_GONE = re.compile(rb"\r\n(?:KV-Operation: *(?:DEL|PURGE)|Nats-Marker-Reason:)", re.IGNORECASE)
_LAST_COUNT = re.compile(rb"\r\nNats-Last-Consumer: *([0-9]{1,18})\r\n", re.IGNORECASE)
_LEFT = re.compile(rb"\r\nNats-Pending-Messages: *([0-9]{1,10})\r\n", re.IGNORECASE)
_SECOND = 1_000_000_000


class Refused(Exception):
    """JetStream's answer is an error. `code` is its `err_code`; the text is JetStream's own."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def disabled(self) -> bool:
        """JetStream is not enabled for this user."""
        return self.code in _DISABLED

    @property
    def last(self) -> int | None:
        """The revision that there is, of a write that expected another."""
        found = _LAST.search(str(self))
        return int(found[1]) if self.code in WRONG_SEQUENCE and found else None


@dataclass(frozen=True, slots=True)
class Bucket:
    """What JetStream says of the bucket.

    `identity` tells it from one of the same name that was made at another time. `revision` is
    of its last write, `replicas` how many servers keep it, `forgets` that they forget deletions.
    `writes` is what a key's subject begins with for a write, elsewhere where this is a mirror.
    """

    identity: str
    revision: int
    replicas: int
    forgets: bool
    writes: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where one delivered message stands: `count` of this consumer from 1, `pending` after it."""

    consumer: str
    count: int
    revision: int
    time: float
    pending: int


def answer(payload: bytes) -> dict[str, Any]:
    """Read an answer. Raises Refused when it is an error, or not an answer."""
    try:
        members = json.loads(payload)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise Refused(0, "not an answer of JetStream")
    error = members.get("error")
    if isinstance(error, dict):
        text = str(error.get("description", ""))[:200]
        code = error.get("err_code", 0)
        raise Refused(code if type(code) is int else 0, text)
    return members


# ---- the bucket ----


def stream(bucket: str) -> str:
    """Return the stream behind a bucket."""
    return f"KV_{bucket}"


def subject(bucket: str, key: str) -> str:
    """Return the subject of a key; also of all keys, as ">"."""
    return f"$KV.{bucket}.{key}"


def bucket_question(bucket: str) -> str:
    """Return the subject that asks for the bucket as it is."""
    return f"$JS.API.STREAM.INFO.{stream(bucket)}"


def create_question(bucket: str, replicas: int) -> tuple[str, bytes]:
    """Return what makes the bucket, or finds it made."""
    config = {
        "name": stream(bucket),
        "description": "What the platform has decided, as gateways share it",
        "subjects": [subject(bucket, ">")],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": HISTORY,
        "max_msg_size": LARGEST,
        "num_replicas": replicas,
        "duplicate_window": 120 * _SECOND,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }
    return f"$JS.API.STREAM.CREATE.{stream(bucket)}", _json(config)


def bucket_of(members: Mapping[str, Any]) -> Bucket:
    """Read the answer to either. Raises Refused when it cannot be understood."""
    try:
        config, state = members["config"], members["state"]
        return Bucket(
            str(members["created"]),
            int(state["last_seq"]),
            int(config["num_replicas"]),
            bool(config.get("allow_msg_ttl", False)),
            _written_at(str(config["name"]), config.get("mirror")),
        )
    except (KeyError, TypeError, ValueError):
        raise Refused(0, "not the description of a bucket") from None


def _written_at(name: str, mirror: Mapping[str, Any] | None) -> str:
    """A mirror takes no writes: they go to its origin, through the API of its domain (ADR-8)."""
    if mirror is None:
        return f"$KV.{name.removeprefix('KV_')}."
    origin = str(mirror["name"]).removeprefix("KV_")
    external = mirror.get("external")
    prefix = f"{external['api']}." if external else ""
    return f"{prefix}$KV.{origin}."


# ---- reading ----


def consumer_question(bucket: str, name: str, start: int | None) -> tuple[str, bytes]:
    """Return what makes a consumer: of all writes from revision `start` on, or with None of the
    last write of each key and all after.
    """
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "last_per_subject",
        "ack_policy": "none",
        "filter_subject": subject(bucket, ">"),
        "replay_policy": "instant",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 30 * _SECOND,
    }
    if start is not None:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}
    question = {"stream_name": stream(bucket), "config": config, "action": "create"}
    return f"$JS.API.CONSUMER.CREATE.{stream(bucket)}.{name}", _json(question)


def consumer_info(bucket: str, name: str) -> str:
    """Return the subject that asks how far a consumer is."""
    return f"$JS.API.CONSUMER.INFO.{stream(bucket)}.{name}"


def consumer_end(bucket: str, name: str) -> str:
    """Return the subject that ends a consumer."""
    return f"$JS.API.CONSUMER.DELETE.{stream(bucket)}.{name}"


def pull(bucket: str, name: str, count: int, expires: float, beat: float) -> tuple[str, bytes]:
    """Return what asks for the next `count` messages, with a sign of life every `beat` seconds."""
    question = {
        "batch": count,
        "expires": int(expires * _SECOND),
        "idle_heartbeat": int(beat * _SECOND),
    }
    return f"$JS.API.CONSUMER.MSG.NEXT.{stream(bucket)}.{name}", _json(question)


def status(headers: bytes) -> tuple[int, str] | None:
    """Return the status of a message that is not data: 100 a sign of life, 408 a pull's end."""
    found = _STATUS.match(headers)
    return None if found is None else (int(found[1]), (found[2] or b"").decode(errors="replace"))


def left(headers: bytes) -> int:
    """Return how many messages of a pull will not come, after its end."""
    found = _LEFT.search(headers)
    return int(found[1]) if found else 0


def last_count(headers: bytes) -> int:
    """Return how many messages a consumer has delivered, by its sign of life."""
    found = _LAST_COUNT.search(headers)
    return int(found[1]) if found else 0


def place(reply: str) -> Place:
    """Read where a delivered message stands. Raises ValueError for what is none."""
    tokens = reply.split(".")
    if len(tokens) >= 11:  # with a domain and an account
        tokens = [*tokens[:2], *tokens[4:11]]
    if len(tokens) != 9 or tokens[:2] != ["$JS", "ACK"]:
        raise ValueError("not delivered by a consumer")
    revision, count, nanoseconds, pending = map(int, tokens[5:9])
    return Place(tokens[3], count, revision, nanoseconds / _SECOND, pending)


def entry(bucket: str, name: str, payload: bytes, headers: bytes, where: Place) -> Entry | None:
    """Return what a delivered message says of its key; None for what stands under no key."""
    prefix = subject(bucket, "")
    if not name.startswith(prefix) or len(name) == len(prefix):
        return None
    value = None if headers and _GONE.search(headers) else payload
    return Entry(name[len(prefix) :], value, where.revision, where.time)


# ---- writing ----


def put_headers(*, of_key: int | None = None, of_bucket: int | None = None) -> bytes:
    """Return headers that let a write through only at these last revisions."""
    return _headers(_expected(of_key, of_bucket))


def delete_headers(bucket: Bucket, *, of_key: int) -> bytes:
    """Return headers of the write that deletes a key."""
    fields = {"KV-Operation": "DEL"}
    if bucket.forgets:
        fields["Nats-TTL"] = f"{MARKER_SECONDS}s"
    return _headers(fields | _expected(of_key, None))


def _expected(of_key: int | None, of_bucket: int | None) -> dict[str, str]:
    fields = {}
    if of_key is not None:
        fields["Nats-Expected-Last-Subject-Sequence"] = str(of_key)
    if of_bucket is not None:
        fields["Nats-Expected-Last-Sequence"] = str(of_bucket)
    return fields


def _headers(fields: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _json(question: Mapping[str, Any]) -> bytes:
    return json.dumps(question, separators=(",", ":")).encode()
