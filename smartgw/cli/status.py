"""`smartgw status`: what a running gateway says of itself, as a table or as JSON (contract 12.4).

Owns which gateway is asked and how its answers are laid out. All facts come from the internal
API (`/api/v3/status`, `/api/v3/hosts`); nothing is judged here.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smartgw.cli import CommandError
from smartgw.cli import endpoint as gateways
from smartgw.cli.endpoint import WHERE, Endpoint, Unreachable

HELP = "show the gateway, its bus, hosts, apps and traffic"

WATCH_INTERVAL = 2.0
MAX_ROWS = 60
PAGE = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = WHERE
    gateways.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--watch", action="store_true", help="again every 2 s, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    endpoints = gateways.endpoints(args)
    try:
        while True:
            code = _show(endpoints, as_json=args.json, clear=args.watch and not args.json)
            if not args.watch:
                return code
            time.sleep(WATCH_INTERVAL)
    except KeyboardInterrupt:
        return 0


def _show(endpoints: Sequence[Endpoint], *, as_json: bool, clear: bool) -> int:
    found: list[dict[str, Any]] = []
    for endpoint in endpoints:
        try:
            status, hosts = ask(endpoint, every_host=as_json)
            found.append({"endpoint": endpoint.address, "status": status, "hosts": hosts})
        except (Unreachable, CommandError) as error:
            found.append({"endpoint": endpoint.address, "error": str(error)})
    if as_json:
        print(json.dumps({"gateways": found}), flush=True)
    else:
        blocks = []
        for gateway in found:
            if "error" not in gateway:
                blocks.append("\n".join(table(gateway["status"], gateway["hosts"])))
        text = "\n\n".join(blocks)
        print("\x1b[2J\x1b[H" + text if clear else text, flush=True)
    failed = [gateway for gateway in found if "error" in gateway]
    for gateway in failed:
        print(f"smartgw status: {gateway['error']}", file=sys.stderr)
    return 1 if failed else 0


def ask(endpoint: Endpoint, *, every_host: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The status and the hosts (the first page only, unless `every_host`) at `endpoint`.

    Raises, with a remedy, Unreachable when nothing there answers as a gateway does, CommandError
    when it does not answer us.
    """
    status = _get(endpoint, "/api/v3/status")
    hosts: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = _get(endpoint, f"/api/v3/hosts?limit={PAGE}&cursor={cursor}")
        hosts.extend(page.get("hosts", []))
        cursor = page.get("next_cursor") if every_host else None
    return status, hosts


def _get(endpoint: Endpoint, path: str) -> dict[str, Any]:
    answer = gateways.ask(endpoint, "GET", path)
    if answer.status == 404:
        raise Unreachable(
            f"{endpoint.address} answered {path} with 404; "
            "name the internal listener of a gateway with --endpoint HOST:PORT"
        )
    found: dict[str, Any] = gateways.done(answer)
    return found


