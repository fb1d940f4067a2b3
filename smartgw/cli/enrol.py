"""`smartgw enrol`: trust a host with a key and apps, or no more (contract 12.4, 1.4).

Owns the words. The API does it; see /api/v3/enrolments.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smartgw.cli import CommandError
from smartgw.cli.endpoint import (
    WHERE,
    Endpoint,
    Unreachable,
    add_arguments,
    ask_any,
    done,
    endpoints,
)
from smartgw.cli.keygen import check_cluster, check_host
from smartgw.cli.status import columns

HELP = "trust hosts: list enrolments, enrol a host, or end that"
EXAMPLES = f"""\
Without HOST the enrolments are listed. Those of enrolment files are not among them: a host is
trusted by either. What is changed is in force within two seconds; a host that is removed loses its
traffic and its connections.

{WHERE}
examples:
  smartgw keygen shop-1.seed                         on the host; prints the public key
  smartgw enrol shop-1 --key ed25519:... --app shop --app 'shop-*'
  smartgw enrol
  smartgw enrol shop-1 --remove
"""
PAGE = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("host", metavar="HOST", nargs="?", type=_host, help="the host's id")
    parser.add_argument("--key", metavar="KEY", help="its public key, as keygen prints it")
    parser.add_argument(
        "--app",
        metavar="APP",
        action="append",
        dest="apps",
        help="an app id or pattern that it may serve; may be given again",
    )
    parser.add_argument(
        "--expires", metavar="TIME", help="when it ends: 2027-01-31T12:00:00Z (default: never)"
    )
    parser.add_argument(
        "--cluster", metavar="ID", type=_cluster, help="the host's cluster (default: the gateway's)"
    )
    parser.add_argument("--remove", action="store_true", help="trust it no more")
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    if args.host is None and (args.key or args.apps or args.remove or args.expires):
        args.usage_error("name the HOST")
    if args.host is not None and not args.remove and not (args.key and args.apps):
        args.usage_error("a host is enrolled with --key and --app; --remove ends it")
    gateways = endpoints(args)
    try:
        if args.host is None:
            return _list(gateways, args)
        cluster = args.cluster or _own_cluster(gateways)
        path = f"/api/v3/enrolments/{cluster}/{args.host}"
        if args.remove:
            done(ask_any(gateways, "DELETE", path)[1], (204,))
            said = {"removed": args.host, "cluster": cluster}
            text = f"host {args.host} of {cluster} is trusted no more"
        else:
            wanted = {"key": args.key, "apps": args.apps, "expires": args.expires}
            said = done(ask_any(gateways, "PUT", path, wanted)[1], (200, 201))
            text = f"host {args.host} of {cluster} may serve {', '.join(said['apps'])}"
    except Unreachable as error:
        raise CommandError(str(error)) from None
    print(json.dumps(said) if args.json else text)
    return 0


def _own_cluster(gateways: Sequence[Endpoint]) -> str:
    status = done(ask_any(gateways, "GET", "/api/v3/status")[1])
    return str(status["gateway"]["cluster"])


def _list(gateways: Sequence[Endpoint], args: argparse.Namespace) -> int:
    found: list[dict[str, Any]] = []
    wanted = f"&cluster={args.cluster}" if args.cluster else ""
    cursor: str | None = ""
    while cursor is not None:
        path = f"/api/v3/enrolments?limit={PAGE}{wanted}&cursor={cursor}"
        page = done(ask_any(gateways, "GET", path)[1])
        found += page["enrolments"]
        cursor = page["next_cursor"]
    print(json.dumps({"enrolments": found}) if args.json else "\n".join(_table(found)))
    return 0


def _table(enrolments: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not enrolments:
        yield "no host is enrolled by the API; smartgw enrol HOST --key KEY --app APP"
        return
    rows = [("HOST", "CLUSTER", "APPS", "KEY ID", "EXPIRES")]
    for each in enrolments:
        apps = ", ".join(each["apps"][:4]) + (", ..." if len(each["apps"]) > 4 else "")
        rows.append(
            (each["host_id"], each["cluster"], apps, each["key_id"], each["expires"] or "never")
        )
    yield from columns(rows)


def _host(text: str) -> str:
    return _checked(check_host, text)


def _cluster(text: str) -> str:
    return _checked(check_cluster, text)


def _checked(check: Any, text: str) -> str:
    try:
        return str(check(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
