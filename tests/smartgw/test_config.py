"""11.5: a bad configuration is refused with the file, the key, the fault and the remedy."""

import json
import math
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from smartgw.config import ConfigError, Problem, Settings, load
from smartgw.config_fields import Discovery

GOOD: dict[str, Any] = {
    "cluster": "eu-1",
    "base_domains": ["smart-app.example"],
    "host_networks": ["10.0.0.0/8", "fd00::/8"],
    "trust": {"mode": "first-use"},
}


def toml(values: Mapping[str, Any], table: str = "") -> str:
    """Return values as TOML; only what these tests write."""
    plain = [(k, v) for k, v in values.items() if not isinstance(v, dict)]
    lines = [f"{json.dumps(k)} = {toml_value(v)}" for k, v in plain]
    for key, value in values.items():
        if isinstance(value, dict):
            name = f"{table}.{json.dumps(key)}" if table else json.dumps(key)
            lines += [f"[{name}]", toml(value, name)]
    return "\n".join(lines)


def toml_value(value: object) -> str:
    """Return one value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else f"{'-' if value < 0 else ''}inf"
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value)


def refused(path: Path | None, env: Mapping[str, str] | None = None) -> tuple[Problem, ...]:
    """Return the problems that a configuration is refused with."""
    with pytest.raises(ConfigError) as caught:
        load(path, env or {})
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return caught.value.problems


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    """11.5: what is not written has the documented default."""
    file = tmp_path / "smartgw.toml"
    file.write_text(toml(GOOD))
    others = {"SMARTGW_ENDPOINT": "h:1", "SMARTGW_HOST_TO": "http://127.0.0.1:3000"}
    found = load(file, {"HOME": "/", "SMARTGWX": "1", **others})
    assert found.cluster == "eu-1"
    assert [str(network) for network in found.host_networks] == ["10.0.0.0/8", "fd00::/8"]
    assert found.listen.http == ("0.0.0.0:8080",)
    assert found.discovery == Discovery()
    assert found.deadlines.head == 10
    assert found.gateway


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    """11.5: SMARTGW_SECTION__KEY wins; lists as JSON or with commas."""
    file = tmp_path / "smartgw.toml"
    file.write_text(toml(GOOD))
    found = load(
        None,
        {
            "SMARTGW_CONFIG": str(file),
            "SMARTGW_CLUSTER": "123",
            "SMARTGW_BASE_DOMAINS": "a.example, b.example",
            "SMARTGW_LISTEN__HTTP": '["127.0.0.1:80", "[::1]:80"]',
            "SMARTGW_DEADLINES__HEAD": "2.5",
            "SMARTGW_LIMITS__FIELDS": "7",
        },
    )
    assert found.cluster == "123"
    assert found.base_domains == ("a.example", "b.example")
    assert found.listen.http == ("127.0.0.1:80", "[::1]:80")
    assert (found.deadlines.head, found.limits.fields) == (2.5, 7)


def test_settings_are_frozen(tmp_path: Path) -> None:
    """11.5: nothing changes a setting after it was judged."""
    found = Settings.model_validate(GOOD)
    with pytest.raises(ValidationError):
        found.cluster = "other"
    with pytest.raises(ValidationError):
        found.deadlines.head = 1.0


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    """11.5: a path in the file means the same wherever the gateway is started."""
    (tmp_path / "hosts.toml").write_text("")
    file = tmp_path / "smartgw.toml"
    file.write_text(toml(GOOD | {"trust": {"file": "hosts.toml"}}))
    assert load(file, {}).trust.file == tmp_path / "hosts.toml"


BROKEN: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("unknown key", {"base_domain": "a.example"}, "base_domain", "is no setting", "base_domains?"),
    ("unknown in table", {"deadlines": {"haed": 5}}, "deadlines.haed", "is no setting",
     "deadlines.head?"),
    ("wrong table", {"heartbeat": 5}, "heartbeat", "is no setting", "discovery.heartbeat?"),
    ("text for list", {"base_domains": "a.example"}, "base_domains", "'a.example' is not a list",
     'base_domains = ["smart-app.example"]'),
    ("number for text", {"cluster": 5}, "cluster", "5 is not text", 'cluster = "eu-1"'),
    ("text for number", {"deadlines": {"head": "5s"}}, "deadlines.head", "'5s' is not a number",
     "without quotes"),
    ("true for number", {"discovery": {"missed": True}}, "discovery.missed",
     "true is not a number", "without quotes"),
    ("fraction", {"discovery": {"missed": 1.5}}, "discovery.missed", "1.5 is not a whole number",
     "missed = 3"),
    ("value for table", {"bus": 5}, "bus", "the value is not a table", "[bus]"),
    ("host bits", {"host_networks": ["10.0.0.1/8"]}, "host_networks", "bits set beyond",
     '"10.0.0.0/8"'),
    ("bad CIDR", {"host_networks": ["10.0.0.0/33"]}, "host_networks", "not a network",
     '"10.0.0.0/8"'),
    ("no networks", {"host_networks": []}, "host_networks", "is empty",
     'host_networks = ["10.0.0.0/8"]'),
    ("bad id", {"cluster": "eu.1"}, "cluster", "'eu.1' is not an id", "1 to 64 letters"),
    ("long id", {"gateway": "g" * 65}, "gateway", "is not an id", "1 to 64 letters"),
    ("bad listen", {"listen": {"http": ["8080"]}}, "listen.http", "'8080' is not host:port",
     '"0.0.0.0:8080"'),
    ("bad port", {"listen": {"internal": "127.0.0.1:99999"}}, "listen.internal",
     "is not host:port", "65535"),
    ("same port", {"listen": {"http": ["0.0.0.0:80"], "internal": "127.0.0.1:80"}},
     "listen.internal", "taken by listen.http", "another port"),
    ("same port as http", {"listen": {"http": ["0.0.0.0:80"], "links": "10.0.0.1:80"}},
     "listen.links", "taken by listen.http", "8443"),
    ("same port as links", {"listen": {"links": "[::]:9080"}},
     "listen.internal", "taken by listen.links", "another port"),
    ("links without a key", {"listen": {"links": "0.0.0.0:8443"}}, "identity", "needs seed_file",
     "smartgw keygen"),
    ("twice", {"base_domains": ["a.example", "a.example"]}, "base_domains", "stands there twice",
     "write it once"),
    ("single label", {"base_domains": ["com"]}, "base_domains", "single label", "smart-app.com"),
    ("upper case", {"base_domains": ["A.Example"]}, "base_domains", "not written as on the wire",
     '"a.example"'),
    ("unicode", {"base_domains": ["faß.example"]}, "base_domains", "not written as on the wire",
     '"xn--fa-hia.example"'),
    ("wildcard", {"base_domains": ["*.a.example"]}, "base_domains", "not written as on the wire",
     '"a.example"'),
    ("IP address", {"base_domains": ["10.0.0.1"]}, "base_domains", "is an IP address",
     "smart-app.example"),
    ("no DNS name", {"base_domains": ["a b.example"]}, "base_domains", "is not a DNS name",
     "smart-app.example"),
    ("reserved label", {"hostnames": ["verify.smart-app.example"]}, "hostnames", "is reserved",
     '"api.smart-app.example"'),
    ("base domain as hostname", {"hostnames": ["smart-app.example"]}, "hostnames",
     "is a base domain", '"api.smart-app.example"'),
    ("zero", {"deadlines": {"head": 0}}, "deadlines.head", "0 is not above 0", "head = 10.0"),
    ("negative", {"upstream": {"idle": -1.5}}, "upstream.idle", "-1.5 is not above 0",
     "idle = 60.0"),
    ("endless", {"deadlines": {"websocket": math.inf}}, "deadlines.websocket",
     "inf is not a number", "websocket = 600.0"),
    ("huge", {"limits": {"fields": 1 << 60}}, "limits.fields", "too large", "at most"),
    ("above the head", {"limits": {"head_bytes": 100, "field_line_bytes": 99, "target_bytes": 101}},
     "limits.target_bytes", "above limits.head_bytes", "at most 100"),
    ("unknown choice", {"log": {"level": "loud"}}, "log.level", "'loud' is not known", '"debug"'),
    ("relative log", {"log": {"access": "a.log"}}, "log.access", "absolute path",
     "/var/log/smartgw"),
    ("trust without file", {"trust": {}}, "trust.file", "is missing", "[trust]"),
    ("first use with file", {"trust": {"mode": "first-use", "file": "smartgw.toml"}}, "trust.file",
     "trusts any key", 'mode = "enrolment"'),
    ("no such file", {"trust": {"file": "/nowhere/hosts.toml"}}, "trust.file",
     "No such file", "create it, an empty one will do"),
    ("folder for file", {"upstream": {"tls_ca": "/"}}, "upstream.tls_ca", "is not a file",
     "existing file"),
    ("NUL in path", {"bus": {"tls_ca": "a\0b"}}, "bus.tls_ca", "NUL", "/etc/smartgw"),
    ("bus URL", {"bus": {"servers": ["http://h:4222"]}}, "bus.servers", "is not one",
     "nats://host:4222"),
    ("h2c", {"proxy": {"upgrades": ["h2c"]}}, "proxy.upgrades", "past the gateway", "remove it"),
    ("field name", {"proxy": {"removed_fields": ["X Real"]}}, "proxy.removed_fields",
     "not a header field name", "X-Real-IP"),
    ("address as network", {"proxy": {"trusted": ["fe80::1%eth0/64"]}}, "proxy.trusted",
     "is not a network", "10.0.0.0/8"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "key", "fault", "remedy"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
)
def test_each_fault_is_named(
    tmp_path: Path, change: dict[str, Any], key: str, fault: str, remedy: str
) -> None:
    """11.5: file, key, what was wrong, what would be right, for exactly that one fault."""
    file = tmp_path / "smartgw.toml"
    file.write_text(toml(GOOD | change))
    problems = refused(file)
    first = problems[0]
    assert (first.source, first.key) == (str(file), key)
    assert fault in first.fault
    assert remedy in first.remedy
    assert {p.key for p in problems} == {key}


@pytest.mark.parametrize("key", ["cluster", "base_domains", "host_networks"])
def test_what_must_be_written(tmp_path: Path, key: str) -> None:
    """11.5: a missing key is named with an example of it."""
    file = tmp_path / "smartgw.toml"
    file.write_text(toml({k: v for k, v in GOOD.items() if k != key}))
    [problem] = refused(file)
    assert (problem.key, problem.fault) == (key, "is missing")
    assert problem.remedy.startswith(f"write {key} = ")


def test_every_fault_at_once_with_its_line(tmp_path: Path) -> None:
    """11.5: all faults in one go, each with the line it stands on, in the file's order."""
    file = tmp_path / "smartgw.toml"
    file.write_text(
        'cluster = "a b"\nbase_domains = ["a.example"]\nhost_networks = ["::/0"]\n\n'
        '[trust]\nmode = "first-use"\n[deadlines]\n# soon\nhead = 0\nlinger=-1\n'
        "[limits]\nfields = 1\nfeilds = 2\n"
    )
    problems = refused(file)
    assert [(p.line, p.key) for p in problems] == [
        (1, "cluster"),
        (9, "deadlines.head"),
        (10, "deadlines.linger"),
        (13, "limits.feilds"),
    ]
    assert str(problems[1]) == f"{file}:9: deadlines.head: 0 is not above 0; write head = 10.0"


