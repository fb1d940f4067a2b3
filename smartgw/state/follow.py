"""Keeps up with the bucket: every write as it comes, and from time to time the whole.

Owns the consumers that read it, that nothing which they lose goes unnoticed, and when the whole is
read: when it is another bucket, and every `reconcile` seconds in case a message was missed all the
same. What the entries mean is desired.py's; when they come into force is store.py's.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from smartgw.state import jetstream
from smartgw.state.desired import Entry, Sweep
from smartgw.state.jetstream import Bucket, Refused
from smartgw_hosts.bus import Bus, BusAway
from smartgw_hosts.bus_queue import Delivery
from smartgw_hosts.bus_requests import AnswerLost, BusRequests, Nobody
from smartgw_hosts.quiet_log import QuietLog

BEAT: Final = 0.5
"""Seconds between two signs of life of a consumer that has nothing to say."""
SILENT: Final = 2.0
"""Seconds without one after which it is gone: its NATS server ended, or lost its leader."""
WINDOW: Final = 32
FIRST_WINDOW: Final = 256
"""Messages on their way at once, which are parsed in one go while requests wait; and as long as
nothing is known that could be served."""
GENTLY: Final = 0.004
"""Seconds before half a window more of the whole is asked for, where nothing waits for it: 4,000
records a second, which traffic does not feel."""
PULL_SECONDS: Final = 30.0
PATIENCE: Final = 2.0
"""Seconds for an answer about bucket or consumers: while NATS servers elect a leader none comes,
and asking again is what helps."""
RETRY: Final = (0.1, 2.0)
SOON: Final = 30.0
"""Within this the whole is read after the bus was away, by each gateway at a moment of its own."""

_log = logging.getLogger(__name__)


class Lost(Exception):
    """The bucket is not followed any more, and why: begin anew."""


class Gap(Lost):
    """A message did not arrive, of those that JetStream sent."""


class Taker(Protocol):
    """Who is told of the bucket, on the event loop."""

    @property
    def known(self) -> tuple[str, int]:
        """Identity of the bucket, and the last revision that was taken from it."""
        ...

    @property
    def holds(self) -> int:
        """How many records are known."""
        ...

    def begin(self, sweep: Sweep) -> None: ...
    def take(self, entry: Entry, *, swept: bool) -> None: ...
    async def end(self, sweep: Sweep) -> None: ...
    def abandon(self) -> None: ...
    def caught_up(self) -> None: ...


class Reader:
    """One consumer of the bucket, asked for `window` messages at a time; where `pause` is not 0,
    no sooner than that many seconds after half of them have come.

    `seen` is the last revision that it brought, `count` how many messages, `pending` how many
    more there are.
    """

    def __init__(self, bus: Bus, bucket: str, name: str, inbox: str, seen: int) -> None:
        self.name = name
        self.window = FIRST_WINDOW if bus.queue.hurry else WINDOW
        self.pause = 0.0
        self.seen = seen
        self.count = self.pending = 0
        self.moved = asyncio.Event()
        self.heard_at = time.monotonic()
        self._bus, self._bucket, self._inbox = bus, bucket, inbox
        self._asked = 0

    def pull(self) -> None:
        """Ask for more, when half of the window is free."""
        if self._asked > self.window // 2:
            return
        more = self.window - self._asked
        subject, question = jetstream.pull(self._bucket, self.name, more, PULL_SECONDS, BEAT)
        if self._bus.publish(subject, question, reply=f"{self._inbox}.{self.name}"):
            self._asked += more

    def told(self, headers: bytes) -> None:
        """Take a status. Raises Lost for one after which nothing comes."""
        self.heard_at = time.monotonic()
        code, text = jetstream.status(headers) or (0, "")
        if code == jetstream.ALIVE:
            if (last := jetstream.last_count(headers)) > self.count:
                raise Gap(f"{last - self.count} messages did not arrive")
        elif code == jetstream.PULL_ENDED:
            self._asked -= jetstream.left(headers)
            self.pull()
        else:
            raise Lost(f"the consumer ended ({code} {text})")

    def arrived(self, where: jetstream.Place) -> None:
        """Note a message. Raises Lost when one before it did not arrive."""
        self.heard_at = time.monotonic()
        if where.count != self.count + 1:
            raise Gap(f"{where.count - self.count - 1} messages did not arrive")
        self.count, self.pending = where.count, where.pending
        self._asked -= 1
        if not self.pause:
            self.pull()
        elif self._asked == self.window // 2:
            asyncio.get_running_loop().call_later(self.pause, self.pull)

    def passed(self, revision: int) -> None:
        """Everything up to a revision has been taken."""
        self.seen = max(self.seen, revision)
        self.moved.set()


class Follower:
    """Follows `bucket` for as long as it runs; make it before `bus.start()`.

    `fault` says why it is not followed, and is empty while it is; `lost_at` is since when, on the
    monotonic clock, None when it never was. `bucket` is what JetStream last said of it.
    """

    def __init__(
        self,
        bus: Bus,
        requests: BusRequests,
        inbox: str,
        bucket: str,
        replicas: int,
        taker: Taker,
        *,
        reconcile: float,
    ) -> None:
        self._bus, self._requests, self._taker = bus, requests, taker
        self._name, self._replicas, self._reconcile = bucket, replicas, reconcile
        self._inbox = f"{inbox}.{secrets.token_hex(8)}"
        self._tail: Reader | None = None
        self._sweep: Reader | None = None
        self._lost: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._say = QuietLog(30.0, _log)
        self.fault = "the bucket has not been read yet"
        self.lost_at: float | None = None
        self.bucket: Bucket | None = None
        self.counters: dict[str, int] = dict.fromkeys(("sessions", "sweeps", "gaps"), 0)
        bus.follow(f"{self._inbox}.*", self._delivered, 2 * FIRST_WINDOW)

    @property
    def seen(self) -> int:
        """The last revision that was taken; 0 while nothing is followed."""
        return 0 if self._tail is None else self._tail.seen

    @property
    def behind(self) -> bool:
        """Whether more single writes are on their way."""
        return self._tail is not None and self._tail.pending > 0

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name="durable state")

    async def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def disconnected(self) -> None:
        """The bus has lost its connection, and with it all that was on its way."""
        self._lose(Lost("no connection to the bus"))

    async def reach(self, revision: int) -> None:
        """Return when everything up to a revision that was made has been taken.

        Waits for ever, so put a timeout around it. Raises Lost, BusAway, Refused.
        """
        while self.seen < revision:
            tail = self._tail
            if tail is None:
                raise Lost(self.fault or "not followed")
            await self._further(tail, revision)

    async def last(self) -> int:
        """Ask for the revision of the last write. Raises BusAway, Refused."""
        return (await self._info()).revision

    # ---- one session after the other ----

    async def _run(self) -> None:
        first, longest = RETRY
        delay = first
        while True:
            began = time.monotonic()
            try:
                await self._bus.wait_connected()
                await self._session()
            except (Lost, BusAway, Refused) as error:
                self._ended(error)
            except Exception as error:  # an error of ours must not leave the gateway behind
                self._ended(Lost("internal error"))
                self._say(logging.ERROR, "internal", "state: unexpected error", error=error)
            delay = first if time.monotonic() - began > longest else min(longest, 2 * delay)
            await asyncio.sleep(delay * (0.5 + random.random() / 2))

    async def _session(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        try:
            self.bucket = bucket = await self._find()
            identity, revision = self._taker.known
            resume = identity == bucket.identity and revision <= bucket.revision
            if resume:
                self._tail = await self._open(revision)
                await self._until(self.reach(bucket.revision))
            else:
                # Before anything is known, nothing is served that could be held up.
                self._bus.queue.hurry = not self._taker.holds
                await self._read_all(replace=True)
            self._bus.queue.hurry = False
            if self._tail is not None:
                self._tail.window = WINDOW
            self.counters["sessions"] += 1
            _log.info("state: the bucket %s is followed, from revision %d", self._name, self.seen)
            self.fault = ""
            self._taker.caught_up()
            due = time.monotonic() + (self._soon() if resume else self._later())
            while True:
                await self._until(asyncio.sleep(BEAT))
                if time.monotonic() >= due:
                    await self._read_all(replace=False)
                    due = time.monotonic() + self._later()
        finally:
            self._bus.queue.hurry = False
            self._lost.cancel()
            self._close(self._tail)
            self._tail = None

    async def _find(self) -> Bucket:
        """Return the bucket; makes it only where nothing is known that another one held."""
        holds = self._taker.holds
        kept = f"the {holds} records that were last in it stay in force; restore it from a backup"
        try:
            bucket = await self._info()
        except Refused as refused:
            if refused.code != jetstream.NOT_FOUND:
                raise
            if holds:
                raise Lost(f"the bucket {self._name} is gone: {kept}") from None
            bucket = await self._create()
        if holds and bucket.revision == 0:
            raise Lost(
                f"the bucket {self._name} is new and empty: {kept}, or begin anew by putting any "
                "key into it"
            )
        return bucket

    async def _create(self) -> Bucket:
        try:
            members = await self._ask(*jetstream.create_question(self._name, self._replicas))
        except Refused as refused:
            if refused.code != jetstream.IN_USE:
                raise
            return await self._info()  # another gateway, or its operator, was first
        _log.info("state: made the bucket %s, replicas: %d", self._name, self._replicas)
        return jetstream.bucket_of(members)

    async def _read_all(self, *, replace: bool) -> None:
        """Have the taker know what is in the bucket, whatever it knew before.

        The consumer goes on where the whole ends: a NATS server that lags behind the one that
        was asked for the floor so brings later what it did not have at first.
        """
        bucket = await self._info()
        if self.bucket is None or bucket.identity != self.bucket.identity:
            raise Lost("the bucket was made anew")
        self.bucket = bucket
        sweep = Sweep(bucket.identity, bucket.revision, replace=replace)
        self._taker.begin(sweep)
        try:
            reader = self._sweep = await self._open(None)
            reader.pause = 0.0 if replace else GENTLY
            await self._until(self._drain(reader))
            reader.pause = 0.0
            reader.pull()
            before, self._tail, self._sweep = self._tail, reader, None
            self._close(before)
            await self._taker.end(sweep)
        except BaseException:
            self._close(self._sweep)
            self._sweep = None
            self._taker.abandon()
            raise
        self.counters["sweeps"] += 1
        if sweep.rewound:
            _log.warning("state: the bucket %s went back to an earlier state", self._name)
            await self._read_all(replace=True)

    async def _drain(self, reader: Reader) -> None:
        """Wait until a reader of the whole has brought all that there is by then."""
        while reader.pending:
            await self._further(reader, reader.seen)
        # What was overwritten meanwhile follows as a single write.
        revision = (await self._info()).revision
        while reader.seen < max(revision, self.seen):
            await self._further(reader, max(revision, self.seen))

    async def _further(self, reader: Reader, revision: int) -> None:
        """Wait until the reader has moved; or knows that nothing up to the revision is left."""
        reader.moved.clear()
        try:
            async with asyncio.timeout(0.25):
                await reader.moved.wait()
        except TimeoutError:
            # What was written last may be gone again, and then it never comes.
            if await self._exhausted(reader):
                reader.pending = 0
                reader.passed(revision)

    async def _exhausted(self, reader: Reader) -> bool:
        info = await self._ask(jetstream.consumer_info(self._name, reader.name))
        delivered = info.get("delivered")
        count = delivered.get("consumer_seq") if isinstance(delivered, dict) else None
        return info.get("num_pending") == 0 and count == reader.count

    async def _until(self, doing: Coroutine[Any, Any, None]) -> None:
        """Wait for it, unless the bucket is lost meanwhile. Raises Lost."""
        assert self._lost is not None
        task = asyncio.create_task(doing)
        try:
            while not task.done():
                looked = time.monotonic()
                await asyncio.wait(
                    (task, self._lost), timeout=BEAT / 2, return_when=asyncio.FIRST_COMPLETED
                )
                if self._lost.done():
                    self._lost.result()
                now = time.monotonic()
                if now - looked > BEAT:
                    continue  # we did not run: what was said meanwhile is still to be read
                for reader in (self._tail, self._sweep):
                    if reader is not None and now - reader.heard_at > SILENT:
                        raise Lost("JetStream has fallen silent")
            task.result()
        finally:
            task.cancel()

    def _ended(self, error: Exception) -> None:
        if isinstance(error, Nobody) or (isinstance(error, Refused) and error.disabled):
            fault = "JetStream is not enabled on the bus"
        elif isinstance(error, AnswerLost):
            fault = f"JetStream does not answer ({error})"
        elif isinstance(error, Refused):
            fault = f"JetStream refuses: {error}"
        else:
            fault = str(error)
        if isinstance(error, Gap):
            self.counters["gaps"] += 1
        if not self.fault:
            self.lost_at = time.monotonic()
        self.fault = fault
        self._say(logging.WARNING, fault, f"state: not followed: {fault}; trying on")

    # ---- consumers ----

    async def _open(self, after: int | None) -> Reader:
        """Begin to read: every write after a revision, or the last of each key and what follows."""
        name = f"gw-{secrets.token_hex(8)}"
        start = None if after is None else after + 1
        reader = Reader(self._bus, self._name, name, self._inbox, after or 0)
        created = await self._ask(*jetstream.consumer_question(self._name, name, start))
        pending = created.get("num_pending")
        reader.pending = pending if type(pending) is int else 0
        reader.heard_at = time.monotonic()
        reader.pull()
        return reader

    def _close(self, reader: Reader | None) -> None:
        if reader is not None:
            self._bus.publish(jetstream.consumer_end(self._name, reader.name), b"")

    def _delivered(self, delivery: Delivery) -> None:
        try:
            if delivery.subject.startswith(self._inbox):
                reader = self._reader(delivery.subject.rpartition(".")[2])
                if reader is not None:
                    reader.told(delivery.headers)
                return
            where = jetstream.place(delivery.reply)
            reader = self._reader(where.consumer)
            if reader is None:
                return  # of a consumer that was given up
            reader.arrived(where)
            entry = jetstream.entry(
                self._name, delivery.subject, delivery.payload, delivery.headers, where
            )
            if entry is not None:
                self._taker.take(entry, swept=reader is self._sweep)
            reader.passed(where.revision)
        except Lost as error:
            self._lose(error)
        except Exception as error:
            self._lose(Lost("internal error"))
            self._say(logging.ERROR, "entry", "state: a message could not be taken", error=error)

    def _reader(self, name: str) -> Reader | None:
        for reader in (self._tail, self._sweep):
            if reader is not None and reader.name == name:
                return reader
        return None

    def _lose(self, error: Exception) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_exception(error)
            self._lost.exception()  # somebody may not look at it before the session ends

    async def _info(self) -> Bucket:
        return jetstream.bucket_of(await self._ask(jetstream.bucket_question(self._name)))

    async def _ask(self, subject: str, question: bytes = b"") -> dict[str, Any]:
        delivery = await self._requests.ask(subject, question, patience=PATIENCE)
        return jetstream.answer(delivery.payload)

    def _soon(self) -> float:
        return min(SOON, self._reconcile) * random.random()

    def _later(self) -> float:
        return self._reconcile * (0.9 + random.random() / 5)
