"""What a gateway must sit out without losing a host or a request, under load (contract 1.7).

`python -m tests.drills.outages [NAME...] [--seconds 60] [--stop 12] [--heartbeat 5]`. Prints the
figure last; exit code 1 when a host lost its place or a request failed. The same outages, short,
are tests/smartgw/test_outages.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from smartgw_hosts.wire import Kind
from tests.gateway import Cluster, Gateway, Host, Publisher, wait_until
from tests.servers import Nats

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
SLOW_CONSUMERS = 'write_deadline: "200ms"\nmax_pending: 1048576\n'
CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Scale:
    """Seconds of an outage of the bus and of a stop of the gateway, of a heartbeat, and hosts."""

    outage: float = 60.0
    stop: float = 12.0
    heartbeat: float = 5.0
    hosts: int = 12

    @property
    def term(self) -> float:
        """A lease: what must pass to see that silence would have been taken for death."""
        return 3 * self.heartbeat


class SteppedGateway(Gateway):
    """A gateway whose wall clock can be stepped while it runs; the monotonic one stays true."""

    def command(self) -> list[str]:
        assert FAKETIME is not None, "install libfaketime"
        return [
            "env",
            f"LD_PRELOAD={FAKETIME}",
            f"FAKETIME_TIMESTAMP_FILE={self.folder / 'clock'}",
            *("FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"),
            *super().command(),
        ]

    def step(self, seconds: int) -> None:
        """Let its wall clock be so many seconds from the true one."""
        fresh = self.folder / "clock.new"
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self.folder / "clock")


@dataclass
class Trial:
    """A gateway under load, with hosts that send heartbeats; counts what went wrong."""

    scale: Scale
    cluster: Cluster
    gateway: Gateway
    hosts: list[Host] = field(default_factory=list)
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _silent: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float = 0.0

    def begin(self) -> None:
        """Bring up hosts and load."""
        self._start(self._beat)
        made = [self.cluster.host(wait=False) for _ in range(self.scale.hosts)]
        self.cluster.beating.clear()
        self.hosts += made
        self.cluster.wait_healthy(*made)
        self._began = time.monotonic()
        for number in range(CLIENTS):
            self._start(self._load, number)
        time.sleep(self.scale.heartbeat)

    def end(self) -> None:
        """End the load; the hosts go with their cluster."""
        self._over.set()
        for thread in self._threads:
            thread.join(self.scale.stop + 20)

    def bus_back(self) -> None:
        """Let the hosts speak on the bus that was restarted: all announce themselves at once."""
        self.cluster.nats.start()
        self.cluster.bus.close()
        self.cluster.bus = Publisher(self.cluster.nats.port)
        for host in self.hosts:
            host.publish(Kind.ANNOUNCE)
        # Not before it is there again does silence count.
        wait_until(lambda: self.metric("smartgw_bus_connected") == 1, 10, "the bus to be back")

    def lost(self) -> list[str]:
        """The hosts that were anything but healthy for a moment since the load began."""
        passed = time.monotonic() - self._began
        found = self.gateway.hosts()
        return [
            f"{host.host_id}: {found.get(host.host_id, 'unknown')}"
            for host in self.hosts
            if host.host_id not in found
            or found[host.host_id]["state"] != "healthy"
            or found[host.host_id]["since_seconds"] < passed
        ]

    def metric(self, name: str) -> float:
        """A figure of /metrics without labels."""
        text = self.gateway.internal("/metrics")[1].decode()
        match = re.search(rf"^{name} ([0-9.e+-]+)$", text, re.MULTILINE)
        assert match is not None, name
        return float(match[1])

    def live_again(self) -> None:
        """All is as before: a host that leaves goes, one that comes is routed to."""
        wait_until(lambda: self.gateway.ready(), 10, "ready")
        leaver = self.fresh_host()
        leaver.publish(Kind.LEAVE)
        wait_until(lambda: self.gateway.state(leaver.host_id) == "unhealthy", 5, "left")

    def fresh_host(self) -> Host:
        """One more host, which says no more than its announcement."""
        host = self.cluster.host(wait=False)
        self.cluster.beating.clear()
        self.cluster.wait_healthy(host)
        return host

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _beat(self) -> None:
        while not self._over.wait(self.scale.heartbeat / 2):
            for host in list(self.hosts):
                host.publish(Kind.HEARTBEAT)

    def _load(self, number: int) -> None:
        while not self._over.is_set():
            number = (number + 1) % len(self.hosts)
            try:
                timeout = self.scale.stop + 10
                answer = self.gateway.ask(self.hosts[number].hostname, timeout=timeout)
                fault = "" if answer.status == 200 else f"{answer.status} {answer.body[:200]!r}"
            except Exception as error:
                fault = repr(error)
            with self._lock:
                self.requests += 1
                if fault:
                    self.failures.append(fault)
            time.sleep(0.01)


def killed(trial: Trial) -> str:
    """The bus is killed, and comes back with all its hosts at once (R14)."""
    trial.cluster.nats.kill()
    time.sleep(trial.scale.outage)
    before = trial.metric("smartgw_proofs_total")
    trial.bus_back()
    time.sleep(min(2.0, trial.scale.heartbeat))
    proofs = trial.metric("smartgw_proofs_total") - before
    assert proofs <= len(trial.hosts) / 2, f"{proofs:.0f} verifications at once"
    time.sleep(1.5 * trial.scale.term)
    return f"{proofs:.0f} verifications in the first seconds"


def frozen(trial: Trial) -> str:
    """The bus stands still with its connections open, and goes on."""
    trial.cluster.nats.freeze()
    time.sleep(trial.scale.outage)
    trial.cluster.nats.thaw()
    time.sleep(1.5 * trial.scale.term)
    return ""


def restarted(trial: Trial) -> str:
    """The bus is restarted, five times (R16)."""
    for _ in range(5):
        trial.cluster.nats.kill()
        trial.bus_back()
        time.sleep(trial.scale.heartbeat / 2)
    time.sleep(1.5 * trial.scale.term)
    return f"{trial.metric('smartgw_bus_connected'):.0f} connection"


def slow_consumer(trial: Trial) -> str:
    """The bus throws the gateway out for being slow; it comes back and hears all again (R16)."""
    flood = Publisher(trial.cluster.nats.port)
    trial.gateway.freeze()
    subject = f"smartgw.{trial.cluster.cluster_id}.host.nobody.heartbeat"
    # More than the sockets in between can hold.
    for _ in range(600):
        flood.publish(subject, bytes(60_000))
    wait_until(lambda: "Slow Consumer" in trial.cluster.nats.log(), 10, "a slow consumer")
    trial.gateway.thaw()
    flood.close()
    time.sleep(1.5 * trial.scale.term)
    dropped = trial.metric("smartgw_bus_drops_total")
    return f"{dropped:.0f} messages dropped by the gateway"


def stopped(trial: Trial) -> str:
    """The gateway itself gets no processor (SIGSTOP)."""
    trial.gateway.freeze()
    time.sleep(trial.scale.stop)
    trial.gateway.thaw()
    time.sleep(1.0)
    lag = trial.metric("smartgw_loop_lag_max_seconds")
    assert trial.scale.stop - 0.5 < lag < trial.scale.stop + 5, lag
    degraded = trial.gateway.internal("/readyz")[1].decode()
    assert "loop: lagging " in degraded, degraded
    time.sleep(1.5 * trial.scale.term)
    return f"lag of {lag:.1f} s told"


def stepped(trial: Trial) -> str:
    """The gateway's wall clock steps by an hour, forward and back, and new connections are made."""
    assert isinstance(trial.gateway, SteppedGateway)
    for seconds in (3600, -3600, 0):
        trial.gateway.step(seconds)
        told = json.loads(trial.gateway.internal("/api/v3/status")[1])["time"]
        assert abs(datetime.fromisoformat(told).timestamp() - time.time() - seconds) < 5, told
        time.sleep(trial.scale.term + trial.scale.heartbeat)
        fresh = trial.fresh_host()
        assert trial.gateway.ask(fresh.hostname).status == 200
    time.sleep(trial.scale.heartbeat)
    return f"{trial.metric('smartgw_proofs_failed_total'):.0f} proofs failed"


