"""A peer's gateway of raw bytes: opens links to a real gateway and marks requests, well or badly.

Uses the project's own scheme (routing/link_opening.py, routing/forwarding.py) and none of its data
path, so that a test can alter anything between sealing and sending.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from smartgw.peers import certificate
from smartgw.routing.forwarding import Keyring, Kind, Mark, MarkFault, seal
from smartgw.routing.link_opening import PATH, Opened, opened, question
from smartgw_hosts.clusters import parse
from smartgw_hosts.identity import Identity
from tests.gateway import identity_of
from tests.raw_http import Answer, Downstream

ASKED = bytes(range(16))


def cluster_key(cluster_id: str) -> Identity:
    """The identity of a cluster in tests; its seed file: `seed_file(path, f"cluster {id}")`."""
    return identity_of(f"cluster {cluster_id}")


def entry(
    cluster_id: str, *gateways: str, keys: Sequence[Identity] = (), state: str = "active"
) -> dict[str, Any]:
    """One cluster of a list; its own key unless others are given."""
    keys = keys or (cluster_key(cluster_id),)
    return {
        "id": cluster_id,
        "gateways": list(gateways),
        "keys": [key.public_key.text for key in keys],
        "state": state,
    }


def list_text(*clusters: dict[str, Any], **switches: bool) -> bytes:
    """A list of these clusters as a directory gives it."""
    text = json.dumps({"clusters": clusters, **switches}).encode()
    parse(text, by_hand=True)
    return text


def write_list(path: Path, *clusters: dict[str, Any], **switches: bool) -> Path:
    """Put a list of clusters in a directory file, in one step."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(list_text(*clusters, **switches))
    fresh.replace(path)
    return path


def said(mark: Mark | MarkFault) -> dict[str, object] | MarkFault:
    """All that a mark says, by name, to compare it with another or to make one of it."""
    if isinstance(mark, MarkFault):
        return mark
    names = ("sender", "audience", "kind", "client", "scheme", "app_id", "epoch")
    return {name: getattr(mark, name) for name in (*names, "time_ms", "remaining_ms", "counter")}


def altered(mark: Mark, **changes: Any) -> Mark:
    """Return a mark that says something else."""
    facts: Any = said(mark)
    return Mark(**(facts | changes))


class Forwarder:
    """One connection to a gateway of `receiver`, which it opens as a gateway of `sender`."""

    def __init__(
        self,
        address: tuple[str, int],
        sender: str = "c2",
        receiver: str = "c1",
        *,
        key: Identity | None = None,
        receiver_key: Identity | None = None,
        tls: bool = False,
    ) -> None:
        self.sender, self.receiver = sender, receiver
        theirs = receiver_key or cluster_key(receiver)
        mine = key or cluster_key(sender)
        self.ring = Keyring(sender, (mine,), {receiver: (theirs.public_key,)})
        self.client = Downstream(address)
        if tls:
            self.client.socket = certificate.sending().wrap_socket(self.client.socket)
        self.link: Opened | None = None
        self.counter = 0
        self._born = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()

    @property
    def tls(self) -> ssl.SSLSocket:
        """The socket, where it speaks TLS."""
        assert isinstance(self.client.socket, ssl.SSLSocket)
        return self.client.socket

    def ask(self, value: bytes | None = None, path: bytes = PATH, host: bytes = b"gw") -> Answer:
        """Send the question that opens a link, or any `value` in its place."""
        if value is None:
            value = question(self.ring, self.receiver, ASKED)
        assert value is not None
        self.client.send(
            b"POST %b HTTP/1.1\r\nHost: %b\r\nx-smartgw-link: %b\r\nContent-Length: 0\r\n\r\n"
            % (path, host, value)
        )
        return self.client.answer("POST")

    def open(self) -> Self:
        """Open the link; fails the test when the gateway does not prove itself."""
        answer = self.ask()
        assert answer.status == 200, answer
        link = opened(answer.body, self.ring, self.receiver, ASKED)
        assert isinstance(link, Opened), link
        self.link, self._born = link, time.monotonic()
        return self

    def mark(self, app_id: str, **changes: Any) -> Mark:
        """The next mark, as an honest gateway would make it but for the changes."""
        assert self.link is not None
        self.counter += 1
        mark = Mark(
            sender=self.sender,
            audience=self.receiver,
            kind=Kind.AFFINITY,
            client="203.0.113.9",
            scheme=b"https",
            app_id=app_id,
            epoch="0123456789abcdef",
            time_ms=self.link.time_ms + int((time.monotonic() - self._born) * 1000),
            remaining_ms=20_000,
            counter=self.counter,
        )
        return altered(mark, **changes)

    def sealed(
        self,
        mark: Mark,
        hostname: str,
        target: str = "/",
        method: str = "GET",
        nonce: bytes | None = None,
    ) -> bytes:
        """The value of the field for a mark on this request."""
        assert self.link is not None
        return seal(
            self.link.key,
            mark,
            method.encode(),
            hostname.encode(),
            target.encode(),
            self.link.nonce if nonce is None else nonce,
        )

    def send(
        self,
        value: bytes | None,
        hostname: str,
        target: str = "/",
        method: str = "GET",
        *fields: str,
        body: bytes = b"",
    ) -> None:
        """Send a request with this mark, where a gateway puts it."""
        first = [] if value is None else [b"x-smartgw-forward: " + value, b"X-Request-Id: fw-1"]
        lines = [f"{method} {target} HTTP/1.1".encode(), *first, f"Host: {hostname}".encode()]
        lines += [field.encode("latin1") for field in fields]
        lines.append(b"Via: 1.1 " + self.sender.encode())
        if body or method in ("POST", "PUT"):
            lines.append(b"Content-Length: %d" % len(body))
        self.client.send(b"\r\n".join(lines), b"\r\n\r\n", body)

    def forward(
        self, app_id: str, hostname: str, target: str = "/", method: str = "GET", **changes: Any
    ) -> Answer:
        """Send a request with an honest mark but for the changes; return its answer."""
        mark = self.mark(app_id, **changes)
        self.send(self.sealed(mark, hostname, target, method), hostname, target, method)
        return self.client.answer(method)
