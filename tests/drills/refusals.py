"""Does how long a refusal takes tell what was wrong with the credential?

`python -m tests.drills.refusals [--rounds 2000]`: every kind of bad credential in turns, at a real
gateway. Prints how far the medians of the kinds are apart; exit code 1 when the most distant one is
further from the middle than `MOST_RATIO`.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import time
from collections.abc import Sequence

from tests.gateway import Cluster
from tests.servers import Nats
from tests.smartgw.api import issuing

MOST_RATIO = 1.1
PATH = "/api/v3/apps/none"


def medians(port: int, rounds: int) -> dict[str, float]:
    """Median seconds of a refusal, by the kind of credential; the kinds take turns."""
    kinds = {kind: fields for kind, fields in issuing.forged().items() if len(fields) < 2}
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(rounds):
        for kind, fields in kinds.items():
            headers = {"Authorization": fields[0]} if fields else {}
            begun = time.perf_counter()
            connection.request("GET", PATH, headers=headers)
            response = connection.getresponse()
            response.read()
            taken[kind].append(time.perf_counter() - begun)
            assert response.status == 401, kind
    connection.close()
    return {kind: statistics.median(times) for kind, times in taken.items()}


def main(argv: Sequence[str]) -> int:
    """Run the drill."""
    parser = argparse.ArgumentParser("refusals", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    args = parser.parse_args(argv)
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats)
    try:
        gateway = cluster.gateway(issuing.settings(cluster.nats.folder))
        found = medians(gateway.internal_port, args.rounds)
    finally:
        cluster.stop()
        nats.stop()
    middle = statistics.median(found.values())
    for kind, seconds in sorted(found.items(), key=lambda pair: pair[1]):
        print(f"{seconds * 1e6:8.0f} us  {kind}")
    ratio = max(max(found.values()) / middle, middle / min(found.values()))
    print(f"the most distant kind takes {ratio:.2f} times the middle, {middle * 1e6:.0f} us")
    return 0 if ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