def resynchronised(trial: Trial) -> str:
    """Bus, hosts and enrolment list all begin anew at once, with wildcard claims (R09)."""
    trial.cluster.nats.kill()
    for number, host in enumerate(trial.hosts):
        host.boot += 1
        host.weight = 50 + number
    trial.cluster.entries = [
        entry.replace('["*"]', '["*", "app-*", "another"]') for entry in trial.cluster.entries
    ]
    trial.cluster.write_enrolment()
    trial.bus_back()
    time.sleep(max(2.0, 1.5 * trial.scale.term))
    weights = [trial.gateway.hosts()[host.host_id]["weight"] for host in trial.hosts]
    assert weights == [50 + number for number in range(len(trial.hosts))], weights
    return "all told anew"


OUTAGES = {
    outage.__name__.replace("_", "-"): outage
    for outage in (killed, frozen, restarted, slow_consumer, stopped, stepped, resynchronised)
}


@contextmanager
def trial_of(outage: Callable[[Trial], str], scale: Scale) -> Iterator[Trial]:
    """A cluster of its own for one outage."""
    nats = Nats(SLOW_CONSUMERS if outage is slow_consumer else "").start()
    cluster = Cluster(nats=nats)
    changes: dict[str, Any] = {"discovery": {"heartbeat": scale.heartbeat, "missed": 3}}
    if outage is stepped:
        # Soon a challenge on each new connection, and the repeated ones, fall into the step.
        changes["discovery"]["reverify"] = scale.term
    kind = SteppedGateway if outage is stepped else Gateway
    gateway = kind(cluster, changes)
    cluster.gateways.append(gateway)
    trial = Trial(scale, cluster, gateway)
    try:
        if isinstance(gateway, SteppedGateway):
            gateway.step(0)
        gateway.start()
        trial.begin()
        yield trial
    finally:
        trial.end()
        cluster.stop()
        nats.stop()


def sit_out(outage: Callable[[Trial], str], scale: Scale) -> str:
    """Let one outage happen; returns the figure, raises AssertionError when it did harm."""
    with trial_of(outage, scale) as trial:
        note = outage(trial)
        lost = trial.lost()
        assert lost == [], lost
        assert trial.failures == [], (len(trial.failures), trial.failures[:3])
        trial.live_again()
        figure = f"0 of {len(trial.hosts)} hosts lost, 0 of {trial.requests} requests failed"
        return f"{figure}; {note}" if note else figure


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("outages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(OUTAGES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of an outage of the bus")
    parser.add_argument("--stop", type=float, default=12.0, help="of a stop of the gateway")
    parser.add_argument("--heartbeat", type=float, default=5.0)
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(OUTAGES):
        parser.error(f"no outage {', '.join(unknown)}; there are {', '.join(OUTAGES)}")
    scale = Scale(args.seconds, args.stop, args.heartbeat)
    failed = 0
    for name in args.names or OUTAGES:
        try:
            print(f"{name:<16} {sit_out(OUTAGES[name], scale)}", flush=True)
        except (AssertionError, TimeoutError) as error:
            failed += 1
            print(f"{name:<16} FAILED: {error}", flush=True)
    print(f"{len(args.names or OUTAGES) - failed} outages sat out, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