@pytest.mark.parametrize(
    ("content", "line", "fault", "remedy"),
    [
        (b"cluster = eu\n", 1, "is not TOML", "in quotes"),
        (b'cluster = "a"\ncluster = "b"\n', 2, "is not TOML", "each key once"),
        (b"[listen\n", 1, "is not TOML", "[section]"),
        (b"a = 1\nb = \xff\n", 2, "is not UTF-8", "as UTF-8"),
        (b"a = " + b"[" * 100_000, None, "nested too deeply", "key = value"),
        (b"a = " + b"9" * 5000, None, "number that is too long", "key = value"),
        (b"#" * (1 << 20) + b"#", None, "larger than 1 MiB", "the configuration file"),
    ],
)
def test_a_file_that_is_none(
    tmp_path: Path, content: bytes, line: int | None, fault: str, remedy: str
) -> None:
    """11.5: what cannot be read as TOML says where and why."""
    file = tmp_path / "smartgw.toml"
    file.write_bytes(content)
    [problem] = refused(file)
    assert (problem.source, problem.line) == (str(file), line)
    assert fault in problem.fault
    assert remedy in problem.remedy.replace('"', "")


def test_no_file_there(tmp_path: Path) -> None:
    """11.5: a missing file, a folder and a forbidden name are told apart."""
    [missing] = refused(tmp_path / "none.toml")
    assert (missing.source, missing.fault) == (str(tmp_path / "none.toml"), "does not exist")
    assert "--config" in missing.remedy
    [folder] = refused(tmp_path)
    assert (folder.fault, folder.remedy) == (
        "is a directory",
        f"name a file: {tmp_path / 'smartgw.toml'}",
    )
    [name] = refused(Path("a\0b"))
    assert "cannot be read" in name.fault


