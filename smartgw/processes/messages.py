"""What control process and workers say to each other: JSON messages, each with its length.

Owns the framing, the bound on a message, how hosts and apps are cut into messages that neither
side takes long for, and how clusters are told. Both ends are of the same generation, so there are
no versions.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from smartgw.peers.directory import Mode, View
from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy, AppState
from smartgw.routing.table import AppUpdate, HostUpdate
from smartgw.state.desired import Desired
from smartgw_hosts.clusters import parse
from smartgw_hosts.identity import PublicKey

MAX_MESSAGE = 4 << 20
"""Bytes; a host with a thousand of the longest apps is an eighth of it."""
PART_BYTES = 16_384
"""A message with hosts or apps ends after this: a worker carries traffic between two of them."""
_HOST_BYTES = 300
_APP_BYTES, _APPS_BYTES = 60, 4_096

Message = dict[str, Any]


class BadMessage(ValueError):
    """What came is no message; the channel is of no use any more."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the length, 4 bytes big-endian, and the JSON."""
    data = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    if len(data) > MAX_MESSAGE:
        raise BadMessage(f"a message of {len(data)} bytes")
    return len(data).to_bytes(4, "big") + data


class Frames:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes, return the messages that are whole. Raises BadMessage."""
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big")
            if size > MAX_MESSAGE:
                raise BadMessage(f"a message of {size} bytes")
            if len(buffer) - start - 4 < size:
                break
            try:
                message = json.loads(buffer[start + 4 : start + 4 + size])
            except (ValueError, RecursionError):
                raise BadMessage("not JSON") from None
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise BadMessage("no type")
            messages.append(message)
            start += 4 + size
        del buffer[:start]
        return messages


def hosts_messages(host_ids: Iterable[str], known: Mapping[str, HostUpdate]) -> Iterator[Message]:
    """Return the messages that bring these hosts up to date; those not known are gone."""
    updates: list[list[Any]] = []
    removed: list[str] = []
    size = 0
    for host_id in host_ids:
        host = known.get(host_id)
        if host is None:
            removed.append(host_id)
        else:
            updates.append(
                [
                    *(host.host_id, host.address, host.key.text, list(host.apps)),
                    *(host.weight, host.routed, host.cut),
                ]
            )
            size += sum(map(len, host.apps))
        size += _HOST_BYTES
        if size >= PART_BYTES:
            yield {"type": "hosts", "updates": updates, "removed": removed}
            updates, removed, size = [], [], 0
    if updates or removed:
        yield {"type": "hosts", "updates": updates, "removed": removed}


def hosts_of(message: Message) -> tuple[list[HostUpdate], list[str]]:
    """Return the changed and the removed hosts of a message of `hosts_messages`."""
    updates = [
        HostUpdate(host_id, address, PublicKey.parse(key), tuple(apps), weight, routed, cut)
        for host_id, address, key, apps, weight, routed, cut in message["updates"]
    ]
    return updates, list(message["removed"])


def apps_messages(
    apps: Collection[str], before: Collection[str], complete: bool
) -> Iterator[Message]:
    """Return the messages that make the declared apps `before` into `apps`; the last: complete."""
    for name, some in (("add", set(apps) - set(before)), ("remove", set(before) - set(apps))):
        part: list[str] = []
        size = 0
        for app in sorted(some):
            part.append(app)
            size += len(app) + 3
            if size >= PART_BYTES:
                yield {"type": "apps", name: part}
                part, size = [], 0
        if part:
            yield {"type": "apps", name: part}
    yield {"type": "complete", "complete": complete}


def registered_messages(app_ids: Iterable[str], desired: Desired) -> Iterator[Message]:
    """Return the messages that bring these registered apps up to date; the last: publish."""
    apps: list[list[Any]] = []
    gone: list[str] = []
    size = 0
    for app_id in app_ids:
        app = desired.update(app_id)
        if app is None:
            gone.append(app_id)
        else:
            apps.append(_app_members(app))
            size += sum(map(len, app.hostnames)) + sum(map(len, app.policy.origins))
        size += _APP_BYTES + len(app_id)
        if size >= _APPS_BYTES:
            yield {"type": "registered", "apps": apps, "gone": gone}
            apps, gone, size = [], [], 0
    if apps or gone:
        yield {"type": "registered", "apps": apps, "gone": gone}
    yield {"type": "publish"}


def registered_of(message: Message) -> tuple[list[AppUpdate], list[str]]:
    """Return the changed apps of a message of `registered_messages`, and those that are gone."""
    return [_app(*members) for members in message["apps"]], list(message["gone"])


def _app_members(app: AppUpdate) -> list[Any]:
    policy = app.policy
    decided = (
        None
        if policy is DEFAULT_POLICY
        else [
            policy.state.value,
            sorted(origin.decode() for origin in policy.origins),
            policy.own_cors,
            policy.limit,
        ]
    )
    label = None if app.label is None else app.label.decode()
    return [app.app_id, label, [name.decode() for name in app.hostnames], decided]


def _app(
    app_id: str, label: str | None, hostnames: list[str], decided: list[Any] | None
) -> AppUpdate:
    policy = DEFAULT_POLICY
    if decided is not None:
        state, origins, own_cors, limit = decided
        policy = AppPolicy(AppState(state), frozenset(map(str.encode, origins)), own_cors, limit)
    exact = tuple(map(str.encode, hostnames))
    return AppUpdate(app_id, None if label is None else label.encode(), exact, policy)


def clusters_message(view: View) -> Message:
    """Return the message that tells the clusters; a list is at most an eighth of `MAX_MESSAGE`."""
    return {
        "type": "clusters",
        "mode": view.mode.value,
        "own": view.own_id,
        "list": None if view.clusters is None else view.clusters.text().decode(),
        "keys": {cluster: [key.text for key in keys] for cluster, keys in view.keys.items()},
    }


def view_of(message: Message) -> View:
    """Return the clusters of a message of `clusters_message`."""
    text = message["list"]
    return View(
        Mode(message["mode"]),
        message["own"],
        None if text is None else parse(text.encode()),
        {
            cluster: tuple(PublicKey.parse(key) for key in keys)
            for cluster, keys in message["keys"].items()
        },
    )
