"""What questions about the DNS over HTTP cost a gateway: `python -m tests.drills.resolve`.

Asks a real gateway of one process on kept connections, with the credential of a session, singly, in
batches of ten, and in wire format, and tells its CPU time a query, beside that of a call of the API
that does nothing. Limits are counted as usual, and set so that none is reached.
"""

import argparse
import base64
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import dns.message

from smartgw.state.zone_records import ZoneHead
from smartgw_dns.packed import pack
from tests.dns.zones import zone
from tests.drills.machine import cpu
from tests.gateway import Cluster, Gateway, wait_until
from tests.servers import Nats
from tests.smartgw.api import issuing
from tests.stores import put

QUERIES = 2_000
MOST = 1_500.0
"""Microseconds of CPU for a single query; more says that something is wrong."""


def cost(gateway: Gateway, requests: Sequence[bytes], each: int) -> float:
    """Microseconds of the gateway's CPU for each of the queries that a request has."""
    with gateway.downstream() as client:
        before = cpu(gateway)
        for request in requests:
            client.send(request)
            answer = client.answer()
            assert answer.status == 200, answer.body
        return (cpu(gateway) - before) / (len(requests) * each) * 1e6


def requests(kind: str, count: int) -> list[bytes]:
    """So many requests of a kind, for names that were not asked for before."""
    token = issuing.token("session", exp=int(time.time()) + 3600)
    head = f"Host: {issuing.API}\r\nAuthorization: Bearer {token}\r\n"
    made = []
    for number in range(count):
        name = f"{kind}-{number}.apps.z"
        if kind == "batch":
            queries = [{"name": f"n{n}.{name}"} for n in range(10)]
            body = json.dumps({"queries": queries})
            line = "POST /api/v3/dns/resolve/batch HTTP/1.1\r\n"
            fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            made.append(f"{line}{head}{fields}\r\n{body}".encode())
            continue
        path = f"/api/v3/dns/resolve?name={name}"
        if kind == "wire":
            packet = dns.message.make_query(name, "A", id=0).to_wire()
            path = "/dns-query?dns=" + base64.urlsafe_b64encode(packet).decode().rstrip("=")
        elif kind == "nothing":
            path = "/healthz"
        made.append(f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
    return made


def main(argv: Sequence[str]) -> int:
    """Measure; 0 when a query costs no more than the bound."""
    parser = argparse.ArgumentParser("resolve", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--queries", type=int, default=QUERIES)
    args = parser.parse_args(argv)
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats, enrolled=1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            most = dict.fromkeys(("own", "queries", "queries_a_day"), 1_000_000_000)
            gateway = cluster.gateway({**issuing.settings(Path(folder)), "rates": most})
            made = zone("*.apps A 192.0.2.2\n")
            kept = pack(made)
            put(cluster, ZoneHead(made.origin, made.serial, made.records, kept.size, kept.lead))
            wait_until(
                lambda: json.loads(gateway.internal("/api/v3/status")[1])["dns"]["zones"] == 1
            )
            costs = {}
            for kind, each in (("nothing", 1), ("single", 1), ("batch", 10), ("wire", 1)):
                cost(gateway, requests(kind, 50), each)
                costs[kind] = cost(gateway, requests(kind, args.queries // each), each)
    finally:
        cluster.stop()
        nats.stop()
    print(
        f"a query costs {costs['single']:.0f} us of CPU, in a batch of ten {costs['batch']:.0f}, "
        f"in wire format {costs['wire']:.0f}; a call that does nothing {costs['nothing']:.0f}"
    )
    return 0 if costs["single"] <= MOST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
