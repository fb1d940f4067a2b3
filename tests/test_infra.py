"""infra/: the examples name commands, settings, files and metrics that exist.

What only a Docker engine could show is not shown here; the files say so themselves.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from smartgw.cli import _parser
from smartgw.config import load
from smartgw.config_fields import Settings
from smartgw.errors import Reason
from smartgw.peers.directory import Mode
from smartgw_hosts.wire import Reason as Refusal
from tests.docs_made import exposition

REPO = Path(__file__).parents[1]
INFRA = REPO / "infra"
UNITS = sorted((INFRA / "systemd").glob("*.service"))


def accepts(argv: list[str]) -> None:
    """Have the real command line read `argv` (without `smartgw`); SystemExit when it does not."""
    _parser(argv[0]).parse_args(argv)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_call_commands_that_exist(unit: Path) -> None:
    """Operations: what systemd starts, `smartgw` accepts."""
    lines = re.findall(r"^ExecStart(?:Pre)?=(.+)$", unit.read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        program, *argv = shlex.split(line.replace("%i", "x"))
        assert program.endswith("/bin/smartgw")
        accepts(argv)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_systemds(unit: Path, tmp_path: Path) -> None:
    """Operations: `systemd-analyze verify` has nothing to say but that we are not installed."""
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd here")
    instance = tmp_path / unit.name.replace("@", "@x")
    shutil.copy(unit, instance)
    done = subprocess.run(
        [verify, "verify", "--man=no", str(instance)],
        capture_output=True,
        text=True,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )
    said = [line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line]
    assert [line for line in said if "is not executable" not in line] == []


def composed(folder: Path) -> Settings:
    """The settings that compose.yaml's variables make, with its volumes in `folder`."""
    for name in ("secrets", "var/lib/smartgw"):
        (folder / name).mkdir(parents=True)
    (folder / "secrets/enrolment.toml").touch()
    return load(None, {k: re.sub("^/", f"{folder}/", v) for k, v in ENVIRONMENT.items()})


def test_a_unit_waits_until_the_gateway_has_ended(tmp_path: Path) -> None:
    """11.1: the time that systemd gives is above processes.unready_wait and drain together."""
    processes = composed(tmp_path).processes
    text = (INFRA / "systemd/smartgw@.service").read_text()
    found = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert found is not None
    assert int(found[1]) > processes.unready_wait + processes.drain


COMPOSE = (INFRA / "docker/compose.yaml").read_text()
ENVIRONMENT = dict(re.findall(r"^ +(SMARTGW_\w+): (\S+)$", COMPOSE, re.MULTILINE))


def test_the_composed_gateways_settings_are_accepted(tmp_path: Path) -> None:
    """11.5: the variables of compose.yaml are a configuration."""
    settings = composed(tmp_path)
    assert settings.cluster == "eu-1"
    assert len(ENVIRONMENT) == 11


def test_the_composed_commands_are_accepted() -> None:
    """12.4: the commands of compose.yaml and the Dockerfile are ones of `smartgw`."""
    accepts(["serve", "--json"])
    assert 'command: ["serve", "--json"]' in COMPOSE
    _, _, shop = COMPOSE.partition("      - host\n")
    accepts(["host", *re.findall(r"^      - (--\S+)$", shop.partition("    healthcheck")[0], re.M)])
    found = re.search(r"^#     (keygen .+)$", COMPOSE, re.MULTILINE)
    assert found is not None
    accepts(shlex.split(found[1]))
    dockerfile = (INFRA / "docker/Dockerfile").read_text()
    assert 'CMD ["serve", "--config", "/etc/smartgw/smartgw.toml"]' in dockerfile


def test_the_image_is_made_of_files_that_exist() -> None:
    """Operations: what the Dockerfile copies from the repository is there."""
    dockerfile = (INFRA / "docker/Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    names = [name for line in copied for name in line if not name.startswith(("--", "/"))]
    assert [name for name in names if not (REPO / name).exists()] == []
    assert "pyproject.toml" in names


def test_the_images_constraints_are_the_locks_versions() -> None:
    """Layout: the sed of the Dockerfile leaves one pin a line, and nothing else."""
    dockerfile = (INFRA / "docker/Dockerfile").read_text()
    found = re.search(r"^RUN (sed .+) requirements.lock > constraints.txt", dockerfile, re.M)
    assert found is not None
    argv = [*shlex.split(found[1]), "requirements.lock"]
    made = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True).stdout
    lines = [line for line in made.splitlines() if line.strip()]
    assert len(lines) > 20
    assert [line for line in lines if not re.match(r"[a-z0-9-]+==\S+( ;.*)?$", line)] == []


def test_alerts_ask_for_metrics_that_exist() -> None:
    """11.3: rules and alerts name real metrics, labels and label values."""
    families = {family.name: family for family in exposition()}
    rules = (INFRA / "prometheus/rules.yml").read_text()
    asked = re.findall(r"\b(smartgw_[a-z_]+)(?:\{(\w+)=~?\"([^\"]+)\"\})?", rules)
    assert len(asked) > 5
    values = {*Reason, *Refusal, *Mode, "healthy", "provisional", "unhealthy"}
    for name, label, pattern in asked:
        assert name in families
        if label:
            assert label in families[name].labels
            for part in pattern.split("|"):
                assert any(re.fullmatch(part, value) for value in values), part
