"""`smartgw drain`: take a gateway, or one host, out of use without ending it (contract 11.1).

Owns the words. The gateway does it; see POST /api/v3/drain of the internal API.
"""

import argparse
import json

from smartgw.cli import CommandError
from smartgw.cli.endpoint import WHERE, Unreachable, add_arguments, ask, done, endpoints

HELP = "take a gateway, or one host, out of use and back"
EXAMPLES = f"""\
A drained gateway says that it is not ready, waits processes.unready_wait, accepts nobody any
more and ends what is open within processes.drain, like one that is told to end; but it goes on
running, and --undo has it serve again. A drained host gets no new requests; what it carries goes
on. Nothing of it outlives a restart.

{WHERE}
examples:
  smartgw drain --endpoint 127.0.0.1:9080
  smartgw drain --undo
  smartgw drain --host shop-1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_arguments(parser)
    parser.add_argument("--host", metavar="ID", help="a host instead of the gateway")
    parser.add_argument("--undo", action="store_true", help="back into use")
    parser.add_argument("--json", action="store_true", help="JSON instead of a sentence")


def run(args: argparse.Namespace) -> int:
    gateways = endpoints(args)
    if len(gateways) > 1:
        named = ", ".join(gateway.address for gateway in gateways)
        raise CommandError(f"the demo has several gateways; name one with --endpoint: {named}")
    (endpoint,) = gateways
    asked = {"undo": args.undo, **({"host": args.host} if args.host else {})}
    try:
        answer = done(ask(endpoint, "POST", "/api/v3/drain", asked))
    except Unreachable as error:
        raise CommandError(str(error)) from None
    if args.json:
        print(json.dumps(answer))
    elif args.host:
        print(f"host {args.host} is {'out of' if answer['drained'] else 'back in'} use")
    else:
        words = {"serving": "in use", "drained": "drained"}.get(answer["phase"], "draining")
        print(f"the gateway at {endpoint.address} is {words}")
    return 0
