"""One logical connection to NATS that is there whenever a NATS server is.

Owns when and whom to dial, what is told of it, and what waits to be handled. A library client
serves for one connection (bus_connection.py) and is thrown away with it, so that its own
reconnecting, its buffer of unsent messages and its callbacks never run. Decides nothing about
what a message means.
"""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import nkeys
from nats.protocol.command import hpub_cmd, pub_cmd

from smartgw_hosts.bus_connection import BusAddress, Connection
from smartgw_hosts.quiet_log import QuietLog

_log = logging.getLogger(__name__)

Handler = Callable[[str, bytes], None]

QUEUED_BYTES = 32 << 20
"""Received and not yet handled, of all subscriptions together."""
TURN_SECONDS, BATCH_SECONDS = 0.000_04, 0.000_25
"""So long, and for the message under way then, handlers hold the loop before other work has its
turn; and so much turns that follow each other take together before a pause."""
PRESSING_TURN_SECONDS, PRESSING_BATCH_SECONDS = 0.000_1, 0.001
"""The same where more than half of what may wait does, else some would be dropped; or where one
has waited for long."""
LONG_SECONDS = 5.0
"""A third of the time after which a host that is not heard counts as silent (contract 1.5)."""
HURRIED_TURN_SECONDS = 0.001
"""The same while nobody waits for the loop; there is no pause then."""
PAUSE_SECONDS = 0.001
"""Between two batches. A request passes the loop several times, so a turn is not enough for it."""
DISCOVERED = 16
"""Servers learnt from others that are remembered."""


class BusAway(ConnectionError):
    """The bus did not answer: there is no connection, or no answer came in time."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message with all that came along: `headers` as they were on the wire, or empty."""

    subject: str
    payload: bytes
    reply: str
    headers: bytes

    @property
    def size(self) -> int:
        """Bytes of memory, about: text that was not ASCII may take two for each character."""
        return 2 * (len(self.subject) + len(self.reply)) + len(self.payload) + len(self.headers)


@dataclass(slots=True)
class _Feed:
    handler: Callable[[Delivery], None]
    limit: int
    queued: int = 0


