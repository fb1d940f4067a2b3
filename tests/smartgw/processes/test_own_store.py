"""The Valkey that a gateway of several workers starts for itself (contract 6.6)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from smartgw.admission.store_places import Address, Places
from smartgw.processes.own_store import OwnStore, find
from tests.gateway import wait_until
from tests.servers import alive
from tests.smartgw.admission.asking import asking, until


def program() -> str:
    found = find()
    assert found is not None
    return found


def test_it_counts_comes_back_and_ends() -> None:
    """6.6: it answers on a private socket, is started again when it dies, and ends with us."""

    async def run() -> None:
        store = OwnStore(program())
        await store.start()
        try:
            path = Path(store.url.removeprefix("unix://"))
            assert path.parent.stat().st_mode & 0o777 == 0o700
            async with asking(Places("server", (Address(path=str(path)),))) as asker:
                asker.ask("app x 1")
                assert (await asker.answers(1))[0][0] == 0
                first = store.pid
                assert first is not None
                os.kill(first, signal.SIGKILL)
                await until(lambda: not asker.up)
                await until(lambda: asker.up)
                assert store.pid not in (None, first)
            last = store.pid
            assert last is not None
        finally:
            await store.stop()
        assert not alive(last)
        assert not path.parent.exists()

    # As the gateway runs it: uvloop starts processes in a way of its own.
    uvloop.run(run())


def test_it_ends_with_a_gateway_that_is_killed() -> None:
    """6.6: after SIGKILL of the gateway no process stays."""
    script = (
        "import asyncio, uvloop\n"
        "from smartgw.processes.own_store import OwnStore, find\n"
        "async def run():\n"
        "    store = OwnStore(find())\n"
        "    await store.start()\n"
        "    print(store.pid, store.url, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "uvloop.run(run())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, url = parent.stdout.readline().split()
    child, folder = int(pid), Path(url.removeprefix("unix://")).parent
    assert alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not alive(child))
    shutil.rmtree(folder)


async def test_a_program_that_is_none(tmp_path: Path) -> None:
    """6.6: what cannot be started is an error that says what, and leaves nothing."""
    bad = tmp_path / "valkey-server"
    bad.write_text("#!/bin/sh\nexit 3\n")
    bad.chmod(0o755)
    store = OwnStore(str(bad))
    with pytest.raises(OSError, match="ended with 3"):
        await store.start()
    assert not Path(store.url.removeprefix("unix://")).parent.exists()
    assert find({"SMARTGW_VALKEY_SERVER": str(tmp_path / "no such")}) is None
    assert find({"SMARTGW_VALKEY_SERVER": str(bad)}) == str(bad)
    await asyncio.sleep(0)