def table(status: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """The lines of one gateway. A section that the gateway does not tell is left out."""
    yield from _head(status)
    yield ""
    yield from hosts_table(hosts, status.get("hosts", {}).get("total", len(hosts)))
    if hosts and (apps_lines := list(_apps(status))):
        yield ""
        yield from apps_lines


def hosts_table(hosts: Sequence[Mapping[str, Any]], total: int) -> Iterable[str]:
    """The lines of the hosts, the first of `total`."""
    if not hosts:
        yield "no host has announced itself"
        return
    # What needs a look comes first.
    ordered = sorted(hosts, key=lambda host: (host["state"] == "healthy", host["host_id"]))
    rows = [("HOST", "STATE", "FOR", "ADDRESS", "APPS", "REASON")]
    for host in ordered[:MAX_ROWS]:
        address = host["address"]
        if host.get("pending_address"):
            address += f" -> {host['pending_address']}"
        apps = ", ".join(host["apps"][:4]) + (", ..." if len(host["apps"]) > 4 else "")
        rows.append(
            (
                host["host_id"],
                host["state"],
                duration(host["since_seconds"]),
                address,
                apps or "-",
                _reason(host),
            )
        )
    yield from columns(rows)
    if total > len(rows) - 1:
        yield f"... and {total - len(rows) + 1} more (--json shows all)"


def _head(status: Mapping[str, Any]) -> Iterable[str]:
    if gateway := status.get("gateway"):
        facts = [f"{gateway.get('id')} of cluster {gateway.get('cluster')}"]
        if version := gateway.get("version"):
            facts.append(f"version {version}")
        if gateway.get("compiled"):
            facts.append("compiled")
        if started := gateway.get("started_at"):
            facts.append(f"up {duration(max(0.0, time.time() - started))}")
        if pid := gateway.get("pid"):
            facts.append(f"pid {pid}")
        yield _fact("gateway", facts)
        yield _fact("listens", [*gateway.get("http", []), f"internal {gateway.get('internal')}"])
    readiness = status.get("readiness", {})
    yield _fact("ready", ["yes" if readiness.get("ready") else f"no: {_missing(readiness)}"])
    if drained := status.get("gateway", {}).get("drained_hosts"):
        undo = "smartgw drain --host ID --undo"
        more = f" and {len(drained) - 5} more" if len(drained) > 5 else ""
        yield _fact("drained", [f"{', '.join(drained[:5])}{more}, by an operator", undo])
    if degraded := readiness.get("degraded"):
        yield _fact("degraded", degraded)
    if bus := status.get("bus"):
        facts = ["connected" if bus.get("connected") else "away"]
        facts += [
            plural(bus[key], key) for key in ("servers", "reconnects", "drops") if bus.get(key)
        ]
        yield _fact("bus", facts)
    if shared := status.get("shared"):
        yield _fact("state", _shared(shared))
    if (peers := status.get("peers")) and peers["mode"] != "none":
        yield _fact("clusters", _clusters(peers))
    if (zones := status.get("dns")) and (zones["zones"] or zones["listen"]):
        yield _fact("dns", _dns(zones))
    if traffic := status.get("traffic"):
        words = {
            "requests": "requests",
            "in_flight": "in flight",
            "connections": "connections",
            "upstream_connections": "upstream connections",
        }
        facts = [plural(traffic[key], word) for key, word in words.items() if key in traffic]
        yield _fact("traffic", [*facts, *_counts(traffic.get("by_status", {}))])
        if own := _counts(traffic.get("own_errors", {})):
            yield _fact("errors", own)
    if workers := status.get("workers"):
        facts = [f"{sum(worker['serving'] for worker in workers)} of {len(workers)} serve"]
        restarts = sum(worker["restarts"] for worker in workers)
        yield _fact("workers", [*facts, *([plural(restarts, "restarts")] if restarts else [])])
    if refused := _counts(status.get("discovery", {}).get("refused", {})):
        yield _fact("refused", [f"bus messages: {refused[0]}", *refused[1:]])
    if dropped := status.get("access_log", {}).get("dropped"):
        yield _fact("log", [f"{plural(dropped, 'lines')} dropped"])


def _shared(shared: Mapping[str, Any]) -> Iterable[str]:
    """The facts of what the platform has decided."""
    yield plural(shared["records"], "records")
    yield f"revision {shared['revision']}"
    yield f"digest {shared['digest'][:12]}"
    if shared["age"] is None:
        yield "never read"
    elif shared["age"]:
        yield f"{duration(shared['age'])} old"


def _dns(zones: Mapping[str, Any]) -> Iterable[str]:
    """The facts of our own zones."""
    if not zones["known"]:
        yield "the zones are not known yet"
    yield plural(zones["zones"], "zones")
    yield plural(zones["records"], "records")
    if zones["listen"]:
        yield f"served at {', '.join(zones['listen'])}"
        yield plural(zones["queries"], "questions")
    if zones["limited"]:
        yield f"{zones['limited']} limited"
    if zones["faults"]:
        yield f"{len(zones['faults'])} not in force as last written"


def _clusters(peers: Mapping[str, Any]) -> Iterable[str]:
    """The facts of the directory of clusters."""
    states = Counter(cluster["state"] for cluster in peers["clusters"])
    yield ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none known"
    yield f"{peers['mode']}, epoch {peers['epoch']}" if peers["epoch"] else peers["mode"]
    if peers["mode"] == "grace":
        yield f"confirmed {duration(peers['age_seconds'])} ago"
    off = [name for name in ("affinity", "failover") if peers["epoch"] and not peers[name]]
    yield from (f"{name} is off" for name in off)


def _missing(readiness: Mapping[str, Any]) -> str:
    return "; ".join(text.removeprefix("drain: ") for text in readiness.get("missing", []))


def _apps(status: Mapping[str, Any]) -> Iterable[str]:
    apps = status.get("apps", {})
    domains = status.get("gateway", {}).get("base_domains", [])
    rows = [("APP", "HOSTNAME", "HOSTS")]
    for app in apps.get("shown", [])[:MAX_ROWS]:
        hosts = app["hosts"]
        hostname = app.get("hostname") or (f"{app['app_id']}.{domains[0]}" if domains else "-")
        rows.append((app["app_id"], hostname, ", ".join(_counts(hosts)) or "none"))
    if len(rows) > 1:
        yield from columns(rows)
    if (more := apps.get("total", 0) - len(rows) + 1) > 0:
        yield f"... and {more} more (--json shows more)"


def _reason(host: Mapping[str, Any]) -> str:
    refused = [
        f"{app['app_id']}: {app['reason']}"
        for app in host.get("refused_apps", [])
        if app["reason"] != host["reason"]
    ]
    more = f" (and {len(refused) - 2} more)" if len(refused) > 2 else ""
    why, detail = host["reason"], host.get("detail")
    if detail and detail not in why:
        why += f" ({detail})"
    moving = [f"new address: {host['pending_reason']}"] if host.get("pending_reason") else []
    return "; ".join([why, *moving, *refused[:2]]) + more


def _counts(counts: Mapping[str, int]) -> list[str]:
    return [f"{name} {count}" for name, count in sorted(counts.items()) if count]


def _fact(name: str, facts: Iterable[object]) -> str:
    return clean(f"{name:<9} " + " · ".join(map(str, facts)))


def columns(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    """The lines of a table, each column as wide as it has to be."""
    cells = [tuple(clean(str(cell)) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield line.rstrip()


def clean(text: str) -> str:
    """`text` without what could steer a terminal: hosts choose some of it."""
    return "".join(char if char.isprintable() else "?" for char in text)


def plural(count: int, words: str) -> str:
    """`count` of `words`, which end in their plural's s where they have one."""
    return f"{count} {words.removesuffix('s') if count == 1 else words}"


def duration(seconds: float) -> str:
    """Two units at most: "3 s", "2 m 5 s", "4 h 12 m", "3 d 1 h"."""
    whole = int(seconds)
    for size, unit, below, below_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {below_unit}"
    return f"{whole // 60} m {whole % 60} s" if whole >= 60 else f"{whole} s"
