"""One logical connection to NATS that is there whenever a NATS server is.

Owns when to dial, when a connection is dead and what is told of it. A library client serves for one
connection to one server and is thrown away with it, so its reconnecting, its buffers of unsent
messages and its callbacks never run. Decides nothing about what a message means.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import nkeys
from nats import errors
from nats.aio.client import Client
from nats.protocol.command import pub_cmd

log = logging.getLogger(__name__)

Handler = Callable[[str, bytes], None]

# Bounds of what waits: received and not yet handled, and written and not yet taken by the kernel.
QUEUED_BYTES = 32 << 20
UNSENT_BYTES = 1 << 20
# A batch of handlers holds the loop no longer than this before other work has its turn.
BATCH_SECONDS = 0.005
DISCOVERED = 16


class BusAway(ConnectionError):
    """The bus did not answer: there is no connection, or no answer came in time."""


class QuietLog:
    """Passes one log line of a kind in `seconds`, then says how many it held back."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kinds: dict[str, tuple[float, int]] = {}

    def __call__(
        self, level: int, kind: str, text: str, *, error: BaseException | None = None
    ) -> None:
        now = time.monotonic()
        due, held = self._kinds.get(kind, (now, 0))
        if now < due:
            self._kinds[kind] = (due, held + 1)
            return
        if len(self._kinds) > 256:  # texts of others are among the kinds
            self._kinds.clear()
        self._kinds[kind] = (now + self._seconds, 0)
        log.log(level, "%s%s", text, f" ({held} more of these)" if held else "", exc_info=error)


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
    def parse(cls, text: str, what: str = "bus server") -> BusAddress:
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


class _Connection(Client):
    """One connection to one server, used until it fails and then discarded.

    Overrides three steps of the library's read loop, which ends silently when one of them raises.
    """

    def __init__(
        self,
        deliver: Callable[[str, bytes, bytes], None],
        on_refused: Callable[[Exception], None],
        *,
        wants_tls: bool,
    ) -> None:
        super().__init__()
        self._deliver = deliver
        self._on_refused = on_refused
        self._wants_tls = wants_tls
        self.first_fault: Exception | None = None
        self.subscription_refused = False

    async def on_error(self, error: Exception) -> None:
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
            self._deliver(subscription.subject, subject, data)

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


@dataclass(slots=True)
class _Feed:
    handler: Handler
    limit: int
    queued: int = 0


