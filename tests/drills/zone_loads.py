"""A large zone and many small ones through two real gateways: `python -m tests.drills.zone_loads`.

Imports a zone of 100,000 records and 10,000 zones of 10 over the API of one gateway, with the
progress shown, and tells how long that took, when the other had it, what a change cost that one,
and how long both need to know all after a restart. Fails above the bounds below.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dns.message
import dns.query

from tests.drills.machine import cpu
from tests.drills.zones import HEAD, addresses
from tests.gateway import Cluster, Gateway, wait_until
from tests.servers import Nats, free_port
from tests.smartgw.api import issuing
from tests.smartgw.api.services import Service

MOST_WORK = 0.1
"""CPU seconds of a gateway for one change, of a zone of any size."""
MOST_OCTETS = 700.0
"""Memory a record, with what the store holds of it."""
IN_FORCE = 2.0
CHANGES = 20


class Loads:
    """Two gateways; `port` is where the second serves zones."""

    def __init__(self, cluster: Cluster, settings: dict[str, Any]) -> None:
        self.port = free_port()
        served = {"dns": {"listen": [f"127.0.0.1:{self.port}"], "rate": 0}}
        self.gateways = [cluster.gateway(settings), cluster.gateway({**settings, **served})]
        self.service = Service(self.gateways[0])
        self.worst = {"latency": 0.0, "work": 0.0}

    def smartgw(self, *words: str) -> None:
        """Run a command against the first gateway."""
        environment = {**os.environ, "SMARTGW_TOKEN": self.service.token}
        endpoint = f"127.0.0.1:{self.gateways[0].internal_port}"
        command = [sys.executable, "-m", "smartgw", words[0], "--endpoint", endpoint, *words[1:]]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, env=environment)
        assert done.returncode == 0

    def status(self, gateway: Gateway) -> dict[str, Any]:
        """What a gateway says of its zones."""
        found: dict[str, Any] = json.loads(gateway.internal("/api/v3/status")[1])["dns"]
        return found

    def wait(self, zones: int, records: int) -> None:
        """Wait until both have all zones in force."""
        for gateway in self.gateways:
            wait_until(
                lambda gateway=gateway: (  # type: ignore[misc]
                    (self.status(gateway)["zones"], self.status(gateway)["records"])
                    == (zones, records)
                ),
                within=120.0,
                what=f"{zones} zones, {records} records",
            )

    def change(self, host: str, zone: str) -> None:
        """Change one rrset many times, and note the worst until the other gateway has it."""
        other = self.gateways[1]
        path = f"/api/v3/dns/zones/{zone}/rrsets/{host}.{zone}/A"
        query = dns.message.make_query(f"{host}.{zone}", "A")
        for number in range(CHANGES):
            wanted = f"192.0.2.{number}"
            before, began = cpu(other), time.monotonic()
            answer = self.service.call("PUT", path, {"ttl": 60, "rdata": [wanted]})
            assert answer.status == 200, answer.body
            wait_until(
                lambda wanted=wanted: (  # type: ignore[misc]
                    str(dns.query.udp(query, "127.0.0.1", 5, self.port).answer[0][0]) == wanted
                )
            )
            self.worst["latency"] = max(self.worst["latency"], time.monotonic() - began)
            self.worst["work"] = max(self.worst["work"], cpu(other) - before)


def main(argv: Sequence[str]) -> int:
    """Run it; 0 when all bounds hold."""
    parser = argparse.ArgumentParser("zone_loads", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--records", type=int, default=100_000, help="of the large zone")
    parser.add_argument("--zones", type=int, default=10_000, help="of ten records each")
    args = parser.parse_args(argv)
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats, enrolled=1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            return drill(cluster, Path(folder), args.records, args.zones)
        finally:
            cluster.stop()
            nats.stop()


def drill(cluster: Cluster, folder: Path, records: int, zones: int) -> int:
    """Load, change, restart; tells what each took."""
    loads = Loads(cluster, issuing.settings(folder))
    before = [gateway.rss() for gateway in loads.gateways]
    large = folder / "large.test"
    large.write_text(HEAD + "".join(addresses(records - 2, 0)))
    began = time.monotonic()
    loads.smartgw("zones", "import", str(large))
    imported = time.monotonic() - began
    loads.wait(1, records)
    print(
        f"{records} records imported in {imported:.1f} s, everywhere after "
        f"{time.monotonic() - began:.1f} s",
        flush=True,
    )
    loads.change("host1", "large.test")
    print(
        f"one change: in force at the other gateway within {loads.worst['latency']:.3f} s, "
        f"{loads.worst['work'] * 1000:.0f} ms of its work",
        flush=True,
    )
    small = folder / "small"
    small.mkdir()
    for number in range(zones):
        (small / f"zone{number}.test").write_text(HEAD + "".join(addresses(8, number * 8)))
    began = time.monotonic()
    if zones:
        loads.smartgw("zones", "import", str(small))
        loads.wait(1 + zones, records + 10 * zones)
        print(f"{zones} zones imported in {time.monotonic() - began:.1f} s", flush=True)
        loads.change("host8", "zone1.test")
    total = records + 10 * zones
    octets = max(
        (gateway.rss() - was) / total for gateway, was in zip(loads.gateways, before, strict=True)
    )
    began = time.monotonic()
    for gateway in loads.gateways:
        gateway.terminate()
        gateway.start()
    loads.wait(1 + zones, total)
    print(f"both restarted and know all after {time.monotonic() - began:.1f} s", flush=True)
    good = (
        loads.worst["work"] <= MOST_WORK
        and loads.worst["latency"] <= IN_FORCE
        and octets <= MOST_OCTETS
    )
    print(
        f"{total} records: {octets:.0f} octets each; a change takes "
        f"{loads.worst['work'] * 1000:.0f} ms of work and is everywhere in "
        f"{loads.worst['latency']:.3f} s at worst"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
