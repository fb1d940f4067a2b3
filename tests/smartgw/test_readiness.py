"""What makes a gateway ready, by table."""

from typing import Any

import pytest

from smartgw.processes.drain import Phase
from smartgw.readiness import judge

GOOD: dict[str, Any] = {
    "phase": Phase.SERVING,
    "ending": False,
    "known": True,
    "connected": True,
    "first_use": False,
    "workers": None,
    "without_table": (),
    "undecided": (),
    "degraded": (),
}


@pytest.mark.parametrize(
    ("facts", "missing", "degraded"),
    [
        ({}, [], []),
        ({"phase": Phase.UNREADY}, ["drain: draining by an operator; smartgw drain --undo"], []),
        ({"phase": Phase.DRAINED}, ["drain: drained by an operator; smartgw drain --undo"], []),
        ({"phase": Phase.LEAVING, "ending": True}, ["drain: draining for the gateway"], []),
        ({"connected": False}, [], ["bus: not connected"]),
        ({"connected": False, "known": False}, ["table", "bus: not connected"], []),
        ({"known": False, "without_table": ["snapshot: none yet"]}, ["table", "snapshot"], []),
        ({"undecided": ["state: x"]}, ["state: x"], []),
        ({"undecided": ["state: x"], "connected": False}, ["state: x"], ["bus: not connected"]),
        ({"workers": (2, 2)}, [], []),
        ({"workers": (1, 2)}, [], ["workers: 1 of 2 serve"]),
        ({"workers": (0, 2)}, ["workers: 0 of 2 serve"], []),
        ({"first_use": True, "degraded": ["loop"]}, [], ["loop", "trust: first use"]),
    ],
)
def test_what_is_missing_and_what_is_degraded(
    facts: dict[str, Any], missing: list[str], degraded: list[str]
) -> None:
    """11.3: `/readyz` says what is missing and what is degraded; only the first makes unready."""
    found = judge(**{**GOOD, **facts})
    assert found.ready == (not missing)
    for lines, begins in ((found.missing, missing), (found.degraded, degraded)):
        assert len(lines) == len(begins)
        assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))
