"""The gateway's ear on the bus: takes messages, verdicts and time to the pool, its actions out.

Owns the proofs under way, when the pool gets its ticks, and what counts as a stall of our own.
Decides nothing about a host (pool.py) and publishes nothing (contract 1.1). Nothing that is
sent, proven or raised ends its loops.
"""

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from smartgw_hosts import wire
from smartgw_hosts.bus import Bus, BusAway
from smartgw_hosts.bus_queue import Delivery, Job
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.lag import Lag
from smartgw_hosts.pace import Pace
from smartgw_hosts.pool import Pool
from smartgw_hosts.quiet_log import QuietLog
from smartgw_hosts.records import (
    Action,
    AskBus,
    HostRecord,
    Ignored,
    KnownHost,
    Remove,
    Update,
    Verify,
)
from smartgw_hosts.wire import SignedMessage

PROOFS: Final = 64
"""Verifications under way at once: 10,000 new hosts must not take the loop from traffic (1.8)."""
PROOF_RATE: Final = 400.0
"""Verifications begun in a second, for the same reason: 64 answers at once would hold the loop."""
PROOF_BURST: Final = 2.0
"""Those that may begin at the same moment."""
PROOF_TIMEOUT: Final = 10.0
"""Far above the prober's own deadlines: a proof that never ends must not keep its place."""
TICK: Final = 0.25
STALL: Final = 1.0
"""A tick this late means that we did not run: what hosts said meanwhile was not heard (1.7).
Less is covered by asking the bus before a lease is over."""
SLOW: Final = 1.0
"""A bus that takes this long to answer a PING was away (1.7)."""
BATCH: Final = 0.02
"""Seconds for which changes are collected, so that hosts that change together share tables."""
AT_ONCE: Final = 4
"""Hosts that one new routing table takes in; more would hold the loop for longer than a message."""
PAUSE: Final = 0.001
"""Seconds of the loop that others have before the next table."""
RETRY: Final = 1.0
"""Seconds until what failed on our side is tried again."""

_log = logging.getLogger(__name__)


class Prober(Protocol):
    """Challenges a host at its address (contract 2.1). Returns a verdict and never raises."""

    async def prove(self, host_id: str, address: str, key: PublicKey) -> Verdict: ...


class EnrolmentSource(Protocol):
    """Where trust comes from: the list in force, and a call on the loop for each new one."""

    @property
    def current(self) -> tuple[Enrolment, ...]: ...

    async def watch(self, changed: Callable[[tuple[Enrolment, ...]], None]) -> None: ...


@dataclass(slots=True)
class _Heard:
    """A message whose signature is checked on the bus's thread, which costs more than the rest."""

    signed: SignedMessage
    key: PublicKey | None
    believe: Callable[[SignedMessage], None]

    def work(self) -> None:
        if self.key is not None:
            self.signed = self.signed.try_key(self.key)

    def finish(self) -> None:
        self.believe(self.signed)


OnUpdate = Callable[[Sequence[HostRecord], Sequence[str]], None]


