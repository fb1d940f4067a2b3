"""DNS: our wire server beside BIND, PowerDNS, Knot and NSD, each with one thread on one core.

Owns the cases, the servers, the load (dnsperf) and the order of the rounds. What a sample is worth
is stats.py's, the tables are report.py's.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import proc, stats
from tests.bench.cases import BASE_DOMAIN
from tests.bench.load import LoadFailed
from tests.bench.measure import Pace, say
from tests.bench.rig import Cores, on_core
from tests.bench.stats import Row, Sample
from tests.dns_servers import Authoritative, Bind, Knot, Nsd, Pdns, system

_CLIENTS, _OUTSTANDING = 8, 100
_APPS = 100
_MOST_RATE = 300_000  # names a second that no server comes to on this load's core
_WAIT_FOR_CORES = 0.2
_ZONE = f"""\
$ORIGIN {BASE_DOMAIN}.
$TTL 300
@ IN SOA ns1 hostmaster 1 7200 900 1209600 60
@ IN NS ns1
@ IN NS ns2
ns1 IN A 192.0.2.1
ns2 IN A 192.0.2.2
* IN A 192.0.2.80
* IN AAAA 2001:db8::80
"""


@dataclass(frozen=True, slots=True)
class DnsCase:
    """Which questions are sent: type A, with EDNS, by 8 clients with 100 outstanding in all.

    `fresh`: each name is asked for once; else 100 names are asked for again and again.
    """

    name: str
    what: str
    fresh: bool


CASES = (
    DnsCase("dns-repeated", f"{_APPS} hostnames of apps, asked for again and again", fresh=False),
    DnsCase("dns-wildcard", "names under the app wildcard, each asked for once", fresh=True),
)


class Ours(Authoritative):
    """Our wire server."""

    def command(self) -> list[str]:
        (path,) = self.zones.values()
        script = Path(__file__).with_name("dns_ours.py")
        return [sys.executable, str(script), str(self.port), str(path)]


class CachingPdns(Pdns):
    """PowerDNS with the caches that it has by default."""

    caches = ""


@dataclass(frozen=True, slots=True)
class DnsServer:
    """One of the servers: its name in the results, how to make it and how to get it."""

    name: str
    make: Callable[[Mapping[str, str]], Authoritative]
    packages: str


SERVERS = (
    DnsServer("bind", Bind, "bind9"),
    DnsServer("powerdns", CachingPdns, "pdns-server pdns-backend-bind"),
    DnsServer("knot", Knot, "knot"),
    DnsServer("nsd", Nsd, "nsd"),
    DnsServer("smartgw", Ours, ""),
)


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of dnsperf has seen; `errors` are lost questions and answers with an rcode."""

    queries: int
    rate: float
    errors: int


def parse_dnsperf(text: str) -> Load:
    """Read what dnsperf prints. Raises LoadFailed when a figure is missing."""

    def figure(pattern: str) -> float:
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise LoadFailed(text.strip()[-1000:] or "dnsperf printed nothing")
        return float(match[1])

    completed = int(figure(r"^\s*Queries completed:\s+(\d+)"))
    codes = re.search(r"^\s*Response codes:\s+(.*)$", text, re.MULTILINE)
    good = re.search(r"NOERROR (\d+)", codes[1]) if codes else None
    lost = int(figure(r"^\s*Queries lost:\s+(\d+)"))
    return Load(
        queries=completed,
        rate=figure(r"^\s*Queries per second:\s+([\d.]+)"),
        errors=lost + completed - (int(good[1]) if good else 0),
    )


def command(case: DnsCase, port: int, seconds: int, questions: Path) -> list[str]:
    """The call of dnsperf."""
    return [
        *("dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", str(questions)),
        *("-l", str(seconds), "-c", str(_CLIENTS), "-q", str(_OUTSTANDING), "-T", "1", "-e"),
        # Once through the file: what is in it is not asked for again.
        *(("-n", "1") if case.fresh else ()),
    ]


def questions(case: DnsCase, seconds: int, turn: int) -> Iterator[str]:
    """The lines that dnsperf asks; no two turns have a name of a fresh case in common."""
    count = _MOST_RATE * seconds if case.fresh else _APPS
    head = f"t{turn:x}-" if case.fresh else "app-"
    return (f"{head}{number:x}.{BASE_DOMAIN} A\n" for number in range(count))


