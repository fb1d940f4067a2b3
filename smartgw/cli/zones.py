"""`smartgw zones`: the zones that the gateways answer for, read and changed (12.4, 8.6).

Owns the words, how a change is shown, and which zone a file is of. The API does it; see
/api/v3/dns/zones.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

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
from smartgw.errors import counted
from smartgw_dns.master import apex_of
from smartgw_dns.names import text_of

HELP = "zones of the DNS: list, show, import, export, set, delete, diff"
EXAMPLES = f"""\
Without an action the zones are listed. Every change tells the answers that it changes, those of
other names too; with --dry-run it is told and not made. What is changed is in force at every
gateway within two seconds. Names are relative to the zone, or absolute with a dot at the end; @ is
the zone itself.

{WHERE}
examples:
  smartgw zones
  smartgw zones make example.com --nameserver ns1.example.net. --nameserver ns2.example.net.
  smartgw zones set example.com www A 192.0.2.10 192.0.2.11 --ttl 60
  smartgw zones set example.com @ TXT '"v=spf1 -all"' --dry-run
  smartgw zones show example.com --name www
  smartgw zones diff example.com example.com.zone
  smartgw zones import example.com.zone
  smartgw zones import zones/
  smartgw zones export example.com > example.com.zone
  smartgw zones wildcard 192.0.2.10 2001:db8::10
  smartgw zones delete example.com www A
"""
ZONES = "/api/v3/dns/zones"
MASTER = "text/dns"
PAGE = 1000
MAX_ROWS = 200
PROGRESS_SECONDS = 1.0
_ORIGIN = re.compile(rb"^\s*\$ORIGIN\s+([!-~]+)", re.IGNORECASE | re.MULTILINE)
_RECORD = re.compile(rb"^[^\s;$]", re.MULTILINE)
_FILE_NAME = re.compile(r"(?:db\.)?(.+?)(?:\.zone|\.db|\.txt)?\Z")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    _common(parser)
    parser.set_defaults(action=None, dry_run=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    _action(actions, "list", "all zones")
    show = _action(actions, "show", "the records of a zone", zone=True)
    show.add_argument("--name", help="only those at this name")
    show.add_argument("--type", help="only those of this type")
    make = _change(actions, "make", "make a zone, or say who serves it", zone=True)
    make.add_argument(
        *("--nameserver", "-n"), action="append", required=True, metavar="NAME", dest="nameservers"
    )
    make.add_argument("--contact", help="who is responsible: a mailbox")
    change = _change(actions, "set", "set the records of one type at a name", zone=True)
    change.add_argument("name", metavar="NAME")
    change.add_argument("type", metavar="TYPE")
    change.add_argument("rdata", metavar="RDATA", nargs="+", help="of one record each")
    change.add_argument("--ttl", type=int, default=300, help="seconds (default: 300)")
    delete = _change(actions, "delete", "delete records, or a whole zone", zone=True)
    delete.add_argument("name", metavar="NAME", nargs="?")
    delete.add_argument("type", metavar="TYPE", nargs="?")
    read = _change(actions, "import", "make zones of master files, or replace them")
    read.add_argument("files", metavar="FILE", nargs="+", type=Path, help="or a folder of files")
    read.add_argument(
        "--zone",
        help="of the one file; else its SOA, its $ORIGIN or its name says which zone it is",
    )
    export = _action(actions, "export", "a zone as a master file", zone=True)
    export.add_argument("--output", "-o", metavar="FILE", type=Path, help="instead of stdout")
    differ = _action(actions, "diff", "what the import of a file would change", zone=True)
    differ.add_argument("file", metavar="FILE", type=Path)
    wildcard = _change(actions, "wildcard", "have every app's hostname lead to the gateways")
    wildcard.add_argument("addresses", metavar="ADDRESS", nargs="+")


def _change(actions: Any, name: str, text: str, *, zone: bool = False) -> argparse.ArgumentParser:
    parser = _action(actions, name, text, zone=zone)
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what would change, and change nothing"
    )
    return parser


def _action(actions: Any, name: str, text: str, *, zone: bool = False) -> argparse.ArgumentParser:
    """An action that takes the options of the command behind its name, too."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[:1].upper()}{text[1:]}.", epilog=WHERE
    )
    _common(parser, default=argparse.SUPPRESS)
    if zone:
        parser.add_argument("zone", metavar="ZONE")
    return parser


def _common(parser: argparse.ArgumentParser, default: Any = None) -> None:
    add_arguments(parser, default=default)
    given = {} if default is None else {"default": default}
    parser.add_argument("--json", action="store_true", help="JSON instead of text", **given)


