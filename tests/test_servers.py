"""The servers that tests start: they answer, freeze, come back, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nats
import pytest

from tests.servers import Nats, Valkey, alive, find_binary


async def test_nats_answers_and_ends() -> None:
    """A real nats-server on a free loopback port, gone when the block ends."""
    async with Nats("max_payload: 4096") as server:
        client = await nats.connect(server.url)
        assert client.max_payload == 4096
        await client.close()
        pid, folder = server.pid, server.folder
    assert not alive(pid)
    assert not folder.exists()


def test_a_killed_server_comes_back_on_its_port() -> None:
    """kill() and start() keep the port; freeze() leaves it open and silent."""
    with Nats() as server:
        port = server.port
        server.kill()
        assert not server.running
        server.start()
        assert server.port == port
        server.freeze()
        assert not server.ready()
        server.thaw()
        assert server.ready()


def test_valkey_answers_and_comes_back_empty() -> None:
    """A real valkey-server with nothing on disk: after kill() and start() it knows nothing."""
    with Valkey() as server:
        assert server.ask("SET", "a", "b") == "+OK\r\n"
        assert server.ask("GET", "a") == "$1\r\nb\r\n"
        server.kill()
        server.start()
        assert server.ask("GET", "a") == "$-1\r\n"
        pid = server.pid
    assert not alive(pid)


def test_a_bad_configuration_is_told_with_the_log() -> None:
    """A server that ends at once is an error that shows why."""
    with pytest.raises(RuntimeError, match="Parse error"), Nats("nonsense: {"):
        pass


def test_a_missing_binary_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to set."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="SMARTGW_NO_SUCH"):
        find_binary("no-such-server", "SMARTGW_NO_SUCH")


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_server_dies_with_its_parent(tmp_path: Path) -> None:
    """12.1: no process is left behind, also after SIGKILL."""
    code = "from tests.servers import Nats; import time; print(Nats().start().pid, flush=True)"
    root = Path(__file__).parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(60)"],
        cwd=root,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            pytest.fail("the server outlived its parent")
        time.sleep(0.02)
