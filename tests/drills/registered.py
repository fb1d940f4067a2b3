"""A gateway with 100,000 registered apps: its start, its memory, and what a change costs.

`python -m tests.drills.registered [--apps 100000] [--hostnames 10] [--workers 1] [--short]`. Fills
a real bucket, starts a gateway on a core of its own, then changes one app after the other, reads
the whole again, takes in a burst of changes and a bucket restored from a backup, all under traffic
at a fixed rate. Exit code 1 when it took too much, or a request failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from smartgw.state import jetstream
from smartgw.state.records import App, encode, key_of, register
from tests.drills.machine import MIB, alone, change, cpu, many_files, metrics, unharmed
from tests.drills.paced import Paced, Phase
from tests.gateway import BASE_DOMAIN, Cluster, Gateway, wait_until
from tests.jetstream_api import ask, messages, restored_from_backup
from tests.raw_http import BadAnswer
from tests.servers import Nats
from tests.stores import BUCKET

READY_SECONDS = 60.0
MOST_BYTES = 1024.0
MOST_WORK_MS = 50.0
MOST_RATIO = {"changes": 1.5, "reading the whole": 3.0}
"""Of the 99th percentile of traffic to that of before; bursts take as long as they take."""
_CHUNK = 2_000
_BETWEEN = 0.2


def apps(count: int, hostnames: int) -> Iterator[App]:
    """Apps as a platform has them: a label of its own each, and exact hostnames."""
    for number in range(count):
        names = [f"www{n}.customer-{number}.example" for n in range(hostnames)]
        yield register(app_id=f"app-{number}", hostnames=names)


def fill(cluster: Cluster, records: Iterator[App]) -> None:
    """Write them to the bucket, no quicker than it keeps them."""
    written = messages(cluster.nats)
    for record in records:
        cluster.bus.publish(jetstream.subject(BUCKET, key_of(record)), encode(record))
        written += 1
        if written % _CHUNK == 0:
            wait_until(lambda written=written: messages(cluster.nats) >= written)  # type: ignore[misc]
    wait_until(lambda: messages(cluster.nats) >= written, what="all of it in the bucket")


class Asked:
    """A client that asks about one app after the other, on one connection."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._client = gateway.downstream()

    def suspended(self, hostname: str) -> bool:
        """Whether a request for it is refused for that."""
        lines = ("GET / HTTP/1.1", f"Host: {hostname}", "Accept: application/json", "", "")
        try:
            self._client.send("\r\n".join(lines).encode())
            return b"app_suspended" in self._client.answer("GET").body
        except (BadAnswer, OSError):  # it was not used for longer than it is kept
            self._client = self._gateway.downstream()
            return self.suspended(hostname)

    def wait(self, hostname: str, *, suspended: bool = True, within: float = 20.0) -> None:
        """Wait until it is so."""
        wait_until(
            lambda: self.suspended(hostname) is suspended, within, f"{hostname}: {suspended}"
        )


def single_changes(
    cluster: Cluster, gateway: Gateway, asked: Asked, count: int
) -> tuple[float, float]:
    """Suspend one app after the other; returns the slowest in force, and CPU ms for each."""
    idle = time.monotonic(), cpu(gateway)
    time.sleep(3.0)
    rest = (cpu(gateway) - idle[1]) / (time.monotonic() - idle[0])
    slowest = 0.0
    began, before = time.monotonic(), cpu(gateway)
    for number in range(count):
        app = register(
            app_id=f"app-{number}",
            hostnames=[f"new{n}.customer-{number}.example" for n in range(10)],
            state="suspended",
        )
        at = time.monotonic()
        cluster.bus.publish(jetstream.subject(BUCKET, key_of(app)), encode(app))
        asked.wait(app.hostnames[3])
        slowest = max(slowest, time.monotonic() - at)
        time.sleep(_BETWEEN)
    seconds = time.monotonic() - began
    work = cpu(gateway) - before - rest * seconds
    return slowest, work * 1000 / count


