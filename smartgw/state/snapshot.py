"""The last good hosts as the body of a signed file (contract 11.2).

Owns that body: JSON with a stamp and the hosts. Holds no cluster list (4.4). Does not decide which
of the hosts may serve: the pool does. Signing and refusing are sealed.py's.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from smartgw.state.sealed import COUNTS, Form, Stamp, check, malformed, stamp_of
from smartgw_hosts.addresses import AddressRefused, parse_address
from smartgw_hosts.identity import Identity, KeyRefused, PublicKey
from smartgw_hosts.ids import check_app_id, check_id
from smartgw_hosts.records import KnownHost
from smartgw_hosts.strict_json import parse_object
from smartgw_hosts.wire import WEIGHTS, Description

FORM: Final = Form(b"smartgw-snapshot", b"smartgw/state/v1", 1, 128 << 20)
"""Members that a reader does not know are ignored, so that more can be kept in the same format.
50,000 hosts with ten apps each are 25 MB."""


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
    head = json.dumps(Stamp(cluster, generation, time).members())
    body = b'%b, "hosts": [\n%b\n]}\n' % (head[:-1].encode(), ",\n".join(hosts).encode())
    return FORM.seal(body, identity)


def decode(data: bytes, *, cluster: str, key: PublicKey, seen: int) -> Contents:
    """Read a snapshot; `seen` is the highest generation that was ever written here.

    Raises:
        SnapshotRefused: it is not whole, not ours, not of a form we know, or an older one put back.
    """
    body = FORM.body(data, key)
    try:
        members = parse_object(body)
        stamp = stamp_of(members)
        entries = members.get("hosts")
        if not isinstance(entries, list):
            raise ValueError("hosts: must be a list")
        hosts = tuple(map(_host, entries))
    except ValueError as error:
        raise malformed(error) from None
    check(stamp, cluster, seen)
    return Contents(stamp.cluster, stamp.generation, stamp.time, hosts)


def _host(entry: object) -> KnownHost:
    """Read one host; what is signed by us can still be of a version with other rules."""
    if not isinstance(entry, dict):
        raise ValueError("hosts: must be objects")
    boot, apps, weight = entry.get("boot"), entry.get("apps"), entry.get("weight")
    address, region, version = (entry.get(name) for name in ("address", "region", "version"))
    if type(boot) is not int or boot not in COUNTS:
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
