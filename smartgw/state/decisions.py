"""The last desired state as the body of a signed file (contract 11.2).

Owns that body: a line of JSON with the stamp and where the revisions count, then a line for each
record, as the bucket had it. Signing and refusing are sealed.py's. A record that this version
cannot read is kept here too, so that the version after it can.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from smartgw.state.desired import Desired, Draft, Skipped, Stored
from smartgw.state.records import Unreadable, decode, encode
from smartgw.state.sealed import COUNTS, Form, Stamp, check, malformed, stamp_of
from smartgw_hosts.identity import Identity, PublicKey
from smartgw_hosts.strict_json import parse_object

FORM: Final = Form(b"smartgw-desired", b"smartgw/desired/v1", 1, 512 << 20)
"""100,000 apps with ten hostnames each are 40 MB."""
SLICE: Final = 64
"""Records between two calls of `breathe`."""
_RAW: Final = b"~"


@dataclass(frozen=True, slots=True)
class Decisions:
    """What such a file says: `desired` was in force at `time`, Unix seconds."""

    generation: int
    time: float
    desired: Desired


def sealed(
    desired: Desired, stamp: Stamp, identity: Identity, breathe: Callable[[], None]
) -> bytes:
    """Return the file of a state; `breathe` is called often, so that others may run."""
    head = stamp.members() | {
        "bucket": desired.bucket,
        "revision": desired.revision,
        "records": len(desired.records),
    }
    lines = [json.dumps(head).encode()]
    for number, (key, stored) in enumerate(desired.records.items()):
        value = (
            encode(stored.record)
            if isinstance(stored, Stored)
            else _RAW + base64.b64encode(stored.value)
        )
        words = (key, str(stored.revision), repr(stored.time), f"{stored.mark:x}")
        lines.append(" ".join(words).encode() + b" " + value)
        if number % SLICE == SLICE - 1:
            breathe()
    return FORM.seal(b"\n".join([*lines, b""]), identity)


def read(
    data: bytes, *, cluster: str, key: PublicKey, seen: int, breathe: Callable[[], None]
) -> Decisions:
    """Read such a file; `seen` is the highest generation that was ever written here.

    Raises:
        SnapshotRefused: it is not whole, not ours, not of a form we know, or an older one put back.
    """
    body = FORM.body(data, key)
    head, _, rest = body.partition(b"\n")
    try:
        members = parse_object(head)
        stamp = stamp_of(members)
        bucket, revision, count = (members.get(n) for n in ("bucket", "revision", "records"))
        if type(revision) is not int or revision not in COUNTS or not isinstance(bucket, str):
            raise ValueError("revision must be 0 to 2**53 - 1 and bucket text")
    except ValueError as error:
        raise malformed(error) from None
    check(stamp, cluster, seen)
    draft = Draft(Desired())
    try:
        lines = rest.split(b"\n")[:-1]
        if len(lines) != count:
            raise ValueError("records: not as many as there are lines")
        for number, line in enumerate(lines):
            draft.keep(*_record(line))
            if number % SLICE == SLICE - 1:
                breathe()
    except ValueError as error:
        raise malformed(error) from None
    desired, _ = draft.done(revision, bucket)
    return Decisions(stamp.generation, stamp.time, desired)


def _record(line: bytes) -> tuple[str, Stored | Skipped]:
    """Read one line; what is signed by us can still be of a version with other rules."""
    words = line.split(b" ", 4)
    if len(words) != 5:
        raise ValueError("a record must have a key, revision, time, mark and value")
    name, value = words[0].decode(), words[4]
    revision, time, mark = int(words[1]), float(words[2]), int(words[3], 16)
    raw = base64.b64decode(value[1:], validate=True) if value.startswith(_RAW) else value
    try:
        return name, Stored(decode(name, raw), revision, time, mark)
    except Unreadable as error:
        return name, Skipped(raw, str(error), error.newer, revision, time, mark)
