"""`smartgw dig`: ask a gateway about a name over HTTP, as a signed-in session would (12.4, 8.1).

Owns how an answer is shown: as `dig` shows one, and what is left of the budgets.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from smartgw.cli import CommandError
from smartgw.cli.endpoint import (
    DEMO_FOLDER,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Answer,
    Endpoint,
    Unreachable,
    add_arguments,
    ask_any,
    done,
    endpoints,
)
from smartgw.cli.status import clean

HELP = "ask a gateway about a name in the DNS, as a session would"
EXAMPLES = """\
Asks over HTTP, which costs a session one query. The gateway and the token are found as for other
commands, except that a demo's session asks, not its service. For the wire there is `dig` itself.

examples:
  smartgw dig shop.smart-app.localhost
  smartgw dig example.com MX --token-file session.token --endpoint https://api.smart-app.example
  smartgw dig example.com TXT --json
"""
_STATUS = {
    **{0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"},
    **{6: "YXDOMAIN"},
}
_TYPES = {
    **{1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA"},
    **{33: "SRV", 35: "NAPTR", 39: "DNAME", 43: "DS", 44: "SSHFP", 52: "TLSA", 64: "SVCB"},
    **{65: "HTTPS", 99: "SPF", 255: "ANY", 257: "CAA"},
}
_FLAGS = ("AA", "TC", "RD", "RA", "AD", "CD")
_LEFT = (
    ("x-ratelimit-", "of this address"),
    ("x-ratelimit-identity-", "of this session"),
    ("x-ratelimit-identity-quota-", "of its day"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="absolute, with or without the last dot")
    parser.add_argument("type", metavar="TYPE", nargs="?", default="A", help="default: A")
    parser.add_argument("--json", action="store_true", help="the answer as it came")


def run(args: argparse.Namespace) -> int:
    query = urlencode({"name": args.name, "type": args.type})
    try:
        answer = ask_any(_gateways(args), "GET", f"/api/v3/dns/resolve?{query}")[1]
    except Unreachable as error:
        raise CommandError(str(error)) from None
    shown = done(answer)
    if args.json:
        print(json.dumps(shown))
    else:
        print("\n".join(map(clean, _lines(shown, answer))))
    return 0


def _gateways(args: argparse.Namespace) -> list[Endpoint]:
    """The gateways that are meant; a demo's are asked by its session."""
    named = args.token or args.token_file
    if named or os.environ.get(TOKEN_VARIABLE) or os.environ.get(TOKEN_FILE_VARIABLE):
        return endpoints(args)
    session = _session(args.dir or DEMO_FOLDER)
    found = endpoints(args)
    return [Endpoint(one.address, session if one.token is not None else None) for one in found]


def _session(folder: Path) -> str | None:
    """The token of a demo's session."""
    try:
        token = json.loads((folder / "demo.json").read_bytes())["tokens"]["session"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return token if isinstance(token, str) else None


def _lines(shown: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    status = _STATUS.get(shown["Status"], str(shown["Status"]))
    flags = " ".join(flag.lower() for flag in _FLAGS if shown[flag])
    yield f";; status: {status}, flags: {flags}"
    for question in shown["Question"]:
        yield f";{question['name']} {_type(question['type'])}"
    for section in ("Answer", "Authority", "Additional"):
        records = shown.get(section) or ()
        if records:
            yield ""
            yield f";; {section.upper()}"
        for record in records:
            yield f"{record['name']} {record['TTL']} {_type(record['type'])} {record['data']}"
    yield ""
    for prefix, whose in _LEFT:
        limit = answer.fields.get(f"{prefix}limit")
        if limit is not None:
            left = answer.fields.get(f"{prefix}remaining")
            yield f";; {left} of {limit} queries left {whose}"


def _type(number: int) -> str:
    return _TYPES.get(number, f"TYPE{number}")
