"""`smartgw token`: be an issuer of tokens, for development (contract 12.4, 10.2).

Owns what is printed and written. The form of tokens is `smartgw.api.minting`'s; the key file's
`smartgw_hosts.keyfile`'s. A token is printed and nothing else of it is kept.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from smartgw.cli import CommandError
from smartgw_hosts import keyfile
from smartgw_hosts.identity import PublicKey

HELP = "make tokens for the API, for development"
MAX_TTL = 366 * 86_400
EXAMPLES = """\
The key file makes tokens, so it stays secret; the key set beside it, FILE.jwks.json, has the
public key and is what a gateway reads. With --keygen both are made, and the lines of the
configuration are printed. In production tokens come from your identity provider.

examples:
  smartgw token issuer.seed --keygen
  smartgw token issuer.seed --role service --sub deploy --ttl 3600
  smartgw token issuer.seed --role session --sub ann --sid s-1
  SMARTGW_TOKEN=$(smartgw token issuer.seed) smartgw apps
  smartgw token issuer.seed --ttl -60          one that has expired, to see it refused
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("path", metavar="FILE", type=Path, help="the issuer's key file")
    parser.add_argument(
        "--keygen", action="store_true", help="make the file and its key set; never overwrites"
    )
    parser.add_argument(
        "--role",
        choices=("service", "session"),
        default="service",
        help="what the caller is (default: service)",
    )
    parser.add_argument(
        "--sub", metavar="NAME", default="developer", type=_name, help="who (default: developer)"
    )
    parser.add_argument("--sid", metavar="ID", type=_name, help="the session's id")
    parser.add_argument(
        "--ttl", metavar="SECONDS", default=3600, type=_ttl, help="how long it counts (3600)"
    )
    parser.add_argument(
        "--issuer", metavar="NAME", type=_name, help="its `iss` (default: smartgw-development)"
    )
    parser.add_argument(
        "--audience", metavar="NAME", type=_name, help="its `aud` (default: smartgw)"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from smartgw.api.minting import AUDIENCE, ISSUER, mint
    from smartgw.api.tokens import Role

    issuer, audience = args.issuer or ISSUER, args.audience or AUDIENCE
    try:
        identity = keyfile.generate(args.path) if args.keygen else keyfile.load(args.path)
    except keyfile.KeyFileError as error:
        raise CommandError(_of_an_issuer(str(error), args.path)) from None
    if args.keygen:
        return _made(args, identity.public_key, issuer, audience)
    now = time.time()
    token = mint(
        identity,
        Role(args.role),
        args.sub,
        now=now,
        ttl=args.ttl,
        issuer=issuer,
        audience=audience,
        session_id=args.sid,
    )
    if args.json:
        facts = {"role": args.role, "issuer": issuer, "subject": args.sub}
        print(json.dumps({"token": token, **facts, "expires": int(now + args.ttl)}))
    else:
        print(token)
    return 0


def _made(args: argparse.Namespace, key: PublicKey, issuer: str, audience: str) -> int:
    """Write the key set of a new key, and say how a gateway is told of it."""
    from smartgw.api.minting import key_set

    path = args.path.with_name(f"{args.path.name}.jwks.json")
    try:
        path.write_text(key_set([key]))
    except OSError as error:
        raise CommandError(f"{path}: cannot be written ({error.strerror})") from None
    values: dict[str, Any] = {
        "issuer": issuer,
        "audience": audience,
        "jwks_file": str(path.absolute()),
        "roles": ["service", "session"],
    }
    if args.json:
        facts = {"file": str(args.path), "key_set": str(path), "key_id": key.key_id}
        print(json.dumps(facts | {"issuer": values}))
        return 0
    print(f"file        {args.path}\nkey set     {path}\nkey id      {key.key_id}\n")
    print("To have a gateway take its tokens, add to the configuration:\n\n[[auth.issuer]]")
    for name, value in values.items():
        print(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return 0


def _of_an_issuer(text: str, path: Path) -> str:
    """The words of a key file's error that are about hosts, as they are for an issuer."""
    place = text.find(", and a key is never overwritten")
    if place >= 0:
        return f"{text[:place]}, and a key is never overwritten; choose another name"
    return text.replace("`smartgw keygen`", f"`smartgw token {path} --keygen`").replace(
        " and enrol that", ""
    )


def _name(text: str) -> str:
    if not 1 <= len(text) <= 256 or not text.isprintable():
        raise argparse.ArgumentTypeError("must be 1 to 256 printable characters")
    return text


def _ttl(text: str) -> int:
    try:
        seconds = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not -MAX_TTL <= seconds <= MAX_TTL:
        raise argparse.ArgumentTypeError("must be a year at most")
    return seconds
