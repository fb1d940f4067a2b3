"""Counters of several processes as one (contract 11.1, 11.3).

Owns how counters travel, how they add up, and that totals never fall: what a worker had counted
when it died is kept, what it held (connections, requests under way) is not.
"""

from collections.abc import Mapping
from typing import Any

from smartgw.metrics import Histogram
from smartgw.proxy.counters import NAMES, Counters

HELD = frozenset(
    (
        *("connections", "in_flight", "tunnels", "upstream_connections"),
        *("limit_callers", "store_away"),
    )
)
"""Counters that say what there is now, and end with their process."""


def exported(counters: Counters) -> dict[str, Any]:
    """Return the counters as JSON values: numbers, lists, and tables by name."""
    return {name: _plain(getattr(counters, name)) for name in NAMES}


def add(total: Counters, part: Mapping[str, Any], *, ended: bool = False) -> None:
    """Add exported counters to `total`; of a process that `ended` only what it did counts."""
    for name, value in part.items():
        if not ended or name not in HELD:
            setattr(total, name, _sum(getattr(total, name), value))


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return {"counts": list(value.counts), "total": value.total}
    if isinstance(value, dict):
        return {str(key): count for key, count in value.items()}
    return list(value) if isinstance(value, list) else value


def _sum(into: Any, value: Any) -> Any:
    if isinstance(into, Histogram):
        into.counts = [a + b for a, b in zip(into.counts, value["counts"], strict=True)]
        into.total += value["total"]
    elif isinstance(into, dict):
        for key, count in value.items():
            into[key] += count  # names are equal to the members of a StrEnum
    elif isinstance(into, list):
        into = [a + b for a, b in zip(into, value, strict=True)]
    else:
        into += value
    return into
