"""`smartgw explain`: what a gateway would do with a request, and why (contract 12.4, 10.4).

Owns the words. The gateway answers by its data path's own decisions; see GET /api/v3/explain.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from smartgw.cli import CommandError
from smartgw.cli.endpoint import (
    WHERE,
    Endpoint,
    Unreachable,
    add_arguments,
    ask,
    done,
    endpoints,
)
from smartgw.cli.status import clean, columns

HELP = "say what a gateway would do with a request, and why"
EXAMPLES = f"""\
Nothing is sent, counted or charged. Each gateway has its own view; with several all are asked.

{WHERE}
examples:
  smartgw explain shop.smart-app.example
  smartgw explain shop.smart-app.example --method POST --client 203.0.113.7
  smartgw explain shop.smart-app.example --method OPTIONS --origin https://www.example.com
  smartgw explain shop.smart-app.example --path /.well-known/smartgw/challenge --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("host", metavar="HOSTNAME", help="the hostname that is asked for")
    parser.add_argument("--method", default="GET", help="the method (default: GET)")
    parser.add_argument("--client", metavar="IP", help="the client's address (default: yours)")
    parser.add_argument("--path", default="/", help="path and query (default: /)")
    parser.add_argument(
        "--origin", help="of the page that sends it; with OPTIONS it is a preflight"
    )
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(args: argparse.Namespace) -> int:
    asked = {"host": args.host, "method": args.method, "path": args.path}
    asked |= {name: getattr(args, name) for name in ("client", "origin") if getattr(args, name)}
    gateways = endpoints(args)
    try:
        found = [_of(gateway, asked) for gateway in gateways]
    except Unreachable as error:
        raise CommandError(str(error)) from None
    if args.json:
        print(json.dumps({"gateways": found}))
        return 0
    print("\n\n".join("\n".join(map(clean, _text(each))) for each in found))
    return 0


def _of(gateway: Endpoint, asked: Mapping[str, str]) -> dict[str, Any]:
    answer = done(ask(gateway, "GET", f"/api/v3/explain?{urlencode(asked)}"))
    return {"endpoint": gateway.address, **answer}


def _text(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['gateway']} of cluster {found['cluster']}: {_verdict(found)}"
    for step in found["steps"]:
        yield f"  {step['step']:<10} {step['result']}"
    if found["app_id"] is not None:
        yield f"  app        {found['app_id']}{_about(found)}"
    for number, attempt in enumerate(found["attempts"]):
        word = "first" if not number else "then"
        aside = ", set aside for it keeps failing" if attempt["set_aside"] else ""
        yield f"  {word:<10} {attempt['place']}: {attempt['cluster']}{aside}"
        if attempt["hosts"]:
            rows = [("HOST", "ADDRESS", "WEIGHT", "BUSY WITH", "")]
            rows += [
                (
                    host["host_id"],
                    host["address"],
                    str(host["weight"]),
                    str(host["outstanding"]),
                    "suspect" if host["suspect"] else "",
                )
                for host in attempt["hosts"]
            ]
            yield from (f"             {line}" for line in columns(rows))
            if (more := attempt["hosts_total"] - len(attempt["hosts"])) > 0:
                yield f"             ... and {more} more"
    for host in found["unrouted"]:
        yield f"  no request {host['host_id']} is {host['state']}: {host['reason']}"
    if cors := found["cors"]:
        may = "may" if cors["allowed"] else "may not"
        yield f"  cors       pages of {cors['origin']} {may} read the answer"


def _verdict(found: Mapping[str, Any]) -> str:
    match found["outcome"]:
        case "served":
            return "served by a host here"
        case "forwarded":
            return f"sent on to {found['attempts'][0]['cluster']}"
        case "preflight":
            return "answered 204, a preflight"
        case "api":
            return "answered by the gateway's own API"
    return f"{found['status']} {found['reason']}"


def _about(found: Mapping[str, Any]) -> str:
    facts = []
    if found["registered"] is not None:
        facts.append("registered" if found["registered"] else "not registered, but announced")
    if found["owner"] is not None:
        facts.append(f"owned by {found['owner']}")
    return f" ({', '.join(facts)})" if facts else ""
