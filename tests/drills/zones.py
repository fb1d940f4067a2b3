"""A zone of 100,000 records and 10,000 zones of 10: what they weigh and what a change costs.

`python -m tests.drills.zones`. Reads both from master files with the progress shown, makes 200
changes to each, and tells octets a record and CPU time a change, up to the first answer with it
from a wire server that had kept many. Fails above the bounds below.
"""

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.changes import compare
from smartgw_dns.edits import edit
from smartgw_dns.records import read_rrset
from smartgw_dns.respond import Responder
from smartgw_dns.zone import Zone

MOST_OCTETS = 500.0
MOST_SECONDS = 0.1
CHANGES = 200
KEPT = 30_000
LOOKUPS = 10_000
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


def asked(name: str) -> bytes:
    """A query for the address of a name, which ends with a dot."""
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return bytes((0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + labels + b"\0\1\0\1"


def warm(responder: Responder, catalog: Catalog) -> None:
    """Have as many answers kept as a busy server has."""
    names = (
        f"host{number}.{zone.origin[1 : zone.origin[0] + 1].decode()}.test."
        for number in range(KEPT)
        for zone in catalog
    )
    for name in islice(names, KEPT):
        for _ in range(2):
            assert responder.udp(asked(name), "127.0.0.1") is not None


def lookups(catalog: Catalog) -> float:
    """CPU seconds for one lookup, of hosts of up to 100 zones."""
    names = [
        asked(f"host{number}.{zone.origin[1 : zone.origin[0] + 1].decode()}.test.")[12:-4]
        for zone in islice(catalog, 100)
        for number in range(LOOKUPS // min(100, catalog.zones.size))
    ]
    started = time.process_time()
    for name in names:
        catalog.lookup_wire(name, 1)
    return (time.process_time() - started) / len(names)


def weigh(words: str, load: Callable[[], list[Zone]]) -> bool:
    """Load, change, tell; whether all is within the bounds."""
    print(words, flush=True)
    before, started = resident(), time.process_time()
    catalog = Catalog.of(load())
    loading = time.process_time() - started
    records = sum(zone.records for zone in catalog)
    octets = (resident() - before) / records
    finding = lookups(catalog)
    responder = Responder(bytes(32), 0, time.time)
    responder.catalog = catalog
    costs, told = [], []
    for number in range(CHANGES):
        zone = next(iter(catalog))
        name = f"new{number}.deep.{zone.origin[1 : zone.origin[0] + 1].decode()}.test."
        change = read_rrset(name, "A", 300, ["192.0.2.1"])
        if number % 100 == 0:
            warm(responder, catalog)
        started = time.process_time()
        changed = edit(zone, [change])
        catalog = catalog.changed([changed])
        responder.catalog = catalog
        answer = responder.udp(asked(name), "127.0.0.1")
        costs.append(time.process_time() - started)
        assert answer is not None
        assert bytes((192, 0, 2, 1)) in answer
        if number % 20 == 0:
            started = time.process_time()
            assert compare(zone, changed, [change]).complete
            told.append(time.process_time() - started)
    print(
        f"  {records} records: {octets:.0f} octets of memory and {loading / records * 1e6:.0f} us a"
        f" record to load, {finding * 1e6:.1f} us a lookup, {statistics.median(costs) * 1e6:.0f} us"
        f" a change with its first answer (at most {max(costs) * 1e3:.1f} ms),"
        f" {statistics.median(told) * 1e3:.1f} ms to tell what changes"
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
