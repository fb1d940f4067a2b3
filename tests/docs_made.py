"""The parts of docs/ that code makes: `python -m tests.docs_made` writes them into the pages.

Owns the worked examples of the wire, the table of metrics and the list of modules. A part stands
between `<!-- made: NAME -->` and `<!-- end -->`; tests/test_docs.py says when one is out of date.
All else in the pages is written by hand.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from smartgw_hosts.challenge import CONTEXT, Challenge, Responder, judge, request, signed_bytes
from smartgw_hosts.enrolment import parse
from smartgw_hosts.identity import Identity, encode64
from smartgw_hosts.wire import Description, Kind, Message, decode, encode
from tests.gateway import Cluster, Config
from tests.servers import Nats
from tests.test_layering import PACKAGES, does_io, module_name

REPO = Path(__file__).parents[1]
DOCS = REPO / "docs"
BY_ITSELF = {"__init__.py", "__main__.py"}
SEED = bytes(range(32))
IDENTITY = Identity.from_seed(SEED)
ADDRESS = "http://10.0.0.5:9000"
TIME_MS = 1_800_000_000_000


@dataclass(frozen=True, slots=True)
class Exposed:
    """One metric as a scrape shows it."""

    name: str
    kind: str
    help: str
    labels: frozenset[str]


# ---- the wire ----


def key() -> str:
    """The key file and the enrolment entry of the examples."""
    entry = (
        f'[[host]]\nid = "shop-1"\nkey = "{IDENTITY.public_key.text}"\n'
        'cluster = "eu-1"\napps = ["shop", "shop-*"]\nexpires = 2027-01-01T00:00:00Z'
    )
    assert parse(entry)[0].allows("shop-beta")
    return "\n".join(
        [
            _block(f"smartgw-seed:{encode64(SEED)}"),
            "",
            f"Its public key is `{IDENTITY.public_key.text}`, key id `{IDENTITY.public_key.key_id}`"
            " (the first 16 hex digits of the SHA-256 of the 32 bytes). The entry that enrols it:",
            "",
            _block(entry, "toml"),
        ]
    )


def announcement() -> str:
    """One announcement: subject, payload, and what the signature is over."""
    described = Description(
        ADDRESS, ("shop",), IDENTITY.public_key, weight=100, region="fra", version="1.4.2"
    )
    message = Message(Kind.ANNOUNCE, "shop-1", TIME_MS - 5000, 1, TIME_MS, described)
    subject, payload = encode(message, "eu-1", IDENTITY)
    signed = decode(subject, payload, cluster="eu-1")
    assert signed.check(IDENTITY.public_key) == message
    return "\n".join(
        [
            f"Subject: `{subject}`. The payload, {len(payload)} bytes, on two lines:",
            "",
            _block(payload.decode()),
            "",
            "What is signed is the context `smartgw/bus/announce/v1`, a NUL, the subject, a "
            "newline and the second line of the payload, exactly as sent. It begins and ends:",
            "",
            _block(_cut(b"smartgw/bus/announce/v1\0" + signed.signed)),
            "",
            "The signature, in hex:",
            "",
            _block(_hex(signed.signature)),
        ]
    )


def challenge() -> str:
    """One challenge and its answer."""
    asked = Challenge(
        bytes(range(100, 132)), "gw-1", "eu-1", "shop-1", ADDRESS, IDENTITY.public_key, TIME_MS
    )
    responder = Responder(IDENTITY, "shop-1", "eu-1", lambda: [ADDRESS])
    sent = request(asked)
    head, _, body = sent.partition(b"\r\n\r\n")
    status, answer = responder.answer(
        b"POST", b"/.well-known/smartgw/challenge", [], body, 0.0, TIME_MS
    )
    assert judge(asked, status, answer).ok
    lines = [*head.decode().split("\r\n"), "", json.dumps(json.loads(body), indent=2)]
    return "\n".join(
        [
            _block("\n".join(lines), "http"),
            "",
            "(On the wire the JSON is one line.) What is signed: the context "
            f"`{CONTEXT.decode()}`, a NUL, then each field behind its length as 4 bytes, big-endian"
            ": nonce, gateway, cluster, host, address, the key's 32 bytes, the time as 8 bytes.",
            "",
            _block(_hex(CONTEXT + b"\0" + signed_bytes(asked))),
            "",
            f"The answer, status {status}:",
            "",
            _block(answer.decode(), "json"),
        ]
    )


# ---- metrics ----


@cache
def exposition() -> tuple[Exposed, ...]:
    """Every metric there is, in the order of a scrape; from a gateway of two workers that shares a
    state and serves zones.
    """
    nats = Nats(jetstream=True).start()
    cluster = Cluster(nats=nats)
    settings: Config = {
        "processes": {"workers": 2},
        "state": {"bucket": "smartgw"},
        "dns": {"listen": ["127.0.0.1:0"], "resolvers": ["127.0.0.1:53"]},
    }
    try:
        status, body = cluster.gateway(settings).internal("/metrics")
    finally:
        cluster.stop()
        nats.stop()
    assert status == 200
    text = body.decode()
    found = []
    for name, said in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        kind = re.search(rf"^# TYPE {name} (\w+)$", text, re.MULTILINE)
        assert kind is not None
        samples = re.findall(rf"^{name}(?:_bucket)?{{(.*)}} ", text, re.MULTILINE)
        labels = frozenset(re.findall(r'(\w+)="', ",".join(samples))) - {"le"}
        found.append(Exposed(name, kind[1], said, labels))
    return tuple(found)


def metrics() -> str:
    """The table of metrics."""
    rows = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for metric in exposition():
        labels = ", ".join(f"`{label}`" for label in sorted(metric.labels))
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows)


# ---- modules ----


def modules() -> str:
    """One table a package: each module that is not only a package's `__init__`."""
    parts: list[str] = []
    for package, root in PACKAGES.items():
        rows = []
        for path in tracked(root, ".py"):
            if path.name not in BY_ITSELF:
                mark = "●" if does_io(module_name(package, path)) else "○"
                rows.append(f"| `{path.relative_to(root)}` | {mark} | {_first_words(path)} |")
        if rows:
            parts += [f"### {root.relative_to(REPO)}", "", "| module | | what |", "|---|---|---|"]
            parts += [*rows, ""]
    return "\n".join(parts).rstrip()


