"""`smartgw check`: tell every fault of a configuration, or in short what it does (11.5, 12.4).

Owns the summary, and that the enrolment list and the list of clusters are judged with the settings.
What a fault is, is decided by `smartgw.config`, `smartgw_hosts.enrolment` and
`smartgw_hosts.clusters`. Opens no port and asks no one.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smartgw.config import Problem, Settings

HELP = "tell what is wrong with a configuration"
EXAMPLES = """\
Reads what `smartgw serve` would read: the file, then SMARTGW_* variables over it
(SMARTGW_DEADLINES__HEAD=5 is head under [deadlines]; lists as a,b,c). Prints each fault as
file:line: key: what is wrong; what would be right. Exit code 1 if there is one.

examples:
  smartgw check --config /etc/smartgw/smartgw.toml
  SMARTGW_CONFIG=smartgw.toml smartgw check --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the TOML file (default: $SMARTGW_CONFIG)"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from smartgw.config import ConfigError, load

    problems: tuple[Problem, ...] = ()
    summary: list[str] = []
    settings = None
    try:
        settings = load(args.config, os.environ)
    except ConfigError as error:
        problems = error.problems
    else:
        hosts, problems = _enrolled(settings)
        clusters, more = _listed(settings)
        problems += more
        summary = [*_summary(settings, hosts), *clusters]
    if args.json:
        shown = settings.model_dump(mode="json") if settings and not problems else None
        found = [asdict(problem) for problem in problems]
        print(json.dumps({"ok": not problems, "problems": found, "settings": shown}))
    elif problems:
        print("\n".join(map(str, problems)))
        print(f"{len(problems)} problem{'s' * (len(problems) != 1)}", file=sys.stderr)
    else:
        print("\n".join(summary))
    return 1 if problems else 0


def _enrolled(settings: "Settings") -> "tuple[int, tuple[Problem, ...]]":
    """Return how many hosts of this cluster are enrolled, and the list's faults."""
    from smartgw.config import Problem
    from smartgw_hosts.enrolment import EnrolmentError
    from smartgw_hosts.enrolment_file import EnrolmentFile

    file = settings.trust.file
    if file is None:
        return 0, ()
    try:
        enrolments = EnrolmentFile(file).current
    except EnrolmentError as error:
        remedy = "repair it; `smartgw keygen` prints entries that are right"
        faults = [fault.removeprefix(f"{file}: ") for fault in error.problems]
        return 0, tuple(Problem(str(file), "", None, fault, remedy) for fault in faults)
    return sum(enrolment.cluster == settings.cluster for enrolment in enrolments), ()


def _listed(settings: "Settings") -> "tuple[list[str], tuple[Problem, ...]]":
    """Return the lines about the clusters, and what is wrong with the file that lists them.

    A gateway starts without it all the same (11.2), so a missing one is no fault.
    """
    from smartgw.config import Problem
    from smartgw.peers.directory import Mode, View, worries
    from smartgw_hosts import keyfile
    from smartgw_hosts.clusters import MAX_BYTES, ListRefused, parse

    peers, seed = settings.peers, settings.identity.seed_file
    if peers.validators:
        return [f"  clusters   from {', '.join(peers.validators)}"], ()
    if peers.file is None or seed is None:
        return [], ()
    try:
        with peers.file.open("rb") as file:
            found = parse(file.read(MAX_BYTES + 1), by_hand=True)
    except OSError as error:
        return [f"  clusters   {peers.file}: {error.strerror}; served alone until it is there"], ()
    except ListRefused as error:
        return [], (Problem(str(peers.file), "", None, str(error), "see docs/clusters.md"),)
    view = View(Mode.FRESH if found.voters else Mode.UNKNOWN, settings.cluster, found)
    lines = [f"  clusters   {peers.file}: {', '.join(found.voters) or 'none'}; epoch {found.epoch}"]
    key = keyfile.load(seed).public_key
    lines += [f"  WARNING    {line.removeprefix('peers: ')}" for line in worries(view, key)]
    return lines, ()


def _summary(settings: "Settings", hosts: int) -> Iterator[str]:
    yield f"ok: gateway {settings.gateway} of cluster {settings.cluster}"
    yield f"  apps       {', '.join(f'<label>.{domain}' for domain in settings.base_domains)}"
    if settings.hostnames:
        yield f"  api        {', '.join(settings.hostnames)}"
    yield f"  listens    {', '.join(settings.listen.http)}; internal {settings.listen.internal}"
    yield f"  bus        {', '.join(settings.bus.servers)}"
    yield f"  hosts in   {', '.join(map(str, settings.host_networks))}"
    if settings.trust.mode == "first-use":
        yield "  trust      FIRST USE: whoever is on the bus can take an app's traffic"
    else:
        yield f"  trust      {settings.trust.file}: {hosts} enrolled for this cluster"
    yield f"  access log {settings.log.access}"
