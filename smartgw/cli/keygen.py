"""`smartgw keygen`: make the key of a host or of a cluster, and show where it goes (12.4, 1.4).

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

HELP = "make the key of a host or of a cluster, and print its public key"
EXAMPLES = """\
The file holds the private key: it stays where it is made, readable by its owner only. The public
key of a host goes into the gateway's enrolment file; with --host, --app and --cluster the entry is
printed ready to paste. In an app, * stands for any characters. The public key of a cluster goes
into the list of clusters; with --cluster alone it is printed as it stands there.

examples:
  smartgw keygen /etc/smartgw/host.seed
  smartgw keygen shop-1.seed --host shop-1 --cluster eu-1 --app shop --app 'shop-*'
  smartgw keygen --show shop-1.seed                  the public key of a file that exists
  smartgw keygen cluster.seed --cluster eu-1         what all gateways of a cluster share
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
        print(_hint(args, key), end="")
    return 0


def _hint(args: argparse.Namespace, key: PublicKey) -> str:
    """Say where a key goes, by whose it is as far as that was told."""
    words = (("--host ID", args.host), ("--app APP", args.apps), ("--cluster ID", args.cluster))
    if args.host or args.apps:
        missing = " and ".join(option for option, given in words if not given)
        return f"With --show and {missing} as well, the host's enrolment entry is printed.\n"
    if args.cluster is None:
        return (
            "Of a host: with --show, --host ID, --app APP and --cluster ID its enrolment entry is "
            "printed.\n"
            "Of a cluster: with --show and --cluster ID alone what its gateways and the list of "
            "clusters take is printed.\n"
        )
    return (
        f"In the list of clusters, in the entry of {args.cluster}:\n\n"
        f'"keys": [{json.dumps(key.text)}]\n\n'
        "In the configuration of each of its gateways:\n\n"
        f"[identity]\nseed_file = {json.dumps(str(args.path.absolute()), ensure_ascii=False)}\n"
    )


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
