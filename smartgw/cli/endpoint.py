"""How a command asks a running gateway: by the API of its internal listener, as a service.

Owns which gateways are asked when none is named, where the token comes from, how long is waited,
and what is said when nothing answers. What an answer means is the command's.
"""

import argparse
import http.client
import ipaddress
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from smartgw.cli import CommandError

DEFAULT_ENDPOINT = "127.0.0.1:9080"
DEMO_FOLDER = Path(".demo")
ENDPOINT_VARIABLE = "SMARTGW_ENDPOINT"
TOKEN_VARIABLE = "SMARTGW_TOKEN"
TOKEN_FILE_VARIABLE = "SMARTGW_TOKEN_FILE"
TIMEOUT = 10.0
LONG_TIMEOUT = 120.0
"""For a body that is not JSON: a zone of 100,000 records takes ten seconds to be read."""
MAX_ANSWER = 64 << 20
MAX_TOKEN = 16_384
# RFC 6750 2.1.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_OPERATOR = re.compile(r'operator="([^"]*)"')
WHERE = f"""\
The gateway is the one of --endpoint, else ${ENDPOINT_VARIABLE}, else those of a demo that runs in
--dir, else {DEFAULT_ENDPOINT}. The token of a service is that of --token-file or --token, else
${TOKEN_VARIABLE} or ${TOKEN_FILE_VARIABLE}, else the demo's; without any, the file that the
gateway made for the operator of its machine, which its own user (and root) can read.
"""


Body = Mapping[str, object] | bytes | None
"""What is sent: JSON, or bytes whose Content-Type is among the fields."""


class Unreachable(Exception):
    """Nothing answered, or not as a gateway; the text has a remedy.

    `changed`: a change had left, so that it may be made all the same.
    """

    def __init__(self, text: str, *, changed: bool = False) -> None:
        super().__init__(text)
        self.changed = changed


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One gateway: `host:port` or a URL, and the token to show it, if one is known."""

    address: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a gateway said.

    Attributes:
        body: its JSON, None when there was none; bytes of another media type that was asked for.
        fields: of its header, names in lower case.
    """

    status: int
    body: Any
    etag: str | None
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> str:
        """The sentence of an error; of several faults all."""
        error = self.body.get("error", {}) if isinstance(self.body, dict) else {}
        if faults := error.get("faults"):
            told = ((each.get("pointer") or "the body", each.get("message")) for each in faults)
            return "; ".join(f"{where}: {why}" for where, why in told)
        return str(error.get("message") or f"the gateway answered {self.status}")

    def detail(self, name: str) -> Any:
        """A further member of an error, None where there is none."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error.get(name) if isinstance(error, dict) else None


def add_arguments(parser: argparse.ArgumentParser, *, default: Any = None) -> None:
    """The options by which a gateway is named; `default` SUPPRESS for those of an action."""
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default=default,
        help="the gateway's internal listener, or a URL",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        default=default,
        help="file with the token of a service",
    )
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        default=default,
        help="the token itself; other users may see it in `ps`",
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        type=Path,
        default=default,
        help=f"the folder of the demo (default: {DEMO_FOLDER})",
    )


def endpoints(args: argparse.Namespace) -> list[Endpoint]:
    """The gateways that are meant, with their tokens. Raises CommandError."""
    addresses, demo_token = _demo(args.dir or DEMO_FOLDER)
    token = _token(args)
    if named := args.endpoint or os.environ.get(ENDPOINT_VARIABLE):
        return [Endpoint(named, token or (demo_token if named in addresses else None))]
    if addresses:
        return [Endpoint(address, token or demo_token) for address in addresses]
    if args.dir is not None:
        # Rather nothing than a change at a gateway that was not meant.
        raise CommandError(f"{args.dir}: no demo is described there; name its folder with --dir")
    return [Endpoint(DEFAULT_ENDPOINT, token)]


def _demo(folder: Path) -> tuple[list[str], str | None]:
    """The internal listeners and the service token of a demo that runs in a folder."""
    try:
        facts = json.loads((folder / "demo.json").read_bytes())
        addresses = [str(cluster["internal"]) for cluster in facts["clusters"]]
        tokens = facts.get("tokens") or {}
        return addresses, tokens.get("service")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [], None


def _token(args: argparse.Namespace) -> str | None:
    if args.token is not None:
        return _checked("--token", str(args.token))
    path = args.token_file
    if path is None:
        if token := os.environ.get(TOKEN_VARIABLE):
            return _checked(f"${TOKEN_VARIABLE}", token)
        path = os.environ.get(TOKEN_FILE_VARIABLE)
    if not path:
        return None
    try:
        with open(path, encoding="ascii") as file:
            return _checked(str(path), file.read(MAX_TOKEN + 1).strip())
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise CommandError(f"{path}: the token cannot be read: {reason}") from None


def _checked(where: str, token: str) -> str:
    """Give back what can be a token; what cannot is told without a piece of it."""
    if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise CommandError(f"{where}: holds no token; put one there, as `smartgw token` prints it")
    return token


def ask(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: Body = None,
    fields: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request; as the operator of the machine, where no token is known and one is needed.

    Raises Unreachable when nothing there answers as a gateway does.
    """
    answer, challenge, peer = _ask(endpoint, method, path, body, fields or {})
    if answer.status == 401 and endpoint.token is None:
        token = _written_token(challenge, endpoint.address, peer)
        if token is not None:
            with_token = Endpoint(endpoint.address, token)
            answer, _, _ = _ask(with_token, method, path, body, fields or {})
    return answer


