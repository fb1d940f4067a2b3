"""The counters that all gateways of a cluster share, in Redis or Valkey (contract 6.6).

Owns how checks travel: those of one turn of the loop together, one batch under way at a time, each
answered within its budget or not at all. What a window counts is window.lua's, when a failed
store is tried again breaker.py's, what holds without an answer the caller's.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hiredis

from smartgw.admission import store_places
from smartgw.admission.breaker import Breaker, Fault, fault_of
from smartgw.admission.span import SECOND
from smartgw.admission.store_connection import StoreConnection, StoreError, pack
from smartgw.admission.store_places import Places

if TYPE_CHECKING:
    from smartgw.proxy.counters import Counters

SCRIPT: Final = (Path(__file__).with_name("window.lua")).read_text()
SHA: Final = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

BROKEN: Final = -2
"""The wait of a check whose key holds something that no gateway put there."""
_MOST_CHECKS: Final = 256
"""In one batch: half a millisecond of the store's time."""
_MOST_WAITING: Final = 8_192
_CONNECT_SECONDS: Final = 0.5
_GRACE: Final = 0.002
"""A timer may come before an answer that has arrived already, if our own loop was late."""
_STEP: Final = 2 * SECOND
"""A store's clock that is so far off from ours since the last answer was set."""

_log = logging.getLogger(__name__)

Check = tuple[str, int, int, int]
"""A key, its limit, its span in microseconds (0: a day), the units (see window.lua)."""
Result = tuple[int, int]
"""Units used, and microseconds until that changes."""
Then = Callable[[Any, int, Sequence[int]], None]
"""Called with the context, the wait in microseconds (0: charged; see window.lua), and for each
check what is used and when that changes; without any when there is no answer."""


