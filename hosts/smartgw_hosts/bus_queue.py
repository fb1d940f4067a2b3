"""What the bus has brought and nobody has handled yet.

Owns how much may wait, in what turns of the event loop it is handled so that requests do not wait
for it (contract 1.8), and the thread that does what needs nobody else, such as to check a
signature: that takes longer than all the rest of a message. Jobs are finished in the order of their
messages, behind which those that need no job need not wait. Decides nothing about what a message
means.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import ParamSpec, Protocol, TypeVar

from smartgw_hosts.quiet_log import QuietLog

P = ParamSpec("P")
T = TypeVar("T")

QUEUED_BYTES = 32 << 20
"""Received and not yet handled, of all subscriptions together."""
TURN_SECONDS, BATCH_SECONDS = 0.000_04, 0.000_1
"""So long, and for the message under way then, handlers hold the loop before other work has its
turn; and so much turns that follow each other take together before a pause."""
PRESSING_TURN_SECONDS, PRESSING_BATCH_SECONDS = 0.000_1, 0.001
"""The same where more than half of what may wait does, else some would be dropped; or where one
has waited for long."""
LONG_SECONDS = 5.0
"""By default a third of the time after which a host counts as silent (contract 1.5)."""
HURRIED_TURN_SECONDS = 0.001
"""The same while nobody waits for the loop; there is no pause then."""
PAUSE_SECONDS = 0.001
"""Between two batches. A request passes the loop several times, so a turn is not enough for it."""
JOBS = 64
"""Begun at most before the first of them is finished."""
STACK_BYTES = 512 << 10
"""Of the thread; by default it has 8 MiB, which count where the address space is limited."""
PATIENCE_SECONDS = 0.005
"""A job that the thread has not worked for so long is worked on the loop."""


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


class Job(Protocol):
    """The rest of a message whose handling takes long."""

    def work(self) -> None:
        """What needs nobody else, on a thread or not: it may change nothing but the job, and may
        be done twice, also at the same time. It must let go of the interpreter soon, as all that
        libsodium computes does.
        """

    def finish(self) -> None:
        """What follows from it, on the event loop."""


Handler = Callable[[Delivery], Job | None]
"""Returns what is left to do of a message, which comes behind what is left of those before."""


@dataclass(slots=True)
class Feed:
    """Who handles the messages of one subscription, and how many may wait for it."""

    handler: Handler
    limit: int
    queued: int = 0


class BusQueue:
    """The messages of all `feeds`, which are by subject.

    `before` is called at the beginning of each turn of the loop that handles some. `counters` has
    `drops` and `handler_errors`. Set `hurry` while nobody waits for the event loop, to have
    messages handled without pauses.
    """

    def __init__(
        self, counters: dict[str, int], say: QuietLog, before: Callable[[], None] | None
    ) -> None:
        self._before = before
        self.feeds: dict[str, Feed] = {}
        self._counters = counters
        self._say = say
        self._waiting: deque[tuple[Feed, Delivery, float] | asyncio.Future[None]] = deque()
        self._bytes = 0
        self._jobs: deque[_Begun] = deque()
        self._begun_now: list[_Begun] = []  # those of which the thread does not know yet
        self._scheduled = False
        self._spent = 0.0
        self._helper: _Thread | None = None
        self.hurry = False

    def add(self, name: str, delivery: Delivery) -> None:
        """Have the feed of that name handle it, or drop it where too much waits."""
        feed, size = self.feeds[name], delivery.size
        if feed.queued >= feed.limit or self._bytes + size > QUEUED_BYTES:
            self._counters["drops"] += 1
            self._say(logging.WARNING, f"drop {name}", f"bus: dropped a message of {name}")
            return
        feed.queued += 1
        self._bytes += size
        self._waiting.append((feed, delivery, time.monotonic()))
        self._schedule()

    async def handled(self) -> None:
        """Return when all that is here now has been handled."""
        if self._waiting or self._jobs:
            done = asyncio.get_running_loop().create_future()
            self._waiting.append(done)
            self._schedule()
            await done

    def close(self) -> None:
        """Forget what waits, and end the thread."""
        for waiting in self._waiting:
            if isinstance(waiting, asyncio.Future) and not waiting.done():
                waiting.set_result(None)
        for parts in (self._waiting, self._jobs, self._begun_now):
            parts.clear()
        if self._helper is not None:
            self._helper.end()
            self._helper = None

    def pressing(self, now: float) -> bool:
        """Say whether what waits is worth that others are held up for longer."""
        if 2 * self._bytes > QUEUED_BYTES:
            return True
        first = self._waiting[0] if self._waiting else None
        if isinstance(first, tuple) and now - first[2] > LONG_SECONDS:
            return True
        return any(2 * feed.queued > feed.limit for feed in self.feeds.values())

    # --- the turns

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Handle messages for one turn of the loop, and see to it that there is another."""
        if self._before is not None:
            self._run(self._before)
        begun = now = time.monotonic()
        turn, batch, pause, patience = TURN_SECONDS, BATCH_SECONDS, PAUSE_SECONDS, PATIENCE_SECONDS
        if self.hurry:
            turn, batch, pause, patience = HURRIED_TURN_SECONDS, float("inf"), 0.0, 0.0
        elif self.pressing(now):
            turn, batch = PRESSING_TURN_SECONDS, PRESSING_BATCH_SECONDS
        while now < begun + turn and (self._finish_one(now - patience) or self._begin_one(now)):
            now = time.monotonic()
        self._spent += now - begun
        loop = asyncio.get_running_loop()
        if self._spent < batch and (self._may_finish(now - patience) or self._may_begin()):
            loop.call_soon(self._turn)
            return
        self._spent = 0.0
        if self._begun_now:
            self._have_help(tuple(self._begun_now))
            self._begun_now.clear()
        self._scheduled = bool(self._jobs or self._waiting)
        if self._scheduled:
            loop.call_later(pause, self._turn)

    def _have_help(self, jobs: Sequence["_Begun"]) -> None:
        try:
            if self._helper is None:
                self._helper = _Thread()
            self._helper.help_with(jobs)
        except RuntimeError as error:  # no thread may be started: the loop does without
            self._say(logging.WARNING, "thread", f"bus: no thread for signatures: {error}")

    def _may_begin(self) -> bool:
        """Whether another message can be begun before the jobs that were begun are finished."""
        if not self._waiting or len(self._jobs) >= JOBS:
            return False
        return not (self._jobs and isinstance(self._waiting[0], asyncio.Future))

    def _begin_one(self, now: float) -> bool:
        if not self._may_begin():
            return False
        entry = self._waiting.popleft()
        if isinstance(entry, asyncio.Future):
            if not entry.done():
                entry.set_result(None)
            return True
        feed, delivery, _ = entry
        job = self._run(feed.handler, delivery)
        if job is None:
            self._took(feed, delivery.size)
        else:
            begun = _Begun(feed, delivery.size, job, now)
            self._jobs.append(begun)
            if not self.hurry:  # else the loop will not wait for the thread
                self._begun_now.append(begun)
        return True

    def _may_finish(self, long_ago: float) -> bool:
        """Whether the first job's turn has come: the thread has worked it, or had its time."""
        return bool(self._jobs) and (self._jobs[0].worked or self._jobs[0].at <= long_ago)

    def _finish_one(self, long_ago: float) -> bool:
        if not self._may_finish(long_ago):
            return False
        begun = self._jobs.popleft()
        self._run(begun.finish)
        self._took(begun.feed, begun.size)
        return True

    def _took(self, feed: Feed, size: int) -> None:
        feed.queued -= 1
        self._bytes -= size

    def _run(self, part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return part(*args, **kwargs)
        # Also a future that was cancelled and is looked at: nothing of a handler's ends the turns.
        except (Exception, asyncio.CancelledError) as error:
            self._counters["handler_errors"] += 1
            self._say(logging.ERROR, "handler", "bus: a handler failed", error=error)
            return None


@dataclass(slots=True)
class _Begun:
    feed: Feed
    size: int
    job: Job
    at: float
    worked: bool = False
    error: BaseException | None = None

    def work(self) -> None:
        if not self.worked:
            try:
                self.job.work()
            except (Exception, asyncio.CancelledError) as error:
                self.error = error
            self.worked = True

    def finish(self) -> None:
        self.work()
        if self.error is not None:
            raise self.error
        self.job.finish()


class _Thread:
    """Works jobs. A loop that is always busy leaves it the interpreter now and then only, so nobody
    waits for long for what it has not done, and it may happen that both do the same.
    """

    def __init__(self) -> None:
        self._batches: SimpleQueue[Sequence[_Begun]] = SimpleQueue()
        self._runner = threading.Thread(target=self._run, name="bus jobs", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            self._runner.start()
        finally:
            threading.stack_size(before)

    def help_with(self, jobs: Sequence[_Begun]) -> None:
        if self._batches.qsize() < JOBS:  # else it has no time
            self._batches.put(jobs)

    def end(self) -> None:
        """Returns when it has ended, which takes a few milliseconds: a second at most."""
        self._batches.put(())
        self._runner.join(1.0)

    def _run(self) -> None:
        while jobs := self._batches.get():
            for job in jobs:
                job.work()