def test_faults_of_variables_name_the_variable(tmp_path: Path) -> None:
    """11.5: a fault that came from the environment is not blamed on the file."""
    file = tmp_path / "smartgw.toml"
    file.write_text(toml(GOOD | {"deadlines": {"head": 5}}))
    problems = refused(
        file,
        {
            "SMARTGW_DEADLINES__HEAD": "fast",
            "SMARTGW_DEADLINES": "5",
            "SMARTGW_BUS__SERVRS": "nats://h:1",
            "SMARTGW_XYZZY": "1",
            "SMARTGW_HOST_NETWORK": "10.0.0.0/8",
            "SMARTGW_HOST_NETWORKS": "10.0.0.0/8,here",
            "SMARTGW_BASE_DOMAINS": "[1",
        },
    )
    assert {(p.source, p.key) for p in problems} == {
        ("SMARTGW_DEADLINES__HEAD", "deadlines.head"),
        ("SMARTGW_DEADLINES", ""),
        ("SMARTGW_BUS__SERVRS", ""),
        ("SMARTGW_XYZZY", ""),
        ("SMARTGW_HOST_NETWORK", ""),
        ("SMARTGW_HOST_NETWORKS", "host_networks"),
        ("SMARTGW_BASE_DOMAINS", "base_domains"),
    }
    remedies = {p.source: p.remedy for p in problems}
    assert remedies["SMARTGW_BUS__SERVRS"] == "did you mean SMARTGW_BUS__SERVERS? else unset it"


