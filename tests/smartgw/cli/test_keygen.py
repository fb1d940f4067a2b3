"""12.4: `smartgw keygen` makes a host's key and the entry that enrols it."""

import json
import stat
import tomllib
from pathlib import Path

import pytest

from smartgw import cli
from smartgw_hosts import clusters, enrolment, keyfile


def test_makes_a_private_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: the seed file is for its owner only, and never printed."""
    path = tmp_path / "host.seed"
    assert cli.main(["keygen", str(path)]) == 0
    out = capsys.readouterr().out
    key = keyfile.load(path).public_key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key.text in out
    assert key.key_id in out
    assert path.read_text().strip().partition(":")[2] not in out


def test_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: an existing file is refused with one line, exit code 1, and left as it is."""
    path = tmp_path / "host.seed"
    path.write_text("precious")
    assert cli.main(["keygen", str(path)]) == 1
    assert path.read_text() == "precious"
    assert capsys.readouterr().err.count("\n") == 1


def test_enrolment_entry_is_ready_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1.4: what is printed is an entry that the enrolment list accepts, for any app id."""
    path = tmp_path / "host.seed"
    entry = ["--host", "shop-1", "--cluster", "eu-1", "--app", 'sh"op\\', "--app", "bü-*😀"]
    assert cli.main(["keygen", str(path), *entry]) == 0
    printed = capsys.readouterr().out
    [found] = enrolment.parse(printed[printed.index("[[host]]") :])
    assert (found.host_id, found.cluster) == ("shop-1", "eu-1")
    assert found.apps == ('sh"op\\', "bü-*😀")
    assert found.key == keyfile.load(path).public_key


def test_the_key_of_a_cluster_is_told_where_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12.4: what is printed for a cluster is what its gateways and the list of clusters take."""
    path = tmp_path / "cluster.seed"
    assert cli.main(["keygen", str(path), "--cluster", "eu-1"]) == 0
    printed = capsys.readouterr().out
    keys = json.loads("{" + next(line for line in printed.splitlines() if '"keys"' in line) + "}")
    entry = {"id": "eu-1", "gateways": ["https://gw.example"], "state": "active", **keys}
    listed = clusters.parse(json.dumps({"clusters": [entry]}).encode())
    assert listed.clusters[0].keys == (keyfile.load(path).public_key,)
    settings = tomllib.loads(printed[printed.index("[identity]") :])
    assert settings == {"identity": {"seed_file": str(path)}}
    assert "enrol" not in printed


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], ["Of a host: ", "Of a cluster: "]),
        (["--host", "h"], ["--show and --app APP and --cluster ID as well"]),
        (["--app", "a", "--cluster", "c"], ["--show and --host ID as well"]),
    ],
)
def test_the_hint_is_for_what_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], told: list[str]
) -> None:
    """12.4: what is missing for an entry is named, and where nothing is told, what there is."""
    assert cli.main(["keygen", str(tmp_path / "a.seed"), *given]) == 0
    printed = capsys.readouterr().out
    assert [text in printed for text in told] == [True] * len(told)


def test_json_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: --json everywhere; --show tells an existing file's public key again."""
    path = tmp_path / "host.seed"
    assert cli.main(["keygen", "--json", str(path)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert cli.main(["keygen", "--json", "--show", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == made
    assert made["public_key"] == keyfile.load(path).public_key.text


@pytest.mark.parametrize("option", [("--host", "a.b"), ("--cluster", ">"), ("--app", "a\nb")])
def test_wrong_ids_make_no_key(
    tmp_path: Path, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """12.4: wrong usage is 2, and leaves no file behind."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["keygen", str(tmp_path / "host.seed"), *option])
    assert ended.value.code == 2
    assert option[0] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
