"""Generations of one gateway for black-box tests: who follows whom on the same addresses.

Owns how the next `smartgw serve` with the same configuration is started, and how one is ended and
asked about its processes. What is proven is the tests' own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gateway import Cluster, Config, Gateway, wait_until
from tests.servers import alive, die_with

QUICK: Config = {"processes": {"unready_wait": 0, "drain": 2.0}}
"""A gateway that ends soon, for there is no load balancer in front of it."""


class Successor(Gateway):
    """The generation after `before`: the same file, addresses and cluster."""

    def __init__(self, before: Gateway) -> None:
        super().__init__(before.cluster)
        self.port, self.internal_port, self.config = (
            before.port,
            before.internal_port,
            before.config,
        )

    def ready(self) -> bool:
        return "took over" in self.log() and super().ready()


def handing_over(cluster: Cluster, changes: Config | None = None) -> Gateway:
    """A gateway that hands over to a `Successor`; it is not one that the cluster waits for."""
    gateway = Gateway(cluster, changes)
    path = gateway.folder / "handover.sock"
    text = gateway.config.read_text()
    if "[processes]" not in text:
        text += "\n[processes]\n"
    setting = f"[processes]\nhandover = {json.dumps(str(path))}\n"
    gateway.config.write_text(text.replace("[processes]\n", setting))
    return gateway.start()


def end(gateway: Gateway, number: signal.Signals = signal.SIGTERM, within: float = 20.0) -> int:
    """Send a signal and wait for the exit code."""
    gateway.signal(number)
    return exit_code(gateway, within)


def exit_code(gateway: Gateway, within: float = 20.0) -> int:
    """Wait until the process has ended by itself."""
    process = gateway._process
    assert process is not None
    return process.wait(within)


def status(gateway: Gateway) -> dict[str, Any]:
    """The gateway's own status."""
    code, body = gateway.internal("/api/v3/status")
    assert code == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def metric(gateway: Gateway, name: str) -> float:
    """The value of one sample of /metrics, by its whole name with labels."""
    code, body = gateway.internal("/metrics")
    assert code == 200, body
    for line in body.decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name}")


def workers(gateway: Gateway) -> list[dict[str, Any]]:
    """The workers that status shows."""
    return list(status(gateway)["workers"])


def drain(gateway: Gateway, *words: str) -> tuple[int, str]:
    """`smartgw drain` for this gateway: exit code and what it said."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "smartgw", "drain"),
            *("--endpoint", f"127.0.0.1:{gateway.internal_port}", *words),
        ],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout + done.stderr


class Activated(Gateway):
    """A gateway whose sockets are passed to it as systemd does; they outlive it."""

    def __init__(self, cluster: Cluster, changes: Config | None = None) -> None:
        super().__init__(cluster, changes)
        self.sockets = [_listening(self.port), _listening(self.internal_port)]
        # What the file says is not what is listened on.
        text = self.config.read_text().replace(f"127.0.0.1:{self.port}", "127.0.0.1:1")
        self.config.write_text(text.replace(f"127.0.0.1:{self.internal_port}", "127.0.0.1:2"))

    def command(self) -> list[str]:
        first, second = (sock.fileno() for sock in self.sockets)
        # The descriptors become 3 and 4, and the process id is known after the fork only.
        script = (
            f"exec 3<&{first} 4<&{second}; "
            'export LISTEN_FDS=2 LISTEN_FDNAMES=http:internal LISTEN_PID=$$; exec "$@"'
        )
        return ["bash", "-c", script, "bash", *super().command()]

    def spawn(self) -> None:
        parent = os.getpid()
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[sock.fileno() for sock in self.sockets],
                preexec_fn=lambda: die_with(parent),
            )

    def stop(self) -> None:
        super().stop()
        for sock in self.sockets:
            sock.close()


def _listening(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(4096)
    return sock


def children(pid: int) -> set[int]:
    """The process ids of the children of a process."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return set(map(int, text.split()))


def gone(pids: Sequence[int], within: float = 5.0) -> None:
    """Wait until none of the processes is left."""
    wait_until(lambda: not any(map(alive, pids)), within, f"{pids} to end")


def clean(*gateways: Gateway) -> None:
    """End gateways and remove their files."""
    for gateway in gateways:
        with contextlib.suppress(ProcessLookupError, OSError):
            gateway.stop()
        shutil.rmtree(gateway.folder, ignore_errors=True)


def file_descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