def test_nothing_at_all_says_what_is_needed() -> None:
    """11.5: without file and variables that is said first, and the keys without a default are
    named."""
    first, *others = refused(None)
    assert "no --config FILE given, and SMARTGW_CONFIG is not set" in str(first)
    assert [p.key for p in others] == [
        "cluster",
        "base_domains",
        "host_networks",
        "trust.file",
    ]


SEED = "SU" + "A" * 56


def test_seed_file_must_be_private(tmp_path: Path) -> None:
    """11.5: a seed that others can read is refused with the command that repairs it."""
    seed = tmp_path / "bus seed"
    seed.write_text(f"{SEED}\n")
    seed.chmod(0o640)
    file = tmp_path / "smartgw.toml"
    file.write_text(toml(GOOD | {"bus": {"nkey_seed_file": "bus seed"}}))
    [problem] = refused(file)
    assert problem.key == "bus.nkey_seed_file"
    assert "open to others" in problem.fault
    assert problem.remedy == f"run: chmod 600 '{seed}'"
    seed.chmod(0o600)
    assert load(file, {}).bus.nkey_seed_file == seed
    seed.write_text(SEED[:-1])
    [problem] = refused(file)
    assert problem.fault.endswith("does not hold the seed of a NATS user")
    assert SEED[:-1] not in str(problem)
    assert "nk -gen user" in problem.remedy