class Listener:
    """Feeds `pool` from `bus` and `trust`; make it before `bus.start()`, for it subscribes.

    `on_update(records, removed_host_ids)` is called on the loop with all changes of a moment;
    each host stands in one of the two at most. `clock` is monotonic, `wall` Unix seconds.
    `trust` is None only where the pool trusts the first use of a key.
    """

    def __init__(
        self,
        bus: Bus,
        pool: Pool,
        trust: EnrolmentSource | None,
        prober: Prober,
        on_update: OnUpdate,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        tick: float = TICK,
    ) -> None:
        self._bus = bus
        self._pool = pool
        self._trust = trust
        self._prober = prober
        self._on_update = on_update
        self._clock = clock
        self._wall = wall
        self._tick_seconds = tick
        self._say = QuietLog(30.0, _log)
        self._seen = clock()
        self._generation = 0
        self._drops = 0
        self._drops_told = float("-inf")
        self._waiting: deque[Verify] = deque()
        self._pace = Pace(PROOF_RATE, PROOF_BURST)
        self._filling: asyncio.TimerHandle | None = None
        self._proofs: set[asyncio.Task[None]] = set()
        self._asks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._changes: dict[str, HostRecord | None] = {}
        self._flushing: asyncio.TimerHandle | None = None
        self.lag = Lag()
        self.counters: dict[str, int] = dict.fromkeys(("proofs", "proofs_failed", "stalls"), 0)
        bus.follow(wire.subscription(pool.cluster), self._receive)

    @property
    def proofs_waiting(self) -> int:
        """Verifications that wait for a place among those under way."""
        return len(self._waiting)

    async def start(self, restored: Iterable[KnownHost] = ()) -> None:
        """Take the enrolments in force and begin; returns at once.

        `restored` are hosts of before a restart, which are challenged first (11.2).
        """
        self._seen = self._clock()
        if self._trust is not None:
            self._enrol(self._trust.current)
            self._loops.append(asyncio.create_task(self._watch(self._trust), name="enrolments"))
        if hosts := tuple(restored):
            self._carry_out(self._pool.restore(hosts, self._now(), self._wall()))
        self._loops.append(asyncio.create_task(self._ticks(), name="discovery ticks"))

    async def stop(self) -> None:
        """End all loops and proofs. The bus is not ours to stop."""
        tasks = [*self._loops, *self._proofs, *self._asks]
        self._loops.clear()
        self._waiting.clear()
        for timer in (self._flushing, self._filling):
            if timer is not None:
                timer.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def suspect(self, host_id: str) -> None:
        """The data path could not reach this host: have it challenged at once (contract 3.7)."""
        self._carry_out(self._pool.suspect(host_id, self._now()))

    # --- what comes in

    def _now(self) -> float:
        """The time, after the pool was told if we have not run for a while.

        Everything that enters the pool passes here first, for whatever comes first after a stall
        may be what would demote a host.
        """
        now = self._clock()
        gap, self._seen = now - self._seen, now
        if gap > self._tick_seconds + STALL:
            self.counters["stalls"] += 1
            self._say(logging.WARNING, "stall", f"discovery: did not run for {gap:.1f} s")
            self._carry_out(self._pool.stalled(gap, now))
        return now

    def _receive(self, delivery: Delivery) -> Job | None:
        if not self._loops:  # not begun, or ended
            return None
        try:
            signed = wire.decode(delivery.subject, delivery.payload, cluster=self._pool.cluster)
        except wire.Refused as refused:
            self._pool.refuse(refused.reason)
            self._say(logging.INFO, f"refused {refused.reason}", f"discovery: refused {refused}")
            return None
        key = self._pool.signer(signed.claims, self._clock(), int(self._wall() * 1000))
        return _Heard(signed, key, self._believe)

    def _believe(self, signed: SignedMessage) -> None:
        if self._loops:
            self._carry_out(self._pool.receive(signed, self._now(), int(self._wall() * 1000)))

    def _enrol(self, enrolments: tuple[Enrolment, ...]) -> None:
        self._carry_out(self._pool.enrol(enrolments, self._now(), self._wall()))

    async def _watch(self, trust: EnrolmentSource) -> None:
        while True:
            try:
                await trust.watch(self._enrol)
            except Exception as error:
                self._say(logging.ERROR, "trust", "discovery: enrolments failed", error=error)
            await asyncio.sleep(RETRY)

    async def _ticks(self) -> None:
        while True:
            due = self._clock() + self._tick_seconds
            await asyncio.sleep(self._tick_seconds)
            now = self._clock()
            self.lag.note(max(0.0, now - due), now)
            try:
                self._tick()
            except Exception as error:
                self._say(logging.ERROR, "tick", "discovery: a tick failed", error=error)

    def _tick(self) -> None:
        now = self._now()
        drops = self._bus.counters["drops"]
        # Heartbeats may be among what was dropped: we did not hear, they were not silent. Told
        # once in a heartbeat, for it also puts off the verifications that are due.
        if drops != self._drops and now >= self._drops_told + self._pool.settings.heartbeat:
            self._drops, self._drops_told = drops, now
            self._carry_out(self._pool.stalled(STALL, now))
        connected, generation = self._bus.connected, self._bus.counters["generations"]
        if not connected or generation != self._generation:
            self._generation = generation
            self._carry_out(self._pool.bus_lost(now))
            if connected:
                self._ask()
        self._carry_out(self._pool.tick(now, self._wall()))

    # --- what goes out

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Update(record):
                    self._changed(record.host_id, record)
                case Remove(host_id):
                    self._changed(host_id, None)
                case Verify():
                    self._waiting.append(action)
                case AskBus():
                    self._ask()
                case Ignored(host_id, reason, detail):
                    text = f"discovery: ignored {host_id}: {reason}: {detail}"
                    self._say(logging.INFO, f"ignored {reason}", text)
        self._fill()

    def _changed(self, host_id: str, record: HostRecord | None) -> None:
        self._changes[host_id] = record
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(BATCH, self._flush)

    def _flush(self) -> None:
        self._flushing = None
        changes = dict(itertools.islice(self._changes.items(), AT_ONCE))
        for host_id in changes:
            del self._changes[host_id]
        records = [record for record in changes.values() if record is not None]
        removed = [host_id for host_id, record in changes.items() if record is None]
        try:
            self._on_update(records, removed)
        except Exception as error:
            # Else a host that is gone would be routed to for ever.
            self._changes = changes | self._changes
            if self._flushing is not None:
                self._flushing.cancel()
            self._flushing = asyncio.get_running_loop().call_later(RETRY, self._flush)
            self._say(logging.ERROR, "update", "discovery: on_update failed", error=error)
            return
        if self._changes and self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(PAUSE, self._flush)

    def _ask(self) -> None:
        if len(self._asks) < 4:  # the pool asks again every few seconds, answered or not
            task = asyncio.create_task(self._ping())
            self._asks.add(task)
            task.add_done_callback(self._ask_ended)

    def _ask_ended(self, task: asyncio.Task[None]) -> None:
        self._asks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._say(logging.ERROR, "ask", "discovery: asking the bus failed", error=error)

    async def _ping(self) -> None:
        asked_at = self._now()
        try:
            # Returns when all that arrived before the answer has been through _believe.
            seconds = await self._bus.ping()
        except BusAway:
            seconds = SLOW
        if seconds >= SLOW:
            # It stood still, or the way to it did: heartbeats wait there behind this answer.
            self._carry_out(self._pool.bus_lost(self._now()))
        else:
            self._carry_out(self._pool.bus_answered(asked_at, self._now()))

    def _fill(self) -> None:
        while self._waiting and len(self._proofs) < PROOFS and self._filling is None:
            if not self._pool.wants(self._waiting[0].ticket):
                self._waiting.popleft()  # left, moved or lost its trust while it waited
                continue
            if (wait := self._pace.take(self._clock())) > 0:
                # In whole milliseconds: a loop that rounds down would go round and round till then.
                wait = math.ceil(wait * 1000) / 1000
                self._filling = asyncio.get_running_loop().call_later(wait, self._fill_on)
                return
            asked = self._waiting.popleft()
            task = asyncio.create_task(self._prove(asked))
            self._proofs.add(task)
            task.add_done_callback(self._proof_ended)

    def _fill_on(self) -> None:
        self._filling = None
        self._fill()

    def _proof_ended(self, task: asyncio.Task[None]) -> None:
        self._proofs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._say(logging.ERROR, "verdict", "discovery: a verdict failed", error=error)
        self._fill()

    async def _prove(self, asked: Verify) -> None:
        while True:
            stalls = self.counters["stalls"]
            verdict = await self._verdict(asked)
            now = self._now()
            # While we stood still no answer could reach us: a bad verdict is then our own.
            if verdict.ok or stalls == self.counters["stalls"]:
                break
        self.counters["proofs"] += 1
        self.counters["proofs_failed"] += not verdict.ok
        self._carry_out(self._pool.verdict(asked.ticket, verdict, now))

    async def _verdict(self, asked: Verify) -> Verdict:
        try:
            async with asyncio.timeout(PROOF_TIMEOUT):
                return await self._prober.prove(asked.host_id, asked.address, asked.key)
        except TimeoutError:
            return Verdict(Proof.TIMEOUT, f"no verdict within {PROOF_TIMEOUT:g} s")
        except Exception as error:
            self._say(logging.ERROR, "prober", "discovery: a proof failed", error=error)
            return Verdict(Proof.UNREACHABLE, f"internal error: {type(error).__name__}")
