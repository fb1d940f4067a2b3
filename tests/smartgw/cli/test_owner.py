"""`smartgw owner`: offline, and of what a running gateway says."""

import json
from pathlib import Path
from typing import Any

import pytest

from smartgw.cli import main
from smartgw.cli import owner as command
from smartgw.cli.endpoint import Answer, Endpoint, Unreachable

CASES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data/owner.json").read_text())


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `smartgw owner ...`."""
    try:
        code = main(["owner", *words])
    except SystemExit as exit:
        code = int(exit.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("count", ["1", "2", "4", "7"])
def test_owners_offline(capsys: pytest.CaptureFixture[str], count: str) -> None:
    """4.1: `smartgw owner APP --clusters a,b,c` gives the owners of the vectors, asking nobody."""
    ids = CASES["clusters"][count]
    apps = [vector["app_id"] for vector in CASES["vectors"]]
    code, out, _ = run(capsys, *apps, "--clusters", ",".join(reversed(ids)), "--json")
    assert code == 0
    told = json.loads(out)
    assert told["clusters"] == ids
    assert told["mode"] is None
    assert [each["app_id"] for each in told["owners"]] == apps
    for each, vector in zip(told["owners"], CASES["vectors"], strict=True):
        assert each["owner"] == ids[vector["index"][count]]


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: human output by default, in which nothing steers a terminal."""
    code, out, _ = run(capsys, "shop", "bl\x1b[2Jog", "--clusters", "c1, c2 ,c3")
    assert code == 0
    assert out.splitlines() == [
        "3 clusters: c1, c2, c3 · epoch 389ebf709589e5d6",
        "",
        "APP       OWNER",
        "shop      c3",
        "bl?[2Jog  c3",
    ]


def test_a_forecast_offline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """4.1: which share of apps, and which of the known ones, would move."""
    (tmp_path / "apps.txt").write_bytes("blog\r\n\nünïcode-app\na\n".encode())
    file = str(tmp_path / "apps.txt")
    words = ["--forecast", "shop", "--apps-file", file, "--clusters", "c1,c2,c3", "--add", "c4"]
    code, out, _ = run(capsys, *words, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["share"] == 0.75
    assert told["known"] == 4
    assert told["before"]["clusters"] == ["c1", "c2", "c3"]
    assert told["after"]["clusters"] == ["c1", "c2", "c3", "c4"]
    assert {"app_id": "shop", "owner": "c3", "next_owner": "c4"} in told["moves"]
    code, out, _ = run(capsys, *words, "--remove", "c1")
    assert code == 0
    assert "moves  100.0% of all apps; 4 of the 4 apps known" in out
    assert "APP          OWNER  THEN" in out


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--forecast",),
        ("shop", "--add", "c4"),
        ("--forecast", "--add", "c4", "--remove", "c4"),
        ("shop", "--clusters", "a..b"),
        ("shop", "--clusters", "a,a"),
        ("shop", "--clusters", ""),
        ("\udcff", "--clusters", "a"),
    ],
)
def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """12.4: exit code 2 for wrong usage, with a sentence."""
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "smartgw owner: error: " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--add", "a"), "a is among the clusters already"),
        (("--remove", "c"), "c is not among the clusters: a, b"),
        (("--remove", "a,b"), "no cluster would be left"),
        (("--add", "c", "--apps-file", "missing"), "missing: No such file"),
    ],
)
def test_what_cannot_be_is_1(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """12.4: exit code 1 for what is refused."""
    code, out, err = run(capsys, "--forecast", "--clusters", "a,b", *words)
    assert (code, out) == (1, "")
    assert said in err


class Gateways:
    """Stands in for the gateways that run: what each answers, by its address and path."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Answer] = {}

    def ask(self, endpoint: Endpoint, method: str, path: str) -> Answer:
        answer = self.answers.get((endpoint.address, path.partition("?")[0]))
        if answer is None:
            raise Unreachable(f"no gateway answers at {endpoint.address}")
        return answer

    def clusters(self, address: str, mode: str, **states: str) -> None:
        listed = [{"id": each, "state": state} for each, state in states.items()]
        self.answers[address, "/api/v3/discovery/clusters"] = Answer(200, {"clusters": listed}, "")
        self.answers[address, "/api/v3/discovery/owner"] = Answer(200, {"mode": mode}, "")


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gateways:
    found = Gateways()
    monkeypatch.setattr(command, "ask", found.ask)
    monkeypatch.delenv("SMARTGW_ENDPOINT", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".demo").mkdir()
    demo = {"clusters": [{"internal": "127.0.0.1:1"}, {"internal": "127.0.0.1:2"}]}
    (tmp_path / ".demo/demo.json").write_text(json.dumps(demo))
    return found


def test_the_first_gateway_that_answers_is_asked(
    capsys: pytest.CaptureFixture[str], gateways: Gateways
) -> None:
    """12.4: of the clusters of a demo any will do, for all say the same (4.1)."""
    gateways.clusters("127.0.0.1:2", "grace", c1="active", c2="gone", c3="draining")
    code, out, _ = run(capsys, "shop")
    assert code == 0
    assert out.startswith("2 clusters: c1, c3 · epoch ")
    assert " (grace)\n" in out
    code, _, err = run(capsys, "shop", "--endpoint", "127.0.0.1:9")
    assert code == 1
    assert "no gateway answers at 127.0.0.1:9" in err


def test_a_forecast_of_the_apps_that_a_gateway_knows(
    capsys: pytest.CaptureFixture[str], gateways: Gateways
) -> None:
    """4.1: the known apps are those of the gateway; without the right to ask for them the share
    is told all the same.
    """
    gateways.clusters("127.0.0.1:1", "fresh", c1="active", c2="active", c3="active")
    shown = {"apps": {"shown": [{"app_id": "shop"}, {"app_id": "a"}]}}
    gateways.answers["127.0.0.1:1", "/api/v3/status"] = Answer(200, shown, "")
    code, out, _ = run(capsys, "--forecast", "--add", "c4", "--json")
    assert code == 0
    assert [move["app_id"] for move in json.loads(out)["moves"]] == ["shop"]
    gateways.answers["127.0.0.1:1", "/api/v3/status"] = Answer(401, {}, "")
    code, out, err = run(capsys, "--forecast", "--add", "c4")
    assert code == 0
    assert "75.0% of all apps; 0 of the 0 apps known" in out
    assert "without the gateway's apps" in err


def test_no_list_is_said(capsys: pytest.CaptureFixture[str], gateways: Gateways) -> None:
    """4.4: an unknown owner is not guessed; exit code 1, and what would help."""
    error = {"error": {"message": "no list of clusters is in force"}}
    path = "/api/v3/discovery/clusters"
    gateways.answers["127.0.0.1:1", path] = Answer(503, error, "")
    code, _, err = run(capsys, "shop")
    assert code == 1
    assert "no list of clusters is in force" in err
    assert "--clusters a,b,c" in err
    gateways.clusters("127.0.0.1:1", "unknown")
    code, _, err = run(capsys, "shop")
    assert code == 1
    assert "the list of clusters is empty" in err