def run(args: argparse.Namespace) -> int:
    gateways = endpoints(args)
    try:
        match args.action:
            case None | "list":
                return _list(gateways, args)
            case "show":
                return _show(gateways, args)
            case "export":
                return _export(gateways, args)
            case "import":
                return _import(gateways, args)
            case "wildcard":
                body = {"addresses": args.addresses}
                path = f"/api/v3/dns/app-wildcards{_query(args)}"
                told = done(ask_any(gateways, "PUT", path, body)[1])
                return _told(told["zones"], args, told)
        written = done(_write(gateways, args), (200, 201))
        return _told([written], args, written)
    except Unreachable as error:
        raise CommandError(str(error)) from None


def _write(gateways: Sequence[Endpoint], args: argparse.Namespace) -> Answer:
    path, query = _path(args.zone), _query(args)
    match args.action:
        case "make":
            body: dict[str, object] = {"nameservers": [_dotted(name) for name in args.nameservers]}
            if args.contact:
                body["contact"] = args.contact
            return ask_any(gateways, "PUT", f"{path}{query}", body)[1]
        case "set":
            body = {"ttl": args.ttl, "rdata": args.rdata}
            return ask_any(gateways, "PUT", f"{_place(args)}{query}", body)[1]
        case "delete" if args.name is None:
            return ask_any(gateways, "DELETE", f"{path}{query}")[1]
        case "delete":
            if args.type is None:
                raise CommandError("name a type behind the name, or neither for the whole zone")
            return ask_any(gateways, "DELETE", f"{_place(args)}{query}")[1]
    query = "?dry_run=true"
    return _send_file(gateways, args.zone, _read(args.file), query)


# ---- reading ----


def _list(gateways: Sequence[Endpoint], args: argparse.Namespace) -> int:
    zones: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = done(ask_any(gateways, "GET", f"{ZONES}?limit={PAGE}&cursor={cursor}")[1])
        zones += page["zones"]
        cursor = page["next_cursor"]
    if args.json:
        print(json.dumps({"zones": zones, "age_seconds": page["age_seconds"]}))
        return 0
    if page["age_seconds"] >= 1:
        print(f"the bus is away; this is as of {page['age_seconds']:.0f} s ago")
    if not zones:
        print("no zone is there; smartgw zones make ZONE --nameserver NAME")
        return 0
    rows = [("ZONE", "SERIAL", "RECORDS", "CHANGED")]
    rows += [
        (zone["zone"], str(zone["serial"]), str(zone["records"]), zone["updated_at"])
        for zone in zones[:MAX_ROWS]
    ]
    print("\n".join(columns(rows)))
    if len(zones) > MAX_ROWS:
        print(f"... and {len(zones) - MAX_ROWS} more (--json shows all)")
    return 0


def _show(gateways: Sequence[Endpoint], args: argparse.Namespace) -> int:
    wanted = {"limit": str(PAGE)}
    if args.name is not None:
        wanted["name"] = _absolute(args.name, args.zone)
    if args.type is not None:
        wanted["type"] = args.type
    rrsets: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None and (args.json or len(rrsets) <= MAX_ROWS):
        query = urlencode({**wanted, "cursor": cursor})
        page = done(ask_any(gateways, "GET", f"{_path(args.zone)}/rrsets?{query}")[1])
        rrsets += page["rrsets"]
        cursor = page["next_cursor"]
    if args.json:
        print(json.dumps({"zone": _dotted(args.zone), "serial": page["serial"], "rrsets": rrsets}))
        return 0
    rows = [
        (rrset["name"], str(rrset["ttl"]), rrset["type"], rdata)
        for rrset in rrsets[:MAX_ROWS]
        for rdata in rrset["rdata"]
    ]
    print("\n".join(columns(rows)) if rows else "no such records")
    if len(rrsets) > MAX_ROWS:
        print(f"... and more; smartgw zones export {args.zone}")
    return 0


def _export(gateways: Sequence[Endpoint], args: argparse.Namespace) -> int:
    fields = {"Accept": MASTER}
    text: bytes = done(ask_any(gateways, "GET", f"{_path(args.zone)}/file", None, fields)[1])
    try:
        if args.output is not None:
            args.output.write_bytes(text)
        else:
            sys.stdout.write(text.decode())
    except OSError as error:
        raise CommandError(f"{args.output}: {error.strerror}") from None
    return 0


# ---- importing ----


