"""The rules of the layout, checked over the source: who imports whom, and who does I/O.

Four packages; `smartgw` may import the other three, which import neither it nor each other.
A module is pure, deciding without I/O, clock or chance, unless it is listed in DOES_IO: new
code starts pure.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
PACKAGES = {
    "smartgw_hosts": REPO / "hosts/smartgw_hosts",
    "smartgw_dns": REPO / "dns/smartgw_dns",
    "smartgw_certs": REPO / "certs/smartgw_certs",
    "smartgw": REPO / "smartgw",
}
# Beyond the standard library and itself, what each package may import.
MAY_IMPORT = {
    "smartgw_hosts": {"nats", "nkeys", "nacl"},
    "smartgw_dns": {"dns"},
    "smartgw_certs": {"acme", "josepy", "cryptography"},
    "smartgw": {
        *("smartgw_hosts", "smartgw_dns", "smartgw_certs"),
        *("aiohttp", "cryptography", "hiredis", "idna", "jwt", "nacl", "pydantic", "pydantic_core"),
        "uvloop",
    },
}
# Imported inside a function only, by whoever has it: the light install does not.
# Or since it is large, and most gateways need none of it.
MAY_IMPORT_LATE = {
    "smartgw_hosts.middleware": {"aiohttp"},
    "smartgw.peers.certificate": {"cryptography"},
    "smartgw.admission.store_places": {"redis"},
}
# Modules, or packages with all in them, that do I/O and decide nothing.
DOES_IO = {
    "smartgw.__main__",
    "smartgw.accesslog",
    "smartgw.admission.meter",
    *("smartgw.admission.shared_counters", "smartgw.admission.store_connection"),
    "smartgw.admission.store_places",
    "smartgw.api",
    *("smartgw.app", "smartgw.aside"),
    "smartgw.cli",
    "smartgw.config",
    "smartgw.config_fields",
    "smartgw.demo",
    *("smartgw.memory", "smartgw.nameserver"),
    "smartgw.peers.follow",
    "smartgw.peers.sources",
    "smartgw.peers.certificate",
    "smartgw.peers.links",
    "smartgw.peers.opening",
    "smartgw.peers.whereabouts",
    "smartgw.native",
    "smartgw.processes",
    "smartgw.proxy",
    "smartgw.state",
    "smartgw.trust",
    "smartgw.wiring",
    *("smartgw_dns.forwarder", "smartgw_dns.server"),
    "smartgw_hosts.agent",
    "smartgw_hosts.clusters_source",
    "smartgw_hosts.write_guard",
    "smartgw_hosts.bus",
    "smartgw_hosts.bus_connection",
    "smartgw_hosts.bus_queue",
    "smartgw_hosts.bus_requests",
    "smartgw_hosts.enrolment_file",
    "smartgw_hosts.keyfile",
    "smartgw_hosts.listener",
    "smartgw_hosts.middleware",
    "smartgw_hosts.quiet_log",
    "smartgw_hosts.sidecar",
    "smartgw_hosts.sidecar_answers",
    "smartgw_hosts.sidecar_app",
    "smartgw_hosts.sidecar_http",
    "smartgw_hosts.sidecar_raw",
    "smartgw_hosts.tunnel",
}
# Within a package that does I/O, what is pure all the same.
PURE = {
    *("smartgw.proxy.headers", "smartgw.proxy.choice", "smartgw.proxy.counters"),
    *("smartgw.proxy.websocket", "smartgw.api.tokens", "smartgw.api.models"),
    *("smartgw.state.snapshot", "smartgw.state.names", "smartgw.state.records"),
    *("smartgw.state.desired", "smartgw.state.durable", "smartgw.state.jetstream"),
    "smartgw.state.zone_records",
    *("smartgw.state.sealed", "smartgw.state.decisions"),
    *("smartgw.processes.drain", "smartgw.processes.messages", "smartgw.processes.reload"),
    *("smartgw.processes.restarts", "smartgw.processes.tally"),
}
IO_MODULES = {
    *("asyncio", "io", "logging", "multiprocessing", "os", "random", "secrets", "select"),
    *("selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading"),
    *("time", "aiohttp", "nats", "redis", "uvloop", "dns.asyncresolver", "dns.query"),
    *("dns.resolver", "acme.client", "http.client", "urllib.request"),
}
IO_CALLS = {"open", "print", "input", "now", "utcnow", "today", "read_text", "read_bytes"}
# Each with the word that says what is meant.
AVOIDED = {
    "backend": "host or upstream",
    "node": "host, gateway or cluster",
    "manager": "what it does",
    "helper": "what it does",
    "util": "what it does",
    "utils": "what it does",
}
# Words that an RFC has for something else: the node of a Forwarded field (RFC 7239 section 6).
WORDS_OF_RFCS = {"smartgw.proxy.headers": {"node"}}
MOST_LINES = {"tests": 800, "packages": 600}


def module_name(package: str, path: Path) -> str:
    """Return the name that a file of a package is imported under."""
    parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
    return ".".join([package, *parts]).removesuffix(".__init__")


MODULES = [
    pytest.param(package, module_name(package, path), path, id=module_name(package, path))
    for package, root in PACKAGES.items()
    for path in sorted(root.rglob("*.py"))
]
SOURCES = sorted(
    path
    for root in (*PACKAGES.values(), REPO / "tests")
    for path in root.rglob("*.py")
    if "data" not in path.parts
)


def does_io(module: str) -> bool:
    """Tell whether a module of ours may do I/O."""
    return _within(module, DOES_IO) and not _within(module, PURE)


def _within(module: str, names: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def imports(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports when it runs."""
    return {name for node in _running(ast.parse(path.read_text())) for name in _imported(node)}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without what is only there for the type checker."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield from _running(child)


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: absolute imports only"
        return {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


@pytest.mark.parametrize(("package", "module", "path"), MODULES)
def test_a_package_imports_only_what_it_may(package: str, module: str, path: Path) -> None:
    """Layout: smartgw may import the three others; they import neither it nor each other."""
    roots = {name.partition(".")[0] for name in imports(path)}
    late = MAY_IMPORT_LATE.get(module, set())
    assert roots - set(sys.stdlib_module_names) - {package} <= MAY_IMPORT[package] | late
    first = {name for node in ast.parse(path.read_text()).body for name in _imported(node)}
    assert first & late == set()


@pytest.mark.parametrize(("package", "module", "path"), MODULES)
def test_a_pure_module_does_no_io(package: str, module: str, path: Path) -> None:
    """Layout: what decides does no I/O; time and nonces come in, what to do goes out."""
    if does_io(module):
        return
    names = imports(path)
    assert {n for n in names for m in IO_MODULES if n == m or n.startswith(f"{m}.")} == set()
    ours = {name for name in names if name.partition(".")[0] in PACKAGES}
    assert {name for name in ours if does_io(name)} == set()
    calls = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }
    assert calls & IO_CALLS == set()


