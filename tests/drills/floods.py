"""A flood on the bus, and a gateway that is too slow for it: who else notices, what is left of it?

`python -m tests.drills.floods [--rate 500000] [--seconds 60] [--workers 1] [--short]`. Messages
that look valid (unsigned, badly signed, of unknown hosts, replays, strangers) come at a rate a
minute; then so many large ones at once that the bus gives the gateway up. Prints memory, what was
counted, the latency of traffic and when the pool was right again; exit code 1 when it was not.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from smartgw_hosts.wire import Description, Kind, Message, encode
from tests.drills.machine import MIB, Meter, Peak, alone, change, many_files, metrics
from tests.drills.paced import Paced, Phase
from tests.gateway import Cluster, Gateway, Host, identity_of, wait_until
from tests.servers import Nats

MOST_MIB = 64.0
"""Twice what may wait to be handled."""
MOST_MS = 3.0
"""That the 99th percentile may rise by: a request passes the loop several times, and each time
messages may be handled for a millisecond before it."""
HEARTBEAT = 5.0
_LOG_BYTES = 8_000
_SLICE = 0.02
_HOSTS = 20
_KINDS = 2_000


def messages(cluster: Cluster, hosts: Sequence[Host], count: int = _KINDS) -> list[bytes]:
    """What a flood is made of: `count` of each kind, as the bus takes them."""
    out = []
    replays = [host.message(Kind.HEARTBEAT) for host in hosts]
    for number in range(count):
        host = hosts[number % len(hosts)]
        stranger = identity_of(f"stranger {number}")
        known = Message(
            kind=Kind.HEARTBEAT,
            host_id=host.host_id,
            boot=host.boot + 1_000_000,
            sequence=number + 1,
            time_ms=int(time.time() * 1000),
            description=Description(
                address="http://127.0.0.1:1",
                apps=host.apps,
                key=host.identity.public_key,
                weight=100,
                region="",
                version="",
            ),
        )
        assert known.description is not None
        unknown = replace(
            known,
            host_id=f"stranger-{number}",
            description=replace(known.description, key=stranger.public_key),
        )
        subject, payload = encode(known, cluster.cluster_id, host.identity)
        unsigned = payload.partition(b"\n")[2]
        out += [
            _publish(subject, b"smartgw1 " + b"A" * 86 + b"==\n" + unsigned),
            _publish(*encode(known, cluster.cluster_id, stranger)),
            _publish(*encode(replace(known, kind=Kind.LEAVE), cluster.cluster_id, stranger)),
            _publish(*encode(unknown, cluster.cluster_id, stranger)),
            _publish(*replays[number % len(replays)]),
            _publish(subject, payload[: number % len(payload)]),
        ]
    return out


def _publish(subject: str, payload: bytes) -> bytes:
    return b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)


class Flooder:
    """A connection to the bus of its own, which sends what it is given at a rate."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false,"name":"flood"}\r\n')

    def send(self, batch: Sequence[bytes], rate: float, seconds: float, peak: Peak) -> int:
        """Send so many a second, in turn; returns how many that were."""
        start, sent, looked = time.monotonic(), 0, 0.0
        while (passed := time.monotonic() - start) < seconds:
            due = int(passed * rate) - sent
            first = sent % len(batch)
            part = batch[first : first + due]
            self._socket.sendall(b"".join(part))
            sent += len(part)
            if passed - looked > 0.25:
                looked = passed
                peak.look()
                self._drop_what_came()
            time.sleep(_SLICE)
        return sent

    def burst(self, data: bytes, times: int) -> None:
        """Send as fast as the bus takes it."""
        self._socket.settimeout(10)
        for _ in range(times):
            self._socket.sendall(data)
            self._drop_what_came()

    def close(self) -> None:
        self._socket.close()

    def _drop_what_came(self) -> None:
        while select.select([self._socket], [], [], 0)[0]:
            if b"PING" in self._socket.recv(65536):
                self._socket.sendall(b"PONG\r\n")


def counted(gateway: Gateway) -> dict[str, float]:
    """What the gateway has counted of the bus."""
    return {
        name: value
        for name, value in metrics(gateway).items()
        if name.startswith(("smartgw_discovery_refused", "smartgw_bus_", "smartgw_hosts"))
    }


def right_again(cluster: Cluster, gateway: Gateway, hosts: Sequence[Host]) -> float:
    """Seconds until all hosts are healthy and a new one is routed."""
    start = time.monotonic()
    new = cluster.host(wait=False)
    names = [host.host_id for host in (*hosts, new)]

    def right() -> bool:
        if time.monotonic() - start > 1.0:
            new.publish(Kind.HEARTBEAT)
        states = gateway.hosts()
        return all(states.get(name, {}).get("state") == "healthy" for name in names)

    wait_until(right, 4 * HEARTBEAT, "a pool that is right")
    wait_until(lambda: gateway.ask(new.hostname).status == 200, 2.0, "a route to a new host")
    return time.monotonic() - start


