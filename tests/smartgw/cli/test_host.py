"""12.4: `smartgw host` announces an app, proves its key and relays, from options or variables."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smartgw import cli
from smartgw_hosts import challenge, keyfile
from smartgw_hosts.bus import Bus
from smartgw_hosts.challenge import Challenge, Proof
from smartgw_hosts.wire import Kind, Message, decode, subscription
from tests.raw_http import Downstream
from tests.servers import Nats, free_port
from tests.upstreams import Upstream, serve

BARE = ("pydantic", "aiohttp", "uvloop", "idna", "redis", "acme", "dns")


@contextmanager
def host(*argv: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command on a bare install, in a process of its own."""
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in BARE)
    program = f"import sys; {blocked}from smartgw.__main__ import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "host", *argv],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def connect(port: int) -> Downstream:
    until = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return Downstream(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.02)


async def heard(bus: Bus, got: list[Message], kind: Kind) -> Message:
    async with asyncio.timeout(10):
        while True:
            for message in got:
                if message.kind is kind:
                    return message
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("raw", [False, True])
async def test_a_host_from_start_to_end(tmp_path: Path, raw: bool) -> None:
    """12.4: it announces, signs for what it announces, relays, and on SIGTERM leaves and ends."""
    key = tmp_path / "h.seed"
    public = keyfile.generate(key).public_key
    app = Upstream(serve)
    port = free_port()
    got: list[Message] = []
    async with Nats() as nats:
        bus = Bus([nats.url], name="ear")
        bus.subscribe(
            subscription("c1"),
            lambda subject, payload: got.append(
                decode(subject, payload, cluster="c1").check(public)
            ),
        )
        await bus.start()
        async with asyncio.timeout(5):
            await bus.wait_connected()
        address = f"http://127.0.0.1:{port}"
        argv = ["--app", "shop", "--app", "bü", "--id", "h1", "--key", str(key), "--json"]
        variables = {
            "SMARTGW_HOST_TO": app.address,
            "SMARTGW_HOST_LISTEN": f"127.0.0.1:{port}",
            "SMARTGW_HOST_CLUSTER": "c1",
            "SMARTGW_HOST_BUS": f"{nats.url}, nats://127.0.0.1:1",
            "SMARTGW_HOST_WEIGHT": "7",
            "SMARTGW_HOST_APP": "not-this",
            "SMARTGW_HOST_RAW": "1" if raw else "no",
        }
        with host(*argv, **variables) as process:
            announced = (await heard(bus, got, Kind.ANNOUNCE)).description
            assert announced is not None
            assert (announced.address, announced.apps) == (address, ("shop", "bü"))
            assert announced.weight == 7

            def use() -> None:
                asked = Challenge(
                    os.urandom(32), "g1", "c1", "h1", address, public, time.time_ns() // 1_000_000
                )
                with connect(port) as client:
                    client.send(challenge.request(asked))
                    answer = client.answer("POST")
                    verdict = challenge.judge(asked, answer.status, answer.body)
                    assert verdict.reason is Proof.OK
                    client.send(b"GET //a%2Fb HTTP/1.1\r\nHost: shop\r\n\r\n")
                    assert json.loads(client.answer().body)["raw_target"] == "//a%2Fb"

            await asyncio.to_thread(use)
            process.send_signal(signal.SIGTERM)
            await heard(bus, got, Kind.LEAVE)
            _, log = await asyncio.to_thread(process.communicate, None, 10)
            assert process.returncode == 0
            lines = [json.loads(line)["message"] for line in log.splitlines()]
            assert any(text.startswith("host of shop, b\\xfc: listening on") for text in lines)
        await bus.stop()
    app.close()
    assert (tmp_path / "h.seed.boot").exists()


