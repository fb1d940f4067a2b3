"""11.1, 12.4: `smartgw serve` as a process: it starts without a bus, and ends in order."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import free_port


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration whose bus is away."""
    path = tmp_path / "smartgw.toml"
    path.write_text(
        'cluster = "eu-1"\nbase_domains = ["smart-app.test"]\nhost_networks = ["127.0.0.0/8"]\n'
        f'[listen]\nhttp = ["127.0.0.1:{free_port()}"]\ninternal = "127.0.0.1:{free_port()}"\n'
        f'[bus]\nservers = ["nats://127.0.0.1:{free_port()}"]\n[trust]\nmode = "first-use"\n'
    )
    return path


def serve(file: Path, *options: str) -> subprocess.Popen[str]:
    """Start a gateway of this configuration."""
    return subprocess.Popen(
        [sys.executable, "-m", "smartgw", "serve", "--config", str(file), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("SMARTGW_")},
    )


def lines_until(process: subprocess.Popen[str], word: str) -> Iterator[str]:
    """Read stderr up to the first line with a word in it."""
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if word in line:
            return
    pytest.fail(f"ended without {word}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(file: Path, number: signal.Signals) -> None:
    """11.1: SIGTERM and Ctrl-C end the gateway with exit code 0; 1.4: first use warns loudly."""
    with serve(file, "--json") as process:
        try:
            lines = [json.loads(line) for line in lines_until(process, "serving on")]
            assert any("TRUST IS FIRST USE" in line["message"] for line in lines)
            process.send_signal(number)
            assert process.wait(30) == 0
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_a_port_in_use_is_one_line(file: Path) -> None:
    """12.4: what stands in the way is said in one line, exit code 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = file.read_text()
        begin = text.index('http = ["') + len('http = ["')
        file.write_text(text[:begin] + address + text[text.index('"', begin) :])
        process = serve(file)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith("smartgw serve: cannot start: ")
    assert address in last
