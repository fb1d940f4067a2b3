"""Everything that entered a pool, as lines that can be played again (contract 1.9).

Owns the form of a recording: one JSON array a line, its kind first and a running checksum last,
so that what was altered, removed or put elsewhere shows. A `begin` line holds the pool's whole
state, so a recording can start at any time. Does not read or write files.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from smartgw_hosts import plain, wire
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import Action, KnownHost, PoolSettings
from smartgw_hosts.wire import Reason, SignedMessage

FORMAT: Final = 2
"""Raised whenever the pool would make something else of the same lines."""
SUM: Final = 16
"""Hex digits of SHA-256 on each line. They show damage; a forger could count them anew, but not
sign the hosts' messages again."""

TICK: Final = 10.0
"""Seconds between two ticks that are recorded though they did nothing."""

Input = tuple[Any, ...]
"""A kind, the monotonic time, and what the pool was told besides: see `RecordedPool`."""


class TapeRefused(ValueError):
    """A recording that cannot be played; the text names the line."""


class RecordedPool(Pool):
    """A pool that notes what it is told, before it is told it."""

    def __init__(
        self, cluster: str, settings: PoolSettings | None, note: Callable[[Input], None]
    ) -> None:
        super().__init__(cluster, settings)
        self._note = note
        self._last = 0.0
        self._last_tick = float("-inf")

    def receive(self, signed: SignedMessage, now: float, wall_ms: int) -> list[Action]:
        self._last = now
        self._note(("message", now, wall_ms, signed))
        return super().receive(signed, now, wall_ms)

    def refuse(self, reason: Reason) -> None:
        self._note(("refused", self._last, reason))
        super().refuse(reason)

    def verdict(self, ticket: int, verdict: Verdict, now: float) -> list[Action]:
        self._note(("verdict", now, ticket, verdict.reason, verdict.detail))
        return super().verdict(ticket, verdict, now)

    def suspect(self, host_id: str, now: float) -> list[Action]:
        self._note(("suspect", now, host_id))
        return super().suspect(host_id, now)

    def enrol(self, enrolments: Iterable[Enrolment], now: float, wall_s: float) -> list[Action]:
        enrolments = tuple(enrolments)
        self._note(("enrol", now, wall_s, enrolments))
        return super().enrol(enrolments, now, wall_s)

    def restore(self, hosts: Iterable[KnownHost], now: float, wall_s: float) -> list[Action]:
        hosts = tuple(hosts)
        self._note(("restore", now, wall_s, hosts))
        return super().restore(hosts, now, wall_s)

    def tick(self, now: float, wall_s: float) -> list[Action]:
        # Four a second would fill a recording with nothing; some are kept to tell the time.
        if not self.idle(now, wall_s) or now >= self._last_tick + TICK:
            self._last_tick = now
            self._note(("tick", now, wall_s))
        self._last = now
        return super().tick(now, wall_s)

    def bus_lost(self, now: float) -> list[Action]:
        self._note(("bus_lost", now))
        return super().bus_lost(now)

    def bus_answered(self, asked_at: float, now: float) -> list[Action]:
        self._note(("bus_answered", now, asked_at))
        return super().bus_answered(asked_at, now)

    def stalled(self, seconds: float, now: float) -> list[Action]:
        self._note(("stalled", now, seconds))
        return super().stalled(seconds, now)


def beginning(pool: Pool, now: float, wall: float, why: str) -> Input:
    """The input from which a recording can be played: the pool as it is now."""
    settings = asdict(pool.settings)
    return ("begin", now, wall, FORMAT, pool.cluster, settings, pool.dump(), why)


def format_of(head: bytes) -> int | None:
    """The format of a recording whose first bytes these are, None when it is none."""
    found = re.match(rb'\["begin",[-0-9.e+]+,[-0-9.e+]+,([0-9]+),', head)
    return None if found is None else int(found[1])