def ask_any(
    gateways: Sequence[Endpoint],
    method: str,
    path: str,
    body: Body = None,
    fields: Mapping[str, str] | None = None,
) -> tuple[Endpoint, Answer]:
    """Ask the first of several gateways that is there, for what all of them know alike.

    Raises Unreachable when none is, or one went away with a change.
    """
    *others, last = gateways
    for gateway in others:
        try:
            return gateway, ask(gateway, method, path, body, fields)
        except Unreachable as error:
            if error.changed:
                raise
    return last, ask(last, method, path, body, fields)


def operator_token(endpoint: Endpoint) -> str | None:
    """The token of the machine's operator, for whoever speaks to the API by other means.

    Raises Unreachable.
    """
    _, challenge, peer = _ask(endpoint, "GET", "/api/v3/status", None, {})
    return _written_token(challenge, endpoint.address, peer)


def _ask(
    endpoint: Endpoint,
    method: str,
    path: str,
    body: Body,
    fields: Mapping[str, str],
) -> tuple[Answer, str, str]:
    """Return the answer, the challenge of a 401, and the address that was asked."""
    sent = {"Accept": "application/json", **fields}
    data = None
    if isinstance(body, bytes):
        data = body
    elif body is not None:
        data = json.dumps(body).encode()
        sent["Content-Type"] = "application/json"
    connection = None
    left = False
    try:
        long = isinstance(body, bytes) or sent["Accept"] != "application/json"
        connection = _connection(endpoint.address, LONG_TIMEOUT if long else TIMEOUT)
        if endpoint.token is not None:
            sent["Authorization"] = f"Bearer {endpoint.token}"
        connection.connect()
        peer = str(connection.sock.getpeername()[0])
        left = method != "GET"
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        text = response.read(MAX_ANSWER)
        told = {name.lower(): value for name, value in response.headers.items()}
        wanted = sent["Accept"]
        if wanted != "application/json" and told.get("content-type") == wanted:
            value: Any = text
        else:
            value = json.loads(text) if text else None
        answer = Answer(response.status, value, response.headers.get("ETag"), told)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        if left and not isinstance(error, ValueError):
            raise Unreachable(
                f"{endpoint.address} did not answer ({reason}); the change may be made all the "
                "same: look, or make it again",
                changed=True,
            ) from None
        raise Unreachable(
            f"no gateway answers at {endpoint.address} ({reason}); "
            "start one, or name its internal listener with --endpoint HOST:PORT"
        ) from None
    finally:
        if connection is not None:
            connection.close()
    if not isinstance(value, dict | bytes | None):
        raise Unreachable(
            f"{endpoint.address} answered {path} with {response.status}; "
            "name the internal listener of a gateway with --endpoint HOST:PORT"
        )
    return answer, response.headers.get("WWW-Authenticate") or "", peer


def _connection(address: str, timeout: float) -> http.client.HTTPConnection:
    if "://" not in address:
        return http.client.HTTPConnection(address, timeout=timeout)
    url = urlsplit(address)
    if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
        raise ValueError("write HOST:PORT, or http:// or https:// and a host")
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return kind(url.hostname, url.port, timeout=timeout)


def _written_token(challenge: str, address: str, peer: str) -> str | None:
    """Read the token from the file that a 401 names, if it was made for that very listener.

    A program that took the listener's place elsewhere must not get what is shown to the real one.
    """
    found = _OPERATOR.search(challenge)
    if found is None:
        return None
    path = unquote(found[1])
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, encoding="ascii") as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                return None
            written = json.loads(file.read(MAX_TOKEN))
        return str(written["token"]) if _is_at(written["endpoint"], address, peer) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _is_at(endpoint: str, address: str, peer: str) -> bool:
    """Say whether the listener of a file is the one that was asked, at `peer`."""
    host, _, port = endpoint.rpartition(":")
    asked = urlsplit(address if "://" in address else f"//{address}")
    bound, reached = ipaddress.ip_address(host.strip("[]")), ipaddress.ip_address(peer)
    return int(port) == (asked.port or 80) and (bound == reached or bound.is_unspecified)


def done(answer: Answer, expected: Sequence[int] = (200,)) -> Any:
    """The body of a success. Raises CommandError with the gateway's own sentence."""
    if answer.status in expected:
        return answer.body
    if answer.status == 401:
        raise CommandError(
            "the gateway wants the token of a service: name its file with --token-file, or run "
            "this as the gateway's own user on its machine"
        )
    raise CommandError(answer.error)
