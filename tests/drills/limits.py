"""The limits at full scale: histories, callers of one key, millions of callers (6.1, 6.7).

`python -m tests.drills.limits [histories|callers|flood]...`. Prints the figure last; exit code 1
when memory core and script differ, more than the limit passed, or a busy caller began anew. The
same, short, are tests/smartgw/admission and tests/smartgw/proxy/test_limits_shared.py.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from smartgw.admission.callers import caller_of
from smartgw.admission.span import SECOND, Span
from smartgw.admission.table import SHARED, Table
from tests.gateway import Cluster
from tests.servers import Valkey
from tests.smartgw.admission.test_window_lua import Script, compare
from tests.smartgw.proxy.test_limits_shared import at_once

HISTORIES, TIMES, CALLERS = 100_000, 20, 5_000_000
CAPACITY, LIMIT = 200_000, 600


def histories(scale: float) -> tuple[str, bool]:
    """Memory core and script over random histories."""
    count = round(HISTORIES * scale)
    with Valkey() as server:
        script = Script(server)
        try:
            refused = sum(
                compare(script, range(start, min(count, start + 1_000)))
                for start in range(0, count, 1_000)
            )
        finally:
            script.close()
    return f"{count} histories agree, {refused} charges in them refused", True


def callers(scale: float) -> tuple[str, bool]:
    """50 clients of one caller over 3 gateway processes with 600 left, again and again."""
    times = max(1, round(TIMES * scale))
    cluster = Cluster("callers", enrolled=8)
    try:
        with Valkey() as valkey:
            changes = {
                "rates": {"requests": LIMIT},
                "store": {"servers": [valkey.url], "budget": 1.0},
                "proxy": {"trusted": ["127.0.0.1/32"]},
            }
            gateways = [cluster.gateway(changes) for _ in range(3)]
            host = cluster.host()
            found = [
                at_once(gateways, host, f"X-Forwarded-For: 198.51.100.{number}", 50, 14)
                for number in range(times)
            ]
    finally:
        cluster.stop()
    exact = sum(statuses.count(200) == LIMIT for statuses in found)
    return f"exactly {LIMIT} admitted in {exact} of {times}", exact == times


def addresses() -> Iterator[str]:
    """Distinct callers of every kind: IPv4, mapped, NAT64, and IPv6 in one /48 and in many."""
    number = 0
    while True:
        number += 1
        low = f"{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        yield f"11.{low}"
        yield f"::ffff:12.{low}"
        yield f"64:ff9b::13.{low}"
        yield f"2001:db8:1:{number >> 16:x}::{number & 0xFFFF:x}"
        yield f"2600:{number >> 12 & 0xFFFF:x}:{number & 0xFFF:x}::1"


def flood(scale: float) -> tuple[str, bool]:
    """Millions of distinct callers in one window, beside one who had used up his."""
    count = round(CALLERS * scale)
    table = Table(Span.of(60), CAPACITY)
    for _ in range(LIMIT):
        table.find("busy", 0).charge(0, 1, LIMIT, table.span)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, refused = time.perf_counter(), 0
    source = addresses()
    for number in range(count):
        # All within 50 s, so that none of them is over.
        now = number * 50 * SECOND // count
        key = ("app", "shop", caller_of(next(source)))
        refused += table.find(key, now).charge(now, 1, LIMIT, table.span) > 0
        if number % 100_000 == 0:
            table.tidy(now)
    each = (time.perf_counter() - start) / count * 1e6
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    busy = table.find("busy", 50 * SECOND).charge(50 * SECOND, 1, LIMIT, table.span) > 0
    # One /48 is one caller, and is refused after 600 like any other.
    own = count // 5 - LIMIT
    figure = (
        f"{count} callers: {len(table)} windows, +{grown:.0f} MiB, {each:.1f} us each, busy caller "
        f"{'still refused' if busy else 'BEGAN ANEW'}, {refused - own} refused beside one /48"
    )
    return figure, busy and len(table) <= CAPACITY + SHARED and grown < 200


DRILLS: dict[str, Callable[[float], tuple[str, bool]]] = {
    "histories": histories,
    "callers": callers,
    "flood": flood,
}


def main(argv: Sequence[str]) -> int:
    """Run drills and print their figures."""
    parser = argparse.ArgumentParser("limits", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*DRILLS, []], help="all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the full size")
    args = parser.parse_args(argv)
    good, figures = True, []
    for name in args.names or DRILLS:
        figure, fine = DRILLS[name](args.scale)
        good = good and fine
        figures.append(figure)
        print(f"{name}: {figure}", flush=True)
    print("; ".join(figures))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
