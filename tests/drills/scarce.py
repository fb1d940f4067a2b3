"""Too little memory, too few descriptors: does the gateway shed, keep what it carries, recover?

`python -m tests.drills.scarce [--short]`. Three gateways: `limits.memory_mib` of 300, 300 MiB of
address space (RLIMIT_AS), 256 descriptors. Each is filled with as many half-sent heads or idle
connections as it takes, while traffic on kept connections goes on. Prints what happened; exit
code 1 when one ended, logged without bound, refused without Retry-After, or did not recover.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.drills.clients import Many, addresses
from tests.drills.machine import MIB, Peak, alone, descriptors, many_files, metrics, resident
from tests.drills.paced import Paced, Phase
from tests.gateway import Cluster, Config, Gateway, wait_until

MEMORY_MIB = 300
DESCRIPTORS = 256
_LOG_BYTES = 4_000
"""That a gateway may say in all of it."""
_NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """`limit`: as prlimit(1) takes it; `count` connections say `half` and no more."""

    name: str
    changes: Config
    limit: str
    count: int
    half: bytes


def cases(seconds: float) -> list[Case]:
    """What there is too little of. Heads are given up after `seconds`."""
    # Almost the longest head there may be, in lines of lawful length.
    head = b"GET / HTTP/1.1\r\n" + (b"X-Filler: " + b"x" * 15_000 + b"\r\n") * 2
    deadlines = {"head": seconds}
    open_to_all = {"connections_per_address": 2_000}
    return [
        Case(
            "memory_mib",
            {"limits": {**open_to_all, "memory_mib": MEMORY_MIB}, "deadlines": deadlines},
            "",
            12_000,
            head,
        ),
        Case(
            "address space",
            {"limits": open_to_all, "deadlines": deadlines},
            f"--as={MEMORY_MIB * MIB}",
            12_000,
            head,
        ),
        Case(
            "descriptors",
            {"limits": open_to_all, "deadlines": deadlines},
            f"--nofile={DESCRIPTORS}",
            600,
            b"",
        ),
    ]


class Limited(Gateway):
    """A gateway under a limit of the system."""

    limit = ""

    def command(self) -> list[str]:
        return ["prlimit", self.limit, *super().command()] if self.limit else super().command()


def run(case: Case, args: argparse.Namespace) -> tuple[str, list[str]]:
    """Return what happened in one case, and what should not have."""
    cluster = Cluster(enrolled=8)
    paced = many = None
    Limited.limit = case.limit
    try:
        with alone(cluster, case.changes, Limited) as gateway:
            paced = Paced(cluster, gateway, rate=100, fresh=_NEVER, spare=8, source="127.0.1.1")
            before = paced.during(2.0)
            held = _others(gateway)
            peak, log = Peak(gateway), len(gateway.log())
            paced.phase()
            many = Many(gateway.port)
            until = time.monotonic() + args.seconds
            while time.monotonic() < until and many.open + many.ended < args.most:
                many.add(case.count // 10, addresses(40), case.half, rate=3_000)
                many.look(0.2)
                peak.look()
            shedding = paced.phase()
            shed, most = dict(many.answers), many.open
            many.close()
            time.sleep(args.head + 2.0)  # whatever waits is given up
            paced.phase()
            wait_until(lambda: _serves(gateway, paced.hosts[0].hostname), 10, "an answer again")
            after = paced.during(2.0)
            said = len(gateway.log()) - log
            faults = judge(case, many, shedding, after, said)
            if not gateway.running:
                faults.append(f"{case.name}: the gateway ended")
            elif (left := _others(gateway)) > held + 2:
                faults.append(f"{case.name}: {left} descriptors are left of {held}")
            print(
                f"{case.name}: before {before}\n  shedding {shedding}\n  after {after}\n"
                f"  {most} held at most, {many.refused} not connected, answers {shed}, "
                f"{many.retry_after} with Retry-After\n  memory {peak.start / MIB:.0f} -> "
                f"{peak.most / MIB:.0f} -> {resident(gateway) / MIB:.0f} MiB, log {said} bytes, "
                f"refused {metrics(gateway)['smartgw_connections_refused_total']:g}\n"
                + gateway.log()[log:][-700:],
                flush=True,
            )
            return f"{case.name}: shed {many.answers['503']}", faults
    finally:
        if many is not None:
            many.close()
        if paced is not None:
            paced.stop()
        cluster.stop()


def judge(case: Case, many: Many, shedding: Phase, after: Phase, said: int) -> list[str]:
    """What was not as it must be."""
    faults = []
    if not many.answers["503"]:
        faults.append("nobody was shed")
    if many.answers["503"] != many.retry_after:
        faults.append(f"{many.retry_after} Retry-After for {many.answers['503']} refusals")
    if shedding.lost:
        faults.append(f"traffic on kept connections lost {shedding.failed}")
    if after.lost:
        faults.append(f"lost afterwards: {after.failed}")
    if said > _LOG_BYTES:
        faults.append(f"{said} bytes of log")
    return [f"{case.name}: {fault}" for fault in faults]


def _others(gateway: Gateway) -> int:
    """Descriptors of what is no connection."""
    now = metrics(gateway)
    connections = now["smartgw_connections"] + now["smartgw_upstream_connections"]
    return descriptors(gateway) - int(connections)


def _serves(gateway: Gateway, hostname: str) -> bool:
    try:
        return gateway.ask(hostname, timeout=2.0).status == 200
    except OSError:
        return False


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("scarce", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of attack in each case")
    parser.add_argument("--head", type=float, default=10.0, help="deadline of a head")
    parser.add_argument("--most", type=int, default=60_000, help="connections in each case")
    parser.add_argument("--short", action="store_true", help="6 s each")
    args = parser.parse_args(argv)
    if args.short:
        args.seconds, args.head = 6.0, 4.0
    many_files()
    results = [run(case, args) for case in cases(args.head)]
    faults = [fault for _, found in results for fault in found]
    for fault in faults:
        print(fault)
    print(
        "; ".join(figure for figure, _ in results)
        + f"; every gateway went on and recovered: {'no' if faults else 'yes'}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
