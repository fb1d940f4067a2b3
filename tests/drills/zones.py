"""A zone of 100,000 records and 10,000 zones of 10: what they weigh and what a change costs.

`python -m tests.drills.zones`. Reads both from master files with the progress shown, makes 200
changes to each, and tells octets a record and CPU time a change. Fails above the bounds below.
"""

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.changes import compare
from smartgw_dns.edits import edit
from smartgw_dns.records import read_rrset
from smartgw_dns.zone import Zone

MOST_OCTETS = 500.0
MOST_SECONDS = 0.1
CHANGES = 200
HEAD = "@ 3600 IN SOA ns1 root 1 7200 900 1209600 60\n@ 3600 IN NS ns1\n"


def resident() -> int:
    """Octets of memory that this process has, after it gave back what it can."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def addresses(count: int, first: int) -> Iterator[str]:
    """Master file lines of hosts, each with an address of its own."""
    for number in range(first, first + count):
        high, low = divmod(number, 65_536)
        yield f"host{number} 300 IN A 10.{high}.{low >> 8}.{low & 255}\n"


def one_large() -> list[Zone]:
    """One zone of 100,000 records."""
    text = "$ORIGIN large.test.\n" + HEAD + "".join(addresses(99_998, 0))
    return [master.read(text, progress=lambda count: print(f"  {count} records", flush=True))]


def many_small() -> list[Zone]:
    """10,000 zones of 10 records."""
    found = []
    for number in range(10_000):
        text = f"$ORIGIN zone{number}.test.\n{HEAD}" + "".join(addresses(8, number * 8))
        found.append(master.read(text))
        if len(found) % 2_500 == 0:
            print(f"  {len(found)} zones", flush=True)
    return found


def weigh(words: str, load: Callable[[], list[Zone]]) -> bool:
    """Load, change, tell; whether all is within the bounds."""
    print(words, flush=True)
    before, started = resident(), time.process_time()
    catalog = Catalog.of(load())
    loading = time.process_time() - started
    records = sum(zone.records for zone in catalog)
    octets = (resident() - before) / records
    costs, told = [], []
    for number in range(CHANGES):
        zone = next(iter(catalog))
        name = f"new{number}.deep.{zone.origin[1 : zone.origin[0] + 1].decode()}.test."
        change = read_rrset(name, "A", 300, ["192.0.2.1"])
        started = time.process_time()
        changed = edit(zone, [change])
        catalog = catalog.changed([changed])
        costs.append(time.process_time() - started)
        if number % 20 == 0:
            started = time.process_time()
            assert compare(zone, changed, [change]).complete
            told.append(time.process_time() - started)
    print(
        f"  {records} records: {octets:.0f} octets of memory and {loading / records * 1e6:.0f} us a"
        f" record to load, {statistics.median(costs) * 1e6:.0f} us a change (at most"
        f" {max(costs) * 1e3:.1f} ms), {statistics.median(told) * 1e3:.1f} ms to tell what changes"
    )
    return octets <= MOST_OCTETS and max(costs) <= MOST_SECONDS


def main(argv: Sequence[str]) -> int:
    """Weigh both; 0 when both are within the bounds."""
    argparse.ArgumentParser("zones", description=(__doc__ or "").partition("\n")[0]).parse_args(
        argv
    )
    good = [
        weigh("one zone of 100,000 records", one_large),
        weigh("10,000 zones of 10 records", many_small),
    ]
    print(f"{sum(good)} of 2 within {MOST_OCTETS:.0f} octets a record, {MOST_SECONDS} s a change")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