def drill(args: argparse.Namespace) -> tuple[str, bool]:
    """Return the figure and whether it is good enough."""
    cluster = Cluster(nats=Nats(jetstream=True).start())
    paced: Paced | None = None
    faults: list[str] = []
    try:
        with alone(cluster, _changes(args, bucket=None)) as small:
            before_rss = small.rss()
        ask(cluster.nats, *jetstream.create_question(BUCKET, 1))
        began = time.monotonic()
        fill(cluster, apps(args.apps, args.hostnames))
        print(f"filled in {time.monotonic() - began:.1f} s", flush=True)
        began = time.monotonic()
        with alone(cluster, _changes(args, bucket=BUCKET)) as gateway:
            ready = time.monotonic() - began
            bytes_each = (gateway.rss() - before_rss) / (args.apps * (args.hostnames + 1))
            print(
                f"ready after {ready:.1f} s, {gateway.rss() / MIB:.0f} MiB resident, "
                f"{bytes_each:.0f} bytes a route",
                flush=True,
            )
            if ready > READY_SECONDS or bytes_each > MOST_BYTES:
                faults.append("start")
            paced = Paced(cluster, gateway, rate=args.rate)
            for host in paced.hosts:
                record = register(app_id=host.app)
                cluster.bus.publish(jetstream.subject(BUCKET, key_of(record)), encode(record))
            time.sleep(2.0)
            quiet = paced.during(args.seconds)
            print(f"quiet: {quiet}", flush=True)
            phases: list[tuple[str, Phase]] = []
            asked = Asked(gateway)
            slowest, work = single_changes(cluster, gateway, asked, args.changes)
            phases.append(("changes", paced.phase()))
            phases.append(("reading the whole", reading(gateway, paced, args.reconcile)))
            phases.append(("burst", burst(cluster, gateway, paced, asked, args.burst)))
            phases.append(("restored", restored(cluster, gateway, paced, asked)))
            for name, phase in phases:
                print(f"{name}: {phase}", flush=True)
                ratio = MOST_RATIO.get(name)
                harmed = ratio is not None and not unharmed(quiet, phase, ratio)
                if phase.lost or harmed:
                    faults.append(name)
            if work > MOST_WORK_MS or slowest > 2.0:
                faults.append("work")
            lost = sum(phase.lost for _, phase in phases)
            routes = args.apps * (args.hostnames + 1)
            figure = (
                f"{args.apps} apps with {routes} hostnames ready in {ready:.1f} s, "
                f"{bytes_each:.0f} bytes each, a change in force after {slowest * 1000:.0f} ms "
                f"at most with {work:.1f} ms of work, {change(quiet, phases[0][1])}, "
                f"{lost} requests failed also while the whole was read anew and restored"
            )
            if faults:
                figure += f"; too much: {', '.join(faults)}"
            return figure, not faults
    finally:
        if paced is not None:
            paced.stop()
        cluster.stop()
        cluster.nats.stop()


def reading(gateway: Gateway, paced: Paced, within: float) -> Phase:
    """A phase in which the whole is read anew, from the end of the reading before."""
    for _ in range(2):
        paced.phase()
        sweeps = metrics(gateway)["smartgw_state_sweeps_total"]
        wait_until(
            lambda sweeps=sweeps: metrics(gateway)["smartgw_state_sweeps_total"] > sweeps,  # type: ignore[misc]
            within=2 * within + 60,
            what="the whole read",
        )
    return paced.phase()


def burst(cluster: Cluster, gateway: Gateway, paced: Paced, asked: Asked, count: int) -> Phase:
    """Change many apps at once; the phase ends when all of it is in force."""
    paced.phase()
    changed = metrics(gateway)["smartgw_state_changes_total"]
    last = ""
    for number in range(count):
        app = register(
            app_id=f"app-{number}",
            hostnames=[f"burst.customer-{number}.example"],
            state="suspended",
        )
        cluster.bus.publish(jetstream.subject(BUCKET, key_of(app)), encode(app))
        last = app.hostnames[0]
    began = time.monotonic()
    asked.wait(last, within=60.0)
    seconds = time.monotonic() - began
    changed = metrics(gateway)["smartgw_state_changes_total"] - changed
    print(
        f"a burst of {count} in force {seconds:.1f} s later, as {changed:.0f} changes", flush=True
    )
    return paced.phase()


def restored(cluster: Cluster, gateway: Gateway, paced: Paced, asked: Asked) -> Phase:
    """Put a backup back from before the burst; the phase ends when it is in force."""
    hostname = f"app-0.{BASE_DOMAIN}"
    app = register(app_id="app-0")
    with restored_from_backup(cluster.nats, BUCKET):
        cluster.bus.publish(jetstream.subject(BUCKET, key_of(app)), encode(app))
        asked.wait(hostname, suspended=False)
        paced.phase()
        changed = metrics(gateway)["smartgw_state_changes_total"]
        began = time.monotonic()
    asked.wait(hostname, within=120.0)
    changed = metrics(gateway)["smartgw_state_changes_total"] - changed
    seconds = time.monotonic() - began
    print(f"a restored bucket in force after {seconds:.1f} s, as {changed:.0f} change", flush=True)
    return paced.phase()


def _changes(args: argparse.Namespace, bucket: str | None) -> dict[str, dict[str, object]]:
    changes: dict[str, dict[str, object]] = {"processes": {"workers": args.workers}}
    if bucket is not None:
        changes["state"] = {"bucket": bucket, "reconcile": args.reconcile}
    return changes


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("registered", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--apps", type=int, default=100_000)
    parser.add_argument("--hostnames", type=int, default=10, help="exact ones of each app")
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--burst", type=int, default=10_000)
    parser.add_argument("--reconcile", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="5,000 apps, short phases")
    args = parser.parse_args(argv)
    if args.short:
        args.apps, args.changes, args.burst = 5_000, 10, 1_000
        args.seconds, args.reconcile = 3.0, 1.0
    many_files()
    figure, good = drill(args)
    print(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