class Bus:
    """A supervised NATS connection; see the module's docstring.

    `servers` are URLs in order of preference; others of their NATS cluster are learnt from them.
    `on_state(connected)` is called on the event loop after each change. Raises ValueError for a
    server or seed that cannot be read, without showing it.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        name: str,
        nkey_seed: str | None = None,
        tls: ssl.SSLContext | None = None,
        on_state: Callable[[bool], None] | None = None,
        ping_interval: float = 5.0,
        timeout: float = 2.0,
        backoff: tuple[float, float] = (0.2, 5.0),
        log_interval: float = 30.0,
    ) -> None:
        if not servers:
            raise ValueError("bus: no server given; expected at least one nats://host:port")
        self._configured = tuple(
            BusAddress.parse(text, f"bus server {number}") for number, text in enumerate(servers, 1)
        )
        self._discovered: tuple[BusAddress, ...] = ()
        self._nkey_seed = nkey_seed.strip() if nkey_seed is not None else None
        if self._nkey_seed is not None:
            try:
                nkeys.from_seed(bytearray(self._nkey_seed.encode())).wipe()
            except Exception:  # the library raises many kinds, some of which quote the seed
                raise ValueError("bus: the NKey seed is not a valid one (SU...)") from None
        self._name = name
        self._tls = tls
        self._on_state = on_state
        self._ping_interval = ping_interval
        self._timeout = timeout
        self._backoff = backoff
        self._say = QuietLog(log_interval)
        self._told: dict[str, str] = {}
        self._feeds: dict[str, _Feed] = {}
        self._queue: deque[tuple[_Feed, str, bytes] | asyncio.Future[None]] = deque()
        self._queued_bytes = 0
        self._scheduled = False
        self._connection: _Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self.counters: dict[str, int] = dict.fromkeys(
            ("messages", "drops", "handler_errors", "errors", "dial_failures", "generations"), 0
        )

    @property
    def connected(self) -> bool:
        """Whether there is a live connection with every subscription in place."""
        return self._connection is not None and self._connection.alive

    def subscribe(self, subject: str, handler: Handler, *, limit: int = 20_000) -> None:
        """Call `handler(subject, payload)` for each message, for as long as the bus runs.

        At most `limit` wait to be handled; what comes on top is dropped and counted. Call it
        before start().
        """
        assert self._task is None, "subscribe before start()"
        self._feeds[subject] = _Feed(handler, limit)

    def publish(self, subject: str, payload: bytes) -> bool:
        """Hand a message to the connection. False when there is none: nothing is kept for later.

        `subject` is trusted: no white space. True does not say that the message arrived.
        """
        connection = self._connection
        if connection is None or not connection.alive or len(payload) > connection.max_payload:
            return False
        return connection.send(pub_cmd(subject, "", payload))

    async def ping(self) -> float:
        """Prove that the bus answers now; returns the round trip in seconds.

        When it returns, all that had arrived before the answer has been handled. Raises BusAway.
        """
        connection = self._connection
        if connection is None or not connection.alive:
            raise BusAway("no connection to the bus")
        try:
            seconds = await connection.exchange(self._timeout)
        except TimeoutError:
            raise BusAway(f"no answer from the bus within {self._timeout:g} s") from None
        if self._queue:
            handled = asyncio.get_running_loop().create_future()
            self._queue.append(handled)
            await handled
        return seconds

    async def wait_connected(self) -> None:
        """Return once there is a connection; waits for ever, so put a timeout around it."""
        await self._up.wait()

    async def start(self) -> None:
        """Begin to dial; returns at once, whether or not a server answers."""
        assert self._task is None, "started already"
        self._task = asyncio.create_task(self._supervise(), name="bus")

    async def stop(self) -> None:
        """Let what was published reach the server (1 s at most), then end. May be repeated."""
        connection, task = self._connection, self._task
        if connection is not None and connection.alive:
            with contextlib.suppress(Exception):
                await connection.exchange(min(1.0, self._timeout))
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for waiting in self._queue:
            if isinstance(waiting, asyncio.Future) and not waiting.done():
                waiting.set_result(None)
        self._queue.clear()

    # --- the connection

    async def _supervise(self) -> None:
        attempt = 0
        while True:
            began = time.monotonic()
            try:
                for address in (*self._configured, *self._discovered):
                    if await self._serve(address):
                        break
            except Exception as error:  # an error of ours must not leave the gateway without a bus
                self._say(logging.ERROR, "supervisor", "bus: unexpected error", error=error)
            first, longest = self._backoff
            attempt = 0 if time.monotonic() - began > 2 * longest else attempt + 1
            await asyncio.sleep(min(longest, first * 2 ** min(attempt, 16)) * random.random())

    async def _serve(self, address: BusAddress) -> bool:
        """Dial one server and stay until the connection is dead. False if none came about."""
        wants_tls = address.scheme == "tls" or self._tls is not None
        connection = _Connection(self._deliver, self._refused, wants_tls=wants_tls)
        try:
            try:
                async with asyncio.timeout(3 * self._timeout):
                    await self._dial(connection, address)
            except Exception as error:
                cause = connection.first_fault or connection.last_error or error
                self._dial_failed(address, cause)
                return False
            self._connected(connection, address)
            while connection.alive:
                await asyncio.wait({connection.reading}, timeout=0.25)
            self._lost(connection, address)
            return True
        finally:
            connection.discard()
            if self._connection is connection:
                self._connection = None
                self._up.clear()
                self._tell_state(False)

    async def _dial(self, connection: _Connection, address: BusAddress) -> None:
        options: dict[str, Any] = {**address.credentials()}
        if self._tls is not None:
            options["tls"] = self._tls
        if address.tls_name is not None:
            options["tls_hostname"] = address.tls_name
        await connection.connect(
            [address.url],
            name=self._name,
            nkeys_seed_str=self._nkey_seed,
            error_cb=connection.on_error,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # 0 would mean: for ever
            reconnect_time_wait=0,
            connect_timeout=self._timeout,  # type: ignore[arg-type] # seconds, any fraction
            ping_interval=self._ping_interval,  # type: ignore[arg-type]
            max_outstanding_pings=2,
            pending_size=0,
            **options,
        )
        for subject in self._feeds:
            await connection.subscribe(subject)
        # Its answer comes after what the server has to say about the subscriptions.
        await connection.exchange(self._timeout)
        if not connection.alive:
            raise errors.Error("nats: the connection closed at once")

    def _connected(self, connection: _Connection, address: BusAddress) -> None:
        self._connection = connection
        self.counters["generations"] += 1
        self._told.pop(str(address), None)
        self._say(logging.INFO, f"up {address}", f"bus: connected to {address}")
        self._up.set()
        self._tell_state(True)

    def _lost(self, connection: _Connection, address: BusAddress) -> None:
        self.counters["errors"] += 1
        fault = self._describe(connection.last_error)
        self._say(logging.WARNING, f"lost {address}", f"bus: lost {address}: {fault}")
        self._discovered = tuple(
            BusAddress(
                address.scheme,
                found.hostname,
                found.port or 4222,
                address.user,
                address.password,
                address.tls_name or address.host,
            )
            for found in connection.discovered_servers[:DISCOVERED]
            if found.hostname and (found.hostname, found.port) != (address.host, address.port)
        )

    def _dial_failed(self, address: BusAddress, error: Exception) -> None:
        self.counters["dial_failures"] += 1
        fault = self._describe(error)
        if self._told.get(str(address)) != fault:  # once a change, not once a retry
            self._told[str(address)] = fault
            text = f"bus: cannot connect to {address}: {fault}; trying on"
            self._say(logging.WARNING, f"dial {address} {fault}", text)

    def _refused(self, error: Exception) -> None:
        if self._connection is not None:  # while dialling, the dial's own line says it
            self.counters["errors"] += 1
            self._say(logging.WARNING, "refused", f"bus: {self._describe(error)}")

    def _describe(self, error: BaseException | None) -> str:
        text = " ".join(str(error).split()) if error is not None else "the connection ended"
        text = text or ("no answer in time" if isinstance(error, TimeoutError) else repr(error))
        secrets = [self._nkey_seed]
        for address in self._configured:
            secrets += (address.password, address.user if address.password is None else None)
        for secret in secrets:
            if secret:
                text = text.replace(secret, "***")
        return text[:200]

    def _tell_state(self, connected: bool) -> None:
        if self._on_state is not None:
            try:
                self._on_state(connected)
            except Exception as error:
                self._say(logging.ERROR, "on_state", "bus: on_state failed", error=error)

    # --- the messages

    def _deliver(self, pattern: str, subject: bytes, payload: bytes) -> None:
        self.counters["messages"] += 1
        feed = self._feeds[pattern]
        if feed.queued >= feed.limit or self._queued_bytes + len(payload) > QUEUED_BYTES:
            self.counters["drops"] += 1
            self._say(logging.WARNING, f"drop {pattern}", f"bus: dropped a message of {pattern}")
            return
        feed.queued += 1
        self._queued_bytes += len(payload)
        # What is not UTF-8 becomes U+FFFD, which no id of ours may hold.
        self._queue.append((feed, subject.decode(errors="replace"), payload))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._handle_batch)

    def _handle_batch(self) -> None:
        end = time.monotonic() + BATCH_SECONDS
        while self._queue and time.monotonic() < end:
            entry = self._queue.popleft()
            if isinstance(entry, asyncio.Future):
                if not entry.done():
                    entry.set_result(None)
                continue
            feed, subject, payload = entry
            feed.queued -= 1
            self._queued_bytes -= len(payload)
            try:
                feed.handler(subject, payload)
            except Exception as error:
                self.counters["handler_errors"] += 1
                self._say(logging.ERROR, "handler", "bus: a handler failed", error=error)
        self._scheduled = bool(self._queue)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._handle_batch)
