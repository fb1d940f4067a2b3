"""12.8: `./run prove [NAME]` lists or runs the acceptance checks."""

import importlib.util
import json
import sys

import pytest

from tests import prove
from tests.prove import CHECKS, REPO, Check


def test_lists_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    """12.8: without a name all checks are listed, each with its sentence and command."""
    assert prove.main([]) == 0
    out = capsys.readouterr().out
    for check in CHECKS:
        assert f"{check.name:<16} {check.sentence}" in out
    assert prove.main(["--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["checks"]) == len(CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_check_can_run(check: Check) -> None:
    """12.8: each command names files and modules that exist."""
    assert [other.name for other in CHECKS].count(check.name) == 1
    assert check.sentence.endswith(".")
    if check.argv[:2] == ("python", "-m"):
        assert importlib.util.find_spec(check.argv[2])
    for part in check.argv:
        if part.startswith("tests/"):
            assert (REPO / part.partition("::")[0]).exists()


def test_runs_and_counts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """12.8: a check prints its figure last; exit code 1 if one fails."""
    good = Check("good", "Good.", ("python", "-c", "print('7 of 7\\n')"))
    bad = Check("bad", "Bad.", (sys.executable, "-c", "print('6 of 7'); exit(3)"))
    monkeypatch.setattr(prove, "CHECKS", (good, bad))
    assert prove.main(["good"]) == 0
    assert capfd.readouterr().out.strip().endswith("7 of 7")
    assert prove.main(["all"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[-3:] == [
        "passed  good             7 of 7",
        "FAILED  bad              6 of 7",
        "1 passed, 1 failed",
    ]
    assert prove.main(["--json", "bad"]) == 1
    [result] = json.loads(capfd.readouterr().out)["results"]
    assert (result["passed"], result["figure"]) == (False, "6 of 7")


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: exit code 2, and the names that there are."""
    with pytest.raises(SystemExit) as ended:
        prove.main(["nothing"])
    assert ended.value.code == 2
    assert "there are suite" in capsys.readouterr().err
