"""`smartgw hosts`: the hosts in full, with the reason for each one's state (contract 12.4, 1.5).

Owns which are shown. The table is status.py's, the facts the API's.
"""

import argparse
import json
from typing import Any
from urllib.parse import quote

from smartgw.cli import CommandError
from smartgw.cli.endpoint import WHERE, Endpoint, Unreachable, add_arguments, ask, done, endpoints
from smartgw.cli.status import PAGE, clean, hosts_table
from smartgw_hosts.records import HostState

HELP = "show the hosts, their states and why"
EXAMPLES = f"""\
Each gateway has its own view of the hosts; with several gateways all are asked. With HOST one host
is shown with all that is known of it.

{WHERE}
examples:
  smartgw hosts
  smartgw hosts --state unhealthy
  smartgw hosts shop-1
  smartgw hosts --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("host", metavar="HOST", nargs="?", help="one host's id")
    parser.add_argument(
        "--state",
        metavar="STATE",
        choices=[str(state) for state in HostState],
        help=f"only hosts in this state: {', '.join(HostState)}",
    )
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    try:
        gateways = [_of(gateway, args) for gateway in endpoints(args)]
    except Unreachable as error:
        raise CommandError(str(error)) from None
    if args.json:
        print(json.dumps({"gateways": gateways}))
    else:
        for gateway in gateways:
            if len(gateways) > 1:
                print(f"{gateway['endpoint']}")
            if args.state is not None and args.host is None and not gateway["hosts"]:
                print(f"no host is {args.state}")
                continue
            _print(gateway["hosts"], whole=args.host is not None)
    if args.host is not None and not any(gateway["hosts"] for gateway in gateways):
        raise CommandError(f"no host {args.host} is known")
    return 0


def _of(gateway: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """The hosts of a gateway that are wanted."""
    found: list[dict[str, Any]] = []
    if args.host is not None:
        answer = ask(gateway, "GET", f"/api/v3/hosts/{quote(args.host, safe='')}")
        found = [] if answer.status == 404 else [done(answer)]
    else:
        cursor: str | None = ""
        while cursor is not None:
            page = done(ask(gateway, "GET", f"/api/v3/hosts?limit={PAGE}&cursor={cursor}"))
            found += page["hosts"]
            cursor = page["next_cursor"]
    hosts = [host for host in found if args.state in (None, host["state"])]
    return {"endpoint": gateway.address, "hosts": hosts}


def _print(hosts: list[dict[str, Any]], *, whole: bool) -> None:
    if not whole:
        print("\n".join(hosts_table(hosts, len(hosts))))
        return
    for host in hosts:
        for name, value in host.items():
            if name == "refused_apps":
                value = [f"{app['app_id']}: {app['reason']}" for app in value]
            text = ", ".join(value) if isinstance(value, list) else value
            print(clean(f"{name:<16} {'-' if text in (None, '') else text}"))
