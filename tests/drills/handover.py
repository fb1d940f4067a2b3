"""Load on a gateway while its generations follow one another: how many requests are lost?

`python -m tests.drills.handover [--connections 100000] [--handovers 4] [--handler-ms 0]
[--workers 1] [--restart]`. With `--restart` the sockets are a service manager's and the gateway
is ended and started instead of handing over. Prints the figure last; exit code 1 when one is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.gateway import Cluster, Gateway, Host
from tests.generations import Activated, Successor, clean, end, exit_code, handing_over
from tests.servers import die_with, free_port

GRACE_SECONDS = 30.0


@dataclass
class Load:
    """The load process: `now` is its last report."""

    process: subprocess.Popen[str]
    now: dict[str, Any] = field(default_factory=dict)

    def follow(self) -> None:
        """Read reports until it is over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.now = json.loads(line)
            if self.now["over"]:
                return

    def tell(self) -> None:
        """Have it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def start_load(
    gateway: Gateway, host: Host, args: argparse.Namespace, hostname: str | None = None
) -> Load:
    """Start the load program, which is also the host from now on; it asks for `hostname`."""
    port = free_port()
    parent = os.getpid()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.drills.load"),
            *("--cluster", host.cluster.cluster_id, "--host-id", host.host_id),
            *("--host-port", str(port), "--gateway-port", str(gateway.port)),
            *("--hostname", hostname or host.hostname, "--handler-ms", str(args.handler_ms)),
            *("--clients", str(args.clients), "--keeping", str(args.keeping)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: die_with(parent),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "host ready\n"
    host.address = f"http://127.0.0.1:{port}"
    return Load(process)


def drill(args: argparse.Namespace) -> dict[str, Any]:
    """Run the load, and let the generations follow one another at even distances."""
    cluster = Cluster(enrolled=4)
    changes = {
        "processes": {"unready_wait": 0, "drain": args.drain, "workers": args.workers},
        "limits": {"connections_per_address": 40_000},
    }
    generations: list[Gateway] = []
    load = None
    try:
        if args.restart:
            generations.append(Activated(cluster, changes).start())
        else:
            generations.append(handing_over(cluster, changes))
        host = Host(cluster, cluster.new_host_id(), [cluster.new_app()])
        load = start_load(generations[0], host, args)
        cluster.gateways = [generations[0]]
        cluster.hosts.append(host)
        cluster.beating.add(host)
        host.publish()
        cluster.wait_healthy(host)
        load.tell()
        started = time.monotonic()
        following = threading.Thread(target=load.follow)
        following.start()
        for number in range(1, args.handovers + 1):
            due = args.connections * number // (args.handovers + 1)
            while load.now.get("opened", 0) < due and following.is_alive():
                time.sleep(0.02)
            if args.restart:
                assert end(generations[0], within=GRACE_SECONDS) == 0
                generations[0].start()
            else:
                generations.append(Successor(generations[-1]).start())
            cluster.gateways = [generations[-1]]
        while load.now.get("opened", 0) < args.connections and following.is_alive():
            time.sleep(0.02)
        load.tell()
        following.join()
        if not args.restart:
            codes = [exit_code(gateway, GRACE_SECONDS) for gateway in generations[:-1]]
            assert codes == [0] * args.handovers, codes
        return {**load.now, "seconds": time.monotonic() - started, "handovers": args.handovers}
    finally:
        if load is not None:
            load.process.kill()
            load.process.communicate()
        cluster.gateways = []
        clean(*reversed(generations))
        cluster.stop()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options of a drill."""
    parser = argparse.ArgumentParser("handover", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=100_000, help="new ones, at least")
    parser.add_argument("--handovers", type=int, default=4)
    parser.add_argument("--handler-ms", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--keeping", type=int, default=8)
    parser.add_argument("--drain", type=float, default=3.0)
    parser.add_argument("--restart", action="store_true", help="end and start it instead")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run one drill and print its figure."""
    result = drill(parse(argv))
    if result["why"]:
        print(result["why"])
    print(
        f"{result['lost']} of {result['opened']} new connections and {result['kept']} requests on "
        f"kept ones lost over {result['handovers']} generations, in {result['seconds']:.0f} s"
    )
    return 1 if result["lost"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