def test_without_a_bus_it_still_serves(tmp_path: Path) -> None:
    """1.7: a bus that is away never hurts the app, and not the exit either."""
    key = tmp_path / "h.seed"
    keyfile.generate(key)
    app = Upstream(serve)
    port = free_port()
    argv = ["--app", "shop", "--to", app.address, "--listen", f"127.0.0.1:{port}", "--cluster"]
    argv += ["c1", "--id", "h1", "--key", str(key), "--bus", f"nats://127.0.0.1:{free_port()}"]
    with host(*argv) as process:
        with connect(port) as client:
            client.send(b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n")
            assert client.answer().status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    app.close()


RIGHT = {
    "--app": "shop",
    "--to": "http://127.0.0.1:3000",
    "--announce": "http://10.0.0.5:9000",
    "--cluster": "c1",
    "--id": "h1",
    "--key": "h.seed",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"--app": None}, "--app (or SMARTGW_HOST_APP)"),
        ({"--key": None}, "--key (or SMARTGW_HOST_KEY)"),
        ({"--to": "https://127.0.0.1:1"}, "over http"),
        ({"--to": "127.0.0.1:3000"}, "argument --to"),
        ({"--listen": ":9000"}, "argument --listen"),
        ({"--listen": "localhost"}, "as 0.0.0.0:9000"),
        ({"--announce": None}, "--announce (or SMARTGW_HOST_ANNOUNCE)"),
        ({"--announce": "http://x/path"}, "argument --announce"),
        ({"--cluster": "a.b"}, "argument --cluster"),
        ({"--id": "a b"}, "argument --id"),
        ({"--weight": "0"}, "from 1 to 1000"),
        ({"--bus": "http://x"}, "argument --bus: a NATS server: expected nats://host:port"),
        ({"--bus": "nats://u:hush@h:99999"}, "argument --bus: a NATS server: expected"),
        ({"--bus": ""}, "argument --bus: a NATS server: expected"),
        ({"--region": "a\nb"}, "argument --region: 'a\\nb' must be printable"),
        ({"--region": "\udc80"}, "argument --region: '\\udc80' must be printable"),
        ({"--app-version": "1" * 65}, "at most 64 bytes"),
        ({"--listen": "127.0.0.1:3000"}, "same address"),
    ],
)
def test_wrong_usage(
    change: dict[str, str | None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """12.4: wrong usage names the option and what would be right, exit code 2."""
    options = {**RIGHT, **change}
    argv = [word for name, value in options.items() if value is not None for word in (name, value)]
    with pytest.raises(SystemExit) as ended:
        cli.main(["host", *argv])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert "hush" not in told


def test_wrong_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """12.4: a wrong variable is wrong usage too, and is named."""
    monkeypatch.setenv("SMARTGW_HOST_APP", "shop,,blog")
    argv = [word for name, value in RIGHT.items() if name != "--app" for word in (name, value)]
    with pytest.raises(SystemExit) as ended:
        cli.main(["host", *argv])
    assert ended.value.code == 2
    assert "SMARTGW_HOST_APP: app id" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["missing", "open", "not a key", "port", "nkey", "ca"])
def test_what_cannot_be_done_is_one_line(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12.4: what fails at the start is said in one line, exit code 1."""
    key = tmp_path / "h.seed"
    other = tmp_path / "other"
    other.write_text("nothing of use")
    options = {**RIGHT, "--key": str(key), "--listen": "127.0.0.1:9"}
    if wrong != "missing":
        keyfile.generate(key)
    if wrong == "open":
        key.chmod(0o644)
    if wrong == "not a key":
        key.write_text("seed")
    options |= {
        "nkey": {"--bus-nkey": str(other)},
        "ca": {"--bus-ca": str(other)},
    }.get(wrong, {})
    app = Upstream(serve)
    if wrong == "port":
        options["--listen"] = f"127.0.0.1:{app.port}"
    try:
        assert cli.main(["host", *(word for pair in options.items() for word in pair)]) == 1
    finally:
        app.close()
    error = capsys.readouterr().err
    assert error.startswith("smartgw host: ")
    assert error.count("\n") == 1
