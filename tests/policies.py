"""A gateway that is told the policies of its apps by a file: `with PolicyGateway(...)`.

Run as a program it is `smartgw serve` whose routes carry the policies of the JSON file that it is
given first. Decides nothing of what a policy means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smartgw import native

if __name__ == "__main__":
    native.install()  # as `smartgw` does, before anything that may be compiled is imported

from smartgw import cli
from smartgw.routing import table
from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy, AppState
from smartgw.routing.snapshot import HostEntry, Route, Snapshot
from smartgw.state.names import canonical_origin
from tests.gateway import Cluster, Config, Gateway


class PolicyGateway(Gateway):
    """`policies`: app id -> `{"origins": [..], "own_cors": .., "limit": .., "state": ..}`.

    `hostnames`: hostname -> hostname of the app that it is another one of.
    """

    def __init__(
        self,
        cluster: Cluster,
        policies: Mapping[str, Mapping[str, Any]],
        changes: Config | None = None,
        *,
        hostnames: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(cluster, changes)
        self.policies = self.folder / "policies.json"
        self.policies.write_text(json.dumps({"apps": policies, "hostnames": hostnames or {}}))

    def command(self) -> list[str]:
        _, _, _, *rest = super().command()
        return [sys.executable, "-m", "tests.policies", str(self.policies), *rest]


def policies_of(apps: Mapping[str, Mapping[str, Any]]) -> dict[str, AppPolicy]:
    """App id -> policy."""
    return {
        app: AppPolicy(
            state=AppState(policy.get("state", "active")),
            origins=frozenset(
                canonical_origin(text).encode() for text in policy.get("origins", ())
            ),
            own_cors=policy.get("own_cors", False),
            limit=policy.get("limit"),
        )
        for app, policy in apps.items()
    }


def main(path: str, *argv: str) -> int:
    """Serve, with these policies on the routes."""
    told = json.loads(Path(path).read_text())
    policies = policies_of(told["apps"])
    other = {name.encode(): of.encode() for name, of in told["hostnames"].items()}

    def route(
        app_id: str, hosts: tuple[HostEntry, ...], shares: tuple[int, ...], _: AppPolicy
    ) -> Route:
        return Route(app_id, hosts, shares, policies.get(app_id, DEFAULT_POLICY))

    def snapshot(*parts: Any) -> Snapshot:
        if not parts:
            return Snapshot()
        labels, hostnames, apps, bases, *rest = parts
        some_labels, some_hostnames = labels.edit(), hostnames.edit()
        for name, of in other.items():
            label, _, base = name.partition(b".")
            app = labels.get(of.partition(b".")[0])
            if app is not None and base in bases:
                some_labels.put(label, app)
            elif app is not None:
                some_hostnames.put(name, app)
        return Snapshot(some_labels.done(), some_hostnames.done(), apps, bases, *rest)

    # Where they are made, which is Python's: what is compiled cannot be put aside.
    vars(table).update(Route=route, Snapshot=snapshot)
    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
