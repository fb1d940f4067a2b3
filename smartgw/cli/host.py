"""`smartgw host`: the sidecar that makes an app in any language a host (contract 12.4).

Owns what the options and SMARTGW_HOST_* variables mean, and the order in which a host appears and
goes. What the sidecar and the agent do is `smartgw_hosts`'s.
"""

import argparse
import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from smartgw.cli import CommandError
from smartgw.cli.process import cancel_on_signal, log_to_stderr, open_many_files
from smartgw_hosts import keyfile
from smartgw_hosts.addresses import Address, AddressRefused, parse_address
from smartgw_hosts.agent import HostAgent
from smartgw_hosts.bus_connection import BusAddress
from smartgw_hosts.ids import check_app_id, check_id
from smartgw_hosts.sidecar import Sidecar
from smartgw_hosts.wire import TEXT_BYTES, WEIGHTS

_T = TypeVar("_T")

HELP = "announce an app that runs here, and prove and relay what gateways send it"
EXAMPLES = """\
Gateways reach the app through this process: it answers their challenges with the host's key and
passes all other requests on. The app itself is best reachable from this machine only. Every
option may stand in the environment too: SMARTGW_HOST_TO for --to and so on; SMARTGW_HOST_APP,
SMARTGW_HOST_BUS, SMARTGW_HOST_GATEWAY as a,b,c; SMARTGW_HOST_RAW=1.

  1. smartgw keygen shop-1.seed --host shop-1 --cluster eu-1 --app shop
     makes the key and prints the entry for the gateways' enrolment file.
  2. Run the app, here on port 3000, and then:
     smartgw host --app shop --to http://127.0.0.1:3000 --listen 0.0.0.0:9000 \\
       --announce http://10.0.0.5:9000 --cluster eu-1 --id shop-1 --key shop-1.seed \\
       --bus nats://10.0.0.1:4222
  3. `smartgw status` beside the gateway tells whether the host is healthy, or why not.

With several clusters, --gateway has writes for apps of another one refused (421). Nothing is with
--raw.

SIGTERM and Ctrl-C end it in order: it leaves the bus, finishes what is in flight (20 s) and
exits; a second one ends it at once. The file KEY.boot beside the key remembers the last start.
"""

_log = logging.getLogger("smartgw.host")
_MANY = ("app", "bus", "gateway")
_NEEDED = ("app", "to", "cluster", "id", "key")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.set_defaults(wrong_usage=parser.error)
    for name, metavar, read, default, text in _OPTIONS:
        flags = [f"--{name}", "--host-id"] if name == "id" else [f"--{name}"]
        if name in _MANY:
            parser.add_argument(
                *flags, metavar=metavar, type=read, action="append", help=f"{text}; may be repeated"
            )
        else:
            # A default that is a string is read and judged like what is typed.
            given = os.environ.get(_variable(name), default)
            parser.add_argument(
                *flags,
                dest=name.replace("-", "_"),
                metavar=metavar,
                type=read,
                default=given,
                help=text,
            )
    parser.add_argument(
        "--raw",
        action="store_true",
        default=os.environ.get(_variable("raw"), "0").lower() in ("1", "true", "yes", "on"),
        help="answer the challenge that opens a connection, then relay bytes unparsed",
    )
    parser.add_argument("--json", action="store_true", help="write stderr as JSON lines")


def run(args: argparse.Namespace) -> int:
    _complete(args)
    log_to_stderr("info", as_json=args.json)
    open_many_files()
    try:
        agent = _agent(args)
    except OSError as error:
        raise CommandError(f"{error.filename}: cannot be read ({error.strerror})") from None
    except (ValueError, keyfile.KeyFileError) as error:
        raise CommandError(str(error)) from None
    listen: Address = args.listen
    to: Address = args.to
    sidecar = Sidecar(
        agent.responder,
        (listen.host, listen.port),
        (to.host, to.port),
        raw=args.raw,
        guard=agent.guard,
    )
    try:
        asyncio.run(_serve(sidecar, agent, listen, to))
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"cannot listen on {listen.authority}: {reason}") from None
    return 0


async def _serve(sidecar: Sidecar, agent: HostAgent, listen: Address, to: Address) -> None:
    """Listen, then announce; leave, then finish what is in flight. Raises OSError at the start."""
    cancel_on_signal()
    with suppress(asyncio.CancelledError):
        async with sidecar, agent:
            apps = ", ".join(ascii(app)[1:-1] for app in agent.description.apps)
            text = "host of %s: listening on %s for %s, announced as %s"
            _log.info(text, apps, listen.authority, to, agent.description.address)
            try:
                await asyncio.Event().wait()
            finally:
                _log.info("leaving, then finishing what is in flight")


def _agent(args: argparse.Namespace) -> HostAgent:
    """Raises OSError for a file that cannot be read, ValueError for what is in one."""
    key: Path = args.key
    return HostAgent(
        cluster=args.cluster,
        host_id=args.id,
        identity=keyfile.load(key),
        address=args.announce,
        apps=args.app,
        bus_servers=args.bus,
        nkey_seed=args.bus_nkey.read_text() if args.bus_nkey else None,
        tls=_tls(args.bus_ca) if args.bus_ca else None,
        weight=args.weight,
        region=args.region,
        version=args.app_version,
        boot_file=key.with_name(f"{key.name}.boot"),
        gateways=() if args.raw else args.gateway or (),
        gateway_tls=_tls(args.gateway_ca) if args.gateway_ca else None,
    )