class SharedCounters:
    """Make it in its loop, `start` and `stop` it.

    Attributes:
        breaker: whether the store is asked.
        prefix: how every key begins; it holds the hash tag, so all are on one server.
        tried: set when the store was found for the first time, or not.
        now: the store's time at its last answer, microseconds since the epoch.
    """

    def __init__(
        self, places: Places, tag: str, budget: float, term: float, counters: "Counters"
    ) -> None:
        """`budget`: seconds for an answer. `term`: those of a window."""
        self.breaker = Breaker(term)
        self.prefix = f"sg1:{{{tag}}}:"
        self.tried = asyncio.Event()
        self.now = 0
        self._places = places
        self._tag = tag
        self._budget = budget
        self._counters = counters
        counters.store_away = 1
        self._loop = asyncio.get_running_loop()
        self._connection: StoreConnection | None = None
        self._queue: list[_Asked] = []
        self._under_way: list[_Asked] | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._offset: int | None = None
        self._lost = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for the store, and go on for as long as it takes."""
        self._life = asyncio.create_task(self._live(), name="store")

    async def stop(self) -> None:
        """Let go of the store; what is under way gets no answer."""
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait([self._life])
        if self._connection is not None:
            self._connection.close()

    # ---- asking ----

    def ask(self, checks: Sequence[Check], then: Then, context: object) -> bool:
        """Ask whether these charges fit, all or none; `then` is called once, later.

        False: the store is not there, and nothing will be called.
        """
        if self._connection is None or len(self._queue) >= _MOST_WAITING:
            self.breaker.missed = True
            return False
        self._queue.append((checks, then, context, self._loop.time()))
        if self._under_way is None and not self._flush_is_due:
            self._flush_soon()
        return True

    def _flush_soon(self) -> None:
        """What else is asked for in this turn of the loop travels with it."""
        self._flush_is_due = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        connection = self._connection
        if connection is None or not self._queue or self._under_way is not None:
            return
        batch, self._queue = self._queue[:_MOST_CHECKS], self._queue[_MOST_CHECKS:]
        self._under_way = batch
        # Of the one that has waited longest.
        self._due = batch[0][3] + self._budget
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._look)
        connection.send(packed(batch), self._answered)

    def _answered(self, answer: object) -> None:
        batch, self._under_way = self._under_way, None
        assert batch is not None
        if isinstance(answer, list):
            self._told(batch, answer)
        elif isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
            # Nothing of it was carried out. Whole this time, which has the server keep it.
            assert self._connection is not None
            self._under_way = batch
            self._connection.send(packed(batch, whole=True), self._answered)
        else:
            self._under_way = batch
            self._fail(fault_of(str(answer)))

    def _told(self, batch: "list[_Asked]", answer: list[Any]) -> None:
        """Give each its part of the answer, in order."""
        size = 1 + sum(1 + 2 * len(asked[0]) for asked in batch)
        if len(answer) != size or set(map(type, answer)) != {int}:
            self._under_way = batch
            self._fail(Fault.ANSWER)
            return
        self._counters.store_trips += 1
        self.now = answer[0]
        self._look_at_clock(self.now)
        place = 1
        for checks, then, context, _ in batch:
            end = place + 1 + 2 * len(checks)
            self._counters.store_checks += len(checks)
            self._call(then, context, answer[place], answer[place + 1 : end])
            place = end
        if self._queue and not self._flush_is_due:
            self._flush_soon()

    def _call(self, then: Then, context: object, wait: int, results: Sequence[int]) -> None:
        try:
            then(context, wait, results)
        except Exception as error:
            # One request's fault must not cost the others of its batch their answers.
            self._loop.call_exception_handler(
                {"message": "a request broke off behind its limit", "exception": error}
            )

    def _look_at_clock(self, told: int) -> None:
        """A store's clock that was set forward has emptied every window."""
        offset = told - round(self._loop.time() * SECOND)
        if self._offset is not None and abs(offset - self._offset) > _STEP:
            self._counters.store_faults[Fault.CLOCK] += 1
            self.breaker.doubt(self._loop.time())
        self._offset = offset

    # ---- without an answer ----

    def _look(self) -> None:
        """The timer: is anything under way for too long?"""
        self._timer = None
        if self._under_way is None:
            return
        now = self._loop.time()
        if now < self._due:
            self._timer = self._loop.call_at(self._due, self._look)
        elif now < self._due + _GRACE:
            self._timer = self._loop.call_later(_GRACE, self._look)
        else:
            self._fail(Fault.LATE)

    def _fail(self, fault: Fault) -> None:
        """Ask no more for now. What is under way may still be charged, and counts as charged."""
        connection, self._connection = self._connection, None
        self._counters.store_faults[fault] += 1
        self._counters.store_away = 1
        self.breaker.open(fault, self._loop.time())
        left = (self._under_way or []) + self._queue
        self._under_way, self._queue = None, []
        if connection is not None:
            connection.on_lost = None
            connection.close()
        self._lost.set()
        for _, then, context, _ in left:
            self._call(then, context, BROKEN, ())

    # ---- the store's life ----

    async def _live(self) -> None:
        breaker = self.breaker
        while True:
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    connection = await store_places.connect(self._places, self._tag)
                try:
                    await self._try_out(connection)
                except BaseException:
                    connection.close()
                    raise
            except TimeoutError:
                delay = self._not_there(Fault.LATE, "no answer in time")
            except StoreError as error:
                delay = self._not_there(error.fault, str(error))
            else:
                self._begin(connection)
                await self._lost.wait()
                _log.warning("the store of the counters is lost: %s", breaker.fault)
                delay = breaker.delay()
            # Not all gateways at once.
            await asyncio.sleep(delay * random.uniform(0.8, 1.2))

    async def _try_out(self, connection: StoreConnection) -> None:
        """Make a charge of no meaning: only what can be done in time and is done closes the
        breaker.
        """
        async with asyncio.timeout(_CONNECT_SECONDS):
            await connection.call("SCRIPT", "LOAD", SCRIPT)
        trial = (f"{self.prefix}trial", 1 << 30, SECOND, 1)
        async with asyncio.timeout(self._budget + _GRACE):
            answer = await connection.call(*words([((trial,), _nobody, None, 0.0)]))
        if not isinstance(answer, list) or len(answer) != 4 or answer[1] != 0:
            raise StoreError(Fault.ANSWER, "a trial is answered by something else")

    def _not_there(self, fault: Fault, text: str) -> float:
        self._counters.store_faults[fault] += 1
        if self.breaker.fault is not fault:
            _log.warning("the store of the counters cannot be asked (%s): %s", fault, text)
        self.breaker.open(fault, self._loop.time())
        self.tried.set()
        return self.breaker.delay()

    def _begin(self, connection: StoreConnection) -> None:
        _log.info("the store of the counters is there")
        self._lost.clear()
        self._offset = None
        self._connection = connection
        connection.on_lost = self._fail
        self.breaker.close(self._loop.time())
        self._counters.store_away = 0
        self.tried.set()


_Asked = tuple[Sequence[Check], Then, object, float]


def _nobody(context: object, wait: int, results: Sequence[int]) -> None:
    """Nobody waits for a trial's answer."""


def words(batch: "Sequence[_Asked]", *, whole: bool = False) -> list[Any]:
    """Return the command for a batch: with the digest of the script, or with all of it."""
    keys: list[str] = []
    numbers: list[int] = []
    for checks, _, _, _ in batch:
        rest = len(checks)
        for key, limit, span, units in checks:
            rest -= 1
            keys.append(key)
            numbers += (limit, span, units, rest)
    script = ("EVAL", SCRIPT) if whole else ("EVALSHA", SHA)
    return [*script, len(keys), *keys, *numbers]


def packed(batch: "Sequence[_Asked]", *, whole: bool = False) -> bytes:
    """Return the same, as bytes of the protocol."""
    return pack(words(batch, whole=whole))
