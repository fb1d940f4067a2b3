"""One app that does not answer, and one caller that takes all it can get: who else notices?

`python -m tests.drills.fair [--waiting 1000] [--seconds 15] [--short]`. First 1,000 requests from
many addresses wait for one slow app, then as many from one address, which also tries again and
again for more. Prints the latency of other apps; exit code 1 when it rose.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence

from tests.drills.clients import Many, addresses
from tests.drills.machine import alone, change, many_files, metrics, unharmed
from tests.drills.paced import Paced, Phase
from tests.gateway import Cluster, Gateway, Host
from tests.upstreams import Connection

MOST_RATIO = 1.2
_GREED = 200
"""Connections a second that the greedy address tries for on top."""


class Slow:
    """An app that answers nobody until it is told to."""

    def __init__(self) -> None:
        self.answer = threading.Event()

    def __call__(self, connection: Connection) -> None:
        while True:
            connection.request()
            self.answer.wait(60)
            connection.reply()


def crowd(
    gateway: Gateway, host: Host, sources: Sequence[str], args: argparse.Namespace
) -> tuple[Many, Many]:
    """The requests that wait, and those that are tried for on top for as long as we look."""
    request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
    waiting, more = Many(gateway.port), Many(gateway.port)
    waiting.add(args.waiting, sources, request, rate=1_000)
    until = time.monotonic() + args.seconds
    while time.monotonic() < until:
        if len(sources) == 1:
            more.add(_GREED, sources, request, rate=_GREED)
            more.look()
        waiting.look(0.2)
    more.look(0.5)
    return waiting, more


def drill(args: argparse.Namespace) -> tuple[str, bool]:
    """Return the figure and whether it is good enough."""
    cluster = Cluster(enrolled=8)
    paced = None
    try:
        with alone(cluster) as gateway:
            paced = Paced(cluster, gateway, rate=args.rate, source="127.0.1.1")
            before = paced.during(args.seconds)
            print(f"before: {before}", flush=True)
            phases: list[Phase] = []
            faults: list[str] = []
            for what, sources in (("many addresses", addresses(20)), ("one", addresses(1, 99))):
                slow = Slow()
                host = cluster.host(slow)
                paced.phase()
                waiting, more = crowd(gateway, host, sources, args)
                phases.append(paced.phase())
                in_flight = metrics(gateway)["smartgw_in_flight"]
                print(
                    f"{what}: {phases[-1]}; {waiting.open} wait, {in_flight:g} in flight, "
                    f"on top {more.open} taken, {more.ended} refused: {dict(more.answers)}"
                )
                if in_flight < args.waiting * 0.9:
                    faults.append(f"only {in_flight:g} requests waited")
                if len(sources) == 1 and (more.open or more.answers["503"] != more.retry_after):
                    faults.append(f"{more.open} more than an address may have")
                slow.answer.set()
                waiting.look(3.0)
                if waiting.answers["200"] < args.waiting * 0.9:
                    faults.append(f"the slow app's own: {dict(waiting.answers)}")
                waiting.close()
                more.close()
                host.stop()
            after = paced.during(args.seconds / 2)
            print(f"after: {after}")
            for fault in faults:
                print(fault)
            quiet = max(before, after, key=lambda phase: phase.p99)
            good = not faults and all(unharmed(quiet, one, MOST_RATIO) for one in phases)
            return (
                f"beside {args.waiting} waiting requests {change(quiet, phases[0])}; "
                f"of one greedy address {change(quiet, phases[1])}"
            ), good
    finally:
        if paced is not None:
            paced.stop()
        cluster.stop()


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("fair", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each part")
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second of others")
    parser.add_argument("--short", action="store_true", help="4 s each")
    args = parser.parse_args(argv)
    if args.short:
        args.seconds = 4.0
    many_files()
    figure, good = drill(args)
    print(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
