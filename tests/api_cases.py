"""Generated requests for every operation that the API's own description names.

`python -m tests.api_cases [--cases 2000] [--seed N]`: schemathesis against a real gateway with a
real store, as a service. A server error, an answer that the description does not have, or one that
is not as it says fails. Ends with `N cases, N faults`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.gateway import Cluster, Gateway
from tests.servers import Nats
from tests.smartgw.api import issuing

CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "unsupported_method"),
    *("ignored_auth", "use_after_free", "ensure_resource_availability"),
    *("missing_required_header", "allow_header_conformance"),
)
# One more example of each operation makes about so many cases, with those of the other phases.
_CASES_OF_AN_EXAMPLE = 25


def arguments(
    address: str, token: str, *, examples: int, seed: int | None, drains: bool
) -> list[str]:
    """The command that runs the cases against the listener at `address`; `drains`: those of the one
    operation after which the gateway says that it is not ready.
    """
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        f"http://{address}/api/v3/openapi.json",
        *("-H", f"Authorization: Bearer {token}", "--checks", ",".join(CHECKS)),
        *("-n", str(examples), "--continue-on-failure", "--warnings", "off"),
        *("--include-operation-id" if drains else "--exclude-operation-id", "drain"),
        # The description of an answer follows no deadline of ours, and a gateway may be busy.
        *("--request-timeout", "20", "--suppress-health-check", "all"),
    ]
    return command if seed is None else [*command, "--seed", str(seed)]


def outcome(output: str) -> tuple[int, int]:
    """How many cases there were, and how many faults. Raises ValueError when it did not end."""
    found = re.search(r"(\d+) generated(?:, (\d+) found)?", output)
    if found is None:
        raise ValueError(f"schemathesis did not end: {output[-2000:]}")
    return int(found[1]), int(found[2] or 0)


def run(gateway: Gateway, cases: int, seed: int | None) -> tuple[int, int]:
    """Run about so many cases against a gateway that has the tests' issuer."""
    examples = max(1, cases // _CASES_OF_AN_EXAMPLE)
    total = faults = 0
    for drains in (False, True):
        address = f"127.0.0.1:{gateway.internal_port}"
        command = arguments(address, issuing.token(), examples=examples, seed=seed, drains=drains)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        counts = outcome(done.stdout)
        if counts[1]:
            print("\n".join(line[:200] for line in done.stdout.splitlines()))
        total, faults = total + counts[0], faults + counts[1]
    gateway.internal("/api/v3/drain", "POST", {"undo": True})
    return total, faults


def main(argv: Sequence[str]) -> int:
    """Run the cases; 0 when there was no fault and as many as were wanted."""
    parser = argparse.ArgumentParser("api_cases", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args(argv)
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats)
    try:
        gateway = cluster.gateway(issuing.settings(cluster.nats.folder))
        host = cluster.host()
        total = faults = 0
        while total < args.cases and not faults:
            some, faults = run(gateway, args.cases - total, args.seed)
            total += some
        alive = gateway.ask(host.hostname).status == 200
    finally:
        cluster.stop()
        nats.stop()
    print(f"{total} cases, {faults} faults" + ("" if alive else ", and traffic is gone"))
    return 0 if alive and not faults and total >= args.cases else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
