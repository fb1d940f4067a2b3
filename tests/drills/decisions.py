"""How soon a write at any gateway of any cluster is in force at all of them.

`python -m tests.drills.decisions [--writes 100]`: in the real demo, an app is suspended and resumed
through each gateway's API in turn, and every gateway is asked for it until it answers so. Prints
how many writes were in force everywhere within two seconds, and the slowest.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.demos import Demo

WITHIN = 2.0
_GIVEN_UP = 20.0
APP = "shop"
Facts = dict[str, Any]


def write(cluster: Facts, token: str, state: str) -> int:
    """Have the gateway of a cluster decide about the app; the status of its answer."""
    connection = http.client.HTTPConnection(cluster["internal"], timeout=10)
    fields = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        # It is asked for more often than one caller may ask by default.
        body = json.dumps({"state": state, "limit": 1_000_000})
        connection.request("PUT", f"/api/v3/apps/{APP}", body, fields)
        return connection.getresponse().status
    finally:
        connection.close()


def status(facts: Facts, cluster: Facts) -> int:
    """What a client gets for the app at the gateway of a cluster."""
    connection = http.client.HTTPConnection(cluster["http"], timeout=10)
    try:
        connection.request("GET", "/echo", headers={"Host": f"{APP}.{facts['base_domain']}"})
        return connection.getresponse().status
    finally:
        connection.close()


def spread(facts: Facts, wanted: int) -> float:
    """Seconds until every gateway answers so."""
    begun = time.monotonic()
    waiting = list(facts["clusters"])
    while waiting and time.monotonic() < begun + _GIVEN_UP:
        waiting = [cluster for cluster in waiting if status(facts, cluster) != wanted]
        if waiting:
            time.sleep(0.005)
    return time.monotonic() - begun


def main(argv: Sequence[str]) -> int:
    """Run the drill."""
    parser = argparse.ArgumentParser("decisions", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--writes", type=int, default=100)
    parser.add_argument("--clusters", type=int, default=3)
    args = parser.parse_args(argv)
    taken: list[float] = []
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        options = ("--port", "0", "--hosts", "1", "--clusters", str(args.clusters))
        with Demo(Path(folder), *options) as demo:
            facts = demo.ready().facts()
            clusters, token = facts["clusters"], facts["tokens"]["service"]
            for number in range(args.writes):
                state, wanted = (("suspended", 503), ("active", 200))[number % 2]
                if write(clusters[number % len(clusters)], token, state) == 200:
                    taken.append(spread(facts, wanted))
                else:
                    refused += 1
            demo.process.terminate()
            demo.process.communicate(timeout=20)
    good = sum(seconds <= WITHIN for seconds in taken)
    slowest = max(taken, default=0.0)
    print(
        f"{good} of {args.writes} in force at all {args.clusters} gateways within {WITHIN:g} s, "
        f"the slowest after {slowest:.2f} s, {refused} refused"
    )
    return 0 if good == args.writes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
