"""What the limiter costs a request: in memory, and in a Valkey that gateways share (contract 6.6).

`python -m tests.bench.limiter [--rounds 5] [--seconds 2] [--json]`. In memory it is called by
itself, many times; with a Valkey it is the difference between two gateways that take turns, and the
store's own CPU beside it. Owns the comparison; how a proxy is measured is measure.py's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from smartgw import native

if __name__ == "__main__":
    native.install()  # as `smartgw` does, before anything that may be compiled is imported

from smartgw.config import Settings
from smartgw.demo.children import Guard
from smartgw.processes.traffic import Traffic
from smartgw.proxy.exchange import Exchange, no_request
from smartgw.routing.snapshot import Route
from tests.bench import measure, proc
from tests.bench.cases import CASES
from tests.bench.measure import Pace, Turn
from tests.bench.proxies import PROXIES
from tests.bench.rig import Cores, Rig, Running, on_core
from tests.bench.stats import Row
from tests.servers import Valkey

CASE = "get-1k-c32"
_APPS = 30
MOST_MEMORY_US, MOST_SHARED_US, MOST_TRIPS = 1.5, 8.0, 0.2


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of CPU a request: of the gateway counting in memory, of the gateway counting
    in a store beside what it costs without any limiter, of the store; and round trips a request.
    """

    memory: float
    shared: float
    store: float
    trips: float

    def __str__(self) -> str:
        return (
            f"limiter: {self.memory:.2f} us of CPU a request in memory; with a Valkey at 32 "
            f"connections {self.shared:.1f} us, the Valkey's own {self.store:.1f} us, "
            f"{self.trips:.3f} round trips a request"
        )

    @property
    def good(self) -> bool:
        """Whether each is within its bound."""
        return (
            self.memory <= MOST_MEMORY_US
            and self.shared <= MOST_SHARED_US
            and self.trips < MOST_TRIPS
        )


class _Nobody:
    """The downstream of a request that nobody has sent."""

    peer = "192.0.2.1"


async def _in_memory() -> float:
    """The step as the path calls it, microseconds of CPU, at its best of several looks."""
    settings = Settings.model_validate(
        {
            "cluster": "bench",
            "base_domains": ["bench.test"],
            "host_networks": ["127.0.0.0/8"],
            "trust": {"mode": "first-use"},
            "log": {"access": "off"},
        }
    )
    traffic = Traffic(settings, (), frozenset(), None, lambda host: None, lambda: None)
    limits = traffic._path.limits
    best = 1.0
    for look in range(10):
        exchanges = []
        for number in range(_APPS):
            exchange = Exchange(_Nobody(), no_request(), 0.0, 30.0)  # type: ignore[arg-type]
            exchange.route = Route(f"app-{look}-{number}", ())
            exchanges.append(exchange)
        start = time.process_time()
        for exchange in exchanges:
            # As many as pass; what is refused costs another few microseconds.
            for _ in range(settings.rates.requests):
                limits.charge(exchange)
        calls = _APPS * settings.rates.requests
        best = min(best, (time.process_time() - start) / calls)
    return best * 1e6


def _metrics(running: Running) -> dict[str, float]:
    url = f"http://127.0.0.1:{running.site.internal_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(r"^(smartgw_\w+(?:\{[^}]*\})?) ([0-9.e+-]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def _row(rows: Sequence[Row], name: str) -> float:
    found = next(row.cpu_us for row in rows if row.proxy == name)
    assert found is not None
    return found


def run(pace: Pace, folder: Path, guard: Guard, cores: Cores) -> Cost:
    """Measure all of it; `folder` is empty. Raises Missing, Died."""
    case = next(case for case in CASES if case.name == CASE)
    memory = asyncio.run(_in_memory())
    with on_core(cores.load):
        valkey = Valkey().start()
    try:
        alone = next(proxy for proxy in PROXIES if proxy.name == "smartgw")
        counting = replace(
            alone,
            name="smartgw_valkey",
            what="counting in a Valkey",
            launch=lambda site: replace(
                alone.launch(site), env={"SMARTGW_STORE__SERVERS": valkey.url}
            ),
        )
        with Rig(folder, guard, cores) as rig:
            rig.start([(alone, None), (counting, None)])
            shared = next(one for one in rig.running if one.proxy is counting)
            turns = [Turn(case.name, case, running, None) for running in rig.running]
            before, used = _metrics(shared), proc.cpu_seconds([valkey.pid])
            rows = measure.rounds(rig, turns, pace, time.monotonic() + 600)
            after = _metrics(shared)
            used = proc.cpu_seconds([valkey.pid]) - used
    finally:
        valkey.stop()

    def grown(name: str) -> float:
        return after[name] - before[name]

    requests = grown("smartgw_store_checks_total")
    return Cost(
        memory=memory,
        shared=_row(rows, "smartgw_valkey") - _row(rows, "smartgw") + memory,
        store=used / requests * 1e6,
        trips=grown("smartgw_store_trips_total") / requests,
    )


def main(argv: Sequence[str]) -> int:
    """Measure and print the figure; exit code 1 when one is above its bound."""
    parser = argparse.ArgumentParser("limiter", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    guard, cores = Guard(), Cores.of_this_process()
    try:
        with tempfile.TemporaryDirectory(prefix="smartgw-limiter-") as folder:
            os.sched_setaffinity(0, {cores.load})
            cost = run(Pace(args.rounds, args.seconds, 1.0), Path(folder), guard, cores)
    finally:
        guard.close()
    print(json.dumps(asdict(cost)) if args.json else cost)
    return 0 if cost.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