def drill(args: argparse.Namespace) -> tuple[str, bool]:
    """Return the figure and whether it is good enough."""
    nats = Nats("max_pending: 4194304\nwrite_deadline: 500ms").start()
    cluster = Cluster(nats=nats, enrolled=_HOSTS + 8)
    paced = flooder = None
    try:
        changes: dict[str, dict[str, object]] = {"discovery": {"heartbeat": HEARTBEAT, "missed": 3}}
        if args.workers > 1:
            changes["processes"] = {"workers": args.workers}
        with alone(cluster, changes) as gateway:
            hosts = [cluster.host(wait=False) for _ in range(_HOSTS)]
            cluster.wait_healthy(*hosts)
            paced = Paced(cluster, gateway, rate=args.request_rate)
            batch = messages(cluster, hosts)
            flooder = Flooder(nats.port)
            before = paced.during(args.before)
            first, peak, log = counted(gateway), Peak(gateway), len(gateway.log())
            paced.phase()
            meter = Meter(gateway)
            sent = flooder.send(batch, args.rate / 60, args.seconds, peak)
            load = meter.read()
            flooded = paced.phase()
            again = right_again(cluster, gateway, hosts)
            now = counted(gateway)
            known = sum(
                value - first.get(name, 0.0)
                for name, value in now.items()
                if "refused" in name or "drops" in name
            )
            print(
                f"before: {before}\nflood of {sent}: {flooded}, control process "
                f"{load.control:.2f} cores\n{ {k: v for k, v in now.items() if v} }\n"
                f"refused or dropped {known:g}, pool right after {again:.1f} s",
                flush=True,
            )
            # A gateway that stands still for a moment is a slow consumer; so is one in a burst.
            gateway.freeze()
            subject = f"smartgw.{cluster.cluster_id}.host.big.announce"
            large = _publish(subject, b"z" * 60_000) * 50
            flooder.burst(large, args.bursts)
            gateway.thaw()
            for _ in range(4):
                time.sleep(0.25)
                peak.look()
            resynced = right_again(cluster, gateway, hosts)
            after = paced.during(args.before)
            said = len(gateway.log()) - log
            given_up = gateway.log().count("bus: lost")
            print(
                f"{args.bursts * len(large) / MIB:.0f} MiB at once: given up {given_up} times, "
                f"pool right after {resynced:.1f} s, drops "
                f"{counted(gateway)['smartgw_bus_drops_total']:g}\nafter: {after}\n"
                f"{gateway.log()[log:][-1200:]}"
            )
            quiet = max(before, after, key=lambda phase: phase.p99)
            faults = judge(quiet, flooded, after, peak, sent, known, max(again, resynced), said)
            if not given_up:
                faults.append("the bus did not give the gateway up")
            for fault in faults:
                print(fault)
            return (
                f"{sent} messages, {known:g} refused or dropped, memory {peak.grown:+.1f} MiB, "
                f"{change(quiet, flooded)}; pool right after {again:.1f} s, after a slow consumer "
                f"{resynced:.1f} s; {said} bytes of log"
            ), not faults
    finally:
        for part in (flooder, paced):
            if part is not None:
                part.close() if isinstance(part, Flooder) else part.stop()
        cluster.stop()
        nats.stop()


def judge(
    quiet: Phase,
    flooded: Phase,
    after: Phase,
    peak: Peak,
    sent: int,
    known: float,
    right: float,
    said: int,
) -> list[str]:
    """What was not as it must be."""
    faults = []
    if flooded.lost or after.lost or flooded.p99 > quiet.p99 + MOST_MS:
        faults.append("traffic was harmed")
    if peak.grown > MOST_MIB:
        faults.append(f"memory grew by {peak.grown:.0f} MiB")
    # A stranger's first message is neither refused nor dropped, it is provisional.
    if known < sent * 0.7:
        faults.append("not all was counted")
    if right > 2 * HEARTBEAT:
        faults.append("the pool was not right within two heartbeats")
    if said > _LOG_BYTES:
        faults.append(f"{said} bytes of log")
    return faults


def main(argv: Sequence[str]) -> int:
    """Run the drill and print its figure."""
    parser = argparse.ArgumentParser("floods", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=500_000.0, help="messages a minute")
    parser.add_argument("--seconds", type=float, default=60.0, help="of flood")
    parser.add_argument("--before", type=float, default=10.0, help="seconds of traffic alone")
    parser.add_argument("--bursts", type=int, default=50, help="of 3 MB")
    parser.add_argument("--request-rate", type=float, default=500.0, help="requests a second")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="8 s of flood")
    args = parser.parse_args(argv)
    if args.short:
        args.seconds, args.before, args.bursts = 8.0, 4.0, 20
    many_files()
    figure, good = drill(args)
    print(figure)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
