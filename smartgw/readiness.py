"""Whether traffic may come (contract 11.3).

Owns what keeps a gateway from being ready and what merely makes it work less well. The facts are
the parts' own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smartgw.processes.drain import Phase


@dataclass(frozen=True, slots=True)
class Readiness:
    """Ready when nothing is missing; `missing` and `degraded` are lines for people.

    `state` is what gateways that share it are compared by, None where nothing is shared.
    """

    ready: bool
    missing: tuple[str, ...]
    degraded: tuple[str, ...]
    state: Mapping[str, Any] | None = None


def judge(
    *,
    phase: Phase,
    ending: bool,
    known: bool,
    connected: bool,
    first_use: bool,
    workers: tuple[int, int] | None,
    without_table: Sequence[str],
    undecided: Sequence[str],
    degraded: Sequence[str],
    state: Mapping[str, Any] | None = None,
) -> Readiness:
    """Say what is missing for traffic, and what works less well than it could.

    `ending`: a drain is not an operator's, but for the process to end. `known`: the table is
    whole, or hosts of before the restart serve; else `without_table` says what more is missing.
    `undecided` says why it is not known what the platform has decided, and is empty when it is.
    `workers`: how many serve, of how many; None for a single process.
    """
    missing: list[str] = []
    less: list[str] = []
    if phase is not Phase.SERVING:
        how = "drained" if phase is Phase.DRAINED else "draining"
        why = "for the gateway is ending" if ending else "by an operator; smartgw drain --undo"
        missing.append(f"drain: {how} {why}")
    if not known:
        missing.append("table: a heartbeat interval has not been listened to yet")
        missing += without_table
    missing += undecided
    if not connected:
        (less if known else missing).append("bus: not connected")
    less += degraded
    if workers is not None and workers[0] < workers[1]:
        (less if workers[0] else missing).append(f"workers: {workers[0]} of {workers[1]} serve")
    if first_use:
        less.append("trust: first use, for development only")
    return Readiness(not missing, tuple(missing), tuple(less), state)
