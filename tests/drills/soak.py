"""Does a gateway keep its size? Hosts come and go, clients break off, WebSockets open and end.

`python -m tests.drills.soak [--minutes 30] [--rate 200] [--workers 1] [--short]`. Samples memory,
descriptors, tasks and connections, and looks at what is left once all have gone. Prints the
figure last; exit code 1 when memory rises by 1 MB in 10 minutes or more, when something else rises,
or when a request is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from statistics import linear_regression, median

from tests.drills.machine import MIB, descriptors, metrics, resident
from tests.drills.paced import Paced, Phase
from tests.gateway import BASE_DOMAIN, Cluster, Gateway, Host
from tests.raw_http import BadAnswer
from tests.upstreams import HANDSHAKE, Connection, accept

MOST_SLOPE = 1.0
"""MB in 10 minutes."""
_LARGE = b"x" * MIB
_HOSTS = 12
_HOST_SECONDS = 24.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What a gateway holds: MiB, and numbers of things."""

    memory: float
    descriptors: float
    tasks: float
    connections: float
    upstream_connections: float
    tunnels: float
    in_flight: float


NAMES = ("memory", "descriptors", "tasks", "connections", "upstream", "tunnels", "in flight")


def sample(gateway: Gateway) -> Sample:
    """Look at the gateway once."""
    now = metrics(gateway)
    return Sample(
        resident(gateway) / MIB,
        descriptors(gateway),
        now["smartgw_tasks"],
        now["smartgw_connections"],
        now["smartgw_upstream_connections"],
        now["smartgw_tunnels"],
        now["smartgw_in_flight"],
    )


def app(connection: Connection) -> None:
    """A host's app: echoes WebSockets, is slow or long-winded where it is asked to be."""
    while True:
        request = connection.head()
        if request.all("upgrade"):
            accept(connection, request)
            while True:
                connection.send(bytes(connection.buffer))
                connection.buffer.clear()
                connection.more()
        connection.read_body(request)
        if request.raw_target == b"/slow":
            time.sleep(0.3)
        connection.reply(_LARGE if request.raw_target == b"/large" else b"ok")


