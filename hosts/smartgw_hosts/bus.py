"""One logical connection to NATS that is there whenever a NATS server is.

Owns when and whom to dial, and what is told of it. A library client serves for one connection
(bus_connection.py) and is thrown away with it, so that its own reconnecting, its buffer of unsent
messages and its callbacks never run. When what has come is handled is bus_queue.py's; decides
nothing about what a message means.
"""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable, Sequence

import nkeys
from nats.protocol.command import hpub_cmd, pub_cmd

from smartgw_hosts.bus_connection import BusAddress, Connection
from smartgw_hosts.bus_queue import BusQueue, Delivery, Feed, Handler
from smartgw_hosts.quiet_log import QuietLog

_log = logging.getLogger(__name__)

LIMIT = 20_000
"""Messages of a subscription that wait to be handled."""
DISCOVERED = 16
"""Servers learnt from others that are remembered."""


class BusAway(ConnectionError):
    """The bus did not answer: there is no connection, or no answer came in time."""


class Bus:
    """A supervised NATS connection; see the module's docstring.

    `servers` are URLs in order of preference; others of their NATS cluster are learnt from them.
    `on_state(connected)` is called on the event loop after each change, `before()` before each
    piece of work on what has come, for what must not wait for that. Raises ValueError for a
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
        before: Callable[[], None] | None = None,
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
        self._before = before
        self._ping_interval = ping_interval
        self._timeout = timeout
        self._backoff = backoff
        self._say = QuietLog(log_interval, _log)
        self._told: dict[str, str] = {}
        self._connection: Connection | None = None
        self._lost_at: float | None = None  # monotonic; None before the first connection
        self._task: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self.counters: dict[str, int] = dict.fromkeys(
            ("messages", "drops", "handler_errors", "errors", "dial_failures", "generations"), 0
        )
        self.queue = BusQueue(self.counters, self._say, before)

    @property
    def connected(self) -> bool:
        """Whether there is a live connection with every subscription in place."""
        return self._connection is not None and self._connection.alive

    def subscribe(
        self, subject: str, handler: Callable[[str, bytes], None], *, limit: int = LIMIT
    ) -> None:
        """Call `handler(subject, payload)` for each message, for as long as the bus runs.

        At most `limit` wait to be handled; what comes on top is dropped and counted. Call it
        before start().
        """
        self.follow(subject, lambda delivery: handler(delivery.subject, delivery.payload), limit)

    def follow(self, subject: str, handler: Handler, limit: int = LIMIT) -> None:
        """As `subscribe`, for whoever needs what came along with the payload, or a job's thread."""
        assert self._task is None, "subscribe before start()"
        self.queue.feeds[subject] = Feed(handler, limit)

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
        await self.queue.handled()
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
        self.queue.close()

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
        connection = Connection(self._deliver, self._refused, self._before)
        try:
            try:
                async with asyncio.timeout(3 * self._timeout):
                    await connection.dial(
                        address,
                        self.queue.feeds,
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

    def _deliver(
        self, pattern: str, subject: bytes, payload: bytes, reply: bytes, headers: bytes
    ) -> None:
        self.counters["messages"] += 1
        # What is not UTF-8 becomes U+FFFD, which no id of ours may hold.
        said = subject.decode(errors="replace"), reply.decode(errors="replace")
        self.queue.add(pattern, Delivery(said[0], payload, said[1], headers or b""))
