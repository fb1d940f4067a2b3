"""The compiled data path: used when it fits the source, left aside when not, and never silently."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smartgw import native
from tests.gateway import Cluster

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is here")


def _run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


def test_every_module_that_is_compiled_is_there() -> None:
    """12.6: what `smartgw compile` translates are modules of the project, each found once."""
    missing = [str(path) for path in native.sources().values() if not path.is_file()]
    assert not missing
    assert len(set(native.MODULES)) == len(native.MODULES)


def test_a_change_of_the_source_leaves_what_was_compiled_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12.6: compiled code is used only if it was made from the source that lies here."""
    before = native.place()
    changed = tmp_path / "path.py"
    changed.write_text("# another text\n")
    sources = {**native.sources(), "smartgw.proxy.path": changed}
    monkeypatch.setattr(native, "sources", lambda: sources)
    assert native.place() != before
    assert not native.install()


@needs_compiler
def test_the_compiled_data_path_is_made_and_used() -> None:
    """12.6: `smartgw compile` makes what a gateway then runs, each module of it."""
    made = _run("-m", "smartgw", "compile")
    assert made.returncode == 0, made.stderr
    script = (
        "from smartgw import native; assert native.install()\n"
        "import importlib\n"
        "for name in native.MODULES: print(importlib.import_module(name).__file__)"
    )
    files = _run("-c", script)
    assert files.returncode == 0, files.stderr
    assert len(files.stdout.splitlines()) == len(native.MODULES)
    assert all(line.endswith(".so") for line in files.stdout.splitlines())


@needs_compiler
@pytest.mark.parametrize(("switch", "compiled"), [("", True), ("off", False)])
def test_status_tells_whether_it_is_compiled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, switch: str, compiled: bool
) -> None:
    """11.3: an operator sees which of the two runs; SMARTGW_NATIVE=off runs the Python."""
    monkeypatch.setenv("SMARTGW_NATIVE", switch)
    assert _run("-m", "smartgw", "compile").returncode == 0
    gateway = cluster.gateway()
    try:
        endpoint = f"127.0.0.1:{gateway.internal_port}"
        status = _run("-m", "smartgw", "status", "--json", "--endpoint", endpoint)
        assert json.loads(status.stdout)["gateways"][0]["status"]["gateway"]["compiled"] is compiled
    finally:
        gateway.stop()
