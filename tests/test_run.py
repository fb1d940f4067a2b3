"""12.6 and the layout: `./run` and the lock file that it installs from."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]


def test_the_lock_holds_hashes_and_no_addresses() -> None:
    """Layout: requirements.lock pins every package by hash, and names no place to get it from."""
    text = (REPO / "requirements.lock").read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=sha256:[0-9a-f]{64}( \\)?$)", text, re.MULTILINE)
    logical = text.replace("\\\n", " ").splitlines()
    pins = [line for line in logical if line and not line.startswith("#")]
    assert all(re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:", pin) for pin in pins)


def test_the_lock_holds_what_the_project_needs() -> None:
    """Layout: every requirement of pyproject.toml and of the build is in the lock."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        needed += extra
    names = {re.split(r"[<>=\[]", requirement)[0].lower() for requirement in needed}
    text = (REPO / "requirements.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
    assert names - {"smart-gateway"} - locked == set()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with `run` whose environment is this one's Python, as if it had been made."""
    for name in ("run", "requirements.lock", "pyproject.toml"):
        shutil.copy(REPO / name, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    made = runpy.run_path(str(tmp_path / "run"))
    Path(made["STAMP"]).write_text(made["fingerprint"]())
    return tmp_path


def run(checkout: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Call `./run` with this Python."""
    return subprocess.run(
        [sys.executable, "run", *argv],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )


def test_other_commands_run_inside_the_environment(checkout: Path) -> None:
    """12.6: any command but its own is run inside the environment, with its exit code."""
    program = "import os, sys; print(os.environ['VIRTUAL_ENV']); sys.exit(7)"
    done = run(checkout, "python", "-c", program)
    assert done.returncode == 7
    assert done.stdout.strip() == str(checkout / ".venv")
    assert done.stderr == ""


def test_a_command_that_is_none(checkout: Path) -> None:
    """12.6: a misspelt command is told so in one line."""
    done = run(checkout, "no-such-command")
    assert done.returncode == 127
    assert "no-such-command" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_needs_no_environment(tmp_path: Path) -> None:
    """12.6: help is there at once; no command at all is wrong usage."""
    shutil.copy(REPO / "run", tmp_path)
    assert run(tmp_path, "--help").stdout.startswith("usage: ./run COMMAND")
    assert run(tmp_path).returncode == 2
    assert not (tmp_path / ".venv").exists()


def test_an_older_python_is_told_what_is_needed() -> None:
    """Layout: Python 3.11 or newer; the file can be read by an older one as far as it says so."""
    program = (
        "import runpy, sys\nsys.version_info = (3, 9, 2); sys.version = '3.9.2 (main)'\n"
        "runpy.run_path('run', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "needs Python 3.11 or newer, this is 3.9.2" in done.stderr
