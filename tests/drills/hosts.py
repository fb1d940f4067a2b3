"""Ten thousand hosts announce at once and then send heartbeats: who notices?

`python -m tests.drills.hosts [--hosts 10000] [--seconds 30] [--workers 1] [--short]`. Prints when
all were verified, what memory and CPU that took, and the latency of traffic meanwhile; exit code 1
when it was too much.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.drills.crowd import HEARTBEAT, Crowd
from tests.drills.machine import Load, Meter, Peak, alone, change, many_files, metrics, unharmed
from tests.drills.paced import Paced
from tests.gateway import Cluster, wait_until

WITHIN = 30.0
MOST_MIB = 60.0
MOST_RATIO = 2.0


def _load(load: Load) -> str:
    workers = f", workers {load.workers:.2f}" if load.workers else ""
    return f"control process {load.control:.2f} cores{workers}, all others {load.others:.2f}"


def drill(args: argparse.Namespace) -> tuple[str, bool]:
    """Return the figure and whether it is good enough."""
    cluster = Cluster(enrolled=args.hosts + 2)
    paced = crowd = None
    try:
        changes = {"processes": {"workers": args.workers}} if args.workers > 1 else {}
        with alone(cluster, changes) as gateway:
            paced = Paced(cluster, gateway, rate=args.rate)
            ids = [cluster.new_host_id() for _ in range(args.hosts)]
            rounds = int(args.seconds / HEARTBEAT) + 3
            paced.phase()
            crowd = Crowd(cluster, ids, rounds, ahead=args.before + 2.0)
            peak = Peak(gateway)
            paced.phase()
            time.sleep(args.before)
            before = paced.phase()
            time.sleep(max(0.0, crowd.starts - time.time()))
            paced.phase()
            meter = Meter(gateway)
            seconds = crowd.all_challenged()
            storm = meter.read()
            peak.look()
            print(f"before: {before}\nall challenged after {seconds} s: {_load(storm)}", flush=True)
            meter = Meter(gateway)
            left = args.seconds - (time.time() - crowd.starts)
            for _ in range(int(left)):
                time.sleep(1.0)
                peak.look()
            during = paced.phase()
            steady = meter.read()
            peak.look()
            print(f"during: {during}\nheartbeats: {_load(steady)}", flush=True)
            healthy = args.hosts + len(paced.hosts)
            wait_until(
                lambda: metrics(gateway)['smartgw_hosts{state="healthy"}'] == healthy,
                what=f"{healthy} healthy hosts",
            )
            now = metrics(gateway)
            refused = sum(
                value for name, value in now.items() if name.startswith("smartgw_discovery_refused")
            )
            after = paced.during(5.0)
            drops, stalls = now["smartgw_bus_drops_total"], now["smartgw_stalls_total"]
            print(f"with them: {after}\nrefused {refused:g}, dropped {drops:g}, stalls {stalls:g}")
            good = (
                seconds <= WITHIN
                and peak.grown <= MOST_MIB
                and unharmed(before, during, MOST_RATIO)
            )
            return (
                f"{args.hosts} hosts verified in {seconds:.1f} s, memory {peak.grown:+.1f} MiB, "
                f"control process {storm.control:.2f} cores then {steady.control:.2f}, "
                f"{change(before, during)}"
            ), good
    finally:
        for part in (crowd, paced):
            if part is not None:
                part.stop()
        cluster.stop()


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("hosts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="from the announcement on")
    parser.add_argument("--before", type=float, default=10.0, help="seconds of traffic before")
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="2,000 hosts, 10 s")
    args = parser.parse_args(argv)
    if args.short:
        args.hosts, args.seconds, args.before = 2_000, 10.0, 4.0
    many_files()
    figure, good = drill(args)
    print(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
