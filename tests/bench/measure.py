"""The measurements: which proxy is measured when, for how long, and what is read meanwhile.

Owns the order, in rounds with every proxy in turn, and the time that may take. Starts no process
but the load (load.py); which samples count is stats.py's.
"""

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import load, proc, stats
from tests.bench.cases import HOSTNAME, IDLE, Case
from tests.bench.load import LoadFailed
from tests.bench.rig import Asker, Rig, Running
from tests.bench.stats import Row, Sample

IDLE_CONNECTIONS = 4_000
_PER_ADDRESS = 800  # below limits.connections_per_address
_FIRST_CONNECTIONS = 2_000
_WARM_ROUNDS = 5
_SETTLE = 0.5
_WAIT_FOR_CORES = 0.2


@dataclass(frozen=True, slots=True)
class Turn:
    """One proxy in one case; `name` is the case's in the results, `script` wrk's."""

    name: str
    case: Case
    running: Running
    script: Path | None


@dataclass(frozen=True, slots=True)
class Pace:
    """How many rounds, seconds a sample, seconds to wait for a quiet machine before each."""

    rounds: int
    seconds: int
    patience: float


def idle(running: Running) -> Row:
    """Memory of one idle connection, each of which has had one answer. Raises LoadFailed.

    Measured from the first thousands on, which live in what the start of the proxy left free.
    """
    with contextlib.ExitStack() as stack:
        _open(stack, running, 0, _FIRST_CONNECTIONS)
        before = proc.memory(running.pid)
        _open(stack, running, _FIRST_CONNECTIONS, IDLE_CONNECTIONS)
        after = proc.memory(running.pid)
    return Row(
        case=IDLE,
        proxy=running.proxy.name,
        rss_mib=after.rss,
        pss_mib=after.pss,
        idle_kib=(after.pss - before.pss) * 1024 / IDLE_CONNECTIONS,
    )


def _open(stack: contextlib.ExitStack, running: Running, first: int, count: int) -> None:
    """Open connections, have one answer on each, and wait until the proxy has come to rest."""
    for number in range(first, first + count):
        source = f"127.0.0.{1 + number // _PER_ADDRESS}"
        asker = stack.enter_context(Asker(running.port, HOSTNAME, source))
        asker.ask()
        if not asker.take():
            raise LoadFailed("no answer on a new connection")
    time.sleep(_SETTLE)


def warm(running: Running, connections: int) -> None:
    """Have the proxy open as many connections to the upstream as it will need."""
    hostname = running.crowd.asked[0] if running.crowd else HOSTNAME
    with contextlib.ExitStack() as stack:
        askers = [stack.enter_context(Asker(running.port, hostname)) for _ in range(connections)]
        for _ in range(_WARM_ROUNDS):
            for asker in askers:
                asker.ask()
            for asker in askers:
                asker.take()


def take(rig: Rig, turn: Turn, pace: Pace) -> Sample:
    """One sample. Raises LoadFailed."""
    running = turn.running
    proc.wait_quiet(pace.patience, _WAIT_FOR_CORES)
    meter = proc.Meter(running.pid, [pid for pid in rig.pids if pid != running.pid])
    result = load.run(turn.case, running.port, pace.seconds, turn.script)
    cpu, used, others = meter.read()
    memory = proc.memory(running.pid)
    running.empty_log()
    return Sample(
        cpu_us=cpu * 1e6 / max(1, result.requests),
        rps=result.rps,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        rss=memory.rss,
        pss=memory.pss,
        used=used,
        others=others,
        errors=result.errors,
    )


def rounds(rig: Rig, turns: Sequence[Turn], pace: Pace, deadline: float) -> list[Row]:
    """Measure all turns, round after round, so that what disturbs one disturbs all.

    One round is always made, a further one only while `deadline` (monotonic) is not over. What
    fails is said on stderr and has no row.
    """
    samples: dict[Turn, list[Sample]] = {turn: [] for turn in turns}
    for turn in turns:
        warm(turn.running, turn.case.connections)
    for number in range(pace.rounds):
        if number and time.monotonic() > deadline:
            say(f"{turns[0].name}: time is over after {number} rounds of {pace.rounds}")
            break
        for turn in [turn for turn in turns if turn in samples]:
            say(f"{turn.name}: round {number + 1} of {pace.rounds}, {turn.running.proxy.name}")
            try:
                samples[turn].append(take(rig, turn, pace))
            except LoadFailed as failed:
                say(f"{turn.name}: {turn.running.proxy.name} failed: {failed}", lasting=True)
                del samples[turn]
    return [stats.row(turn.name, turn.running.proxy.name, taken) for turn, taken in samples.items()]


def say(text: str, *, lasting: bool = False) -> None:
    """Tell whoever waits where we are; on a terminal each text takes the place of the last."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="\n" if lasting else "", file=sys.stderr, flush=True)
    elif lasting:
        print(text, file=sys.stderr, flush=True)
