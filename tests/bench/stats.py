"""From samples to one row of a table: medians, spread, what is set aside.

Pure. Owns which samples count: those taken while other processes had the machine are set aside,
and when too few are left, the quietest are taken and the row says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

BUSY = 0.2
"""Cores that other processes used, above which a sample is set aside."""
FEWEST = 3
"""Samples that a median is taken of at least, when there are as many."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one proxy.

    `cpu_us` a request, `p50_us`, `p99_us` in µs; `rss`, `pss` in MiB; `used` are the cores that
    the proxy used, `others` those that neither it nor load and upstream did.
    """

    cpu_us: float
    rps: float
    p50_us: float
    p99_us: float
    rss: float
    pss: float
    used: float
    others: float
    errors: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the results; what a case does not measure is None.

    `samples` were counted, `set_aside` were not; `noisy` when even those counted were taken on a
    busy machine. `idle_kib` is the memory of one idle connection.
    """

    case: str
    proxy: str
    cpu_us: float | None = None
    cpu_us_min: float | None = None
    cpu_us_max: float | None = None
    rps: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    rss_mib: float | None = None
    pss_mib: float | None = None
    used: float | None = None
    idle_kib: float | None = None
    samples: int = 1
    set_aside: int = 0
    noisy: bool = False
    errors: int = 0


def counted(samples: Sequence[Sample]) -> tuple[list[Sample], bool]:
    """The samples that count, and whether the machine was busy even for these."""
    quiet = [sample for sample in samples if sample.others <= BUSY]
    if len(quiet) >= min(FEWEST, len(samples)):
        return quiet, False
    return sorted(samples, key=lambda sample: sample.others)[:FEWEST], True


def row(case: str, proxy: str, samples: Sequence[Sample]) -> Row:
    """The medians of the samples that count. Raises ValueError without any sample."""
    used, noisy = counted(samples)

    def middle(value: Callable[[Sample], float]) -> float:
        return median(map(value, used))

    return Row(
        case=case,
        proxy=proxy,
        cpu_us=middle(lambda sample: sample.cpu_us),
        cpu_us_min=min(sample.cpu_us for sample in used),
        cpu_us_max=max(sample.cpu_us for sample in used),
        rps=middle(lambda sample: sample.rps),
        p50_us=middle(lambda sample: sample.p50_us),
        p99_us=middle(lambda sample: sample.p99_us),
        rss_mib=middle(lambda sample: sample.rss),
        pss_mib=middle(lambda sample: sample.pss),
        used=middle(lambda sample: sample.used),
        samples=len(used),
        set_aside=len(samples) - len(used),
        noisy=noisy,
        errors=sum(sample.errors for sample in samples),
    )
