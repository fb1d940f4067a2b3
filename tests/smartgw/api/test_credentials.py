"""Whose credentials count, and where the keys come from."""

import asyncio
import json
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from smartgw.api import issuer_keys
from smartgw.api.credentials import Credentials
from smartgw.api.issuer_keys import IssuerKeys
from smartgw.api.operator import Operator
from smartgw.api.tokens import MAX_JWKS_BYTES, Refusal, Role
from smartgw.config_fields import Auth
from tests.apis import serving
from tests.smartgw.api import issuing


@asynccontextmanager
async def credentials(auth: Auth) -> AsyncIterator[Credentials]:
    made = Credentials(auth, Operator())
    made.start()
    try:
        yield made
    finally:
        await made.stop()


async def eventually(condition: Callable[[], object]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 5 s")


@pytest.mark.parametrize("kind", issuing.forged())
async def test_everybody_but_services_is_nobody(kind: str, tmp_path: Path) -> None:
    """10.1: control takes service credentials only, sessions are refused too."""
    async with credentials(issuing.auth(tmp_path)) as made:
        assert await made.service(issuing.forged()[kind], internal=True) is None
        assert sum(made.refused.values()) == 1
        service = await made.service([f"Bearer {issuing.token()}"], internal=False)
        assert service is not None
        assert (service.role, service.subject) == (Role.SERVICE, "tests")


async def test_a_session_is_known_where_sessions_may_call(tmp_path: Path) -> None:
    """10.2: sessions and services are tokens of the configured issuers."""
    async with credentials(issuing.auth(tmp_path)) as made:
        caller = await made.caller([f"Bearer {issuing.token('session', sid='s1')}"])
        assert caller is not None
        assert (caller.role, caller.session_id) == (Role.SESSION, "s1")
        assert made.refused.total() == 0


async def test_no_token_stands_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """10.2: a refusal is counted and told by its reason, nothing of the token is."""
    caplog.set_level(logging.DEBUG)
    async with credentials(issuing.auth(tmp_path)) as made:
        for fields in issuing.forged().values():
            await made.service(fields, internal=True)
    assert "expired" in caplog.text
    for fields in issuing.forged().values():
        for part in ".".join(fields).removeprefix("Bearer ").split("."):
            assert len(part) < 8 or part not in caplog.text


async def test_what_is_missing_is_not_malformed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """10.2: that no credential is shown is counted and told as such, and is no warning."""
    caplog.set_level(logging.INFO, "smartgw.api.credentials")
    async with credentials(issuing.auth(tmp_path)) as made:
        for internal in (True, False):
            assert await made.service([], internal=internal) is None
        assert await made.caller([]) is None
        assert made.refused[Refusal.MISSING] == made.refused.total() == 3
        found = [(each.levelname, each.getMessage()) for each in caplog.records]
        assert found == [("INFO", "API: a credential is refused: missing")]
        await made.caller(["Basic x"])
        assert caplog.records[-1].levelname == "WARNING"
        assert "malformed" in caplog.records[-1].getMessage()


async def test_without_issuers_nobody_counts_but_the_operator() -> None:
    """10.1: there is no open door: without issuers every token is refused."""
    async with credentials(Auth()) as made:
        assert await made.service([f"Bearer {issuing.token()}"], internal=True) is None
        assert made.refused[Refusal.UNKNOWN_ISSUER] == 1


# ---- the operator ----


async def test_the_operator_is_who_can_read_the_file(tmp_path: Path) -> None:
    """10.1: the token of this machine's operator counts at the internal listener only."""
    async with credentials(Auth()) as made:
        made.operator.write([tmp_path / "state"], "127.0.0.1:9080")
        path = made.operator.path
        assert path is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        written = json.loads(path.read_text())
        assert written["endpoint"] == "127.0.0.1:9080"
        field = f"Bearer {written['token']}"
        assert await made.service([field], internal=True) == made.operator.caller
        assert await made.service([field], internal=False) is None
        for wrong in ([], [field[:-1]], [field + "x"], [field, field], ["Bearer \udcff"]):
            assert await made.service(wrong, internal=True) is None
        made.operator.remove()
        assert not path.exists()


def test_the_file_of_the_next_generation_stays(tmp_path: Path) -> None:
    """11.1: a generation that ends leaves alone what the next one has written."""
    old, new = Operator(), Operator()
    old.write([tmp_path], "127.0.0.1:9080")
    new.write([tmp_path], "127.0.0.1:9080")
    old.remove()
    assert new.path is not None
    assert new.path.exists()
    assert not new.holds([f"Bearer {json.loads(new.path.read_text())['endpoint']}"])


def test_a_folder_that_takes_no_file_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """10.1: a disk that is full or read-only costs the file's place, not the start."""
    (tmp_path / "file").touch()
    operator = Operator()
    folders = [tmp_path / "file", tmp_path / "none" / "none", tmp_path]
    operator.write(folders, "127.0.0.1:9080")
    assert operator.path == tmp_path / "operator.json"
    assert "cannot be written" in caplog.text


# ---- where keys come from ----


async def test_a_changed_file_counts_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """10.2: keys are rotated without a restart; a bad file leaves the last keys in force."""
    monkeypatch.setattr(issuer_keys, "FILE_POLL_SECONDS", 0.01)
    auth = issuing.auth(tmp_path)
    path = auth.issuer[0].jwks_file
    assert path is not None
    field = [f"Bearer {issuing.token(kid='k2')}"]
    async with credentials(auth) as made:
        await made.service(field, internal=False)
        path.write_bytes(issuing.key_set("k1", "k2"))
        for _ in range(500):
            if await made.service(field, internal=False):
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the new key does not count")
        path.write_text("{")
        await eventually(made.degraded)
        assert "no JWK set" in made.degraded()[0]
        assert await made.service(field, internal=False)
        os.unlink(path)
        await eventually(lambda: "No such file" in made.degraded()[0])
        assert await made.service(field, internal=False)
        path.write_bytes(issuing.key_set("k1"))
        await eventually(lambda: not made.degraded())
        assert await made.service(field, internal=False) is None
    assert "the last ones stay in force" in caplog.text


class Endpoint:
    """A JWKS URL whose answer can be changed; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.body = issuing.key_set("k1")
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        fields = {"Location": "/elsewhere"} if self.status == 302 else {}
        return web.Response(body=self.body, status=self.status, headers=fields)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_get("/{any}", self.answer)
        async with serving(application) as address:
            yield f"http://{address}/jwks"


def by_url(url: str) -> Auth:
    return Auth.model_validate(
        {"issuer": [{"issuer": issuing.NAME, "jwks_url": url, "roles": ["service", "session"]}]}
    )


async def test_an_unknown_key_has_the_url_asked_once_in_a_while() -> None:
    """10.2: a rotated key counts at its first use, and nobody can have us ask all the time."""
    endpoint = Endpoint()
    async with endpoint.serving() as url, credentials(by_url(url)) as made:
        await eventually(lambda: endpoint.asked)
        (source,) = made._sources.values()
        await eventually(lambda: source.keys.named)
        now = source._asked_at
        source._clock = lambda: now + issuer_keys.LEAST_SECONDS
        endpoint.body = issuing.key_set("k2")
        callers = await asyncio.gather(
            *(made.service([f"Bearer {issuing.token(kid='k2')}"], internal=False) for _ in range(9))
        )
        assert all(callers)
        assert endpoint.asked == 2
        for number in range(9):
            field = f"Bearer {issuing.token(kid=f'x{number}')}"
            assert await made.service([field], internal=False) is None
        assert endpoint.asked == 2


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"", "answered 500"),
        (302, issuing.key_set("k1"), "answered 302"),
        (200, b" " * (MAX_JWKS_BYTES + 1), "larger than"),
        (200, b"<html>", "no JWK set"),
    ],
)
async def test_a_url_that_gives_no_keys(status: int, body: bytes, said: str) -> None:
    """10.2: no redirect is followed and nothing unbounded read; the last keys stay in force."""
    endpoint = Endpoint()
    async with endpoint.serving() as url:
        source = IssuerKeys(issuing.NAME, None, url)
        await source.renew()
        keys = source.keys
        assert set(keys.named) == {"k1"}
        endpoint.status, endpoint.body = status, body
        source._asked_at = float("-inf")
        assert await source.renew()
        assert said in source.fault
        assert source.keys is keys
        await source.stop()


async def test_a_url_that_nobody_answers() -> None:
    """10.2: an issuer that is away is told, and holds nothing up."""
    source = IssuerKeys(issuing.NAME, None, "http://127.0.0.1:1/jwks")
    assert await source.renew()
    assert "cannot be fetched" in source.fault
    assert not await source.renew()


async def test_other_issuers_come_into_force_with_a_reload(tmp_path: Path) -> None:
    """11.1: issuers can be changed while running; those that stay keep their keys."""
    field = [f"Bearer {issuing.token()}"]
    auth = issuing.auth(tmp_path)
    async with credentials(auth) as made:
        before = made._sources[issuing.NAME]
        await made.configure(auth.model_copy(update={"skew": 5.0}))
        assert made._sources[issuing.NAME] is before
        assert await made.service(field, internal=False)
        await made.configure(Auth())
        assert await made.service(field, internal=False) is None
        await made.configure(auth)
        assert await made.service(field, internal=False)
