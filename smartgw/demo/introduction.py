"""What the demo prints before READY: where everything is, and what to try (contract 12.1).

Owns the words and the lines to copy. What runs where it reads in the content of demo.json.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]
Lines = list[tuple[str, str]]


def introduction(facts: Facts, folder: Path, pid: int, command: str, where: str) -> Iterator[str]:
    """Yield the lines. `pid` is the demo's, `command` how `smartgw` is called here, `where` the
    option that names the demo's folder, with a space before it, where that is needed.
    """
    clusters = facts["clusters"]
    for cluster in clusters:
        pids = cluster["pids"]
        hosts = ", ".join(f"{name} (pid {host})" for name, host in pids["hosts"].items())
        yield f"cluster {cluster['id']}: gateway on {cluster['http']} (pid {pids['gateway'][0]})"
        yield f"  hosts {hosts}"
        yield (
            f"  bus {cluster['nats']} (pid {pids['nats']}), DNS {cluster['dns']}, internal API "
            f"http://{cluster['internal']}"
        )
    yield f"files and logs: {folder}"
    yield ""
    yield "Pages to open"
    for cluster in clusters:
        for app in facts["apps"]:
            yield f"  {_origin(app['hostname'], cluster)}/"
    yield ""
    yield "To try"
    yield from _table(_first_steps(facts, command, where))
    if len(clusters) > 1:
        yield from _several(facts, pid, command, where)
    yield ""
    yield "Ctrl-C ends it all."


def _first_steps(facts: Facts, command: str, where: str) -> Lines:
    first, app = facts["clusters"][0], facts["apps"][0]
    origin = _origin(app["hostname"], first)
    host, _, port = first["dns"].rpartition(":")
    lines = [
        (f"curl {origin}/echo", "what the app was sent"),
        (f"curl -N {origin}/sse", "an event a second"),
        (f"curl -X POST {origin}/counter", "a count that its hosts share"),
        (f"curl -i {_origin('nobody.' + facts['base_domain'], first)}/", "no app: 404"),
        (f"curl -sI {origin}/ | grep -i ratelimit", "what is left to you of 600 in any 60 s"),
        (f"{command} status{where}", "gateways, hosts and apps"),
        (f"{command} apps suspend {app['app_id']}{where}", "503 at every gateway; then: resume"),
        (f"{command} explain {app['hostname']}{where}", "what a request would get, and why"),
        (f"dig @{host} -p {port} {app['hostname']}", "DNS for all apps, also those to come"),
        (f"{command} dig {app['hostname']}{where}", "the same over HTTP, as a session"),
        (f"{command} zones show {facts['base_domain']}{where}", "the zone behind both"),
    ]
    owner = _cluster(facts, app["owner"])
    if len(owner["pids"]["hosts"]) > 1:
        name, pid = next(iter(owner["pids"]["hosts"].items()))
        what = f"{name} dies; no request to {app['app_id']} fails for it"
        lines.append((f"kill -9 {pid}", what))
    return lines


def _several(facts: Facts, pid: int, command: str, where: str) -> Iterator[str]:
    """What only several clusters show: affinity, and what stands in for an owner that fails."""
    clusters, app = facts["clusters"], facts["apps"][0]
    owner = _cluster(facts, app["owner"])
    other = next(cluster for cluster in clusters if cluster is not owner)
    yield ""
    yield f"Affinity: {owner['id']} owns {app['app_id']} and counts for it, whoever is asked"
    counting = [
        (
            f"curl -X POST {_origin(app['hostname'], cluster)}/counter",
            "its own count" if cluster is owner else f"by {cluster['id']}: the same count",
        )
        for cluster in clusters
    ]
    apps = " ".join(app["app_id"] for app in facts["apps"])
    yield from _table([*counting, (f"{command} owner {apps}{where}", "who owns what")])
    yield ""
    yield f"Failover: stop a part of {owner['id']}, then ask {other['id']}"
    pids = owner["pids"]
    hosts = " ".join(map(str, pids["hosts"].values()))
    origin = _origin(app["hostname"], other)
    yield from _table(
        [
            (f"kill -9 {pids['gateway'][0]}", f"{owner['id']} has no gateway any more"),
            (f"kill -9 {hosts}", "or: no hosts"),
            (f"kill -9 {pids['nats']}", "or: no bus; its gateway and hosts use another's"),
            (f"curl -i {origin}/echo", "answered by x-failover-cluster, if not by the owner"),
            (f"curl -i -X POST {origin}/counter", "a write: by the owner, or not at all"),
            (f"kill -USR1 {pid}", "starts again what has ended"),
        ]
    )


def _cluster(facts: Facts, cluster_id: str) -> Mapping[str, Any]:
    return next(cluster for cluster in facts["clusters"] if cluster["id"] == cluster_id)


def _origin(hostname: str, cluster: Mapping[str, Any]) -> str:
    return f"http://{hostname}:{cluster['http'].rpartition(':')[2]}"


def _table(lines: Iterable[tuple[str, str]]) -> Iterator[str]:
    lines = list(lines)
    width = max(len(command) for command, _ in lines)
    return (f"  {command:<{width}}  # {what}" for command, what in lines)
