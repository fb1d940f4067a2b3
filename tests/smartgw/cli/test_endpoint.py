"""Which gateway a command asks, and which token it shows."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from smartgw.cli import CommandError, endpoint
from smartgw.cli.endpoint import Endpoint, Unreachable, add_arguments, ask, ask_any, endpoints
from tests.apis import serving


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"SMARTGW_{name}", raising=False)


def found(folder: Path | None, *words: str) -> list[Endpoint]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    named = [] if folder is None else ["--dir", str(folder)]
    return endpoints(parser.parse_args([*named, *words]))


def test_where_the_endpoint_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12.4: the option, then SMARTGW_ENDPOINT, then a demo, then the default."""
    monkeypatch.chdir(tmp_path)
    assert found(None) == [Endpoint("127.0.0.1:9080")]
    folder = tmp_path / ".demo"
    folder.mkdir()
    demo = folder / "demo.json"
    for broken in ("", "[]", "{", '{"clusters": [{"internal": "127.0.0.1:9"}, {"x": 1}]}'):
        demo.write_text(broken)
        assert found(None) == [Endpoint("127.0.0.1:9080")]
        with pytest.raises(CommandError, match="no demo is described there"):
            found(folder)
        assert found(folder, "--endpoint", "h:1") == [Endpoint("h:1")]
    demo.write_text('{"clusters": [{"internal": "127.0.0.1:9"}], "tokens": null}')
    assert found(folder) == [Endpoint("127.0.0.1:9")]
    demo.write_text(
        '{"clusters": [{"internal": "h:1"}, {"internal": "h:2"}], "tokens": {"service": "t"}}'
    )
    assert found(folder) == [Endpoint("h:1", "t"), Endpoint("h:2", "t")]
    assert found(folder, "--endpoint", "h:2") == [Endpoint("h:2", "t")]
    # The demo's token is not shown to others.
    monkeypatch.setenv("SMARTGW_ENDPOINT", "[::1]:9080")
    assert found(folder) == [Endpoint("[::1]:9080")]
    assert found(folder, "--endpoint", "127.0.0.1:7") == [Endpoint("127.0.0.1:7")]


def test_where_the_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12.4: the options, then the environment, then the demo."""
    file, other = tmp_path / "token", tmp_path / "other"
    file.write_text("from-file\n")
    other.write_text("from-other\n")
    monkeypatch.setenv("SMARTGW_TOKEN_FILE", str(file))
    assert found(None)[0].token == "from-file"
    monkeypatch.setenv("SMARTGW_TOKEN", "from-env")
    assert found(None)[0].token == "from-env"
    assert found(None, "--token-file", str(other))[0].token == "from-other"
    assert found(None, "--token", "given")[0].token == "given"
    with pytest.raises(CommandError, match="the token cannot be read"):
        found(None, "--token-file", str(tmp_path / "none"))
    assert "given" not in repr(found(None, "--token", "given"))


@pytest.mark.parametrize("text", ["", "\n", "se cret", "secret\nother", "secret\x00", "x" * 20_000])
def test_what_cannot_be_a_token_is_not_shown(tmp_path: Path, text: str) -> None:
    """12.4: an empty or broken file is told as such, and no piece of it is printed."""
    file = tmp_path / "token"
    file.write_text(text)
    for words in (["--token-file", str(file)], ["--token", text]):
        with pytest.raises(CommandError, match="holds no token") as refused:
            found(None, *words)
        assert "secret" not in str(refused.value)


class Listener:
    """Answers 401 and names a file, until it is shown `token`."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self.shown: list[str | None] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.shown.append(request.headers.get("Authorization"))
        if self.shown[-1] == f"Bearer {self.token}":
            return web.json_response({"ok": True})
        fields = {"WWW-Authenticate": f'Bearer realm="smartgw", operator="{self.path}"'}
        return web.json_response({"error": {"message": "no"}}, status=401, headers=fields)


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[tuple[Listener, str]]:
    listener = Listener(tmp_path / "operator.json", "secret")
    application = web.Application()
    application.router.add_get("/x", listener.answer)
    async with serving(application) as address:
        yield listener, address


def write(path: Path, place: str, mode: int = 0o600) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps({"endpoint": place, "token": "secret"}))
    path.chmod(mode)


async def asked(address: str) -> int:
    return (await asyncio.to_thread(ask, Endpoint(address), "GET", "/x")).status


async def test_the_operators_file_is_found(listener: tuple[Listener, str]) -> None:
    """10.1: without any token a command of the gateway's user is let in by the file."""
    there, address = listener
    write(there.path, address)
    assert await asked(address) == 200
    write(there.path, "0.0.0.0:" + address.rpartition(":")[2])
    assert await asked(address) == 200
    assert await asked(f"http://{address}") == 200


@pytest.mark.parametrize("fault", ["mode", "port", "address", "link", "none", "no JSON"])
async def test_a_file_that_is_not_that_listeners_is_not_shown(
    listener: tuple[Listener, str], fault: str, tmp_path: Path
) -> None:
    """10.1: a program in the gateway's place gets no token that another gateway would take."""
    there, address = listener
    place = {"port": "127.0.0.1:1", "address": f"127.0.0.2:{address.rpartition(':')[2]}"}
    if fault == "link":
        write(tmp_path / "real", address)
        there.path.symlink_to(tmp_path / "real")
    elif fault == "no JSON":
        there.path.touch(mode=0o600)
        there.path.write_text("root:x:0:0:")
    elif fault != "none":
        write(there.path, place.get(fault, address), 0o640 if fault == "mode" else 0o600)
    assert await asked(address) == 401
    assert there.shown == [None]


async def test_a_given_token_is_the_only_one(listener: tuple[Listener, str]) -> None:
    """12.4: whoever names a token learns that it does not count."""
    there, address = listener
    write(there.path, address)
    answer = await asyncio.to_thread(ask, Endpoint(address, "wrong"), "GET", "/x")
    with pytest.raises(CommandError, match="wants the token of a service"):
        endpoint.done(answer)
    assert there.shown == ["Bearer wrong"]


async def test_a_change_without_an_answer_may_be_made(tmp_path: Path) -> None:
    """10.3: what had left is not told as if nobody was there, nor sent to another gateway."""
    asked: list[str] = []

    async def go_away(request: web.Request) -> web.Response:
        asked.append(request.method)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    application = web.Application()
    application.router.add_route("*", "/x", go_away)
    async with serving(application) as address:
        gateways = [Endpoint(address), Endpoint(address)]
        for method in ("PUT", "DELETE", "POST"):
            with pytest.raises(Unreachable, match="may be made all the same") as refused:
                await asyncio.to_thread(ask_any, gateways, method, "/x", {})
            assert refused.value.changed
        with pytest.raises(Unreachable, match="no gateway answers") as refused:
            await asyncio.to_thread(ask_any, gateways, "GET", "/x")
        assert not refused.value.changed
    assert asked == ["PUT", "DELETE", "POST", "GET", "GET"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ftp://h", "http://h/path", "http://[", "a b"])
def test_nobody_there(address: str) -> None:
    """12.4: what cannot be asked is told with a remedy."""
    with pytest.raises(Unreachable, match="--endpoint HOST:PORT"):
        ask(Endpoint(address), "GET", "/x")
