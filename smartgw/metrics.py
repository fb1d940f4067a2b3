"""Prometheus text exposition from plain numbers (contract 11.3).

Owns the text format (version 0.0.4) and the histogram. Counters are plain ints of their owners,
read when scraped: nothing here is called on the hot path but `Histogram.observe`. Label values
must come from closed sets; what an outsider chose is never one. Names are api/facts.py's.
"""

import itertools
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z")

# Seconds. Fine below a millisecond, where the gateway's own cost shows; the last is a deadline.
DURATION_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)


class Histogram:
    """Counts of observations by size. `bounds` rise; `counts` has one more, for what is above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = DURATION_BOUNDS) -> None:
        if not bounds or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise ValueError(f"bounds must rise: {bounds}")
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what it says in a sentence, and its samples by labels.

    A histogram's samples are `Histogram`s, those of the other kinds numbers.
    """

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    samples: Mapping[Labels, float | Histogram]


def counter(name: str, help: str, value: int) -> Family:
    """A counter without labels."""
    return Family(name, help, "counter", {(): value})


def gauge(name: str, help: str, value: float) -> Family:
    """A gauge without labels."""
    return Family(name, help, "gauge", {(): value})


def by_label(
    name: str,
    help: str,
    label: str,
    values: Mapping[str, float | Histogram],
    kind: Literal["counter", "gauge", "histogram"] = "counter",
) -> Family:
    """A family with one label, whose values are the keys of `values`: a closed set."""
    return Family(name, help, kind, {((label, key),): value for key, value in values.items()})


def render(families: Iterable[Family]) -> str:
    """The exposition of `families`, in their order.

    Raises ValueError for a name that the format does not allow, a family that comes twice, or a
    sample that does not fit its kind.
    """
    lines: list[str] = []
    seen: set[str] = set()
    for family in families:
        if not _NAME.match(family.name) or family.name in seen:
            raise ValueError(f"bad or repeated metric name {family.name!r}")
        seen.add(family.name)
        lines.append(f"# HELP {family.name} {_help(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples.items():
            if isinstance(value, Histogram) != (family.kind == "histogram"):
                raise ValueError(f"{family.name} is a {family.kind}, its sample is {value!r}")
            if isinstance(value, Histogram):
                lines.extend(_histogram(family.name, labels, value))
            else:
                lines.append(f"{family.name}{_labels(labels)} {_number(value)}")
    return "\n".join(lines) + "\n" if lines else ""


def _histogram(name: str, labels: Labels, histogram: Histogram) -> Iterable[str]:
    running = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        running += count
        yield f"{name}_bucket{_labels((*labels, ('le', _number(bound))))} {running}"
    yield f"{name}_sum{_labels(labels)} {_number(histogram.total)}"
    yield f"{name}_count{_labels(labels)} {running}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    for name, _ in labels:
        if not _LABEL.match(name):
            raise ValueError(f"bad label name {name!r}")
    return "{" + ",".join(f'{name}="{_value(value)}"' for name, value in labels) + "}"


def _value(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