def _import(gateways: Sequence[Endpoint], args: argparse.Namespace) -> int:
    """Import files one after the other; those that are refused are told, and the others done."""
    files = list(_files(args.files))
    if args.zone is not None and len(files) != 1:
        raise CommandError("--zone is for one file")
    told: list[dict[str, Any]] = []
    refused = 0
    since = time.monotonic()
    for number, path in enumerate(files, 1):
        data = _read(path)
        zone = args.zone or zone_of(path, data)
        answer = _send_file(gateways, zone, data, _query(args))
        while answer.status == 429:
            # A service may only do so much at a time, and we may take our time.
            time.sleep(float(answer.fields.get("retry-after", 1)))
            answer = _send_file(gateways, zone, data, _query(args))
        if answer.status in (200, 201):
            told.append(answer.body)
        elif answer.status in (400, 409, 413):
            refused += 1
            line = answer.detail("line")
            where = f"{path}:{line}" if line else str(path)
            text = re.sub(r"^line \d+: ", "", answer.error)
            print(clean(f"{where}: {text}"), file=sys.stderr)
        else:
            try:
                done(answer)
            except CommandError as error:
                before = f" ({len(told)} of {len(files)} are imported)" if len(files) > 1 else ""
                raise CommandError(f"{path}: {error}{before}") from None
        if len(files) > 1 and time.monotonic() > since + PROGRESS_SECONDS:
            since = time.monotonic()
            print(f"  {number:,} of {len(files):,} zones", file=sys.stderr, flush=True)
    if len(files) > 1 and not args.json:
        records = sum(one["records"] for one in told)
        made = f"{counted(len(told), 'zone')} with {counted(records, 'record')}"
        print(f"{made}, {refused:,} refused")
    elif told:
        _told(told, args, told[0] if len(files) == 1 else {"zones": told})
    return 1 if refused else 0


def zone_of(path: Path, data: bytes) -> str:
    """Return which zone a master file is of: the one whose SOA it begins with, where it says which
    that is, else that of its $ORIGIN before any record, else that of its name.
    """
    apex = apex_of(data.decode("utf-8-sig", "replace"))
    if apex is not None:
        return text_of(apex)
    found, first = _ORIGIN.search(data), _RECORD.search(data)
    if found is not None and (first is None or found.start() < first.start()):
        return found[1].decode()
    named = _FILE_NAME.match(path.name)
    return named[1] if named else path.name


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.iterdir() if one.is_file())
        else:
            yield path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None


def _send_file(gateways: Sequence[Endpoint], zone: str, data: bytes, query: str) -> Answer:
    fields = {"Content-Type": MASTER}
    return ask_any(gateways, "PUT", f"{_path(zone)}/file{query}", data, fields)[1]


# ---- telling ----


def _told(
    written: Sequence[Mapping[str, Any]], args: argparse.Namespace, whole: Mapping[str, Any]
) -> int:
    """Show what came of a write."""
    if args.json:
        print(json.dumps(whole))
        return 0
    for one in written:
        print(clean(_headline(one)))
        for line in _lines(one["own"]):
            print(clean(line))
        if one["others"]:
            print("answers of others that change:")
        for line in _lines(one["others"], messages=True):
            print(clean(line))
        if not one["complete"]:
            print("... and more")
        for advice in one["advice"]:
            print(clean(f"advice: {advice['message']}"))
    return 0


def _headline(one: Mapping[str, Any]) -> str:
    would = "would be" if one["dry_run"] else "is"
    if one["serial"] is None:
        return f"{one['zone']} {would} deleted"
    state = f"serial {one['serial']}, {counted(one['records'], 'record')}"
    if not one["changed"]:
        return f"{one['zone']} is so already: {state}"
    return f"{one['zone']} {would} at {state}"


def _lines(changes: Iterable[Mapping[str, Any]], *, messages: bool = False) -> Iterator[str]:
    for change in changes:
        if messages:
            yield f"  {change['message']}"
        before, after = change["before"], change["after"]
        gone = [line for line in _shown(before) if line not in _shown(after)]
        new = [line for line in _shown(after) if line not in _shown(before)]
        yield from (f"  - {line}" for line in gone)
        yield from (f"  + {line}" for line in new)


def _shown(answer: Mapping[str, Any]) -> list[str]:
    records: list[str] = answer["records"]
    status = answer["status"]
    return records if records else ["no records" if status == "NOERROR" else status]


# ---- names ----


def _path(zone: str) -> str:
    return f"{ZONES}/{quote(_dotted(zone), safe='')}"


def _place(args: argparse.Namespace) -> str:
    name = quote(_absolute(args.name, args.zone), safe="")
    return f"{_path(args.zone)}/rrsets/{name}/{quote(args.type, safe='')}"


def _absolute(name: str, zone: str) -> str:
    if name == "@":
        return _dotted(zone)
    return name if name.endswith(".") else f"{_dotted(name)}{_dotted(zone).lstrip('.')}"


def _dotted(name: str) -> str:
    if not name:
        # With a dot it would be the root, below which all names are.
        raise CommandError("a name is empty; write . for the root, @ for the zone itself")
    return name if name.endswith(".") else f"{name}."


def _query(args: argparse.Namespace) -> str:
    return "?dry_run=true" if args.dry_run else ""
