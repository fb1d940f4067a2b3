"""12.4: the command line as a whole: help, exit codes, missing extras."""

import subprocess
import sys
from pathlib import Path

import pytest

from smartgw import cli


def smartgw(*argv: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as if some modules were not installed."""
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    program = f"import sys; {blocked}from smartgw.__main__ import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60
    )


def test_help_lists_every_command() -> None:
    """12.4: `smartgw --help` names each command with what it does, and examples."""
    done = smartgw("--help")
    assert done.returncode == 0
    for name in cli.COMMANDS:
        assert f"\n    {name}" in done.stdout
    assert "examples:" in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: every command explains itself and knows --json."""
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["nothing"], ["check", "--nothing"], ["keygen"]])
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """12.4: exit code 2 for wrong usage, said on stderr."""
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: smartgw" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["serve"], ["check"]])
def test_a_bare_install_names_the_missing_extra(argv: list[str]) -> None:
    """11.5: what the light SDK cannot do says what to install, in one line."""
    done = smartgw(*argv, without=("pydantic", "aiohttp", "uvloop", "idna"))
    assert done.returncode == 1
    assert "pip install 'smart-gateway[gateway]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bare_install_has_help_and_keys(tmp_path: Path) -> None:
    """11.5: help and keygen need nothing beyond the light SDK."""
    bare = ("pydantic", "aiohttp", "uvloop", "idna", "redis", "acme", "dns")
    assert smartgw("--help", without=bare).returncode == 0
    assert smartgw("keygen", str(tmp_path / "a.seed"), without=bare).returncode == 0


def test_version() -> None:
    """12.4: `smartgw --version` names the distribution's version."""
    assert smartgw("--version").stdout.startswith("smartgw 0.")


def test_a_reader_that_went_away_is_no_traceback() -> None:
    """12.4: a closed pipe ends the command without a word."""
    program = "import sys; from smartgw.__main__ import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-uc", program, "check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("argv", [["apps", "show"], ["apps", "suspend"], ["explain"]])
def test_an_argument_that_is_no_text(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """12.4: bytes that are not UTF-8 are wrong usage, not a traceback."""
    monkeypatch.setenv("SMARTGW_ENDPOINT", "127.0.0.1:1")
    assert cli.main([*argv, "sh\udcffop"]) == 2
    assert "not text in UTF-8" in capsys.readouterr().err
