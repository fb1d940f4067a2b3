"""One connection to one NATS server, from its address to its end.

Owns what the library may not be left to do: read on whatever comes, keep to TLS, let go of a
frozen peer. Knows nothing of dialling again, which is bus.py's.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import SplitResult, unquote, urlsplit

from nats import errors
from nats.aio.client import Client
from nats.protocol.parser import Parser

UNSENT_BYTES = 1 << 20
"""Written and not yet taken by the kernel: more waits only for a peer that does not read."""
PARSED_AT_ONCE = 2_048
"""Bytes, a few messages: all that one read may bring would hold the loop for milliseconds."""


@dataclass(frozen=True, slots=True)
class BusAddress:
    """Where one NATS server is and how to sign in; `str()` and `repr()` show no secret."""

    scheme: str
    host: str
    port: int
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls_name: str | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self}"

    @classmethod
    def parse(cls, text: str, what: str = "bus server") -> Self:
        """From `nats://[user:password@|token@]host[:port]` or `tls://...`; percent-encoded.

        Raises ValueError that shows nothing of `text`, which may hold a password.
        """
        try:
            parts = urlsplit(text if "://" in text else f"nats://{text}")
            port = parts.port or 4222
        except ValueError:
            parts, port = SplitResult("", "", "", "", ""), 0
        if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{what}: expected nats://host:port or tls://host:port")
        user = unquote(parts.username) if parts.username is not None else None
        password = unquote(parts.password) if parts.password is not None else None
        return cls(parts.scheme, parts.hostname, port, user, password)

    def credentials(self) -> dict[str, str]:
        """The library's options; a name alone is a token, as in NATS URLs."""
        if self.user is None:
            return {}
        if self.password is None:
            return {"token": self.user}
        return {"user": self.user, "password": self.password}


class _PatientParser(Parser):
    """The library's, in several turns of the loop when a thousand hosts speak at once."""

    def __init__(self, client: Client, before: Callable[[], None] | None) -> None:
        super().__init__(client)
        self._before = before

    async def parse(self, data: bytes = b"") -> None:
        for start in range(0, len(data), PARSED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            if self._before is not None:
                self._before()
            await super().parse(data[start : start + PARSED_AT_ONCE])


class Connection(Client):
    """One connection to one server, used until it fails and then discarded.

    Overrides three steps of the library's read loop, which ends silently when one of them raises,
    and gives it a parser that lets others run, and calls `before` before each part.
    """

    def __init__(
        self,
        deliver: Callable[[str, bytes, bytes, bytes, bytes], None],
        on_refused: Callable[[Exception], None],
        before: Callable[[], None] | None,
    ) -> None:
        super().__init__()
        self._ps = _PatientParser(self, before)
        self._deliver = deliver
        self._on_refused = on_refused
        self._wants_tls = True
        self.first_fault: Exception | None = None
        self.subscription_refused = False

    async def dial(
        self,
        address: BusAddress,
        subjects: Iterable[str],
        *,
        name: str,
        nkey_seed: str | None,
        tls: ssl.SSLContext | None,
        patience: float,
        ping_interval: float,
    ) -> None:
        """Connect and subscribe; the server is heard for 3 `ping_interval` without an answer.

        Raises what the library raises; `first_fault` and `last_error` may know better why.
        """
        self._wants_tls = address.scheme == "tls" or tls is not None
        options: dict[str, Any] = {**address.credentials()}
        if tls is not None:
            options["tls"] = tls
        if address.tls_name is not None:
            options["tls_hostname"] = address.tls_name
        await self.connect(
            [address.url],
            name=name,
            nkeys_seed_str=nkey_seed,
            error_cb=self._on_error,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # 0 would mean: for ever
            reconnect_time_wait=0,
            connect_timeout=patience,  # type: ignore[arg-type]  # any fraction will do
            ping_interval=ping_interval,  # type: ignore[arg-type]
            max_outstanding_pings=2,
            pending_size=0,
            **options,
        )
        for subject in subjects:
            await self.subscribe(subject)
        # Its answer comes after what the server has to say about the subscriptions.
        await self.exchange(patience)
        if not self.alive:
            raise errors.Error("nats: the connection closed at once")

    def others(self, address: BusAddress) -> tuple[BusAddress, ...]:
        """Other servers of the NATS cluster that the one at `address` has named."""
        return tuple(
            replace(
                address,
                host=found.hostname,
                port=found.port or 4222,
                tls_name=address.tls_name or address.host,
            )
            for found in self.discovered_servers
            if found.hostname and (found.hostname, found.port) != (address.host, address.port)
        )

    async def _on_error(self, error: Exception) -> None:
        if self.first_fault is None:
            self.first_fault = error
        text = str(error)
        # The connection would go on without it: a bus that answers PINGs and brings no heartbeat.
        if "permissions violation for subscription" in text:
            self.subscription_refused = True
        elif "permissions violation" in text:
            self._on_refused(error)

    @property
    def reading(self) -> asyncio.Task[None]:
        task = self._reading_task
        assert task is not None, "not connected yet"
        return task

    @property
    def alive(self) -> bool:
        return self.is_connected and not self.reading.done() and not self.subscription_refused

    async def _process_pong(self) -> None:
        # A PONG may come after whoever waited for it gave up.
        if self._pongs:
            waiting = self._pongs.pop(0)
            if not waiting.done():
                waiting.set_result(True)
            self._pongs_received += 1
            self._pings_outstanding = 0

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        # The library decodes subject and headers here, and any publisher can send what breaks that.
        subscription = self._subs.get(sid)
        if subscription is not None:
            self._deliver(subscription.subject, subject, data, reply, headers)

    def _connect_command(self) -> bytes:
        # The library goes on in the clear when whoever answers does not ask for TLS.
        if self._wants_tls and self._writer().get_extra_info("ssl_object") is None:
            raise errors.Error("nats: TLS is configured and the server offers none")
        return super()._connect_command()

    def _writer(self) -> Any:
        return self._transport._io_writer  # type: ignore[union-attr]

    def send(self, command: bytes) -> bool:
        """Hand `command` to the socket now, or return False when too much waits there."""
        writer = self._writer()
        if writer.transport.get_write_buffer_size() + len(command) > UNSENT_BYTES:
            return False
        writer.write(command)
        return True

    async def exchange(self, patience: float) -> float:
        """PING and its PONG, after all that was sent before. Returns seconds; TimeoutError."""
        if self._pending:
            self._writer().writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        answered = asyncio.get_running_loop().create_future()
        self._pongs.append(answered)
        began = time.monotonic()
        self._writer().write(b"PING\r\n")
        await asyncio.wait_for(answered, patience)
        return time.monotonic() - began

    def discard(self) -> None:
        """Drop it at once: the library's close() can wait for ever for a peer that is frozen."""
        self._status = Client.CLOSED
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:
                task.cancel()
        if self._transport is not None and (writer := self._writer()) is not None:
            writer.transport.abort()
