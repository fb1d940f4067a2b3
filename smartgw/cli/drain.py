"""`smartgw drain`: take a gateway, or one host, out of use without ending it (contract 11.1).

Owns the words. The gateway does it; see POST /api/v3/drain of the internal API.
"""

import argparse
import http.client
import json
import os
from typing import Any

from smartgw.cli import CommandError
from smartgw.cli.status import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE, TIMEOUT

HELP = "take a gateway, or one host, out of use and back"
EXAMPLES = """\
A drained gateway says that it is not ready, waits processes.unready_wait, accepts nobody any
more and ends what is open within processes.drain, like one that is told to end; but it goes on
running, and --undo has it serve again. A drained host gets no new requests; what it carries goes
on. Nothing of it outlives a restart.

examples:
  smartgw drain --endpoint 127.0.0.1:9080
  smartgw drain --undo
  smartgw drain --host shop-1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        help=f"the gateway's internal listener (default: $SMARTGW_ENDPOINT, {DEFAULT_ENDPOINT})",
    )
    parser.add_argument("--host", metavar="ID", help="a host instead of the gateway")
    parser.add_argument("--undo", action="store_true", help="back into use")
    parser.add_argument("--json", action="store_true", help="JSON instead of a sentence")


def run(args: argparse.Namespace) -> int:
    endpoint = args.endpoint or os.environ.get(ENDPOINT_VARIABLE) or DEFAULT_ENDPOINT
    asked = {"undo": args.undo, **({"host": args.host} if args.host else {})}
    answer = _post(endpoint, asked)
    if args.json:
        print(json.dumps(answer))
    elif args.host:
        print(f"host {args.host} is {'out of' if answer['drained'] else 'back in'} use")
    else:
        print(f"the gateway at {endpoint} is {answer['phase']}")
    return 0


def _post(endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    connection = None
    try:
        connection = http.client.HTTPConnection(endpoint, timeout=TIMEOUT)
        connection.request("POST", "/api/v3/drain", json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CommandError(
            f"no gateway answers at {endpoint} ({reason}); "
            "name its internal listener with --endpoint HOST:PORT"
        ) from None
    finally:
        if connection is not None:
            connection.close()
    if response.status != 200 or not isinstance(answer, dict):
        said = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
        raise CommandError(str(said or f"{endpoint} answered {response.status}"))
    return answer