def tracked(root: Path, end: str) -> list[Path]:
    """The files below `root` that are in the repository; without git all that are there."""
    argv = ["git", "ls-files", str(root)]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True)
    found = [REPO / line for line in done.stdout.splitlines()] or list(root.rglob("*"))
    return sorted(path for path in found if path.suffix == end and path.exists())


def _first_words(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    words = " ".join(docstring.partition("\n\n")[0].split())
    return re.sub(r" \((?:contract )?[\d., -]+(?:to [\d.]+)?(?:, [\d.]+)*\)", "", words).rstrip(".")


# ---- pages ----

PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "hosts.md": {"key": key, "announcement": announcement, "challenge": challenge},
    "operations.md": {"metrics": metrics},
    "architecture.md": {"modules": modules},
}


def renewed(page: str, text: str) -> str:
    """`text` of a page with its parts made anew. Raises ValueError when one has no place."""
    for name, make in PARTS[page].items():
        place = re.compile(rf"(<!-- made: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not place.search(text):
            raise ValueError(f"{page}: no place for {name}")
        made = f"{make()}\n"
        text = place.sub(lambda found, made=made: found[1] + made + found[2], text)  # type: ignore[misc]
    return text


def main() -> int:
    """Write all parts into the pages."""
    for page in PARTS:
        path = DOCS / page
        path.write_text(renewed(page, path.read_text()))
    return 0


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


def _hex(data: bytes) -> str:
    text = data.hex()
    return "\n".join(text[place : place + 64] for place in range(0, len(text), 64))


def _cut(data: bytes) -> str:
    lines = _hex(data).split("\n")
    return "\n".join([*lines[:3], f"... ({len(data)} bytes in all)", lines[-1]])


if __name__ == "__main__":
    sys.exit(main())
