"""`smartgw apps`: what the platform has decided about apps, read and changed (12.4, 3.4, 10.1).

Owns the words and that a change of one member leaves the others as they are. The API does it; see
/api/v3/apps.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from smartgw.cli import CommandError
from smartgw.cli.endpoint import (
    WHERE,
    Answer,
    Endpoint,
    Unreachable,
    add_arguments,
    ask_any,
    done,
    endpoints,
)
from smartgw.cli.status import clean, columns

HELP = "register apps; suspend, retire, list and change them"
EXAMPLES = f"""\
Without an action the registered apps are listed. `set` registers an app, or changes of it what is
named and leaves the rest; a list that is given replaces the whole list, an empty one clears it.
What is changed is in force at every gateway within two seconds.

A suspended or retired app is answered 503 everywhere; streams that are under way go on.

{WHERE}
examples:
  smartgw apps
  smartgw apps set shop --origins https://www.example.com --limit 1200
  smartgw apps set shop --hostnames shop.example.com www.shop.example.com
  smartgw apps suspend shop
  smartgw apps resume shop
  smartgw apps show shop --json
  smartgw apps delete shop
"""
PAGE = 1000
MAX_ROWS = 200
_STATES = {"suspend": "suspended", "resume": "active", "retire": "retired"}
_MEMBERS = ("label", "hostnames", "state", "origins", "own_cors", "limit", "labels")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    _common(parser)
    parser.set_defaults(action=None, app=None, state=None)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = _action(actions, "list", "the registered apps")
    listing.add_argument("--state", choices=tuple(_STATES.values()), help="only those in it")
    for name, text in (
        ("show", "one app"),
        ("suspend", "answer 503 app_suspended for it"),
        ("retire", "answer 503 app_retired for it"),
        ("resume", "serve it again"),
        ("delete", "forget what was decided about it"),
    ):
        _action(actions, name, text).add_argument("app", metavar="APP", help="the app's id")
    change = _action(actions, "set", "register an app, or change it")
    change.add_argument("app", metavar="APP", help="the app's id")
    change.add_argument("--label", help='its label below the base domains; "" for the default')
    change.add_argument("--hostnames", nargs="*", metavar="NAME", help="exact hostnames besides")
    change.add_argument(
        "--origins", nargs="*", metavar="ORIGIN", help="origins whose pages may read its answers"
    )
    change.add_argument("--own-cors", choices=("yes", "no"), help="whether it does its own CORS")
    change.add_argument(
        "--limit", metavar="N", type=_limit, help='requests of one caller in 60 s, or "default"'
    )
    change.add_argument(
        "--labels", nargs="*", metavar="KEY=VALUE", type=_pair, help="of your own; decide nothing"
    )
    change.add_argument("--state", choices=tuple(_STATES.values()))


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    """An action that takes the options of the command behind its name, too."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[:1].upper()}{text[1:]}.", epilog=WHERE
    )
    _common(parser, default=argparse.SUPPRESS)
    return parser


def _common(parser: argparse.ArgumentParser, default: Any = None) -> None:
    add_arguments(parser, default=default)
    given = {} if default is None else {"default": default}
    parser.add_argument("--json", action="store_true", help="JSON instead of a table", **given)


def run(args: argparse.Namespace) -> int:
    gateways = endpoints(args)
    try:
        if args.action in (None, "list"):
            return _list(gateways, args)
        path = f"/api/v3/apps/{quote(args.app, safe='')}"
        if args.action == "show":
            return _show(done(ask_any(gateways, "GET", path)[1]), args)
        if args.action == "delete":
            done(ask_any(gateways, "DELETE", path)[1], (204,))
            print(json.dumps({"deleted": args.app}) if args.json else f"{args.app} is forgotten")
            return 0
        return _change(gateways, path, args)
    except Unreachable as error:
        raise CommandError(str(error)) from None


def _list(gateways: Sequence[Endpoint], args: argparse.Namespace) -> int:
    apps: list[dict[str, Any]] = []
    wanted = f"&state={args.state}" if args.state else ""
    cursor: str | None = ""
    while cursor is not None:
        page = done(
            ask_any(gateways, "GET", f"/api/v3/apps?limit={PAGE}{wanted}&cursor={cursor}")[1]
        )
        apps += page["apps"]
        cursor = page["next_cursor"]
    if args.json:
        print(json.dumps({"apps": apps, "age_seconds": page["age_seconds"]}))
        return 0
    if page["age_seconds"] >= 1:
        print(f"the bus is away; this is as of {page['age_seconds']:.0f} s ago")
    print("\n".join(_table(apps)))
    return 0


def _table(apps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not apps:
        yield "no app is registered; smartgw apps set APP"
        return
    rows = [("APP", "STATE", "SERVED AS", "LIMIT", "ORIGINS")]
    for app in apps[:MAX_ROWS]:
        origins = "its own CORS" if app["own_cors"] else _short(app["origins"])
        limit = "-" if app["limit"] is None else str(app["limit"])
        rows.append((app["app_id"], app["state"], _short(app["served"]), limit, origins))
    yield from columns(rows)
    if len(apps) > MAX_ROWS:
        yield f"... and {len(apps) - MAX_ROWS} more (--json shows all)"


def _short(values: Sequence[str]) -> str:
    more = f", and {len(values) - 3} more" if len(values) > 3 else ""
    return (", ".join(values[:3]) + more) or "-"


def _show(app: Mapping[str, Any], args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(app))
        return 0
    for name, value in app.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={text}" for key, text in value.items())
        elif isinstance(value, list):
            value = ", ".join(value)
        elif isinstance(value, bool):
            value = "yes" if value else "no"
        print(clean(f"{name:<10} {'-' if value in (None, '') else value}"))
    return 0


def _change(gateways: Sequence[Endpoint], path: str, args: argparse.Namespace) -> int:
    """Read, change, write back, on the condition that nobody else has changed it meanwhile."""
    where, read = ask_any(gateways, "GET", path)
    new = read.status == 404
    before = {} if new else done(read)
    if new and args.action != "set":
        raise CommandError(f"no app {args.app} is registered; smartgw apps set {args.app}")
    wanted = {name: before[name] for name in _MEMBERS if name in before} | _named(args)
    condition = {"If-None-Match": "*"} if new else {"If-Match": str(read.etag)}
    answer: Answer = ask_any([where], "PUT", path, wanted, condition)[1]
    app = done(answer, (200, 201))
    if args.json:
        print(json.dumps(app))
        return 0
    names = ", ".join(app["served"]) or "no hostname"
    what = "registered" if answer.status == 201 else "is"
    print(clean(f"{args.app} {what} {app['state']}, served as {names}"))
    return 0


def _named(args: argparse.Namespace) -> dict[str, Any]:
    """The members that the options name."""
    if args.action in _STATES:
        return {"state": _STATES[args.action]}
    found = {
        name: value
        for name in ("hostnames", "origins", "state")
        if (value := getattr(args, name)) is not None
    }
    if args.label is not None:
        found["label"] = args.label or None
    if args.own_cors is not None:
        found["own_cors"] = args.own_cors == "yes"
    if args.limit is not None:
        found["limit"] = args.limit or None
    if args.labels is not None:
        found["labels"] = dict(args.labels)
    return found


def _limit(text: str) -> int:
    """0 stands for the gateway's own."""
    if text == "default":
        return 0
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f'{text!r} is neither 1 to 1000000 nor "default"')
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