def _tls(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise ValueError(f"{ca}: holds no certificates in PEM form") from None


def _complete(args: argparse.Namespace) -> None:
    """Take from the environment, or from the rest, what was not given; usage errors exit."""
    read = {name: reader for name, _, reader, _, _ in _OPTIONS}
    for name in _MANY:
        text = os.environ.get(_variable(name), "")
        if getattr(args, name) is None and text:
            try:
                setattr(args, name, [read[name](part.strip()) for part in text.split(",")])
            except argparse.ArgumentTypeError as error:
                args.wrong_usage(f"{_variable(name)}: {error}")
    args.bus = args.bus or ["nats://127.0.0.1:4222"]
    missing = [f"--{name} (or {_variable(name)})" for name in _NEEDED if not getattr(args, name)]
    if missing:
        args.wrong_usage(f"needed: {', '.join(missing)}")
    if args.announce is None:
        if args.listen.host in ("0.0.0.0", "::"):
            args.wrong_usage(
                f"--announce (or {_variable('announce')}) must say how gateways reach"
                f" this machine, because --listen is {args.listen.authority}, all interfaces"
            )
        args.announce = str(args.listen)
    if (args.to.host, args.to.port) == (args.listen.host, args.listen.port):
        args.wrong_usage("--to and --listen are the same address: the app needs its own")


def _variable(name: str) -> str:
    return f"SMARTGW_HOST_{name.upper().replace('-', '_')}"


def _checked(check: Callable[[str], _T]) -> Callable[[str], _T]:
    """The same check, its error as one of usage."""

    def read(text: str) -> _T:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except AddressRefused as error:
        raise ValueError(f"{text[:80]!a} {error}") from None


def _app_address(text: str) -> Address:
    address = _address(text)
    if address.scheme != "http":
        raise ValueError(f"{text[:80]!a}: the app is spoken to over http, on this machine")
    return address


def _gateway(text: str) -> str:
    return str(_address(text))


def _listener(text: str) -> Address:
    if not text.rpartition(":")[2].isdigit():
        raise ValueError(f"{text[:80]!a} must be host:port, as 0.0.0.0:9000 or [::]:9000")
    return _address(f"http://{text}")


def _weight(text: str) -> int:
    if not text.isdigit() or int(text) not in WEIGHTS:
        raise ValueError(f"{text[:80]!a} must be a number from {WEIGHTS[0]} to {WEIGHTS[-1]}")
    return int(text)


def _bus(text: str) -> str:
    BusAddress.parse(text, "a NATS server")
    return text


def _text(text: str) -> str:
    # What is not UTF-8 in a command line is a lone surrogate here, which is not printable.
    if not text.isprintable() or len(text.encode()) > TEXT_BYTES:
        raise ValueError(f"{text[:80]!a} must be printable and at most {TEXT_BYTES} bytes")
    return text


# Name, what stands for its value, how it is read, default, what it is.
_OPTIONS: tuple[tuple[str, str, Callable[[str], object], str | None, str], ...] = (
    ("app", "APP", _checked(check_app_id), None, "the id of an app that is served"),
    ("to", "URL", _checked(_app_address), None, "where the app is, as http://127.0.0.1:3000"),
    (
        "listen",
        "HOST:PORT",
        _checked(_listener),
        "0.0.0.0:9000",
        "where gateways connect (default: 0.0.0.0:9000)",
    ),
    (
        "announce",
        "URL",
        _checked(lambda text: str(_address(text))),
        None,
        "how gateways reach --listen (default: the same, unless it is all interfaces)",
    ),
    (
        "cluster",
        "ID",
        _checked(lambda text: check_id("cluster id", text)),
        None,
        "the cluster's id",
    ),
    ("id", "ID", _checked(lambda text: check_id("host id", text)), None, "this host's id"),
    ("key", "FILE", Path, None, "this host's key, made by `smartgw keygen`"),
    ("bus", "URL", _checked(_bus), None, "a NATS server (default: nats://127.0.0.1:4222)"),
    ("bus-nkey", "FILE", Path, None, "holds the NKey seed (SU...) that signs in to NATS"),
    ("bus-ca", "FILE", Path, None, "holds the PEM certificates that NATS servers are checked by"),
    (
        "gateway",
        "URL",
        _checked(_gateway),
        None,
        "a gateway of the cluster, which knows which cluster owns the app: its internal listener, "
        "as http://10.0.0.2:9080, or its own hostname; the first that answers counts",
    ),
    (
        "gateway-ca",
        "FILE",
        Path,
        None,
        "holds the PEM certificates that https gateways are checked by (default: the system's)",
    ),
    (
        "weight",
        "N",
        _checked(_weight),
        "100",
        "this host's share among those of an app, 1 to 1000 (default: 100)",
    ),
    ("region", "TEXT", _checked(_text), "", "where this host is, shown in status"),
    (
        "app-version",
        "TEXT",
        _checked(_text),
        "",
        "which version runs here, shown in status",
    ),
)
