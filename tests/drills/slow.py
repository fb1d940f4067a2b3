"""Clients that are slow on purpose, and crowds of silent ones: who else notices?

`python -m tests.drills.slow [--slow 400] [--idle 20000] [--seconds 80] [--workers 3] [--short]`.
slowhttptest sends slow heads and bodies and reads slowly; connections from 40 addresses say
nothing, or nothing more after one request. Prints how many were not closed by their deadlines,
memory, and the latency of others; exit code 1 when it was too much.

They cost the client that measures some of its time, so they attack another gateway first.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence

from smartgw.admission.sharing import connection_limits
from tests.drills.clients import Many, addresses
from tests.drills.machine import Peak, alone, change, many_files, spread, unharmed
from tests.drills.paced import Paced, Phase
from tests.gateway import Cluster, Gateway, Host
from tests.servers import die_with, find_binary
from tests.upstreams import Connection

MOST_RATIO = 1.2
IDLE_KIB = 6.0
"""Of a connection that says nothing; what the kernel holds is not the gateway's."""
SLOW_KIB = 384.0
"""Of a connection that is slow: what was read of an answer and cannot be written."""
_ADDRESSES = 40
_PIECES, _PIECE = 256, b"x" * (1 << 14)
_PIECE_SECONDS = 0.25
_MODES = {
    "slow heads": ("-H", "-i", "5", "-x", "24", "-p", "3"),
    "slow bodies": ("-B", "-i", "5", "-s", "65536", "-x", "10", "-t", "POST", "-p", "3"),
    "slow reads": ("-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "1", "-p", "3"),
}


def app(connection: Connection) -> None:
    """Reads bodies as they come, and streams more than fits anywhere; not all of it at once, for
    that would be a load of its own."""
    while True:
        connection.read_body(connection.head())
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (_PIECES * len(_PIECE)))
        for _ in range(_PIECES):
            connection.send(_PIECE)
            time.sleep(_PIECE_SECONDS)


def attack(
    gateway: Gateway, host: Host, count: int, seconds: int
) -> dict[str, subprocess.Popen[str]]:
    """Start slowhttptest in each of its modes."""
    binary = find_binary("slowhttptest", "SMARTGW_SLOWHTTPTEST")
    parent = os.getpid()
    return {
        mode: subprocess.Popen(
            [
                *(binary, *options, "-c", str(count), "-r", "50", "-l", str(seconds), "-v", "1"),
                # As a proxy the gateway gets the app's hostname in an absolute-form target.
                *("-u", f"http://{host.hostname}/", "-d", f"127.0.0.1:{gateway.port}"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: die_with(parent),
        )
        for mode, options in _MODES.items()
    }


def attacked(
    gateway: Gateway, host: Host, many: Many, paced: Paced, seconds: int, slow: int, peak: Peak
) -> Phase:
    """Attack this gateway; return how the others were served meanwhile."""
    paced.phase()
    attacks = attack(gateway, host, slow, seconds)
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            many.look(1.0)
            peak.look()
        during = paced.phase()
        for mode, process in attacks.items():
            print(f"{mode}: {closed(process.communicate(timeout=30)[0])}")
    finally:
        for process in attacks.values():
            process.kill()
            process.communicate()
    return during


def closed(output: str) -> str:
    """What slowhttptest says became of its connections."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output)
    found = re.findall(r"(?m)^\s*(pending|connected|error|closed):\s+(\d+)", plain)
    return " ".join(f"{name} {count}" for name, count in found[-4:]) or plain[-300:]


def drill(args: argparse.Namespace) -> tuple[str, bool]:
    """Return the figure and whether it is good enough."""
    cluster = Cluster(enrolled=8)
    paced = many = None
    try:
        changes: dict[str, dict[str, object]] = {
            "limits": {"connections_per_address": 4 * args.slow},
            "deadlines": {"keepalive": args.keepalive},
        }
        if args.workers > 1:
            changes["processes"] = {"workers": args.workers}
        cores = os.sched_getaffinity(0) if args.workers > 1 else {spread()[0]}
        with alone(cluster, changes) as gateway:
            mine = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
            other = cluster.gateway(changes)
            os.sched_setaffinity(0, mine)
            host = cluster.host(app)
            paced = Paced(cluster, gateway, rate=args.rate, source="127.0.1.1")
            before = paced.during(args.before)
            print(f"before: {before}", flush=True)
            many, sources = Many(gateway.port), addresses(_ADDRESSES)
            beside = attacked(other, host, many, paced, args.seconds // 2, args.slow, Peak(other))
            print(f"beside an attack on another gateway: {beside}", flush=True)
            other.stop()
            peak = Peak(gateway)
            half = args.idle // 2
            asked = f"GET / HTTP/1.1\r\nHost: {paced.hosts[0].hostname}\r\n\r\n".encode()
            paced.phase()
            many.add(half, sources, b"", args.idle / 10)
            many.add(half, sources, asked, args.idle / 10)
            many.look(0.3)
            peak.look()
            idle, coming = peak.grown, paced.phase()
            print(f"{many.open} idle: {idle:+.1f} MiB, {dict(many.answers)}; {coming}", flush=True)
            during = attacked(gateway, host, many, paced, args.seconds, args.slow, peak)
            print(f"during: {during}; {many.open} idle ones are left", flush=True)
            after = paced.during(args.before)
            print(f"after: {after}; before + {peak.grown:.1f} MiB at most")
            allowed = (args.idle * IDLE_KIB + 3 * args.slow * SLOW_KIB) / 1024
            silent = many.answers["200"] == half and many.open == 0
            good = (
                unharmed(beside, coming, MOST_RATIO)
                and unharmed(beside, during, MOST_RATIO)
                and silent
                and peak.grown <= allowed
            )
            return (
                f"{args.idle} idle ones {idle:+.1f} MiB, with 3 x {args.slow} slow ones "
                f"{peak.grown:+.1f} MiB (at most {allowed:.0f}), {many.open} not closed in time, "
                f"others alone {before.p99:.2f} ms, beside the attackers and under attack "
                f"{change(beside, max(coming, during, key=lambda phase: phase.p99))}"
            ), good
    finally:
        if many is not None:
            many.close()
        if paced is not None:
            paced.stop()
        cluster.stop()


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("slow", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--slow", type=int, default=400, help="connections of each slow kind")
    parser.add_argument("--idle", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=80, help="of slowness; deadlines are 75 s")
    parser.add_argument("--keepalive", type=float, default=75.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--before", type=float, default=10.0, help="seconds of traffic alone")
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second of others")
    parser.add_argument("--short", action="store_true", help="2,000 idle and 3 x 60 slow, 15 s")
    args = parser.parse_args(argv)
    if args.short:
        args.slow, args.idle, args.seconds, args.keepalive, args.before = 60, 2_000, 15, 10.0, 4.0
    files = many_files()
    # Each process of a gateway has half of its descriptors for clients, and we have ours.
    room = (connection_limits(files, files)[0] - 300) * args.workers - 3 * args.slow
    if (fits := min(args.idle, room, files - 600)) < args.idle:
        print(f"a process may have {files} descriptors: {fits} idle connections")
        args.idle = fits // 2 * 2
    figure, good = drill(args)
    print(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
