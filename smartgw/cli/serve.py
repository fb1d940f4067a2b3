"""`smartgw serve`: run one gateway until SIGTERM or Ctrl-C (contract 11.1, 12.4).

Owns what serving takes from the configuration and how it begins and ends. What a gateway is
made of is `smartgw.app`'s.
"""

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from smartgw.cli import CommandError
from smartgw.cli.process import (
    cancel_on_signal,
    log_to_stderr,
    on_end,
    open_many_files,
    quiet_loop,
)

if TYPE_CHECKING:
    from smartgw.app import Gateway
    from smartgw.config import Settings
    from smartgw.processes.sockets import Listener

HELP = "run a gateway"
EXAMPLES = """\
Settings come from the file, then from SMARTGW_* variables over it; `smartgw check` tells what
is wrong with them and docs/configuration.md lists them. The gateway tells about itself on
stderr; the access log is set by [log]. SIGTERM and Ctrl-C end it in order, a second one at once;
SIGHUP reads the configuration again and reopens the access log. Sockets that systemd passes are
used; where processes.handover is set, a running gateway hands over to the new one.

examples:
  smartgw serve --config /etc/smartgw/smartgw.toml
  smartgw serve --config smartgw.toml --workers 4
  SMARTGW_LISTEN__HTTP=127.0.0.1:8081 smartgw serve --config smartgw.toml
"""

_log = logging.getLogger("smartgw")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the TOML file (default: $SMARTGW_CONFIG)"
    )
    parser.add_argument(
        "--workers", metavar="N", help="processes that carry traffic (processes.workers)"
    )
    parser.add_argument("--json", action="store_true", help="write stderr as JSON lines")


def run(args: argparse.Namespace) -> int:
    # Whoever changes a file while we start may say so at once.
    early: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: early.append(number))
    import uvloop

    from smartgw.config import ConfigError, load
    from smartgw.processes.sockets import activated
    from smartgw_hosts.enrolment import EnrolmentError

    env = dict(os.environ)
    if args.workers is not None:
        env["SMARTGW_PROCESSES__WORKERS"] = args.workers

    def read() -> "Settings":
        return load(args.config, env)

    try:
        settings = read()
    except ConfigError as error:
        count = len(error.problems)
        raise CommandError(
            f"the configuration has {count} problem{'s' * (count != 1)}\n{error}"
        ) from None
    log_to_stderr(settings.log.level, as_json=args.json)
    open_many_files()
    try:
        passed = activated(os.environ, os.getpid())
        uvloop.run(_serve(settings, read, passed, early, as_json=args.json))
    except EnrolmentError as error:
        raise CommandError(f"the enrolment list is refused\n{error}") from None
    except OSError as error:
        # A port in use, an address that is not ours, a log that cannot be opened.
        reason = error.strerror or str(error)
        where = f": {error.filename}" if error.filename else ""
        raise CommandError(f"cannot start: {reason}{where}") from None
    return 0


async def _serve(
    settings: "Settings",
    read: Callable[[], "Settings"],
    passed: Sequence["Listener"],
    early: Sequence[int],
    *,
    as_json: bool,
) -> None:
    """Run a gateway until it has ended; OSError and EnrolmentError tell why it cannot start.

    `early`: not empty when SIGHUP has come already.
    """
    from smartgw.app import Gateway

    cancel_on_signal()
    quiet_loop(_log)
    if settings.trust.mode == "first-use":
        _log.warning(
            "TRUST IS FIRST USE: whoever reaches the bus can take an app's traffic; "
            'for development only, else set trust.mode = "enrolment"'
        )
    gateway = Gateway(settings, activated=passed, as_json=as_json)
    tasks: set[asyncio.Task[None]] = set()

    def spawn(coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    wanted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, wanted.set)
    if early:
        wanted.set()

    async def reload() -> None:
        while await wanted.wait():
            wanted.clear()
            try:
                await _reload(gateway, read)
            except Exception:  # an error of ours must not leave the next one unheard
                _log.exception("the configuration could not be read again")

    try:
        await gateway.start()
        spawn(reload())
        on_end(lambda number: spawn(_leave(gateway, number)))
        http = ", ".join(settings.listen.http)
        _log.info("serving on %s, internal %s", http, settings.listen.internal)
        await gateway.leaving.ended.wait()
    except asyncio.CancelledError:
        _log.info("ending")
    finally:
        await gateway.stop()


async def _leave(gateway: "Gateway", number: int) -> None:
    """End in order. Whoever pressed Ctrl-C is no load balancer that must see that we are not
    ready, and neither is anybody when we never were.
    """
    _log.info("ending")
    wait = number == signal.SIGTERM and gateway.readiness().ready
    await gateway.leaving.begin(wait=wait, final=True)


async def _reload(gateway: "Gateway", read: Callable[[], "Settings"]) -> None:
    from smartgw.config import ConfigError
    from smartgw_hosts.enrolment import EnrolmentError

    try:
        # In a thread: it reads files, and traffic does not wait for them.
        await gateway.reload(await asyncio.to_thread(read))
    except (ConfigError, EnrolmentError, OSError) as error:
        _log.error("the configuration in force stays, for the new one is refused:\n%s", error)
