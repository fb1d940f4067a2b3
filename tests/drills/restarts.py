"""Every bus server and every gateway of three clusters is restarted in turn, under load and writes.

`python -m tests.drills.restarts [--rounds 1] [--clients 2]`. Bus servers are killed and started
again, gateways hand over to the next generation. Prints how many requests were lost, how many
writes were acknowledged and are still there, and whether all gateways have one digest; exit code 1
when something is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from smartgw.state import jetstream
from smartgw.state.durable import Unavailable
from smartgw.state.records import encode, key_of, register
from tests.drills.handover import start_load
from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Host, Publisher, wait_until
from tests.generations import Successor, clean, exit_code, handing_over
from tests.stores import BUCKET, NatsCluster, OneGateway

LABEL = "everywhere"


class Writer:
    """Decides about one app after the other, as a gateway would, on a thread of its own."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self.stored: dict[str, int] = {}
        self.refused = 0
        self.digest = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    def stop(self) -> None:
        """End it, and keep the digest of the state that it ended with."""
        self._done.set()
        self._thread.join()

    async def _run(self) -> None:
        gateway = OneGateway(self._servers, name="writer", replicas=3)
        await gateway.start()
        number = 0
        while not self._done.is_set():
            app_id = f"app-{number % 200}"
            try:
                await gateway.store.write(register(app_id=app_id, limit=number + 1))
            except Unavailable:
                self.refused += 1
                await asyncio.sleep(0.1)
            else:
                self.stored[app_id] = number + 1
                number += 1
            await asyncio.sleep(0.01)
        while not gateway.store.live:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        desired = gateway.store.desired
        self.digest = desired.digest
        for app_id, limit in self.stored.items():
            app = desired.app(app_id)
            # A write that was refused for want of an answer may have been stored after all.
            assert app is not None, app_id
            assert app.limit is not None, app_id
            assert app.limit >= limit, app_id
        await gateway.stop()


class One:
    """One cluster: its gateway's generations, its host, and who asks for its app."""

    def __init__(self, number: int, servers: NatsCluster, args: argparse.Namespace) -> None:
        self.cluster = Cluster(f"c{number}", servers.all[number])
        preferred = servers.servers[number:] + servers.servers[:number]
        changes: dict[str, dict[str, Any]] = {
            "bus": {"servers": preferred},
            "state": {"bucket": BUCKET, "replicas": 3},
            "processes": {"unready_wait": 0, "drain": 3.0},
        }
        self.generations: list[Gateway] = [handing_over(self.cluster, changes)]
        self.host = Host(self.cluster, self.cluster.new_host_id(), [f"app-of-{number}"])
        app = register(app_id=self.host.app, label=f"{LABEL}-{number}")
        self.cluster.bus.publish(jetstream.subject(BUCKET, key_of(app)), encode(app))
        wanted = argparse.Namespace(handler_ms=0, clients=args.clients, keeping=args.clients)
        hostname = f"{LABEL}-{number}.{BASE_DOMAIN}"
        self.load = start_load(self.generations[0], self.host, wanted, hostname)
        self.cluster.gateways = [self.generations[0]]
        self.cluster.hosts.append(self.host)
        self.cluster.beating.add(self.host)
        self.host.publish()
        self.cluster.wait_healthy(self.host)
        self.load.tell()
        self._following = threading.Thread(target=self.load.follow)
        self._following.start()

    @property
    def gateway(self) -> Gateway:
        """The generation that serves."""
        return self.generations[-1]

    def readiness(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.gateway.internal("/readyz")[1])
        return found

    def hand_over(self) -> None:
        """Start the next generation, and wait until the one before has ended."""
        before = self.gateway
        self.generations.append(Successor(before).start())
        self.cluster.gateways = [self.gateway]
        assert exit_code(before, 30.0) == 0

    def finish(self) -> dict[str, Any]:
        """End the load and return what became of it."""
        self.load.tell()
        self._following.join()
        return self.load.now

    def stop(self) -> None:
        """End everything."""
        self.load.process.kill()
        self.load.process.communicate()
        self.cluster.gateways = []
        clean(*reversed(self.generations))
        self.cluster.stop()


@contextlib.contextmanager
def clusters(args: argparse.Namespace) -> Iterator[tuple[NatsCluster, list[One]]]:
    """Three of them, on three servers that form one bus."""
    servers = NatsCluster()
    made: list[One] = []
    try:
        asyncio.run(servers.start())
        made += (One(number, servers, args) for number in range(3))
        yield servers, made
    finally:
        for one in made:
            one.stop()
        servers.stop()


def followed(all_of_them: list[One]) -> bool:
    """Whether every gateway hears of every change."""
    return all(one.readiness()["degraded"] == [] for one in all_of_them)


def drill(args: argparse.Namespace) -> tuple[str, bool]:
    """Return the figure and whether nothing is missing."""
    with clusters(args) as (servers, made):
        writer = Writer(servers.servers)
        try:
            for _ in range(args.rounds):
                for number, (server, one) in enumerate(zip(servers.all, made, strict=True)):
                    time.sleep(2.0)
                    server.kill()
                    time.sleep(2.0)
                    server.start()
                    one.cluster.bus.close()
                    one.cluster.bus = Publisher(server.port)
                    wait_until(lambda: followed(made), within=60.0, what="all follow again")
                    print(f"bus server {number} restarted", flush=True)
                for number, one in enumerate(made):
                    time.sleep(1.0)
                    one.hand_over()
                    print(f"gateway {number} handed over", flush=True)
        finally:
            writer.stop()
        wait_until(
            lambda: all(one.readiness()["state"]["digest"] == writer.digest for one in made),
            what="one digest",
        )
        results = [one.finish() for one in made]
    lost = sum(result["lost"] for result in results)
    for result in results:
        if result["why"]:
            print(result["why"])
    asked = sum(result["answered"] for result in results) + lost
    return (
        f"{lost} of {asked} requests lost, {len(writer.stored)} apps as last acknowledged "
        f"({writer.refused} writes refused meanwhile), one digest at three gateways"
    ), not lost


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("restarts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--clients", type=int, default=2, help="of each kind, for each gateway")
    figure, good = drill(parser.parse_args(argv))
    print(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