def test_only_the_command_line_knows_the_whole() -> None:
    """Layout: app.py builds everything, so nothing that it builds may import it."""
    knowing = {
        module.values[1]
        for module in MODULES
        if "smartgw.app" in imports(Path(str(module.values[2])))
    }
    assert {name for name in knowing if not str(name).startswith("smartgw.cli.")} == set()


def test_io_lists_name_modules_that_exist() -> None:
    """A module that was renamed or became pure leaves the list of those that do I/O."""
    names = {str(module.values[1]) for module in MODULES}
    assert (DOES_IO | PURE) - names == set()


def test_init_files_are_only_in_the_packages() -> None:
    """Layout: a stray dns/__init__.py or tests/dns/__init__.py would shadow dnspython."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*__init__.py"],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    roots = tuple(PACKAGES.values())
    paths = [REPO / line for line in listed.stdout.splitlines()]
    assert [p for p in paths if not any(p.is_relative_to(root) for root in roots)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPO)))
def test_a_module_can_be_read_as_a_whole(path: Path) -> None:
    """House rule: short enough to see whole, opening with what it owns in under eight lines."""
    text = path.read_text()
    assert text.count("\n") < MOST_LINES["tests" if REPO / "tests" in path.parents else "packages"]
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring, "no docstring"
    assert docstring.count("\n") < 8


@pytest.mark.parametrize(("package", "module", "path"), MODULES)
def test_names_use_the_words_of_the_contract(package: str, module: str, path: Path) -> None:
    """House rule: one word for a thing, in code as in the contract."""
    found = {word for name in _defined(path) for word in _words(name) if word in AVOIDED}
    found |= {word for word in _words(module) if word in AVOIDED}
    found -= WORDS_OF_RFCS.get(module, set())
    assert {word: f"say {AVOIDED[word]}" for word in found} == {}


def _defined(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _words(name: str) -> list[str]:
    """Split snake_case, CamelCase and dots into lower-case words, without a plural s."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return [word.lower().removesuffix("s") if word != "utils" else word for word in words]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPO)))
def test_nothing_is_left_for_later(path: Path) -> None:
    """House rule: no notes to oneself in the source."""
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    assert [mark for mark in marks if re.search(rf"\b{mark}\b", path.read_text())] == []
