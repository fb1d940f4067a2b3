"""The store of the counters killed, frozen, slow, emptied, demoted and full, under load (6.6).

`python -m tests.drills.store [NAME...] [--seconds 10] [--short]`. Two gateways count together; one
caller asks both for more than his limit all the time. Prints the figure last; exit code 1 when an
app's request failed, waited, or the caller got more than each process's limit.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.drills.machine import metrics
from tests.drills.paced import Paced, Phase
from tests.gateway import Cluster, Gateway, Host, wait_until
from tests.policies import PolicyGateway
from tests.relays import Relay
from tests.servers import Valkey

MOST_SLOWER_MS = 5.0
MOST_BACK_SECONDS = 2.0
WINDOW, LIMIT, GATEWAYS = 5.0, 40, 2
GREEDY_APP = "greedy"


class Greedy:
    """A caller that asks every gateway in turn, and remembers when it was let in."""

    def __init__(self, gateways: Sequence[Gateway], host: Host) -> None:
        self._gateways = gateways
        self._request = f"GET / HTTP/1.1\r\nHost: {host.hostname}\r\n\r\n".encode()
        self.admitted: list[float] = []
        self.failed: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10)

    def most(self, since: float = 0.0) -> int:
        """The most that were let in within one window that begins after `since`."""
        times = [at for at in self.admitted if at >= since]
        first, most = 0, 0
        for last, at in enumerate(times):
            # Our own clock reads a moment after theirs.
            while times[first] <= at - WINDOW + 0.02:
                first += 1
            most = max(most, last - first + 1)
        return most

    def _run(self) -> None:
        clients = [gateway.downstream(timeout=5) for gateway in self._gateways]
        while not self._over.wait(0.01):
            for client in clients:
                client.send(self._request)
                at = time.monotonic()
                status = client.answer().status
                if status == 200:
                    self.admitted.append(at)
                elif status != 429:
                    self.failed.append(status)
        for client in clients:
            client.close()


@dataclass
class Outage:
    """What is done to the store, and how it is undone."""

    name: str
    begin: Callable[[Valkey, Relay], object]
    end: Callable[[Valkey, Relay], object]


def _delay(seconds: float) -> Callable[[Valkey, Relay], None]:
    def do(valkey: Valkey, relay: Relay) -> None:
        relay.delay = seconds

    return do


def _say(*words: str) -> Callable[[Valkey, Relay], object]:
    return lambda valkey, relay: valkey.ask(*words)


OUTAGES = (
    Outage("killed", lambda v, r: v.kill(), lambda v, r: v.start()),
    Outage("frozen", lambda v, r: v.freeze(), lambda v, r: v.thaw()),
    Outage("slow", _delay(0.1), _delay(0.0)),
    Outage("replica", _say("REPLICAOF", "127.0.0.1", "1"), _say("REPLICAOF", "NO", "ONE")),
    Outage(
        "full", _say("CONFIG", "SET", "maxmemory", "1"), _say("CONFIG", "SET", "maxmemory", "0")
    ),
)


def emptied(valkey: Valkey) -> None:
    """Restart it at once: it is there again, and knows nothing."""
    valkey.kill()
    valkey.start()


class Trial:
    """Two gateways, a store that one of them reaches through a relay, and traffic."""

    def __init__(self, seconds: float, rate: float) -> None:
        self.seconds = seconds
        self.valkey = Valkey().start()
        self.relay = Relay(self.valkey.port)
        self.cluster = Cluster("store", enrolled=8)
        changes = {"rates": {"requests": 1_000_000_000, "window": WINDOW}}
        self.gateways: list[Gateway] = []
        for _ in range(GATEWAYS):
            store = {"servers": [f"valkey://127.0.0.1:{self.relay.port}"]}
            gateway = PolicyGateway(
                self.cluster, {GREEDY_APP: {"limit": LIMIT}}, {**changes, "store": store}
            )
            self.gateways.append(gateway.start())
        self.cluster.gateways += self.gateways
        self.paced = Paced(self.cluster, self.gateways[0], rate=rate, source="127.0.1.1")
        self.greedy = Greedy(self.gateways, self.cluster.host(app=GREEDY_APP))
        wait_until(lambda: not self.away())

    def away(self) -> bool:
        return any(metrics(gateway)["smartgw_store_away"] for gateway in self.gateways)

    def stop(self) -> None:
        self.greedy.stop()
        self.paced.stop()
        self.cluster.stop()
        self.relay.close()
        self.valkey.stop()


def run(trial: Trial, outage: Outage, before: Phase) -> tuple[str, bool]:
    """One outage; returns its figure and whether it is good enough."""
    began = time.monotonic()
    outage.begin(trial.valkey, trial.relay)
    wait_until(trial.away)
    first = trial.paced.phase()
    time.sleep(trial.seconds)
    during = trial.paced.phase()
    outage.end(trial.valkey, trial.relay)
    ended = time.monotonic()
    wait_until(lambda: not trial.away(), 20)
    back = time.monotonic() - ended
    last = trial.paced.phase()
    time.sleep(WINDOW + 0.5)
    after = trial.paced.phase()
    most = trial.greedy.most(began - WINDOW)
    lost = sum(phase.lost for phase in (first, during, last, after)) + len(trial.greedy.failed)
    figure = (
        f"{outage.name}: {lost} failed, p99 {before.p99:.2f} -> {during.p99:.2f} ms, "
        f"back in {back:.1f} s, at most {most} of {LIMIT} in a window"
    )
    good = (
        not lost
        and during.p99 <= before.p99 + MOST_SLOWER_MS
        and back <= MOST_BACK_SECONDS
        and most <= GATEWAYS * LIMIT
    )
    return figure, good


def drill(names: Sequence[str], seconds: float, rate: float) -> tuple[str, bool]:
    """Return the figure and whether it is good enough."""
    trial = Trial(seconds, rate)
    try:
        before = trial.paced.during(seconds)
        print(f"before: {before}", flush=True)
        normal = trial.greedy.most()
        good = before.lost == 0 and normal <= LIMIT
        figures = [f"at most {normal} of {LIMIT} in a window while the store is there"]
        for outage in OUTAGES:
            if outage.name in names:
                figure, fine = run(trial, outage, before)
                figures.append(figure)
                good = good and fine
                print(f"{'' if fine else 'BAD: '}{figure}", flush=True)
        if "emptied" in names:
            began = time.monotonic()
            trial.paced.phase()
            emptied(trial.valkey)
            wait_until(lambda: not trial.away())
            time.sleep(WINDOW + 0.5)
            phase, most = trial.paced.phase(), trial.greedy.most(began - WINDOW)
            figures.append(f"emptied: {phase.lost} failed, at most {most} of {LIMIT} in a window")
            good = good and not phase.lost and most <= GATEWAYS * LIMIT
            print(figures[-1], flush=True)
        alone = sum(metrics(one)["smartgw_limit_alone_total"] for one in trial.gateways)
        return f"{'; '.join(figures)}; {alone:.0f} requests counted alone", good
    finally:
        trial.stop()


NAMES = (*(outage.name for outage in OUTAGES), "emptied")


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("store", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="outages, all by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part")
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second of others")
    parser.add_argument("--short", action="store_true", help="3 s each")
    args = parser.parse_args(argv)
    figure, good = drill(args.names or NAMES, 3.0 if args.short else args.seconds, args.rate)
    print(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
