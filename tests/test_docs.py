"""README and docs/: what they show works, what they name exists, and what exists is named.

Shell blocks (```sh) are read by the real command line; those of the README's tour and of "Join the
demo" are run against a real demo. Tables are compared with the closed sets of the code.
"""

import ast
import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smartgw import nameserver, readiness
from smartgw.api import credentials
from smartgw.cli import COMMANDS, _parser, main
from smartgw.config_fields import Settings
from smartgw.errors import ANSWERS, Reason
from smartgw.logline import Formatter
from smartgw.peers import directory
from smartgw.processes import counting
from smartgw.processes.drain import Phase
from smartgw.processes.reload import FIXED
from smartgw.routing.forwarding import MarkFault
from smartgw.state import last_desired, last_good, shared, state, store
from smartgw.state.sealed import Fault
from smartgw_hosts import keyfile, pool, wire
from smartgw_hosts.challenge import Proof
from smartgw_hosts.clusters import parse as parse_clusters
from smartgw_hosts.enrolment import parse as parse_enrolments
from smartgw_hosts.records import HostState
from tests.docs_made import PARTS, exposition, renewed, tracked
from tests.gateway import wait_until
from tests.servers import die_with, find_binary, free_port

REPO = Path(__file__).parents[1]
PAGES = [REPO / "README.md", REPO / "CHANGELOG.md", *tracked(REPO / "docs", ".md")]
RUN = (REPO / "run").read_text()
# Names of files that look like settings.
FILES = {"identity.seed"}
# Programs of the system that pages may show.
SYSTEM = {"curl", "sed", "sleep", "sudo", "touch", "python3", "nats-server", "kill"}


def read(page: str) -> str:
    """The text of README.md or of a page in docs/."""
    return (REPO / page if page == "README.md" else REPO / "docs" / page).read_text()


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    _, found, rest = f"\n{read(page)}".partition(f"\n{heading}\n")
    assert found, f"{page}: no {heading!r}"
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows but heads, backticks kept."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = [place - 1 for place, line in enumerate(lines) if re.match(r"\|[-|]+\|$", line)]
    body = [
        line
        for place, line in enumerate(lines)
        if place not in heads and not re.match(r"\|[-|]+\|$", line)
    ]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in body]


