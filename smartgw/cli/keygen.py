"""`smartgw keygen`: make a host's key, and show how to enrol it (contract 12.4, 1.4).

Owns what is printed; the file's form and its protection are `smartgw_hosts.keyfile`'s. The
private key is never printed.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from smartgw.cli import CommandError
from smartgw_hosts import keyfile
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.ids import check_app_id, check_id

HELP = "make a host's key file and print its public key"
EXAMPLES = """\
The file holds the private key: it stays on the host, readable by its owner only. The public
key goes into the gateway's enrolment file; with --host, --app and --cluster the entry is
printed ready to paste. In an app, * stands for any characters.

examples:
  smartgw keygen /etc/smartgw/host.seed
  smartgw keygen shop-1.seed --host shop-1 --cluster eu-1 --app shop --app 'shop-*'
  smartgw keygen --show shop-1.seed                  the public key of a file that exists
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("path", metavar="PATH", type=Path, help="the file; never overwritten")
    parser.add_argument("--host", metavar="ID", type=_checked(check_host), help="the host's id")
    parser.add_argument(
        "--app",
        metavar="APP",
        action="append",
        dest="apps",
        type=_checked(check_app_id),
        help="an app id or pattern that the host may serve; may be given again",
    )
    parser.add_argument(
        "--cluster", metavar="ID", type=_checked(check_cluster), help="the cluster's id"
    )
    parser.add_argument("--show", action="store_true", help="read the file instead of making it")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(args: argparse.Namespace) -> int:
    try:
        identity = keyfile.load(args.path) if args.show else keyfile.generate(args.path)
    except keyfile.KeyFileError as error:
        raise CommandError(str(error)) from None
    key = identity.public_key
    entry = None
    if args.host and args.apps and args.cluster:
        entry = enrolment_entry(args.host, key, args.cluster, args.apps)
    if args.json:
        facts = {"file": str(args.path), "public_key": key.text, "key_id": key.key_id}
        print(json.dumps(facts | {"enrolment": entry}))
        return 0
    print(f"file        {args.path}\npublic key  {key.text}\nkey id      {key.key_id}\n")
    if entry:
        print(f"To enrol this host, add to the gateway's enrolment file:\n\n{entry}", end="")
    else:
        print("With --show, --host ID, --app APP and --cluster ID the enrolment entry is printed.")
    return 0


def enrolment_entry(host: str, key: PublicKey, cluster: str, apps: list[str]) -> str:
    """Return one `[[host]]` entry of an enrolment file."""
    # Apart from \\u escapes, which are avoided, JSON's texts and lists are TOML's.
    values = {"id": host, "key": key.text, "cluster": cluster, "apps": apps}
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join(["[[host]]", *lines, ""])


def check_host(text: str) -> str:
    return check_id("host id", text)


def check_cluster(text: str) -> str:
    return check_id("cluster id", text)


def _checked(check: Callable[[str], str]) -> Callable[[str], str]:
    """Return the check with its own words, which argparse would drop from a ValueError."""

    def checked(text: str) -> str:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
