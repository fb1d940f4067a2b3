"""`smartgw replay`: the hosts as a gateway knew them at a recorded moment, and why (contract 1.9).

Owns how a moment is named and how the answers are laid out. What a recording is and what it means
is smartgw_hosts.tape's and the pool's; nothing is judged here.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgw.cli import CommandError
from smartgw.cli.status import clean, hosts_table

if TYPE_CHECKING:
    from smartgw_hosts.records import HostRecord, Ignored
    from smartgw_hosts.tape import Entry, Player

HELP = "show from a recording what a gateway knew of its hosts, and why"
EXAMPLES = """\
A gateway with discovery.record set writes FILE, and keeps the one before it as FILE.1; each can
be replayed by itself. The end of the file is shown, or the moment that is named. A TIME is like
2027-01-31T12:00:00Z, or Unix seconds.

examples:
  smartgw replay discovery.jsonl
  smartgw replay discovery.jsonl --at 2027-01-31T12:00:00Z --host shop-1
  smartgw replay discovery.jsonl --follow shop-1       every change of one host, and its cause
"""

MAX_NAMED = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", type=Path, help="what discovery.record named")
    moment = parser.add_mutually_exclusive_group()
    moment.add_argument("--at", metavar="TIME", type=_time, help="as it was at this time")
    moment.add_argument("--until", metavar="LINE", type=_line, help="as it was after this line")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--host", metavar="ID", help="this host only")
    what.add_argument("--follow", metavar="ID", help="each change of this host, with its cause")
    parser.add_argument("--json", action="store_true", help="JSON, as the API shows hosts")


def run(args: argparse.Namespace) -> int:
    from smartgw_hosts.records import Ignored, Update
    from smartgw_hosts.tape import Player, TapeRefused

    player = Player()
    last: Entry | None = None
    told = False
    seen: set[str] = set()
    try:
        with args.file.open("rb") as file:
            for entry in _until(file, args):
                before = player.pool.record(args.follow) if args.follow else None
                actions = player.play(entry)
                if args.follow:
                    after = player.pool.record(args.follow)
                    refused = [a for a in actions if isinstance(a, Ignored)]
                    why = next((a for a in refused if a.host_id == args.follow), None)
                    if why is not None or _changed(before, after):
                        _tell(entry, before, after, why, as_json=args.json)
                        told = True
                    seen.update(a.record.host_id for a in actions if isinstance(a, Update))
                last = entry
    except OSError as error:
        raise CommandError(f"{args.file}: {error.strerror}; name a recording") from None
    except TapeRefused as error:
        raise CommandError(
            f"{args.file}: {error}; --until LINE replays what stands before it"
        ) from None
    if last is None:
        where = "begins later" if args.at is not None else "holds no whole line"
        older = args.file.with_name(f"{args.file.name}.1")
        raise CommandError(f"{args.file}: {where}" + f"; look into {older}" * older.exists())
    if args.follow:
        # A recording begins with the hosts that were known then.
        seen.update(record.host_id for record in player.pool.records())
        if not told and args.follow not in seen:
            hosts = sorted(seen)
            more = f" and {len(hosts) - MAX_NAMED} more" * (len(hosts) > MAX_NAMED)
            named = clean(", ".join(hosts[:MAX_NAMED]) or "none")
            raise CommandError(
                f"no host {clean(args.follow)} in this recording; hosts: {named}{more}"
            )
        return 0
    return _show(player, last, args.host, as_json=args.json)


def _until(lines: Iterable[bytes], args: argparse.Namespace) -> "Iterator[Entry]":
    from smartgw_hosts.tape import read

    for entry in read(lines):
        if args.at is not None and entry.wall > args.at:
            return
        yield entry
        if entry.line == args.until:
            return


def _show(player: "Player", last: "Entry", host_id: str | None, *, as_json: bool) -> int:
    from smartgw.api.answers import rfc3339
    from smartgw.api.observed import host_json

    offset = last.wall - last.now
    hosts = [
        {**host_json(record, last.now, offset), "detail": record.detail}
        for record in player.pool.records()
        if host_id in (None, record.host_id)
    ]
    refused = {str(reason): count for reason, count in player.pool.counters.items() if count}
    if as_json:
        told = {"line": last.line, "time": rfc3339(last.wall), "refused": refused, "hosts": hosts}
        print(json.dumps(told))
    else:
        print(f"after line {last.line}, {rfc3339(last.wall)}: {_cause(last)}")
        if refused:
            counts = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items()))
            print(f"refused   {counts}")
        print()
        for line in hosts_table([_with_detail(host) for host in hosts], len(hosts)):
            print(line)
    if host_id is not None and not hosts:
        raise CommandError(f"host {clean(host_id)} is not known at that moment")
    return 0


def _with_detail(host: dict[str, Any]) -> dict[str, Any]:
    detail = f": {host['detail']}" if host["detail"] else ""
    return {**host, "reason": host["reason"] + detail}


def _tell(
    entry: "Entry",
    before: "HostRecord | None",
    after: "HostRecord | None",
    ignored: "Ignored | None",
    *,
    as_json: bool,
) -> None:
    """Print what an input changed for a host, or that a message of its was refused."""
    from smartgw.api.answers import rfc3339

    if ignored is not None:
        step = f"ignored ({ignored.reason}: {ignored.detail})"
    else:
        step = f"{_state(before)} -> {_state(after)}"
    if as_json:
        told = {
            "line": entry.line,
            "time": rfc3339(entry.wall),
            "cause": _cause(entry),
            "before": None if before is None else str(before.state),
            "after": None if after is None else str(after.state),
            "reason": None if after is None else after.reason,
            "step": step,
        }
        print(json.dumps(told))
    else:
        print(clean(f"{entry.line:>8}  {rfc3339(entry.wall)}  {step}  [{_cause(entry)}]"))


def _changed(before: "HostRecord | None", after: "HostRecord | None") -> bool:
    """Tell whether more changed than when it was last verified."""
    if before is None or after is None:
        return before is not after
    return replace(before, verified_at=None) != replace(after, verified_at=None)


def _state(record: "HostRecord | None") -> str:
    if record is None:
        return "unknown"
    detail = f": {record.detail}" if record.detail else ""
    moving = f", moving to {record.pending_address}" if record.pending_address else ""
    return f"{record.state} ({record.reason}{detail}) at {record.address}{moving}"


def _cause(entry: "Entry") -> str:
    """An input in a few words."""
    told = entry.input[2:]
    match entry.kind:
        case "begin":
            why = {"start": "the gateway started", "full": "a new file", "lost": "after a gap"}
            return f"the recording begins, {why.get(told[-1], told[-1])}"
        case "message":
            return f"message on {told[1]}"
        case "verdict":
            return f"verdict of challenge {told[0]}: {told[1]}{told[2] and ', ' + told[2]}"
        case "suspect":
            return f"the data path could not reach {told[0]}"
        case "enrol":
            return f"enrolment list of {len(told[1])}"
        case "restore":
            return f"{len(told[1])} hosts of the snapshot"
        case "tick":
            return "time passed"
        case "bus_lost":
            return "the bus is away"
        case "bus_answered":
            return "the bus answered"
        case "stalled":
            return f"the gateway did not run, or lost messages, for {told[0]:.1f} s"
        case "refused":
            return f"a message was refused: {told[0]}"
    return entry.kind


def _time(text: str) -> float:
    # A year alone would be taken for seconds after 1970.
    if re.fullmatch(r"[0-9]{9,12}(\.[0-9]*)?", text):
        return float(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write 2027-01-31T12:00:00Z"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _line(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,11}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no line, which are counted from 1")
    return int(text)