SECRET = "SUAM" + "QWERTYUIOPASDFGHJKLZXCVBNM234567QWERTYUIOPASDFGHJKLZXC"


@pytest.mark.parametrize(
    "bus",
    [
        {"servers": [f"nats://user:{SECRET}@h:4222"]},
        {"servers": f"nats://{SECRET}@h"},
        {"servers": [[SECRET]]},
        {"nkey_seed_file": SECRET},
        {"nkey_seed": SECRET},
        {"tls_ca": [SECRET]},
        {"servers": {"password": SECRET}},
    ],
)
@pytest.mark.parametrize("through", ["file", "environment"])
def test_secrets_are_never_shown(tmp_path: Path, bus: dict[str, Any], through: str) -> None:
    """11.5: what may be a password or a seed stands in no message and no repr."""
    file = tmp_path / "smartgw.toml"
    env: dict[str, str] = {}
    if through == "file":
        file.write_text(toml(GOOD | {"bus": bus}))
    else:
        file.write_text(toml(GOOD))
        [(key, value)] = bus.items()
        env[f"SMARTGW_BUS__{key.upper()}"] = value if isinstance(value, str) else json.dumps(value)
    problems = refused(file, env)
    assert SECRET not in "".join(map(repr, problems))


VALUES = st.recursive(
    st.none().map(lambda _: datetime(2026, 1, 1))
    | st.booleans()
    | st.integers(-(1 << 62), 1 << 62)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(["a.example", "10.0.0.0/8", "xn--a", "a:1", "[::]:0", "\u202e", "stdout"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
KEYS = [(n, s) for n, f in Settings.model_fields.items()
        for s in (getattr(f.annotation, "model_fields", None) or [None])]  # fmt: skip
KEY = st.sampled_from(KEYS) | st.tuples(st.text("ab.-\n\x1b", min_size=1, max_size=3), st.none())


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(KEY, VALUES, max_size=6),
    st.dictionaries(KEY, st.text(st.characters(codec="utf-8"), max_size=8), max_size=2),
)
def test_load_raises_nothing_but_config_errors(
    tmp_path: Path,
    file_values: dict[tuple[str, str | None], Any],
    variables: dict[tuple[str, str | None], str],
) -> None:
    """11.5: whatever the values, load returns settings or tells what is wrong."""
    values: dict[str, Any] = {}
    for (name, sub), value in file_values.items():
        if sub is None:
            values[name] = value
        elif isinstance(values.setdefault(name, {}), dict):
            values[name][sub] = value
    file = tmp_path / "random.toml"
    file.write_text(toml(GOOD | values))
    env = {"SMARTGW_" + "__".join(filter(None, key)).upper(): v for key, v in variables.items()}
    problems: tuple[Problem, ...] = ()
    try:
        load(file, env)
    except ConfigError as error:
        problems = error.problems
    for problem in problems:
        assert problem.fault
        assert problem.remedy
        assert str(problem).isprintable()


@given(st.binary(max_size=200))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_load_survives_any_bytes(tmp_path: Path, content: bytes) -> None:
    """11.5: a file that is no configuration at all is told so."""
    file = tmp_path / "random.toml"
    file.write_bytes(content)
    refused(file)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    """11.5: a file that this user may not read says so."""
    file = tmp_path / "smartgw.toml"
    file.write_text(toml(GOOD))
    file.chmod(0)
    [problem] = refused(file)
    assert "Permission denied" in problem.fault
