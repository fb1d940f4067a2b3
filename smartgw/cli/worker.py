"""`smartgw worker`: one process that carries traffic for `smartgw serve --workers N` (11.1).

Owns what such a process inherits from the one that starts it. It is of no use by hand.
"""

import argparse
import logging
import socket

from smartgw.cli import CommandError
from smartgw.cli.process import log_to_stderr, open_many_files, quiet_loop

HELP = "carry traffic for `smartgw serve`, which starts it by itself"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", type=int, required=True, help="descriptor to the parent")
    parser.add_argument("--parent", type=int, required=True, help="the parent's process id")
    parser.add_argument(
        "--listen", type=int, action="append", default=[], help="descriptor to accept from"
    )
    parser.add_argument(
        "--links", type=int, action="append", default=[], help="descriptor for links of peers"
    )
    parser.add_argument("--json", action="store_true", help="write stderr as JSON lines")


def run(args: argparse.Namespace) -> int:
    import uvloop

    from smartgw.processes.parent import die_with
    from smartgw.processes.sockets import HTTP, LINKS
    from smartgw.processes.worker import Worker, inherited

    if not die_with(args.parent):
        raise CommandError("only `smartgw serve` starts workers, and it has ended")
    log_to_stderr("info", as_json=args.json)
    open_many_files()
    try:
        end = socket.socket(fileno=args.channel)
        listeners = [inherited(HTTP, fd) for fd in args.listen]
        listeners += [inherited(LINKS, fd) for fd in args.links]
    except OSError as error:
        raise CommandError(f"a descriptor is not there: {error.strerror}") from None

    async def work() -> None:
        quiet_loop(logging.getLogger("smartgw"))
        await Worker(listeners).run(end)

    uvloop.run(work())
    return 0
