"""`smartgw serve`: run one gateway until SIGTERM or Ctrl-C (contract 11.1, 12.4).

Owns what serving takes from the configuration and how it begins and ends. What a gateway is
made of is `smartgw.app`'s.
"""

import argparse
import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from smartgw.cli import CommandError
from smartgw.cli.process import cancel_on_signal, log_to_stderr, open_many_files

if TYPE_CHECKING:
    from smartgw.config import Settings

HELP = "run a gateway"
EXAMPLES = """\
Settings come from the file, then from SMARTGW_* variables over it; `smartgw check` tells what
is wrong with them and docs/configuration.md lists them. The gateway tells about itself on
stderr; the access log is set by [log]. SIGTERM and Ctrl-C end it in order, a second one at once.

examples:
  smartgw serve --config /etc/smartgw/smartgw.toml
  SMARTGW_LISTEN__HTTP=127.0.0.1:8081 smartgw serve --config smartgw.toml
"""

_log = logging.getLogger("smartgw")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the TOML file (default: $SMARTGW_CONFIG)"
    )
    parser.add_argument("--json", action="store_true", help="write stderr as JSON lines")


def run(args: argparse.Namespace) -> int:
    import uvloop

    from smartgw.config import ConfigError, load
    from smartgw_hosts.enrolment import EnrolmentError

    try:
        settings = load(args.config, os.environ)
    except ConfigError as error:
        count = len(error.problems)
        raise CommandError(
            f"the configuration has {count} problem{'s' * (count != 1)}\n{error}"
        ) from None
    log_to_stderr(settings.log.level, as_json=args.json)
    open_many_files()
    try:
        uvloop.run(_serve(settings))
    except EnrolmentError as error:
        raise CommandError(f"the enrolment list is refused\n{error}") from None
    except OSError as error:
        # A port in use, an address that is not ours, a log that cannot be opened.
        reason = error.strerror or str(error)
        where = f": {error.filename}" if error.filename else ""
        raise CommandError(f"cannot start: {reason}{where}") from None
    return 0


async def _serve(settings: "Settings") -> None:
    """Run a gateway until a signal; OSError and EnrolmentError tell why it cannot start."""
    from smartgw.app import Gateway

    cancel_on_signal()
    if settings.trust.mode == "first-use":
        _log.warning(
            "TRUST IS FIRST USE: whoever reaches the bus can take an app's traffic; "
            'for development only, else set trust.mode = "enrolment"'
        )
    gateway = Gateway(settings)
    try:
        await gateway.start()
        http = ", ".join(settings.listen.http)
        _log.info("serving on %s, internal %s", http, settings.listen.internal)
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _log.info("ending")
    finally:
        await gateway.stop()
