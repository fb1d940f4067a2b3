"""`smartgw owner`: which cluster owns an app, and what a change of clusters would move (12.4, 4.1).

Owns which clusters and apps are meant and how the answer is laid out. The formula is
`smartgw_hosts.owner`'s, what would move is `smartgw.peers.forecast`'s.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smartgw.cli import CommandError
from smartgw.cli.endpoint import WHERE, Endpoint, Unreachable, add_arguments, ask, done, endpoints
from smartgw.cli.status import clean, plural
from smartgw.peers.forecast import moves, share
from smartgw_hosts.clusters import PATH
from smartgw_hosts.ids import check_id
from smartgw_hosts.owner import epoch, owner, sorted_ids

HELP = "say which cluster owns an app, and what a change of clusters would move"
EXAMPLES = f"""\
The list of clusters is that of a running gateway; with --clusters it is what you write, and
nobody is asked. A forecast says which share of all apps would get another owner, and names those
of the gateway's apps, of APP and of --apps-file that would.

{WHERE}
examples:
  smartgw owner shop blog
  smartgw owner shop --clusters eu-1,us-1,us-2
  smartgw owner --forecast --add eu-2
  smartgw owner --forecast --add eu-2 --remove us-2 --apps-file apps.txt --json
"""

MAX_ROWS = 60
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clusters that count; `mode` is the directory's, None for what the user wrote."""

    ids: tuple[str, ...]
    mode: str | None


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("apps", metavar="APP", nargs="*", type=_text, help="an app's id")
    parser.add_argument(
        "--clusters",
        metavar="ID,ID",
        type=_ids,
        help="the ids that are active or draining, instead of a gateway's list",
    )
    parser.add_argument(
        "--forecast", action="store_true", help="say what --add and --remove would move"
    )
    parser.add_argument(
        "--add", metavar="ID", type=_ids, default=(), help="clusters that would come: a or a,b"
    )
    parser.add_argument(
        "--remove", metavar="ID", type=_ids, default=(), help="clusters that would go"
    )
    parser.add_argument(
        "--apps-file", metavar="FILE", type=Path, help="more app ids, one a line, UTF-8"
    )
    add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    _check_usage(args)
    try:
        source = None if args.clusters else _Running(endpoints(args))
        before = Clusters(args.clusters, None) if source is None else source.clusters()
        apps = [*args.apps, *_from_file(args.apps_file)]
        if not args.forecast:
            _tell_owners(apps, before, as_json=args.json)
            return 0
        after = _changed(args, before)
        if source is not None:
            apps += source.apps()
    except Unreachable as error:
        raise CommandError(str(error)) from None
    _tell_forecast(list(dict.fromkeys(apps)), before.ids, after, as_json=args.json)
    return 0


class _Running:
    """A gateway that runs, the first of those named that answers."""

    def __init__(self, candidates: Sequence[Endpoint]) -> None:
        self._candidates = candidates
        self._endpoint = candidates[0]

    def clusters(self) -> Clusters:
        """Raises Unreachable, CommandError."""
        for endpoint in self._candidates:
            try:
                answer = ask(endpoint, "GET", PATH)
            except Unreachable:
                if endpoint is self._candidates[-1]:
                    raise
            else:
                self._endpoint = endpoint
                break
        address = self._endpoint.address
        if answer.status != 200:
            raise CommandError(f"{address}: {answer.error}; or write the ids: --clusters a,b,c")
        ids = [each["id"] for each in answer.body["clusters"] if each["state"] != "gone"]
        if not ids:
            raise CommandError(f"{address}: the list of clusters is empty, so no app has an owner")
        known = ask(self._endpoint, "GET", "/api/v3/discovery/owner?app=-")
        return Clusters(sorted_ids(ids), known.body["mode"])

    def apps(self) -> list[str]:
        """The apps that the gateway knows, the first thousand. Raises Unreachable."""
        status = ask(self._endpoint, "GET", "/api/v3/status")
        try:
            return [app["app_id"] for app in done(status)["apps"]["shown"]]
        except CommandError as error:
            print(f"smartgw owner: without the gateway's apps: {error}", file=sys.stderr)
            return []