class Stage:
    """The servers of one run. Enter it to start them; `skipped` says which are not."""

    def __init__(self, folder: Path, cores: Cores, servers: Sequence[DnsServer]) -> None:
        self._folder = folder
        self._cores = cores
        self._servers = servers
        self._turn = 0
        self._stack = contextlib.ExitStack()
        self.running: dict[str, Authoritative] = {}
        self.skipped: dict[str, str] = {}

    def __enter__(self) -> "Stage":
        for server in self._servers:
            made = server.make({f"{BASE_DOMAIN}.": _ZONE})
            try:
                with on_core(self._cores.proxy):
                    self.running[server.name] = self._stack.enter_context(made)
            except (FileNotFoundError, RuntimeError) as error:
                got = f"apt-get install -y {server.packages}" if server.packages else ""
                absent = isinstance(error, FileNotFoundError)
                self.skipped[server.name] = got if absent else str(error)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def rounds(self, case: DnsCase, pace: Pace, deadline: float) -> list[Row]:
        """Measure all servers in a case, round after round, as measure.rounds does."""
        samples: dict[str, list[Sample]] = {name: [] for name in self.running}
        for number in range(pace.rounds):
            if number and time.monotonic() > deadline:
                say(f"{case.name}: time is over after {number} rounds of {pace.rounds}")
                break
            for name in list(samples):
                say(f"{case.name}: round {number + 1} of {pace.rounds}, {name}")
                try:
                    samples[name].append(self._take(case, name, pace))
                except LoadFailed as failed:
                    say(f"{case.name}: {name} failed: {failed}", lasting=True)
                    del samples[name]
        # dnsperf tells no percentiles.
        return [
            replace(stats.row(case.name, name, taken), p50_us=None, p99_us=None)
            for name, taken in samples.items()
        ]

    def _take(self, case: DnsCase, name: str, pace: Pace) -> Sample:
        server = self.running[name]
        self._turn += 1
        path = self._folder / "questions"
        with path.open("w") as file:
            file.writelines(questions(case, pace.seconds, self._turn))
        proc.wait_quiet(pace.patience, _WAIT_FOR_CORES)
        others = [other.pid for other in self.running.values() if other is not server]
        meter = proc.Meter(server.pid, others)
        load = self._run(command(case, server.port, pace.seconds, path), pace.seconds)
        cpu, used, busy = meter.read()
        memory = proc.memory(server.pid)
        return Sample(
            cpu_us=cpu * 1e6 / max(1, load.queries),
            rps=load.rate,
            p50_us=0.0,
            p99_us=0.0,
            rss=memory.rss,
            pss=memory.pss,
            used=used,
            others=busy,
            errors=load.errors,
        )

    def _run(self, argv: Sequence[str], seconds: int) -> Load:
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 30)
        except subprocess.TimeoutExpired:
            raise LoadFailed(f"dnsperf did not end within {seconds + 30} s") from None
        if done.returncode:
            raise LoadFailed(done.stderr.strip()[-1000:] or f"dnsperf ended {done.returncode}")
        return parse_dnsperf(done.stdout)


def versions() -> dict[str, str]:
    """The versions of the servers that are there."""
    found = {}
    for name, option in (
        ("named", "-v"),
        ("pdns_server", "--version"),
        ("knotd", "-V"),
        ("nsd", "-v"),
    ):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            argv = [system(name), option]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=10)
            if match := re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr):
                found[name] = match[0]
    return found


def measured(
    folder: Path,
    cores: Cores,
    cases: Sequence[DnsCase],
    servers: Sequence[DnsServer],
    pace: Pace,
    deadline: float,
) -> tuple[list[Row], dict[str, str]]:
    """Measure; returns the rows, and what is missing with how to get it."""
    if shutil.which("dnsperf") is None:
        return [], {"dnsperf": "apt-get install -y dnsperf"}
    rows: list[Row] = []
    say("starting the DNS servers")
    with Stage(folder, cores, servers) as stage:
        for number, case in enumerate(cases):
            now = time.monotonic()
            rows += stage.rounds(case, pace, now + (deadline - now) / (len(cases) - number))
        return rows, stage.skipped