def encode(entry: Input, before: str) -> tuple[bytes, str]:
    """One line, and its checksum, which the next line's continues; `before` is that of the last."""
    if entry[0] == "message":
        signed: SignedMessage = entry[3]
        subject, payload = wire.raw(signed)
        entry = (*entry[:3], subject, payload.decode())
    body = json.dumps(entry, default=plain.plain, ensure_ascii=False, separators=(",", ":"))
    checksum = _sum("" if entry[0] == "begin" else before, body[:-1])
    return f'{body[:-1]},"{checksum}"]\n'.encode(), checksum


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: `line` counts from 1, `wall` is about the Unix time at which it happened."""

    line: int
    wall: float
    input: Input

    @property
    def kind(self) -> str:
        return str(self.input[0])

    @property
    def now(self) -> float:
        return float(self.input[1])


def read(lines: Iterable[bytes]) -> Iterator[Entry]:
    """The inputs of a recording, in order; a last line that is cut off is left out.

    Raises:
        TapeRefused: a line is not as it was written, or there is no beginning.
    """
    before, offset = "", 0.0
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            return
        try:
            text = line.decode()
            value = json.loads(text)
            kind, checksum = value[0], value[-1]
            if number == 1 and kind != "begin":
                raise TapeRefused("line 1: is not the beginning of a recording")
            body = text[: -SUM - 5]
            if checksum != _sum("" if kind == "begin" else before, body):
                raise ValueError("checksum")
            if f'{body},"{checksum}"]\n' != text:
                raise ValueError("form")
            if kind in ("begin", "tick", "enrol", "restore"):
                offset = value[2] - value[1]
            elif kind == "message":
                offset = value[2] / 1000 - value[1]
            entry = Entry(number, value[1] + offset, tuple(value[:-1]))
        except TapeRefused:
            raise
        except (ValueError, TypeError, LookupError, RecursionError):
            raise TapeRefused(
                f"line {number}: is not as it was written, or lines before it are missing"
            ) from None
        before = checksum
        yield entry


class Player:
    """A pool that is told a recording. `pool` is it, as of the last entry."""

    def __init__(self) -> None:
        self.pool = Pool("")

    def play(self, entry: Entry) -> list[Action]:
        """Tell the pool one entry; returns what it said is to be done.

        Raises TapeRefused for one that no gateway of this version wrote.
        """
        try:
            return self._tell(*entry.input)
        except TapeRefused:
            raise
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise TapeRefused(
                f"line {entry.line}: cannot be played ({type(error).__name__}: {error})"
            ) from None

    def _tell(self, kind: str, now: float, *told: Any) -> list[Action]:
        pool = self.pool
        match kind, told:
            case "begin", (_, form, cluster, settings, dumped, _):
                if form != FORMAT:
                    raise TapeRefused(
                        f"a recording of format {form}, not {FORMAT}: of another version"
                    )
                self.pool = Pool.load(cluster, PoolSettings(**settings), dumped)
                return []
            case "message", (wall_ms, subject, payload):
                signed = wire.decode(subject, payload.encode(), cluster=pool.cluster)
                return pool.receive(signed, now, wall_ms)
            case "refused", (reason,):
                pool.refuse(Reason(reason))
                return []
            case "verdict", (ticket, proof, detail):
                return pool.verdict(ticket, Verdict(Proof(proof), detail), now)
            case "suspect", (host_id,):
                return pool.suspect(host_id, now)
            case "enrol", (wall, enrolments):
                return pool.enrol(map(plain.enrolment_of, enrolments), now, wall)
            case "restore", (wall, hosts):
                return pool.restore(map(plain.known_of, hosts), now, wall)
            case "tick", (wall,):
                return pool.tick(now, wall)
            case "bus_lost", ():
                return pool.bus_lost(now)
            case "bus_answered", (asked_at,):
                return pool.bus_answered(asked_at, now)
            case "stalled", (seconds,):
                return pool.stalled(seconds, now)
        raise ValueError(f"unknown input {kind}")


def _sum(before: str, body: str) -> str:
    return sha256(f"{before}{body}".encode()).hexdigest()[:SUM]