# ---- what is told ----


def _tell_owners(apps: Iterable[str], clusters: Clusters, *, as_json: bool) -> None:
    owners = {app: owner(app, clusters.ids) for app in apps}
    if as_json:
        print(
            json.dumps(
                {
                    "epoch": epoch(clusters.ids),
                    "clusters": list(clusters.ids),
                    "mode": clusters.mode,
                    "owners": [{"app_id": app, "owner": found} for app, found in owners.items()],
                }
            )
        )
        return
    mode = "" if clusters.mode in (None, "fresh") else f" ({clusters.mode})"
    print(f"{_named(clusters.ids)}{mode}\n")
    print("\n".join(_columns([("APP", "OWNER"), *owners.items()])))


def _tell_forecast(
    apps: Sequence[str], before: Sequence[str], after: Sequence[str], *, as_json: bool
) -> None:
    moving, of_all = moves(apps, before, after), share(before, after)
    if as_json:
        found: dict[str, Any] = {
            "before": {"clusters": list(before), "epoch": epoch(before)},
            "after": {"clusters": list(after), "epoch": epoch(after)},
            "share": round(of_all, 6),
            "known": len(apps),
            "moves": [
                {"app_id": m.app_id, "owner": m.owner, "next_owner": m.next_owner} for m in moving
            ],
        }
        print(json.dumps(found))
        return
    print(f"now    {_named(before)}\nthen   {_named(after)}")
    print(
        f"moves  {of_all:.1%} of all apps; {len(moving)} of the {plural(len(apps), 'apps')} known"
    )
    if moving:
        print()
        rows = [(move.app_id, move.owner, move.next_owner) for move in moving[:MAX_ROWS]]
        print("\n".join(_columns([("APP", "OWNER", "THEN"), *rows])))
    if len(moving) > MAX_ROWS:
        print(f"... and {len(moving) - MAX_ROWS} more (--json shows all)")


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    cells = [tuple(map(clean, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield line.rstrip()


def _named(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:8]) + (", ..." if len(ids) > 8 else "")
    return clean(f"{plural(len(ids), 'clusters')}: {shown} · epoch {epoch(ids)}")


# ---- what is asked ----


def _check_usage(args: argparse.Namespace) -> None:
    """Exit with 2 for what cannot be meant."""
    if args.forecast and not (args.add or args.remove):
        args.usage_error("--forecast needs --add ID or --remove ID")
    if not args.forecast and (args.add or args.remove):
        args.usage_error("--add and --remove go with --forecast")
    if not (args.forecast or args.apps or args.apps_file):
        args.usage_error("name an APP, or use --forecast")
    if both := set(args.add) & set(args.remove):
        args.usage_error(f"{min(both)} is to come and to go; keep one of the two")


def _changed(args: argparse.Namespace, before: Clusters) -> tuple[str, ...]:
    for added in args.add:
        if added in before.ids:
            raise CommandError(f"{added} is among the clusters already")
    for removed in args.remove:
        if removed not in before.ids:
            raise CommandError(f"{removed} is not among the clusters: {', '.join(before.ids)}")
    after = sorted_ids([*set(before.ids) - set(args.remove), *args.add])
    if not after:
        raise CommandError("no cluster would be left")
    return after


def _from_file(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise CommandError(f"{path}: more than {MAX_FILE_BYTES >> 20} MiB")
        lines = (line.removesuffix("\r") for line in data.decode().split("\n"))
        return [line for line in lines if line]
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path}: not UTF-8; save it as UTF-8") from None


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{value!a} is not UTF-8") from None
    return value


def _ids(text: str) -> tuple[str, ...]:
    try:
        found = [check_id("cluster id", part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!a} names a cluster twice")
    return sorted_ids(found)
