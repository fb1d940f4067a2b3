"""The last good hosts as signed bytes, and which bytes are refused (contract 11.2).

Owns the form: `smartgw-snapshot <format> <key id> <length> <signature>`, a newline and that many
bytes of JSON, all of it signed by the cluster's identity. Holds no cluster list (4.4). Does not
read or write files (disk.py), nor decide which of the hosts may serve: the pool does.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from smartgw_hosts.addresses import AddressRefused, parse_address
from smartgw_hosts.identity import Identity, KeyRefused, PublicKey, decode64, encode64
from smartgw_hosts.ids import check_app_id, check_id
from smartgw_hosts.records import KnownHost
from smartgw_hosts.strict_json import parse_object
from smartgw_hosts.wire import WEIGHTS, Description

FORMAT: Final = 1
"""Raised when a reader of this one would misread the body; members that it does not know are
ignored, so that more can be kept in the same format."""
MAX_BYTES: Final = 128 << 20
"""50,000 hosts with ten apps each are 25 MB."""

_CONTEXT = b"smartgw/state/v1"
_MAGIC = b"smartgw-snapshot"
_HEAD = re.compile(
    rb"smartgw-snapshot ([1-9][0-9]{0,5}) ([0-9a-f]{16}) ([1-9][0-9]{0,9}) ([A-Za-z0-9_-]{86})\n"
)
_MAX_HEAD = 200
_COUNTS = range(1 << 53)


class Fault(StrEnum):
    """Why a snapshot was refused: a closed set, for file names and status."""

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
    """A snapshot that is not used; `fault` counts it, the text says more on one line."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(f"{fault}: {detail}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Contents:
    """What a snapshot says: `time` is Unix seconds, `generation` rises from one to the next."""

    cluster: str
    generation: int
    time: float
    hosts: tuple[KnownHost, ...]


def encode_host(host: KnownHost) -> str:
    """One host as JSON, for `encode`; kept apart so that what did not change is not made anew."""
    described = host.description
    return json.dumps(
        {
            "id": host.host_id,
            "boot": host.boot,
            "address": described.address,
            "key": described.key.text,
            "apps": described.apps,
            "weight": described.weight,
            "region": described.region,
            "version": described.version,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def encode(
    hosts: Iterable[str], *, cluster: str, generation: int, time: float, identity: Identity
) -> bytes:
    """Sign a snapshot of hosts that `encode_host` wrote."""
    head = json.dumps({"cluster": cluster, "generation": generation, "time": time})
    body = b'%b, "hosts": [\n%b\n]}\n' % (head[:-1].encode(), ",\n".join(hosts).encode())
    lead = b"%b %d %b %d" % (_MAGIC, FORMAT, identity.public_key.key_id.encode(), len(body))
    signature = encode64(identity.sign(_CONTEXT, lead + b"\n" + body)).encode()
    return lead + b" " + signature + b"\n" + body


def decode(data: bytes, *, cluster: str, key: PublicKey, seen: int) -> Contents:
    """Read a snapshot; `seen` is the highest generation that was ever written here.

    Raises:
        SnapshotRefused: it is not whole, not ours, not of a form we know, or an older one put back.
    """
    if len(data) > MAX_BYTES:
        raise SnapshotRefused(Fault.OVERSIZE, f"more than {MAX_BYTES} bytes")
    body, signature, lead = _split(data, key)
    if not key.verify(_CONTEXT, lead + b"\n" + body, signature):
        raise SnapshotRefused(Fault.BAD_SIGNATURE, "altered, or not written by this cluster's key")
    try:
        members = parse_object(body)
        generation, time = members.get("generation"), members.get("time")
        if type(generation) is not int or generation not in _COUNTS:
            raise ValueError("generation: must be 0 to 2**53 - 1")
        if type(time) not in (int, float):
            raise ValueError("time: must be a number")
        entries = members.get("hosts")
        if not isinstance(entries, list):
            raise ValueError("hosts: must be a list")
        hosts = tuple(map(_host, entries))
    except ValueError as error:
        raise SnapshotRefused(Fault.MALFORMED, ascii(str(error)[:200])[1:-1]) from None
    if members.get("cluster") != cluster:
        raise SnapshotRefused(Fault.FOREIGN_CLUSTER, f"not of cluster {cluster}")
    if generation < seen:
        raise SnapshotRefused(
            Fault.ROLLED_BACK, f"generation {generation}, and {seen} was written already"
        )
    return Contents(cluster, generation, float(time), hosts)  # type: ignore[arg-type]  # checked


def _split(data: bytes, key: PublicKey) -> tuple[bytes, bytes, bytes]:
    """Return body, signature, and what stands before the signature."""
    head = _HEAD.match(data)
    if head is None:
        if len(data) < _MAX_HEAD and b"\n" not in data and (_MAGIC + b" ").startswith(data[:17]):
            raise SnapshotRefused(Fault.TRUNCATED, f"ends after {len(data)} bytes")
        raise SnapshotRefused(Fault.MALFORMED, "does not begin as a snapshot does")
    form, key_id, length = int(head[1]), head[2].decode(), int(head[3])
    if form > FORMAT:
        raise SnapshotRefused(
            Fault.NEWER_FORMAT, f"format {form}, this version reads up to {FORMAT}"
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
    return body, signature, data[: head.start(4) - 1]


def _host(entry: object) -> KnownHost:
    """Read one host; what is signed by us can still be of a version with other rules."""
    if not isinstance(entry, dict):
        raise ValueError("hosts: must be objects")
    boot, apps, weight = entry.get("boot"), entry.get("apps"), entry.get("weight")
    address, region, version = (entry.get(name) for name in ("address", "region", "version"))
    if type(boot) is not int or boot not in _COUNTS:
        raise ValueError("boot: must be 0 to 2**53 - 1")
    if type(weight) is not int or weight not in WEIGHTS or not isinstance(apps, list):
        raise ValueError("weight must be 1 to 1000 and apps a list")
    if not (isinstance(address, str) and isinstance(region, str) and isinstance(version, str)):
        raise ValueError("address, region and version must be text")
    try:
        parse_address(address)
        key = PublicKey.parse(str(entry.get("key")))
    except (AddressRefused, KeyRefused) as error:
        raise ValueError(str(error)) from None
    return KnownHost(
        check_id("host id", entry.get("id")),
        boot,
        Description(address, tuple(map(check_app_id, apps)), key, weight, region, version),
    )
