"""Where listening sockets come from."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from smartgw.config import Settings
from smartgw.processes.sockets import Listener, acquire, activated, refuse_clients
from tests.servers import free_port


def settings(http: list[str], internal: str, links: str | None = None) -> Settings:
    return Settings.model_validate(
        {
            "cluster": "eu-1",
            "base_domains": ["a.test"],
            "host_networks": ["10.0.0.0/8"],
            "trust": {"mode": "first-use"},
            "listen": {"http": http, "internal": internal, "links": links},
            "identity": {"seed_file": "/seed"},
        }
    )


def bound(name: str, port: int) -> Listener:
    sock = socket.socket()
    sock.bind(("127.0.0.1", port))
    return Listener(name, f"127.0.0.1:{port}", sock)


def test_handed_sockets_are_taken_by_their_address() -> None:
    """11.1: of the sockets handed over those that the settings name are taken, the others closed,
    and what is missing is bound.
    """
    ports = [free_port() for _ in range(4)]
    kept, spare, internal = bound("http", ports[0]), bound("http", ports[1]), None
    internal = bound("internal", ports[2])
    wanted = settings([f"127.0.0.1:{p}" for p in (ports[3], ports[0])], f"127.0.0.1:{ports[2]}")
    found = acquire(wanted, [], [kept, spare, internal])
    assert found.http[1] is kept
    assert found.http[0].socket.getsockname()[1] == ports[3]
    assert found.internal is internal
    assert spare.socket.fileno() == -1
    found.close()


def test_the_socket_for_links_is_one_of_its_own() -> None:
    """4.5, 11.1: links over TLS have a listener of their own, which is handed over like all."""
    ports = [free_port() for _ in range(3)]
    http, links, internal = (f"127.0.0.1:{port}" for port in ports)
    found = acquire(settings([http], internal, links), [], [])
    assert [one.address for one in found.links] == [links]
    assert [one.name for one in found.public] == ["http", "links"]
    again = acquire(settings([http], internal, links), [], found.all)
    assert again.all == found.all
    found.close()
    without = acquire(settings([http], internal), [], [bound("links", free_port())])
    assert without.links == ()
    without.close()


def test_a_failure_closes_all() -> None:
    """11.5: an address that is taken is named, and no descriptor is left open."""
    taken, port = bound("http", free_port()), free_port()
    taken.socket.listen()
    handed = bound("internal", free_port())
    with pytest.raises(OSError, match="cannot listen on") as refused:
        acquire(settings([f"127.0.0.1:{port}", taken.address], "127.0.0.1:1"), [], [handed])
    assert refused.value.errno == errno.EADDRINUSE
    assert handed.socket.fileno() == -1
    bound("http", port).socket.close()
    taken.socket.close()


def test_activated_sockets_stand_for_all_of_their_name() -> None:
    """11.1: sockets of the service manager are listened on instead of those of the settings."""
    passed = bound("http", free_port())
    internal = f"127.0.0.1:{free_port()}"
    found = acquire(settings(["127.0.0.1:1", "127.0.0.1:2"], internal), [passed], [])
    assert found.http == (passed,)
    assert found.internal.address == internal
    found.close()


@pytest.mark.parametrize("env", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "2"}])
def test_sockets_of_another_process_are_left_alone(env: dict[str, str]) -> None:
    """11.1: LISTEN_FDS counts only for the process that LISTEN_PID names; both are taken away."""
    assert activated(env, os.getpid()) == []
    assert env == {}


def test_a_descriptor_that_is_no_socket(tmp_path: Path) -> None:
    """11.5: what the service manager passed and nobody can listen on is named."""
    script = (
        "import os; from smartgw.processes.sockets import activated\n"
        f"fd = os.open({str(tmp_path)!r}, os.O_RDONLY); os.dup2(fd, 3)\n"
        "env = {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '1'}\n"
        "try: activated(env, os.getpid())\n"
        "except OSError as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "socket" in done.stdout, done.stderr


@pytest.mark.parametrize("drains", [1, 2, 3])
def test_clients_that_were_refused_more_than_once_are_served_again(drains: int) -> None:
    """11.1: however often a gateway is drained with nobody to listen in between, an undo undoes it
    all: what is accepted then is not taken for ended by its client.
    """
    listener = bound("http", free_port())
    with listener.socket as listening:
        listening.listen()
        for _ in range(drains):
            refuse_clients([listener])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(listening.getsockname(), timeout=5)
        listening.listen()
        client = socket.create_connection(listening.getsockname(), timeout=5)
        accepted, _ = listening.accept()
        with client, accepted:
            accepted.settimeout(0.05)
            with pytest.raises(TimeoutError):
                accepted.recv(1)
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
