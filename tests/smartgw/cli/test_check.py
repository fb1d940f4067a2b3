"""11.5, 12.4: `smartgw check` prints every fault, or a short summary."""

import json
from pathlib import Path

import pytest

from smartgw import cli
from smartgw_hosts import keyfile
from tests.validators import entry, list_text

GOOD = """\
cluster = "eu-1"
base_domains = ["smart-app.example"]
host_networks = ["10.0.0.0/8"]
[trust]
file = "hosts.toml"
"""
KEY = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
HOST = f'[[host]]\nid = "shop-1"\nkey = "{KEY}"\ncluster = "eu-1"\napps = ["shop"]\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A good configuration with one enrolled host."""
    (tmp_path / "hosts.toml").write_text(HOST)
    (tmp_path / "smartgw.toml").write_text(GOOD)
    return tmp_path / "smartgw.toml"


def test_good(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: exit code 0 and a summary that an operator can compare with the intention."""
    assert cli.main(["check", "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert "of cluster eu-1" in out
    assert "<label>.smart-app.example" in out
    assert "1 enrolled for this cluster" in out


def test_first_use_is_loud(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1.4: trust on first use warns loudly."""
    file.write_text(GOOD.replace('file = "hosts.toml"', 'mode = "first-use"'))
    assert cli.main(["check", "--config", str(file)]) == 0
    assert "FIRST USE" in capsys.readouterr().out


def test_bad(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """11.5: each fault with file, line, key, fault and remedy; exit code 1."""
    file.write_text(GOOD + "[deadlines]\nhead = 0\n[limits]\nfeilds = 1\n")
    assert cli.main(["check", "--config", str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"{file}:7: deadlines.head: 0 is not above 0; write head = 10.0",
        f"{file}:9: limits.feilds: is no setting; did you mean limits.fields? else remove it",
    ]
    assert captured.err == "2 problems\n"


def test_a_bad_enrolment_list(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1.4, 11.5: the enrolment list is judged too."""
    (file.parent / "hosts.toml").write_text(HOST.replace("shop-1", "shop.1"))
    assert cli.main(["check", "--config", str(file)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{file.parent / 'hosts.toml'}: ")
    assert "shop.1" in out


def test_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: --json gives the same as data."""
    assert cli.main(["check", "--json", "--config", str(file)]) == 0
    good = json.loads(capsys.readouterr().out)
    assert (good["ok"], good["problems"]) == (True, [])
    assert good["settings"]["host_networks"] == ["10.0.0.0/8"]
    file.write_text(GOOD.replace("eu-1", "eu.1"))
    assert cli.main(["check", "--json", "--config", str(file)]) == 1
    bad = json.loads(capsys.readouterr().out)
    [problem] = bad["problems"]
    assert (problem["source"], problem["key"], problem["line"]) == (str(file), "cluster", 1)


def test_serve_refuses_what_check_refuses(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """11.5: bad configuration is refused at start."""
    file.write_text(GOOD.replace("eu-1", "eu.1"))
    assert cli.main(["serve", "--config", str(file)]) == 1
    assert f"{file}:1: cluster: 'eu.1' is not an id" in capsys.readouterr().err


def test_the_list_of_clusters(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4.3, 11.5: the file that lists the clusters is judged too; 11.2: one that is not there yet is
    no fault, for the gateway serves without it.
    """
    folder = file.parent
    key = keyfile.generate(folder / "cluster.seed").public_key
    more = '[identity]\nseed_file = "cluster.seed"\n[peers]\nfile = "clusters.json"\n'
    file.write_text(GOOD + more)
    lists = folder / "clusters.json"

    def check() -> tuple[int, str]:
        code = cli.main(["check", "--config", str(file)])
        return code, capsys.readouterr().out

    code, out = check()
    assert code == 0
    assert "No such file or directory; served alone until it is there" in out
    lists.write_bytes(list_text(entry("eu-1", 1, keys=[key.text]), "us-1"))
    code, out = check()
    assert code == 0
    assert f"{lists}: eu-1, us-1; epoch " in out
    assert "WARNING" not in out
    lists.write_bytes(list_text("eu-1", "us-1"))
    code, out = check()
    assert code == 0
    assert f"WARNING    the directory does not list our key, {key.text}" in out
    lists.write_bytes(list_text("eu-1", "eu-1"))
    code, out = check()
    assert code == 1
    assert out.startswith(f"{lists}: the id eu-1 stands there twice")


def test_validators_are_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4.3: the summary says where the list of clusters comes from; nobody is asked for it."""
    keyfile.generate(file.parent / "cluster.seed")
    more = '[peers]\nvalidators = ["https://a.example"]\n[identity]\nseed_file = "cluster.seed"\n'
    file.write_text(GOOD + more)
    assert cli.main(["check", "--config", str(file)]) == 0
    assert "clusters   from https://a.example" in capsys.readouterr().out
