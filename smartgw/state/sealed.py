"""Files that one of our own keys has signed, and which of them are refused (contract 11.2).

Owns the form: `<magic> <format> <key id> <length> <signature>`, a newline and that many bytes, all
of it signed by the cluster's identity; and the stamp that every body begins with. Does not read or
write files (disk.py), nor know what is in a body (snapshot.py, decisions.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from smartgw_hosts.identity import Identity, PublicKey, decode64, encode64

_MAX_HEAD: Final = 200
COUNTS: Final = range(1 << 53)


class Fault(StrEnum):
    """Why a file was refused: a closed set, for file names and status."""

    OVERSIZE = "oversize"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    NEWER_FORMAT = "newer_format"
    FOREIGN_KEY = "foreign_key"
    BAD_SIGNATURE = "bad_signature"
    FOREIGN_CLUSTER = "foreign_cluster"
    ROLLED_BACK = "rolled_back"
    UNREADABLE = "unreadable"


class SnapshotRefused(ValueError):
    """A file that is not used; `fault` counts it, the text says more on one line."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of file. `context` is what its signature is for, `version` the highest known form,
    raised when a reader of it would misread the body, and `most` the bytes it may have.
    """

    magic: bytes
    context: bytes
    version: int
    most: int
    _head: re.Pattern[bytes] = field(init=False)

    def __post_init__(self) -> None:
        pattern = rb" ([1-9][0-9]{0,5}) ([0-9a-f]{16}) ([1-9][0-9]{0,9}) ([A-Za-z0-9_-]{86})\n"
        object.__setattr__(self, "_head", re.compile(re.escape(self.magic) + pattern))

    def seal(self, body: bytes, identity: Identity) -> bytes:
        """Return the file with this body."""
        key_id = identity.public_key.key_id.encode()
        lead = b"%b %d %b %d" % (self.magic, self.version, key_id, len(body))
        signature = encode64(identity.sign(self.context, lead + b"\n" + body)).encode()
        return lead + b" " + signature + b"\n" + body

    def body(self, data: bytes, key: PublicKey) -> bytes:
        """Return the body of a file.

        Raises SnapshotRefused: it is not whole, not ours, or not of a form that we know.
        """
        if len(data) > self.most:
            raise SnapshotRefused(Fault.OVERSIZE, f"more than {self.most} bytes")
        head = self._head.match(data)
        if head is None:
            begun = (self.magic + b" ").startswith(data[: len(self.magic) + 1])
            if len(data) < _MAX_HEAD and b"\n" not in data and begun:
                raise SnapshotRefused(Fault.TRUNCATED, f"ends after {len(data)} bytes")
            raise SnapshotRefused(Fault.MALFORMED, "does not begin as it should")
        form, key_id, length = int(head[1]), head[2].decode(), int(head[3])
        if form > self.version:
            raise SnapshotRefused(
                Fault.NEWER_FORMAT, f"format {form}, this version reads up to {self.version}"
            )
        if key_id != key.key_id:
            raise SnapshotRefused(
                Fault.FOREIGN_KEY, f"signed by key {key_id}, this cluster's is {key.key_id}"
            )
        body = data[head.end() :]
        if len(body) < length:
            raise SnapshotRefused(Fault.TRUNCATED, f"{len(body)} bytes of {length}")
        if len(body) > length:
            raise SnapshotRefused(Fault.MALFORMED, "goes on after its end")
        try:
            signature = decode64(head[4].decode())
        except ValueError as error:
            raise SnapshotRefused(Fault.MALFORMED, f"signature: {error}") from None
        if not key.verify(self.context, data[: head.start(4) - 1] + b"\n" + body, signature):
            raise SnapshotRefused(
                Fault.BAD_SIGNATURE, "altered, or not written by this cluster's key"
            )
        return body


@dataclass(frozen=True, slots=True)
class Stamp:
    """Whose a body is and of when: `time` is Unix seconds, `generation` rises from one to the
    next.
    """

    cluster: str
    generation: int
    time: float

    def members(self) -> dict[str, Any]:
        """As JSON."""
        return {"cluster": self.cluster, "generation": self.generation, "time": self.time}


def stamp_of(members: Mapping[str, object]) -> Stamp:
    """Read the stamp of a body. Raises ValueError."""
    cluster, generation = members.get("cluster"), members.get("generation")
    time = members.get("time")
    if not isinstance(cluster, str):
        raise ValueError("cluster: must be text")
    if type(generation) is not int or generation not in COUNTS:
        raise ValueError("generation: must be 0 to 2**53 - 1")
    if type(time) is not int and type(time) is not float:
        raise ValueError("time: must be a number")
    return Stamp(cluster, generation, float(time))


def check(stamp: Stamp, cluster: str, seen: int) -> None:
    """Raise SnapshotRefused for another cluster's file, and for one from before `seen`, the
    highest generation that was ever written here.
    """
    if stamp.cluster != cluster:
        raise SnapshotRefused(Fault.FOREIGN_CLUSTER, f"not of cluster {cluster}")
    if stamp.generation < seen:
        raise SnapshotRefused(
            Fault.ROLLED_BACK, f"generation {stamp.generation}, and {seen} was written already"
        )


def malformed(error: ValueError) -> SnapshotRefused:
    """Return the refusal of a body that is not in its form."""
    return SnapshotRefused(Fault.MALFORMED, ascii(str(error)[:200])[1:-1])
