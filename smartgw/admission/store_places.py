"""Which server holds the counters now, and a connection to it, signed in and ready.

Owns how a store is found: one server, the primary that Sentinels name, or the member of a Redis
Cluster that has our slot. Does not decide when to look again (breaker.py).
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Literal

from smartgw.admission.breaker import Fault
from smartgw.admission.store_connection import StoreConnection, StoreError


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: `host` and `port`, or `path` of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class Places:
    """The store as the operator describes it.

    Attributes:
        kind: what the addresses are: the server, Sentinels, or members of a Redis Cluster.
        primary: what Sentinels call the one we want.
        username, password: None: nobody signs in. Never shown.
        tls: None for plain connections.
        database: of a single server or a primary.
    """

    kind: Literal["server", "sentinel", "cluster"]
    addresses: tuple[Address, ...]
    primary: str = ""
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None
    database: int = 0


async def connect(places: Places, tag: str) -> StoreConnection:
    """Return a connection to the server that holds the keys with this hash tag.

    Raises:
        StoreError: none can be had.
    """
    if places.kind == "server":
        return await _sign_in(places, places.addresses[0], places.database)
    if places.kind == "sentinel":
        connection = await _sign_in(places, await _primary(places), places.database)
        role = await connection.call("ROLE")
        if not isinstance(role, list) or role[:1] != [b"master"]:
            # A Sentinel may name the old one for some seconds.
            connection.close()
            raise StoreError(Fault.READONLY, "the server that the Sentinels name is a replica")
        return connection
    return await _sign_in(places, await _member(places, slot_of(tag)), 0)


def slot_of(tag: str) -> int:
    """Return the slot of a Redis Cluster that keys with this hash tag are in."""
    # Takes a tenth of a second to import, and only a Redis Cluster has slots.
    from redis.crc import key_slot

    slot: int = key_slot(tag.encode())
    return slot


async def _primary(places: Places) -> Address:
    error = StoreError(Fault.REFUSED, "no Sentinel knows the primary")
    for address in places.addresses:
        try:
            sentinel = await _open(places, address)
            try:
                found = await _asked(sentinel, places)
            finally:
                sentinel.close()
        except StoreError as failed:
            error = failed
            continue
        if isinstance(found, list) and len(found) == 2:
            return _address(found, address)
    raise error


async def _asked(sentinel: StoreConnection, places: Places) -> object:
    """Ask a Sentinel; many take anybody and have no password that could be told."""
    words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", places.primary)
    try:
        return await sentinel.call(*words)
    except StoreError as error:
        if error.fault is not Fault.AUTH:
            raise
    await _authenticate(sentinel, places)
    return await sentinel.call(*words)


async def _member(places: Places, slot: int) -> Address:
    error = StoreError(Fault.REFUSED, "no member of the Redis Cluster answers")
    for address in places.addresses:
        try:
            member = await _sign_in(places, address, 0)
            try:
                slots = await member.call("CLUSTER", "SLOTS")
            finally:
                member.close()
        except StoreError as failed:
            error = failed
            continue
        for part in slots if isinstance(slots, list) else ():
            if _holds(part, slot):
                return _address(part[2], address)
        error = StoreError(Fault.MOVED, "no member of the Redis Cluster has our slot")
    raise error


def _holds(part: object, slot: int) -> bool:
    """Say whether a part of the answer to CLUSTER SLOTS is of this slot: first, last, primary."""
    match part:
        case [int() as first, int() as last, [*_], *_]:
            return first <= slot <= last
    return False


def _address(told: list[object], asked: Address) -> Address:
    """Return the address that a server tells; an empty name is that of whom we asked."""
    match told:
        case [bytes() as host, (bytes() | int()) as port, *_] if len(host) < 256:
            try:
                return Address(host.decode("ascii") or asked.host, int(port))
            except ValueError:
                pass
    raise StoreError(Fault.ANSWER, f"{asked}: tells an address that is none")


async def _sign_in(places: Places, address: Address, database: int) -> StoreConnection:
    connection = await _open(places, address)
    try:
        if places.password is not None:
            await _authenticate(connection, places)
        if database:
            await connection.call("SELECT", database)
    except BaseException:
        connection.close()
        raise
    return connection


async def _authenticate(connection: StoreConnection, places: Places) -> None:
    user = () if places.username is None else (places.username,)
    await connection.call("AUTH", *user, places.password or "")


async def _open(places: Places, address: Address) -> StoreConnection:
    loop = asyncio.get_running_loop()
    try:
        if address.path:
            _, connection = await loop.create_unix_connection(StoreConnection, address.path)
        else:
            _, connection = await loop.create_connection(
                StoreConnection,
                address.host,
                address.port,
                ssl=places.tls,
                server_hostname=address.host if places.tls else None,
            )
    except ssl.SSLError as error:
        raise StoreError(Fault.TLS, f"{address}: {error.reason or error}") from None
    except socket.gaierror as error:
        raise StoreError(Fault.NAME, f"{address}: {error.strerror}") from None
    except OSError as error:
        raise StoreError(Fault.REFUSED, f"{address}: {error.strerror or error}") from None
    return connection
