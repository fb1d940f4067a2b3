"""The real demo, for tests: `smartgw demo` in a folder of its own, and what must end with it.

Owns how it is started and killed, and how its apps are asked. Asserts nothing.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pytest

from tests.servers import alive, command, die_with


class Demo:
    """One `smartgw demo` in a folder, on free ports; killed at the end of the block."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        parent = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smartgw", "demo", "--dir", str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent),
        )

    def ready(self) -> Self:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line == "READY\n":
                return self
        pytest.fail(f"no READY: {''.join(self.lines)}\n{self.errors()}")

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / "demo.json").read_bytes())
        return facts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of: object) -> None:
        self.process.kill()
        self.process.communicate()


def pids(facts: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for cluster in facts["clusters"]:
        of = cluster["pids"]
        found += [*of["gateway"], of["nats"], of["valkey"], *of["hosts"].values()]
    return found


def is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def left_by(facts: dict[str, Any]) -> list[str]:
    """The processes and ports that a demo has left behind; what is left, is left for ever."""
    addresses = [c[key] for c in facts["clusters"] for key in ("http", "internal", "nats")]
    deadline = time.monotonic() + 30.0
    while True:
        left = [f"process {pid}: {command(pid)}" for pid in pids(facts) if alive(pid)]
        left += [f"port {address}" for address in addresses if is_open(address)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def slowness() -> float:
    """How many times longer this machine takes now than an idle one for one small program."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "smartgw", "--version"], check=True, capture_output=True)
    return max(1.0, (time.monotonic() - began) / 0.3)


def ask(
    facts: dict[str, Any],
    path: str,
    method: str = "GET",
    *,
    app: str = "shop",
    body: bytes = b"",
    by: int = 0,
) -> tuple[int, bytes]:
    """Status and body of the answer of an app; `by`: the number of the cluster that is asked."""
    status, content, _ = ask_fully(facts, path, method, app=app, body=body, by=by)
    return status, content


def ask_fully(
    facts: dict[str, Any],
    path: str,
    method: str = "GET",
    *,
    app: str = "shop",
    body: bytes = b"",
    by: int = 0,
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Status, body and header of the answer of an app."""
    connection = http.client.HTTPConnection(facts["clusters"][by]["http"], timeout=15)
    try:
        headers = {"Host": f"{app}.{facts['base_domain']}"}
        connection.request(method, path, body=body or None, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()
