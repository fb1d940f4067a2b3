"""The acceptance checks: `python -m tests.prove` lists them, with names it runs these.

Owns the table that maps each promise to the command that shows it. A command prints its figure
last and fails with an exit code other than 0. Some take minutes; none needs a network.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Check:
    """One promise: its name, the sentence, and the command whose last line is the figure."""

    name: str
    sentence: str
    argv: tuple[str, ...]


def pytest(*paths: str) -> tuple[str, ...]:
    """Return the command that runs these tests."""
    return ("python", "-m", "pytest", "-q", *paths)


CHECKS = (
    Check("suite", "The whole test suite is green in under 8 minutes.", pytest()),
    Check(
        "demo",
        "`smartgw demo` serves its apps by verified hosts and leaves no process, killed or not.",
        pytest("tests/smartgw/test_demo.py", "tests/smartgw/demo"),
    ),
    Check(
        "discovery",
        "Every bad bus message, key and address of the case files is refused for its reason.",
        pytest(
            *("tests/hosts/test_nats_cases.py", "tests/hosts/test_identity.py"),
            "tests/hosts/test_addresses.py",
        ),
    ),
    Check(
        "requests",
        "Every raw request of the corpus is answered or refused as it must be.",
        ("python", "-m", "tests.corpus", "tests/data/http1"),
    ),
    Check(
        "responses",
        "Every raw response of the corpus reaches the client as it must, or not at all.",
        ("python", "-m", "tests.corpus", "tests/data/responses"),
    ),
    Check(
        "writes",
        "1,000 writes against hosts that die at every stage: none is executed twice.",
        pytest("tests/smartgw/proxy/test_writes.py"),
    ),
    Check(
        "impostors",
        "A host that is not what it says gets challenges at most, and status names why.",
        pytest("tests/smartgw/proxy/test_impostors.py"),
    ),
    Check(
        "takeover",
        "A program that takes over a killed host's port gets no request, 100 of 100.",
        pytest("tests/smartgw/proxy/test_impostors.py", "-k", "takeover"),
    ),
    Check(
        "challenges",
        "A challenge sent to an app's hostname, in any spelling, never reaches a host.",
        pytest("tests/smartgw/proxy/test_wellknown.py"),
    ),
    Check(
        "memory",
        "300 MiB with a stalled reader on either side: memory grows by less than 2 MiB.",
        pytest("tests/smartgw/proxy/test_streaming.py", "-k", "300_mib"),
    ),
    Check(
        "replay",
        "Real reports against systems of this kind, each with the right behaviour.",
        pytest("tests/smartgw/proxy/test_replay_cases.py", "tests/smartgw/proxy/test_websocket.py"),
    ),
    Check(
        "browser",
        "Page, WebSocket and server-sent events work in a real browser through a gateway.",
        pytest("tests/smartgw/test_browser.py"),
    ),
    Check(
        "cors",
        "Preflights are answered with every upstream down, and an answer allows one origin, ours.",
        pytest("tests/smartgw/routing/test_cors.py", "tests/smartgw/proxy/test_cors.py"),
    ),
    Check(
        "cors-browser",
        "In a real browser: allowed and refused origins, credentials, preflight cached, 429 and "
        "502 readable by the page's script.",
        pytest("tests/smartgw/test_browser_cors.py"),
    ),
    Check(
        "write-guard",
        "A host refuses writes for apps of other clusters, by its gateways' list, and no others.",
        pytest(
            *("tests/hosts/test_guard.py", "tests/hosts/test_write_guard.py"),
            *("tests/hosts/test_clusters_source.py", "tests/hosts/test_guarded_sidecar.py"),
            *("tests/hosts/test_guarded_middleware.py", "tests/smartgw/proxy/test_app_field.py"),
            "tests/smartgw/test_guarded_hosts.py",
        ),
    ),
    Check(
        "autobahn",
        "No Autobahn WebSocket case fails through the gateway that the echo alone passes.",
        # The rest of the compression series takes many minutes and shows nothing more.
        (
            *("python", "-m", "tests.autobahn", "--cases"),
            *("1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "9.*", "10.*", "12.1.*", "13.1.*"),
        ),
    ),
    Check(
        "configuration",
        "Broken configurations are refused with file, key, fault and remedy.",
        pytest("tests/smartgw/test_config.py", "tests/smartgw/cli/test_check.py"),
    ),
    Check(
        "restore",
        "Started without a bus a gateway serves by the last good hosts, each challenged first.",
        pytest("tests/smartgw/state", "tests/hosts/test_pool_restore.py"),
    ),
    Check(
        "kills",
        "kill -9 while the gateway writes its snapshot, 50 times: 50 good starts.",
        ("python", "-m", "tests.drills.kills"),
    ),
    Check(
        "bus-outages",
        "The bus killed and frozen for 60 s, restarted, and too fast: no host, no request lost.",
        (
            *("python", "-m", "tests.drills.outages"),
            *("killed", "frozen", "restarted", "slow-consumer", "resynchronised"),
        ),
    ),
    Check(
        "stalls",
        "Stopped for 12 s, and its clock stepped by an hour either way: no host, no request lost.",
        ("python", "-m", "tests.drills.outages", "stopped", "stepped"),
    ),
    Check(
        "recordings",
        "A recorded stream replays to the live gateway's table, and what was altered is refused.",
        pytest("tests/hosts/test_tape.py", "tests/smartgw/cli/test_replay.py"),
    ),
    Check(
        "workers",
        "A worker that dies or hangs is replaced, its streams alone are lost, figures are whole.",
        pytest("tests/smartgw/processes/test_workers.py"),
    ),
    Check(
        "ending",
        "SIGTERM, drain and undo in their order; WebSockets are sent away between two frames.",
        pytest("tests/smartgw/processes/test_ending.py"),
    ),
    Check(
        "generations",
        "Handover, reload and socket activation as promised, also when a generation dies early.",
        pytest(
            *("tests/smartgw/processes/test_handover.py", "-k", "not lost"),
            "tests/smartgw/processes/test_reloading.py",
        ),
    ),
    Check(
        "handover",
        "0 of 100,000 new connections lost over 4 handovers.",
        ("python", "-m", "tests.drills.handover"),
    ),
    Check(
        "handover-2ms",
        "0 of 100,000 new connections lost over 4 handovers, with handlers of 2 ms.",
        ("python", "-m", "tests.drills.handover", "--handler-ms", "2"),
    ),
    Check(
        "handover-workers",
        "0 of 100,000 new connections lost over 4 handovers of two workers each.",
        ("python", "-m", "tests.drills.handover", "--handler-ms", "2", "--workers", "2"),
    ),
    Check(
        "restart",
        "0 requests lost in two restarts, with clients that open and clients that keep theirs.",
        pytest("tests/smartgw/processes/test_handover.py", "-k", "lost"),
    ),
    Check(
        "fuzzing",
        "10 minutes of heads and chunked bodies against llhttp and h11: no difference, no crash.",
        ("python", "-m", "tests.fuzz", "--seconds", "600"),
    ),
    Check(
        "hosts",
        "10,000 hosts announce at once: verified within 30 s, memory at most +60 MB, p99 of "
        "traffic meanwhile at most twice what it was.",
        ("python", "-m", "tests.drills.hosts"),
    ),
    Check(
        "hosts-workers",
        "The same with two workers: what it costs the control process.",
        ("python", "-m", "tests.drills.hosts", "--workers", "2"),
    ),
    Check(
        "slow",
        "400 slow heads, bodies and readers each and 20,000 idle connections from 40 addresses are "
        "closed by their deadlines or held within the stated memory, p99 of others at most 1.2x.",
        ("python", "-m", "tests.drills.slow"),
    ),
    Check(
        "fair",
        "One slow app with 1,000 waiting requests, or one greedy address: the other apps' p99 at "
        "most 1.2x.",
        ("python", "-m", "tests.drills.fair"),
    ),
    Check(
        "scarce",
        "A 300 MiB memory limit, 256 descriptors: sheds, recovers, logs at a bounded rate.",
        ("python", "-m", "tests.drills.scarce"),
    ),
    Check(
        "floods",
        "500,000 valid-looking messages a minute and a slow consumer: memory bounded, drops "
        "counted, traffic unharmed, the pool right again within two heartbeats.",
        ("python", "-m", "tests.drills.floods"),
    ),
    Check(
        "soak",
        "30 minutes with hosts coming and going: memory slope below 1 MB in 10 minutes, "
        "descriptors, tasks and connections flat.",
        ("python", "-m", "tests.drills.soak"),
    ),
    Check(
        "dns-cases",
        "2,000 zones with the answer on which four servers agree, also over UDP, and the zone of "
        "corners.",
        pytest("tests/dns/test_cases.py"),
    ),
    Check(
        "dns-oracle",
        "BIND, NSD, Knot and PowerDNS on 500 generated zones: where all four agree, so do we.",
        ("python", "-m", "tests.dns_oracle", "--zones", "500"),
    ),
    Check(
        "dns-beside",
        "dig and kdig with all their options: as Knot answers, or as the docs argue.",
        ("python", "-m", "tests.dns_beside"),
    ),
    Check(
        "dns-fuzzing",
        "10 minutes of packets, directly, over UDP and over TCP: no crash, no answer longer than "
        "allowed or that depends on what was asked before, memory flat; 1,000 silent connections "
        "stop nobody.",
        ("python", "-m", "tests.dns_fuzz", "--seconds", "600"),
    ),
    Check(
        "dns-wire",
        "UDP and TCP, both families: order, deadlines, bounds, a client that does not read, "
        "silent connections, two processes at one address.",
        pytest(
            *("tests/dns/test_server.py", "tests/dns/test_respond.py", "tests/dns/test_query.py"),
            *("tests/dns/test_rates.py", "tests/dns/test_cookies.py", "tests/dns/test_written.py"),
        ),
    ),
    Check(
        "owners",
        "Owners as the vectors say; 100,000 ids spread within 3 % of even; all gateways tell the "
        "same clusters.",
        pytest(
            *("tests/hosts/test_owner.py", "tests/hosts/test_clusters.py"),
            *("tests/smartgw/test_clusters.py", "tests/smartgw/test_demo_clusters.py"),
        ),
    ),
    Check(
        "directory",
        "The directory of clusters stopped, answering [], {}, 500, garbage, 10 MB, or with 100 "
        "changes a second, under load: 0 failed requests.",
        ("python", "-m", "tests.drills.directory"),
    ),
    Check(
        "credentials",
        "Every control route, no, forged, expired and other bad credentials: one and the same 401.",
        pytest("tests/smartgw/api/test_access.py", "tests/smartgw/api/test_tokens.py"),
    ),
    Check(
        "refusals",
        "How long a 401 takes tells nothing of what was wrong: all kinds within 1.1x.",
        ("python", "-m", "tests.drills.refusals"),
    ),
    Check(
        "description",
        "2,000 generated requests against the API's description: no server error, no other status.",
        ("python", "-m", "tests.api_cases", "--cases", "2000"),
    ),
    Check(
        "explain",
        "`explain` says what the request then gets, in 20 situations, and does nothing.",
        pytest("tests/smartgw/api/test_control_plane.py", "-k", "explain"),
    ),
    Check(
        "state",
        "The state is followed through gaps, purges, restored backups and restarts of each NATS "
        "server; 1,000 conflicting writes leave all gateways with one digest.",
        pytest(
            *("tests/smartgw/state/test_store.py", "tests/smartgw/state/test_follow.py"),
            *("tests/smartgw/state/test_replicas.py", "tests/smartgw/state/test_mirrors.py"),
            *("tests/smartgw/state/test_desired.py", "tests/smartgw/state/test_shared.py"),
        ),
    ),
    Check(
        "state-restarts",
        "Without a bus a gateway serves by the state that it kept; cut at every byte, altered, "
        "older or newer, it is never served.",
        pytest(
            "tests/smartgw/state/test_start_shared.py",
            *("tests/smartgw/state/test_decisions.py", "tests/smartgw/state/test_disk.py"),
        ),
    ),
    Check(
        "state-rolling",
        "Every gateway and every bus server of three clusters restarted in turn under load and "
        "writes: nothing lost, 0 failed requests, one digest.",
        ("python", "-m", "tests.drills.restarts"),
    ),
    Check(
        "registered",
        "100,000 apps with 1,000,000 hostnames: ready within 60 s, below 1 KiB a route, a change "
        "in force in under 50 ms of work, traffic's p99 within 1.5x (3x while all is read anew); "
        "read anew and restored under load without a failed request.",
        ("python", "-m", "tests.drills.registered"),
    ),
    Check(
        "dns-resolve",
        "200 parallel resolves with 50 left: exactly 50; a batch of 10 takes 10 of each budget or "
        "none; 0 and 11 queries are 400; off-zone REFUSED and no packet leaves.",
        pytest(
            *("tests/smartgw/api/test_resolve.py", "tests/smartgw/api/test_resolve_gateways.py"),
            *("tests/smartgw/test_dns_gateways.py", "tests/dns/test_forwarder.py"),
        ),
    ),
    Check(
        "dns-http-cost",
        "What a question over HTTP costs, singly, in a batch, and in wire format.",
        ("python", "-m", "tests.drills.resolve"),
    ),
    Check(
        "dns-loads",
        "A zone of 100,000 records and 10,000 of 10 through two gateways: loaded with the progress "
        "shown, a change at the other in less than 100 ms of its work, all there after a restart.",
        ("python", "-m", "tests.drills.zone_loads"),
    ),
    Check(
        "dns-control",
        "Zones and records by API and command line: in force everywhere within 2 s, conflicts "
        "refused, faults of files with their lines, other names whose answers change.",
        pytest(
            *("tests/smartgw/api/test_zones.py", "tests/smartgw/cli/test_zones.py"),
            *("tests/smartgw/state/test_zones.py", "tests/smartgw/test_nameserver.py"),
            "tests/smartgw/test_dns_gateways.py",
        ),
    ),
    Check(
        "dns-reports",
        "D01 to D15 and the examples of RFC 1034, 4592 and 6672: by lookup, wire and HTTP.",
        pytest(
            *("tests/dns/test_lookup.py", "tests/dns/test_rfc_examples.py"),
            "tests/smartgw/test_dns_gateways.py",
        ),
    ),
    Check(
        "control-plane",
        "A write at one gateway is in force at all within 2 s, whole or refused, and audited.",
        pytest("tests/smartgw/api/test_control_plane.py", "tests/smartgw/api/test_control.py"),
    ),
    Check(
        "dns-zones",
        "A zone of 100,000 records and 10,000 of 10: at most 500 octets a record, a change in "
        "force in under 100 ms of work.",
        ("python", "-m", "tests.drills.zones"),
    ),
    Check(
        "ratelimit",
        "Every row of the sequences: over real sockets, in memory and in a real Valkey.",
        pytest("tests/smartgw/admission", "tests/smartgw/proxy/test_limits.py"),
    ),
    Check(
        "shared-limits",
        "Gateways and workers that count together, and what holds while their store is away.",
        pytest(
            *("tests/smartgw/proxy/test_limits_shared.py",),
            *(
                "tests/smartgw/processes/test_counting.py",
                "tests/smartgw/processes/test_own_store.py",
            ),
        ),
    ),
    Check(
        "histories",
        "Memory core and Lua script agree on 100,000 random histories.",
        ("python", "-m", "tests.drills.limits", "histories"),
    ),
    Check(
        "one-key",
        "50 callers of one key over 3 gateway processes with 600 left: exactly 600, 20 of 20.",
        ("python", "-m", "tests.drills.limits", "callers"),
    ),
    Check(
        "callers",
        "5 million distinct callers: memory bounded, no busy caller's window begins anew.",
        ("python", "-m", "tests.drills.limits", "flood"),
    ),
    Check(
        "limiter",
        "The limiter costs a request 1.5 us of CPU in memory and 8 us with a Valkey, and fewer "
        "than 0.2 round trips.",
        ("python", "-m", "tests.bench.limiter"),
    ),
    Check(
        "store",
        "The store killed, frozen, slow, demoted, full and emptied under load: no app request "
        "fails, p99 at most 5 ms above normal, back within 2 s, at most each process's limit.",
        ("python", "-m", "tests.drills.store"),
    ),
    Check(
        "failover-table",
        "Each row of the table of failover over three gateways, for every method and fault.",
        pytest("tests/smartgw/proxy/test_failover_rows.py", "tests/smartgw/proxy/test_forwards.py"),
    ),
    Check(
        "marks",
        "Forged, replayed, altered and foreign forwards are ordinary requests, and counted.",
        pytest("tests/smartgw/peers/test_receiving.py", "tests/smartgw/routing/test_forwarding.py"),
    ),
    Check(
        "links",
        "Over a link all is as locally; none but a proven gateway of the directory gets a byte.",
        pytest("tests/smartgw/peers/test_links.py", "tests/smartgw/peers/test_certificate.py"),
    ),
    Check(
        "large-forwards",
        "300 MiB through a forward, plain and TLS: neither gateway grows by 2 MiB.",
        pytest("tests/smartgw/peers/test_large_forwards.py"),
    ),
    Check(
        "forward-cost",
        "What a forward costs beside a local request, and the rate with the owner dead.",
        (
            *("python", "-m", "tests.bench", "get-1k-c1", "get-1k-c32", "smartgw"),
            *("smartgw_forward", "smartgw_forward-tls", "smartgw_dead-owner"),
        ),
    ),
    Check(
        "faults",
        "10,000 requests under faults: no write twice, one hop, nobody asked who is not listed, "
        "none later than its deadline and 250 ms.",
        ("python", "-m", "tests.drills.faults"),
    ),
    Check(
        "owner-killed",
        "The owner cluster killed and brought back twice in two minutes: no read fails, writes "
        "only while it is down.",
        ("python", "-m", "tests.drills.owner"),
    ),
    Check(
        "decisions",
        "In the demo a write at any gateway is in force at all within 2 s, 100 of 100.",
        ("python", "-m", "tests.drills.decisions"),
    ),
    Check(
        "layout",
        "Who may import whom and who may do I/O holds for every module.",
        pytest("tests/test_layering.py"),
    ),
)


def main(argv: Sequence[str]) -> int:
    """List the checks, or run those that are named; 0 all passed, 1 one failed, 2 no such."""
    parser = argparse.ArgumentParser("prove", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help='checks to run, or "all"')
    parser.add_argument("--json", action="store_true", help="the list or the results as JSON")
    args = parser.parse_args(argv)
    known = {check.name: check for check in CHECKS}
    if not args.names:
        show(CHECKS, as_json=args.json)
        return 0
    names = list(known) if args.names == ["all"] else args.names
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no check {', '.join(unknown)}; there are {', '.join(known)}")
    results = [run(known[name], quiet=args.json) for name in names]
    failed = [result for result in results if not result["passed"]]
    if args.json:
        print(json.dumps({"results": results}))
    elif len(results) > 1:
        for result in results:
            word = "passed" if result["passed"] else "FAILED"
            print(f"{word}  {result['name']:<16} {result['figure']}")
        print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def show(checks: Sequence[Check], *, as_json: bool) -> None:
    """Print the checks with the commands behind them."""
    if as_json:
        found = [{"name": c.name, "sentence": c.sentence, "argv": list(c.argv)} for c in checks]
        print(json.dumps({"checks": found}))
        return
    for check in checks:
        print(f"{check.name:<16} {check.sentence}\n{'':<16} $ {' '.join(check.argv)}")


def run(check: Check, *, quiet: bool) -> dict[str, object]:
    """Run one check, its output passed on as it comes; returns what came of it."""
    if not quiet:
        print(f"# {check.name}: {check.sentence}", flush=True)
    argv = [sys.executable if part == "python" else part for part in check.argv]
    figure = ""
    started = time.monotonic()
    with subprocess.Popen(
        argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            figure = line.strip() or figure
            if not quiet:
                print(line, end="", flush=True)
    return {
        "name": check.name,
        "passed": process.returncode == 0,
        "figure": figure,
        "seconds": round(time.monotonic() - started, 1),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