class Life:
    """What goes on around the gateway, in threads, until `stop`."""

    def __init__(self, cluster: Cluster, gateway: Gateway) -> None:
        self._cluster, self._gateway = cluster, gateway
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._hosts: list[Host] = []
        self._ids = itertools.cycle([cluster.new_host_id() for _ in range(3 * _HOSTS)])
        self.counts = {"hosts": 0, "aborts": 0, "websockets": 0, "visits": 0}
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(what, wait))
            for what, wait in (
                (self._come_and_go, _HOST_SECONDS / _HOSTS),
                (self._abort, 0.2),
                (self._websocket, 0.25),
                (self._visit, 0.2),
            )
        ]
        for _ in range(_HOSTS):
            self._come()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all of it."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for host in self._hosts:
            self._go(host)

    def _run(self, what: Callable[[], None], wait: float) -> None:
        while not self._over.wait(wait * random.uniform(0.5, 1.5)):
            try:
                what()
            except (OSError, BadAnswer) as error:
                self.wrong.append(f"{what.__name__}: {error!r}")

    def _come(self) -> None:
        new = self._cluster.new_app("soak")
        host = self._cluster.host(app, new, wait=False, host_id=next(self._ids))
        self.counts["hosts"] += 1
        with self._lock:
            self._hosts.append(host)

    def _come_and_go(self) -> None:
        self._come()
        with self._lock:
            host = self._hosts.pop(0)
        self._go(host)

    def _go(self, host: Host) -> None:
        """One leaves in order, the next one dies."""
        if self.counts["hosts"] % 2:
            host.stop()
        else:
            self._cluster.beating.discard(host)
            host.upstream.close()
        self._cluster.hosts.remove(host)

    def _some_host(self) -> str:
        with self._lock:
            # Not the one that goes next, nor the one that has just come.
            return random.choice(self._hosts[2:-2]).hostname

    def _visit(self) -> None:
        """An ordinary request, which must be served."""
        self.counts["visits"] += 1
        target = random.choice(("/", "/slow", "/large"))
        answer = self._gateway.ask(self._some_host(), target)
        if answer.status != 200 or not answer.complete:
            self.wrong.append(f"visit: {answer.head[:60]!r}")

    def _abort(self) -> None:
        """A client that goes away in the middle of something."""
        self.counts["aborts"] += 1
        host = self._some_host()
        what = random.choice(
            (
                f"GET / HTTP/1.1\r\nHost: {host}\r\n",
                f"GET /slow HTTP/1.1\r\nHost: {host}\r\n\r\n",
                f"GET /large HTTP/1.1\r\nHost: {host}\r\n\r\n",
                f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 90000\r\n\r\n{'x' * 70000}",
                f"POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
                f"GET / HTTP/1.1\r\nHost: nobody.{BASE_DOMAIN}\r\n\r\n",
            )
        )
        client = self._gateway.downstream(receive_buffer=4096)
        client.send(what.encode())
        time.sleep(random.uniform(0.0, 0.1))
        if random.random() < 0.5:
            client.reset()
        else:
            client.close()

    def _websocket(self) -> None:
        """A tunnel that echoes, and ends one way or another."""
        self.counts["websockets"] += 1
        client = self._gateway.downstream()
        client.send(HANDSHAKE.format(hostname=self._some_host()).encode())
        while b"\r\n\r\n" not in client.buffer:
            if not client.receive():
                self.wrong.append("websocket: no handshake")
                client.close()
                return
        size = random.choice((10, 5_000))
        client.buffer.clear()
        client.send(b"y" * size)
        while len(client.buffer) < size and client.receive():
            pass
        if len(client.buffer) != size:
            self.wrong.append("websocket: echo")
        if random.random() < 0.5:
            client.reset()
        else:
            client.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`slope` in MB in 10 minutes; `faults` says what was not as it must be."""

    slope: float
    phase: Phase
    faults: list[str]


def judge(samples: Sequence[tuple[float, Sample]], first: Sample, last: Sample) -> list[str]:
    """What is not flat. `first` was before anybody came, `last` after all have gone."""
    faults = []
    third = max(1, len(samples) // 3)
    for number, name in enumerate(NAMES[1:], 1):
        early = median(astuple(one)[number] for _, one in samples[:third])
        late = median(astuple(one)[number] for _, one in samples[-third:])
        if late > early * 1.1 + 5:
            faults.append(f"{name} rose from {early:g} to {late:g}")
        before, after = astuple(first)[number], astuple(last)[number]
        if after > before + 2:
            faults.append(f"{name}: {before:g} before, {after:g} left behind")
    return faults


def slope(samples: Sequence[tuple[float, Sample]]) -> float:
    """MB that memory rises by in 10 minutes, by least squares."""
    at = [seconds for seconds, _ in samples]
    found = linear_regression(at, [one.memory for _, one in samples])
    return found.slope * 600 * MIB / 1e6


def drill(args: argparse.Namespace) -> Outcome:
    """Let everything go on for a while, then end it and look at what is left."""
    seconds = args.minutes * 60
    cluster = Cluster(enrolled=3 * _HOSTS + 4)
    paced = None
    try:
        gateway = cluster.gateway(
            {"upstream": {"idle": 5.0}, "processes": {"workers": args.workers}}
        )
        time.sleep(1.5)
        first = sample(gateway)
        paced = Paced(cluster, gateway, rate=args.rate)
        life = Life(cluster, gateway)
        samples: list[tuple[float, Sample]] = []
        start = time.monotonic()
        try:
            while (passed := time.monotonic() - start) < seconds:
                time.sleep(min(args.every, seconds - passed))
                now = time.monotonic() - start
                if now > seconds / 6:  # until then everything is there for the first time
                    samples.append((now, sample(gateway)))
                    if args.trace:
                        print(f"{now:.0f} s", samples[-1][1], life.counts, flush=True)
            phase = paced.phase()
        finally:
            life.stop()
        for host in paced.hosts:
            cluster.beating.discard(host)
        paced.stop()
        until = time.monotonic() + 30
        while judge(samples, first, last := sample(gateway)) and time.monotonic() < until:
            time.sleep(0.5)
        faults = judge(samples, first, last)
        if phase.lost:
            faults.append(f"lost {phase.failed}")
        if life.wrong:
            faults.append(f"{len(life.wrong)} wrong, as {life.wrong[:3]}")
        rise = slope(samples)
        # Short runs show whether something is left behind, not slopes.
        if rise >= MOST_SLOPE and not args.short:
            faults.append(f"memory rises by {rise:.2f} MB in 10 minutes")
        print(f"before {first}\nafter {last}\n{life.counts}, gateway log:")
        print(gateway.log()[-1500:])
        return Outcome(rise, phase, faults)
    finally:
        if paced is not None:
            with contextlib.suppress(OSError):
                paced.stop()
        cluster.stop()


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--trace", action="store_true", help="print each look")
    parser.add_argument("--short", action="store_true", help="half a minute; judges no slope")
    args = parser.parse_args(argv)
    if args.short:
        args.minutes, args.every = 0.5, 1.0
    outcome = drill(args)
    for fault in outcome.faults:
        print(fault)
    print(
        f"memory slope {outcome.slope:+.2f} MB in 10 minutes over {args.minutes:g} minutes; "
        f"{outcome.phase}; {len(outcome.faults)} faults"
    )
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