def named(text: str) -> list[str]:
    """All that stands in backticks in the first column of the tables of `text`."""
    return [name for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language, without the indentation of a list."""
    found = re.findall(
        rf"^( *)```{language}\n(.*?)^ *```$", path.read_text(), re.MULTILINE | re.DOTALL
    )
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block as words, without comments, redirections and `&`."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if ">" in words or ">>" in words:
            words = words[: next(n for n, word in enumerate(words) if word in (">", ">>"))]
        if words and words[-1] == "&":
            words.pop()
        if words:
            yield words


SHELL = [
    pytest.param(path, words, id=f"{path.name}: {' '.join(words)[:60]}")
    for path in PAGES
    for text in blocks(path, "sh")
    for words in commands(text)
]


# ---- pages ----


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    text = re.sub(r"[`*]", "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """All anchors of a page."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Docs: every link to a file or an anchor of ours resolves."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        to = (path.parent / name).resolve() if name else path
        if not to.exists() or (anchor and anchor not in anchors(to)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_in_plain_words(path: Path) -> None:
    """Docs: lines fit a screen, nobody shouts, and the spelling is British."""
    prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "", path.read_text(), flags=re.DOTALL)
    assert re.findall(r"\w+!(?!\[)", prose) == []
    american = r"\b(\w*(?:ization|izing|ized|izes?)|color\w*|behavior\w*|center\w*|license[sd]?)\b"
    allowed = {"size", "sizes", "sized", "prize", "seize"}
    assert {word for word in re.findall(american, prose, re.I) if word.lower() not in allowed} == (
        set()
    )


@pytest.mark.parametrize("page", PARTS)
def test_what_code_makes_is_up_to_date(page: str) -> None:
    """Docs: the worked examples and the metrics are what `python -m tests.docs_made` writes."""
    assert read(page) == renewed(page, read(page))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_in_pages_compiles(path: Path) -> None:
    """Docs: each Python block is a whole module."""
    for text in blocks(path, "python"):
        compile(text, path.name, "exec")


def test_python_in_hosts_runs(tmp_path: Path) -> None:
    """Docs: the apps of docs/hosts.md can be imported as printed, beside a key."""
    keyfile.generate(tmp_path / "host.seed")
    texts = blocks(REPO / "docs/hosts.md", "python")
    assert len(texts) == 3
    for text in texts:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", f"__name__ = 'app'\n{text}\nassert app"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_toml_in_pages_is_accepted(path: Path) -> None:
    """11.5, 1.4: each TOML block is an enrolment list or a configuration."""
    for text in blocks(path, "toml"):
        if text.startswith("[[host]]"):
            assert parse_enrolments(text)
        else:
            Settings.model_validate(tomllib.loads(text))


# ---- commands ----


@pytest.mark.parametrize(("path", "words"), SHELL)
def test_commands_in_pages_exist(path: Path, words: list[str]) -> None:
    """12.4, 12.6: what a page shows to type, the real programs accept."""
    program, *argv = words
    if program == "sudo":
        program, *argv = argv
        assert program in ("cp", "systemctl")
        if program == "cp":
            assert (REPO / argv[0]).exists()
    elif program == "./run":
        check_run(argv)
    elif program == "smartgw":
        check_smartgw(argv)
    elif program == "pip":
        check_pip(argv)
    elif program == "nats-server":
        find_binary("nats-server", "SMARTGW_NATS_SERVER")
        assert argv[0] == "-a" or (REPO / argv[-1]).exists()
    else:
        assert program in SYSTEM


def test_the_configuration_of_the_readme_is_enough(tmp_path: Path) -> None:
    """README: with the empty enrolment file that it tells to make, `check` finds no fault; without
    it, the fault says to make one."""
    (text,) = re.findall(r"```toml\n(.*?)```", section("README.md", "## Run a gateway"), re.DOTALL)
    (tmp_path / "smartgw.toml").write_text(text)
    command = [sys.executable, "-m", "smartgw", "check", "--config", "smartgw.toml"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SMARTGW_")}
    for code, said in ((1, "create it, an empty one will do"), (0, "ok: ")):
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == code
        assert said in done.stdout
        (tmp_path / "enrolment.toml").touch()


def test_owners_in_pages_are_the_real_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: what docs/clusters.md shows as output of `smartgw owner` is its output."""
    text = (REPO / "docs/clusters.md").read_text()
    shown = re.findall(
        r"```sh\n\./run smartgw (owner [^\n]*)\n```\n\n```\n(.*?)```", text, re.DOTALL
    )
    assert len(shown) == 2
    for command, output in shown:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out == output


def test_the_list_of_clusters_in_pages_is_one() -> None:
    """4.3: the list that docs/clusters.md shows, and that of infra/, are taken."""
    (text,) = blocks(REPO / "docs/clusters.md", "json")
    assert parse_clusters(text.encode(), by_hand=True).voters == ("eu-1",)
    example = (REPO / "infra/clusters/clusters.json").read_bytes()
    found = parse_clusters(example, by_hand=True)
    assert {cluster.state.value for cluster in found.clusters} == {"active", "draining"}
    assert {len(cluster.keys) for cluster in found.clusters} == {1, 2}


def check_smartgw(argv: list[str]) -> None:
    """Have the command line read `argv`."""
    _parser(argv[0]).parse_args(argv)


def check_run(argv: list[str]) -> None:
    """`./run` has the command, or it is a program of the environment with what is named."""
    name, *rest = argv
    if name == "smartgw":
        check_smartgw(rest)
    elif name == "demo":
        check_smartgw(argv)
    elif name == "python":
        place = rest[1].replace(".", "/") + ".py" if rest[0] == "-m" else rest[0]
        assert (REPO / place).exists()
    else:
        assert f'"{name}": [' in RUN


def check_pip(argv: list[str]) -> None:
    """What is installed is this folder, with extras that it has."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert argv[0] == "install"
    found = re.fullmatch(r"\.(?:\[([\w,]+)\])?", argv[1])
    assert found is not None
    assert set((found[1] or "").split(",")) - {""} <= set(project["optional-dependencies"])


def test_smartgw_is_installed_before_it_is_called() -> None:
    """Docs: `smartgw` is on the PATH after `pip install` only; without it it is `./run smartgw`."""
    for path in PAGES:
        words = [words for text in blocks(path, "sh") for words in commands(text)]
        called = [place for place, each in enumerate(words) if each[0] == "smartgw"]
        installed = [place for place, each in enumerate(words) if each[0] == "pip"]
        assert not called or (installed and installed[0] < called[0]), path.name


def test_inline_commands_exist() -> None:
    """12.4, 12.6: so do those in the text: `smartgw X`, `./run X`, `python -m X`."""
    for path in PAGES:
        for command in re.findall(r"`((?:\./run|smartgw|python -m) [^`]+)`", path.read_text()):
            name = command.split()[2 if command.startswith("python") else 1]
            if command.startswith("smartgw"):
                assert name in {*COMMANDS, "COMMAND", "X"}, f"{path.name}: {command}"
            elif command.startswith("./run"):
                assert (
                    name in {"demo", "smartgw", "python", "COMMAND", "X"} or f'"{name}": [' in RUN
                ), command
            else:
                place = name.replace(".", "/")
                assert any((REPO / f"{place}{end}").exists() for end in (".py", "/__main__.py"))


def test_every_command_is_described() -> None:
    """12.4: the table of commands is the list of commands."""
    table = section("operations.md", "## The command line")
    assert sorted(name.removeprefix("smartgw ") for name in named(table)) == sorted(COMMANDS)


# ---- what exists is named, and what is named exists ----


def literals(where: Callable[..., object]) -> set[str]:
    """All strings in the source of a function, of formatted ones what is not."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(where)))
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def host_reasons() -> set[str]:
    """Every reason that pool.py gives a host, beside the refusals and the proofs."""
    tree = ast.parse(inspect.getsource(pool))
    found: set[str] = set()
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values += [word.value for word in node.keywords if word.arg == "reason"]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "_move":
                values += node.args[2:3]
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason":
            values.append(node.value)
        for value in values:
            for part in ast.walk(value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
                    found.add(part.value)
    return found


CLOSED_SETS: list[tuple[str, str, set[str]]] = [
    ("hosts.md", "## States and reasons", set(HostState)),
    ("hosts.md", "### How a verification ends", set(Proof)),
    ("hosts.md", "### Why a message, or an app in it, was refused", set(wire.Reason)),
    ("operations.md", "## Errors", set(Reason)),
    ("forwarding.md", "## Why a mark is refused", set(MarkFault)),
    ("clusters.md", "## Modes", set(directory.Mode)),
    ("clusters.md", "### Why a source gave no list", set(directory.Reason)),
    ("links.md", "### Why a mark is dropped", set(MarkFault)),
]


# A set's own order is another one in each process, and an id must not be.
@pytest.mark.parametrize(
    ("page", "heading", "members"), CLOSED_SETS, ids=[heading for _, heading, _ in CLOSED_SETS]
)
def test_a_closed_set_is_described_member_by_member(
    page: str, heading: str, members: set[str]
) -> None:
    """Docs: a table over a closed set has each member once, and no other."""
    text = section(page, heading).partition("\n### ")[0]
    assert sorted(named(text)) == sorted(members)


def test_reasons_of_hosts_are_described() -> None:
    """1.5: every state shows its reason, and the page says what each means."""
    given = {"verification: ..." if r.startswith("verification") else r for r in host_reasons()}
    assert {"verified", "lease_expired", "left", "verification: ..."} <= given
    shown = set(named(section("hosts.md", "### Reasons of a host")))
    assert shown - set(wire.Reason) == given - set(wire.Reason)
    assert {"not_enrolled", "wrong_cluster", "expired_enrolment", "key_changed"} <= shown


def test_errors_have_their_status_and_fault() -> None:
    """3.10: the table says of each reason the status and fault that it has."""
    for row in rows(section("operations.md", "## Errors")):
        answer = ANSWERS[Reason(row[0].strip("`"))]
        assert row[1:3] == [str(answer.status), answer.fault.value], row[0]


def test_metrics_that_are_named_exist() -> None:
    """11.3: no page names a metric that a scrape does not have."""
    names = {metric.name for metric in exposition()}
    for page in ("README.md", "hosts.md", "operations.md", "links.md"):
        packages = set(re.findall(r"`(smartgw_hosts)(?:\.\w+)?`", read(page)))
        assert set(re.findall(r"`(smartgw_[a-z_]+)`", read(page))) - names - packages == set()


def test_fields_of_the_access_log_are_described() -> None:
    """11.3: one JSON line a request, each of its fields described."""
    entry = (
        0.0,
        0.0,
        "",
        b"",
        b"",
        b"",
        "",
        0,
        0,
        0,
        b"",
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        0,
    )
    line, _ = Formatter().lines([entry], 0.0)
    assert named(section("operations.md", "## The access log")) == list(json.loads(line))


def test_what_readiness_says_is_described() -> None:
    """11.3: each part that `/readyz` may name as missing or degraded is in the table."""
    said: set[str] = set()
    speakers: list[Callable[..., object]] = [
        readiness.judge,
        state.lagging,
        state.State.degraded,
        last_good.LastGood.missing,
        last_good.LastGood.degraded,
        last_desired.LastDesired.missing,
        shared.SharedState.missing,
        shared.SharedState.degraded,
        store.Store.degraded,
        credentials.Credentials.degraded,
        counting.Counting.degraded,
        directory.worries,
        nameserver.Nameserver.degraded,
    ]
    for speaker in speakers:
        said |= {text.partition(":")[0] for text in literals(speaker) if re.match(r"\w+: ?", text)}
    assert said == set(named(section("operations.md", "## Readiness")))


def test_faults_of_the_snapshot_are_described() -> None:
    """11.2: so is each reason for which a snapshot is refused."""
    text = section("operations.md", "## What outlives a restart")
    assert set(Fault) == set(named(text.partition("Such a file is refused")[2]))


def test_phases_and_fixed_settings_are_described() -> None:
    """11.1: the phases of an end, and what a reload leaves as it is."""
    text = section("operations.md", "## End, reload, upgrade, drain")
    assert [phase for phase in Phase if f"`{phase}`" not in text] == []
    for place in FIXED:
        name = ".".join(place)
        assert f"`{name}`" in text or f"`[{name}]`" in text, name


def test_settings_that_are_named_exist() -> None:
    """11.5: `section.key` in any page is a setting."""
    sections = {
        name: set(getattr(field.annotation, "model_fields", {}))
        for name, field in Settings.model_fields.items()
    }
    for path in PAGES:
        for table, key in re.findall(r"`([a-z]+)\.([a-z_]+)(?: = [^`]+)?`", path.read_text()):
            if table in sections and key != "py" and f"{table}.{key}" not in FILES:
                assert key in sections[table], f"{path.name}: {table}.{key}"


def test_files_that_are_named_exist() -> None:
    """Layout: a path in backticks is one of the repository, or of a package."""
    packages = (REPO / "smartgw", REPO / "hosts/smartgw_hosts", REPO / "dns/smartgw_dns")
    roots = (REPO, REPO / "hosts", *packages)
    for path in (REPO / "docs/architecture.md", REPO / "README.md", REPO / "docs/operations.md"):
        for name in re.findall(
            r"`([\w/@.-]+\.(?:py|md|conf|toml\.lock|service))`", path.read_text()
        ):
            assert any((root / name).exists() for root in roots), f"{path.name}: {name}"


# ---- the demo, as a newcomer runs it ----


class Demo:
    """`./run demo` in a folder of its own, on free ports; its commands are typed with `sh`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        parent = os.getpid()
        argv = [sys.executable, "-m", "smartgw", "demo", "--port", "0", "--dir", f"{folder}/.demo"]
        self.process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent),
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "READY\n":
                break
        self.cluster, second, _ = json.loads((folder / ".demo/demo.json").read_bytes())["clusters"]
        (folder / "run").write_text('#!/bin/sh\nexec "$@"\n')
        (folder / "run").chmod(0o755)
        (folder / "docs").symlink_to(REPO / "docs")
        self.ports = {
            "8080": self.cluster["http"].rpartition(":")[2],
            "8081": second["http"].rpartition(":")[2],
            "9080": self.cluster["internal"].rpartition(":")[2],
            "3000": str(free_port()),
            "9000": str(free_port()),
        }
        self.children: list[subprocess.Popen[str]] = []

    def type(self, line: str, within: float = 10.0) -> tuple[int, str]:
        """Run a line of a page, its ports replaced; exit code and output, 0 in the background."""
        for port, real in self.ports.items():
            line = re.sub(rf"(?<=[ :]){port}\b", real, line)
        background = line.rstrip().endswith("&")
        bin = os.path.dirname(sys.executable)
        if line.startswith("./run smartgw host"):
            line = line.replace("--key", f"--bus nats://{self.cluster['nats']} --key", 1)
        child = subprocess.Popen(
            ["sh", "-c", "exec " + line.rstrip().removesuffix("&") if background else line],
            cwd=self.folder,
            env=os.environ | {"PATH": f"{bin}:{os.environ['PATH']}"},
            stdout=subprocess.DEVNULL if background else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.children.append(child)
        if background:
            return 0, ""
        out, _ = child.communicate(timeout=within)
        return child.returncode, out

    def stop(self) -> None:
        """End the demo and all that was typed."""
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                child.wait(10)
        self.process.terminate()
        self.process.communicate(timeout=10)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    running = Demo(tmp_path_factory.mktemp("clone"))
    yield running
    running.stop()


def lines(text: str) -> list[str]:
    """The lines of a shell block, those that go on joined."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_the_tour_of_the_readme_works(demo: Demo) -> None:
    """README: each line of the tour does what its comment says, as printed."""
    (tour,) = re.findall(r"```sh\n(.*?)```", section("README.md", "## A tour"), re.DOTALL)
    expected = [
        ("/echo", r'"method": ?"GET"'),
        ("/sse", r"data: "),
        ("8080/counter", r'"count": ?1'),
        ("8081/counter", r'"count": ?2'),
        ("nobody", r"HTTP/1.1 404 .*unknown_host"),
        ("smartgw owner", r"shop"),
        ("smartgw status", r"gateway .*east.*shop"),
        ("smartgw explain", r"shop"),
        ("smartgw dig", r"NOERROR.*127\.0\.0\.1"),
        ("apps suspend", r"suspended"),
        ("apps resume", r"active"),
        ("/readyz", r'"ready":true'),
    ]
    typed = lines(tour)
    assert len(typed) == len(expected)
    for line, (mark, pattern) in zip(typed, expected, strict=True):
        assert mark in line
        endless = "-N" in line
        code, out = demo.type(line.replace("-N", "-N --max-time 2") if endless else line)
        assert code == (28 if endless else 0), out
        assert re.search(pattern, out, re.DOTALL), out


def test_an_app_joins_the_demo_as_printed(demo: Demo) -> None:
    """docs/hosts.md: key, entry, app, sidecar, and the hostname answers; then 503 without it."""
    steps = section("hosts.md", "## Join the demo in five steps")
    typed = [
        line
        for text in re.findall(r"^ *```sh\n(.*?)^ *```", steps, re.DOTALL | re.MULTILINE)
        for line in lines(text)
    ]
    *before, ask, status = (line.strip() for line in typed)
    assert len(before) == 4
    for line in before:
        assert demo.type(line) == (0, "")
    sidecar = demo.children[-1]
    wait_until(lambda: "HTTP/1.1 200" in demo.type(ask)[1], what=ask)
    assert "# Hosts" in demo.type(ask)[1]
    assert re.search(r"^mine +healthy .*verified", demo.type(status)[1], re.MULTILINE)
    os.killpg(sidecar.pid, signal.SIGTERM)
    wait_until(lambda: "no_upstream" in demo.type(ask)[1], what="503 after the sidecar has left")


def test_the_readme_joins_the_demo_in_the_same_way() -> None:
    """README: its short form of it is the long one's lines, with a pause for people who paste."""
    (short,) = re.findall(
        r"```sh\n(.*?)```", section("README.md", "## Bring your own app"), re.DOTALL
    )
    steps = section("hosts.md", "## Join the demo in five steps")
    found = re.findall(r"^ *```sh\n(.*?)^ *```", steps, re.DOTALL | re.MULTILINE)
    long = [words for text in found for words in commands(text)]
    said = [words for words in commands(short) if words[0] != "sleep"]
    assert said[:-1] == long[:4]
    assert said[-1][-1] == long[4][-1]
