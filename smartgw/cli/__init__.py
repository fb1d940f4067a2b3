"""The command line `smartgw` (contract 12.4): which commands there are, and how they end.

Owns the list of commands, the exit codes (0 done, 1 refused or failed, 2 wrong usage) and the
one line that a user error prints. Each command is a module with HELP, configure(parser) and
run(args); only the one that is asked for is imported, and it imports what is heavy in run().
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Protocol, cast

# Each command and the extras of the distribution that it needs beyond a plain install.
COMMANDS = {
    "serve": "gateway",
    "check": "gateway",
    "status": "",
    "host": "",
    "keygen": "",
    "demo": "gateway,embedded",
    "drain": "",
    "owner": "",
    "apps": "",
    "hosts": "",
    "enrol": "",
    "explain": "",
    "zones": "",
    "dig": "",
    "token": "gateway",
    "replay": "gateway",
    "worker": "gateway",
    "compile": "native",
}

DESCRIPTION = "Routes browser traffic by hostname to hosts that announced and proved themselves."
EXAMPLES = """\
examples:
  smartgw demo                                       a whole gateway with hosts, on this machine
  smartgw check --config smartgw.toml                what is wrong with a configuration
  smartgw serve --config smartgw.toml                run a gateway
  smartgw keygen shop-1.seed --host shop-1 --app shop --cluster eu-1
  smartgw COMMAND --help                             more about a command

exit codes: 0 done, 1 refused or failed, 2 wrong usage
"""


class CommandError(Exception):
    """What a command could not do: one line for the user, exit code 1."""


class Command(Protocol):
    """What each module of this package offers."""

    HELP: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code. Usage errors and --help raise SystemExit."""
    wanted = next((argument for argument in argv if not argument.startswith("-")), None)
    try:
        args = _parser(wanted).parse_args(argv)
        return _load(args.command).run(args)
    except ModuleNotFoundError as error:
        if not _foreign(error):
            raise
        print(f"smartgw {wanted}: {_remedy(wanted or '', error)}", file=sys.stderr)
    except CommandError as error:
        print(f"smartgw {wanted}: {error}", file=sys.stderr)
    except UnicodeEncodeError as error:
        # Bytes of the command line that are no text have become lone surrogates.
        if error.encoding != "utf-8":
            raise
        print(f"smartgw {wanted}: an argument is not text in UTF-8", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # The reader has gone (`smartgw status | head`); nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _parser(wanted: str | None) -> argparse.ArgumentParser:
    """Return the parser; commands other than the wanted one are known by name only."""
    parser = argparse.ArgumentParser(
        "smartgw",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"smartgw {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        if wanted == name:
            command = _load(name)
            command.configure(
                commands.add_parser(
                    name,
                    help=command.HELP,
                    description=f"{command.HELP[:1].upper()}{command.HELP[1:]}.",
                    formatter_class=argparse.RawDescriptionHelpFormatter,
                )
            )
        else:
            commands.add_parser(name, help=_help(name) if wanted is None else None)
    return parser


def _load(name: str) -> Command:
    return cast(Command, importlib.import_module(f"smartgw.cli.{name}"))


def _help(name: str) -> str:
    try:
        return _load(name).HELP
    except ModuleNotFoundError as error:
        if not _foreign(error):
            raise
        return _remedy(name, error)


def _foreign(error: ModuleNotFoundError) -> bool:
    return not (error.name or "smartgw").startswith("smartgw")


def _remedy(name: str, error: ModuleNotFoundError) -> str:
    extra = COMMANDS.get(name) or "gateway"
    return f"needs {error.name}, not installed here; run: pip install 'smart-gateway[{extra}]'"


def _version() -> str:
    return version("smart-gateway")