class Bus:
    """A supervised NATS connection; see the module's docstring.

    Set `hurry` while nobody waits for the event loop, to have messages handled without pauses.

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
        self._say = QuietLog(log_interval, _log)
        self._told: dict[str, str] = {}
        self._feeds: dict[str, _Feed] = {}
        self._queue: deque[tuple[_Feed, Delivery, float] | asyncio.Future[None]] = deque()
        self._queued_bytes = 0
        self._scheduled = False
        self._spent = 0.0
        self._connection: Connection | None = None
        self._lost_at: float | None = None  # monotonic; None before the first connection
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self.hurry = False
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
        self.follow(subject, lambda delivery: handler(delivery.subject, delivery.payload), limit)

    def follow(self, subject: str, handler: Callable[[Delivery], None], limit: int) -> None:
        """As `subscribe`, for whoever needs to know what came along with the payload."""
        assert self._task is None, "subscribe before start()"
        self._feeds[subject] = _Feed(handler, limit)

    def publish(
        self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b""
    ) -> bool:
        """Hand a message to the connection. False when there is none: nothing is kept for later.

        `subject`, `reply` and `headers` are trusted: no white space, and the form of the wire.
        True does not say that the message arrived.
        """
        connection = self._connection
        if connection is None or not connection.alive:
            return False
        if len(headers) + len(payload) > connection.max_payload:
            return False
        if headers:
            return connection.send(hpub_cmd(subject, reply, headers, payload))
        return connection.send(pub_cmd(subject, reply, payload))

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
        while not self.connected:
            self._up.clear()  # set by an earlier connection
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
        while task is not None and not task.done():
            # Again if need be: until Python 3.12, wait_for() loses a cancellation that comes as
            # its dial fails.
            task.cancel()
            await asyncio.wait({task}, timeout=0.1)
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
        connection = Connection(self._deliver, self._refused)
        try:
            try:
                async with asyncio.timeout(3 * self._timeout):
                    await connection.dial(
                        address,
                        self._feeds,
                        name=self._name,
                        nkey_seed=self._nkey_seed,
                        tls=self._tls,
                        patience=self._timeout,
                        ping_interval=self._ping_interval,
                    )
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
                self._tell_state(False)

    def _connected(self, connection: Connection, address: BusAddress) -> None:
        self._connection = connection
        self.counters["generations"] += 1
        self._told.pop(str(address), None)
        if self._lost_at is None:
            _log.info("bus: connected to %s", address)
        else:
            # Always told: whoever read that it was lost looks for this line.
            away, self._lost_at = time.monotonic() - self._lost_at, None
            _log.info("bus: connected again after %.0f s, to %s", away, address)
        self._up.set()
        self._tell_state(True)

    def _lost(self, connection: Connection, address: BusAddress) -> None:
        self._lost_at = time.monotonic()
        self.counters["errors"] += 1
        fault = self._describe(connection.last_error)
        self._say(logging.WARNING, f"lost {address}", f"bus: lost {address}: {fault}")
        self._discovered = connection.others(address)[:DISCOVERED]

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

    def _deliver(
        self, pattern: str, subject: bytes, payload: bytes, reply: bytes, headers: bytes
    ) -> None:
        self.counters["messages"] += 1
        feed = self._feeds[pattern]
        # What is not UTF-8 becomes U+FFFD, which no id of ours may hold.
        said = subject.decode(errors="replace"), reply.decode(errors="replace")
        delivery = Delivery(said[0], payload, said[1], headers or b"")
        size = delivery.size
        if feed.queued >= feed.limit or self._queued_bytes + size > QUEUED_BYTES:
            self.counters["drops"] += 1
            self._say(logging.WARNING, f"drop {pattern}", f"bus: dropped a message of {pattern}")
            return
        feed.queued += 1
        self._queued_bytes += size
        self._queue.append((feed, delivery, time.monotonic()))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._handle)

    def _handle(self) -> None:
        """Work off what has come, in turns of the loop; after some of them others have a pause."""
        begun = now = time.monotonic()
        if self.hurry:
            turn, batch = HURRIED_TURN_SECONDS, float("inf")
        elif self._pressing(now):
            turn, batch = PRESSING_TURN_SECONDS, PRESSING_BATCH_SECONDS
        else:
            turn, batch = TURN_SECONDS, BATCH_SECONDS
        end = begun + turn
        while self._queue and now < end:
            self._handle_one()
            now = time.monotonic()
        self._spent += now - begun
        self._scheduled = bool(self._queue)
        loop = asyncio.get_running_loop()
        if self._scheduled and self._spent < batch:
            loop.call_soon(self._handle)
            return
        self._spent = 0.0
        if self._scheduled:
            loop.call_later(PAUSE_SECONDS, self._handle)

    def _pressing(self, now: float) -> bool:
        """Say whether what waits is worth that others are held up for longer."""
        if 2 * self._queued_bytes > QUEUED_BYTES:
            return True
        first = self._queue[0] if self._queue else None
        if isinstance(first, tuple) and now - first[2] > LONG_SECONDS:
            return True
        return any(2 * feed.queued > feed.limit for feed in self._feeds.values())

    def _handle_one(self) -> None:
        entry = self._queue.popleft()
        if isinstance(entry, asyncio.Future):
            if not entry.done():
                entry.set_result(None)
            return
        feed, delivery, _ = entry
        feed.queued -= 1
        self._queued_bytes -= delivery.size
        try:
            feed.handler(delivery)
        except Exception as error:
            self.counters["handler_errors"] += 1
            self._say(logging.ERROR, "handler", "bus: a handler failed", error=error)
