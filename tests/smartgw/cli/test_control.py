"""`smartgw apps`, `hosts`, `enrol` and `token` against the real API."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from smartgw.api.api import Api
from smartgw.api.audit import Audit
from smartgw.api.credentials import Credentials
from smartgw.api.operator import Operator
from smartgw.cli import main
from smartgw.config_fields import Auth
from tests.apis import serving
from tests.smartgw.api.fakes import REFUSED, FakeGateway, FakeHost
from tests.smartgw.api.stores import MemoryStore

KEY = "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
Run = Callable[..., Any]


class Gateway(FakeGateway):
    def status(self) -> dict[str, Any]:
        return {"gateway": {"id": "g1", "cluster": "east"}}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"SMARTGW_{name}", raising=False)


@pytest.fixture
def gateway() -> Gateway:
    gateway = Gateway()
    gateway.durable = MemoryStore()
    gateway.all_hosts = [FakeHost("h1"), FakeHost("h2", state="unhealthy", reason="left")]
    return gateway


@pytest.fixture
async def run(
    gateway: Gateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> AsyncIterator[Run]:
    """Runs a command as the machine's operator; gives code, output and errors."""
    operator = Operator()
    api = Api(gateway, Credentials(Auth(), operator), Audit("off", "g1", "east"))
    async with serving(api.internal("localhost")) as address:
        operator.write([tmp_path], address)
        monkeypatch.setenv("SMARTGW_ENDPOINT", address)

        async def run(*words: str) -> tuple[int, str, str]:
            try:
                code = await asyncio.to_thread(main, words)
            except SystemExit as end:
                code = int(end.code or 0)
            said = capsys.readouterr()
            return code, said.out, said.err

        yield run


# ---- apps ----


async def test_an_app_is_registered_changed_and_forgotten(run: Run) -> None:
    """12.4: `smartgw apps` reads and writes what the platform decides."""
    assert await run("apps") == (0, "no app is registered; smartgw apps set APP\n", "")
    code, out, _ = await run(
        *("apps", "set", "shop", "--origins", "https://a.example", "--limit", "60"),
        *("--labels", "tier=gold", "--own-cors", "no"),
    )
    assert (code, out) == (0, "shop registered active, served as shop.smart-app.test\n")
    # What is not named stays.
    code, out, _ = await run("apps", "set", "shop", "--hostnames", "shop.example.com")
    assert out == "shop is active, served as shop.smart-app.test, shop.example.com\n"
    code, out, _ = await run("apps", "show", "shop", "--json")
    app = json.loads(out)
    assert (app["origins"], app["limit"], app["labels"]) == (
        ["https://a.example"],
        60,
        {"tier": "gold"},
    )
    await run("apps", "set", "shop", "--limit", "default", "--origins", "--label", "store")
    code, out, _ = await run("apps", "--json", "show", "shop")
    app = json.loads(out)
    assert (app["origins"], app["limit"], app["label"]) == ([], None, "store")
    code, out, _ = await run("apps", "list")
    assert out.splitlines()[1].split() == [
        *("shop", "active", "store.smart-app.test,", "shop.example.com", "-", "-")
    ]
    assert await run("apps", "delete", "shop") == (0, "shop is forgotten\n", "")
    code, _, err = await run("apps", "show", "shop")
    assert (code, err) == (1, "smartgw apps: no app shop is there\n")


@pytest.mark.parametrize(
    ("action", "state"), [("suspend", "suspended"), ("retire", "retired"), ("resume", "active")]
)
async def test_states_have_words(run: Run, action: str, state: str) -> None:
    """3.4, 12.4: suspend, retire and resume change the state and nothing else."""
    await run("apps", "set", "shop", "--limit", "7", "--state", "suspended")
    code, out, _ = await run("apps", action, "shop", "--json")
    app = json.loads(out)
    assert (code, app["state"], app["limit"]) == (0, state, 7)
    code, out, _ = await run("apps", "list", "--state", state, "--json")
    assert [app["app_id"] for app in json.loads(out)["apps"]] == ["shop"]
    code, _, err = await run("apps", action, "other")
    assert (code, "no app other is registered; smartgw apps set other" in err) == (1, True)


async def test_refusals_are_in_the_gateways_words(run: Run, gateway: Gateway) -> None:
    """12.4: exit code 1 for refused, with what is wrong and what would be right."""
    await run("apps", "set", "shop")
    code, _, err = await run("apps", "set", "store", "--label", "shop")
    assert (code, err) == (1, "smartgw apps: /label: shop is another app's\n")
    code, _, err = await run("apps", "set", "shop", "--origins", "a.example")
    assert (code, "/origins/0" in err, "scheme://host" in err) == (1, True, True)
    wrong = ("--label", "a.b", "--hostnames", "www.a.example", "shop", "--origins", "*")
    code, _, err = await run("apps", "set", "shop", *wrong)
    assert code == 1
    assert [where in err for where in ("/label: ", "/hostnames/1: ", "/origins/0: ")] == [True] * 3
    store = gateway.durable
    assert isinstance(store, MemoryStore)
    store.away, store.age = True, 90.0
    code, _, err = await run("apps", "suspend", "shop")
    told = "the bus is away; nothing of it is stored: try again"
    assert (code, err) == (1, f"smartgw apps: {told}\n")
    code, out, _ = await run("apps")
    assert out.splitlines()[0] == "the bus is away; this is as of 90 s ago"


@pytest.mark.parametrize(
    "words",
    [
        ("apps", "burn", "shop"),
        ("apps", "set"),
        ("apps", "set", "shop", "--limit", "0"),
        ("apps", "set", "shop", "--labels", "x"),
        ("apps", "set", "shop", "--state", "gone"),
        ("enrol", "h1"),
        ("enrol", "--remove"),
        ("enrol", "a.b", "--remove"),
        ("token", "x", "--ttl", "soon"),
        ("token", "x", "--role", "admin"),
    ],
)
async def test_wrong_usage(run: Run, words: tuple[str, ...]) -> None:
    """12.4: exit code 2 for wrong usage."""
    code, _, err = await run(*words)
    assert (code, err.startswith("usage: ")) == (2, True)


@pytest.mark.parametrize("command", ["apps", "hosts", "enrol", "explain", "token"])
async def test_help_teaches(run: Run, command: str) -> None:
    """12.4: --help has examples that the command line takes."""
    code, out, _ = await run(command, "--help")
    assert (code, "examples:" in out) == (0, True)


async def test_nobody_there(run: Run) -> None:
    """12.4: exit code 1 for failed, and what to do."""
    for command in ("apps", "hosts", "enrol"):
        code, _, err = await run(command, "--endpoint", "127.0.0.1:1")
        assert (code, "no gateway answers at 127.0.0.1:1" in err) == (1, True)


async def test_who_may_not_is_told_what_to_do(run: Run, tmp_path: Path) -> None:
    """12.4: a token that does not count is told with a remedy, and not shown."""
    for command in ("apps", "hosts", "enrol", "status", "drain"):
        code, _, err = await run(command, "--token", "a.b.c")
        assert (code, "--token-file" in err, "a.b.c" in err) == (1, True, False)


# ---- hosts and enrolments ----


async def test_hosts_are_shown_with_their_reasons(run: Run) -> None:
    """12.4, 1.5: every state shows its reason."""
    code, out, _ = await run("hosts")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["HOST", "h2", "h1"]
    code, out, _ = await run("hosts", "--state", "unhealthy", "--json")
    (found,) = json.loads(out)["gateways"]
    assert [host["reason"] for host in found["hosts"]] == ["left"]
    code, out, _ = await run("hosts", "h2")
    assert "reason           left\n" in out
    assert (await run("hosts", "h3"))[0] == 1


async def test_a_host_is_enrolled_and_removed(run: Run) -> None:
    """1.4, 12.4: who may host what, in the gateway's own cluster by default."""
    assert (await run("enrol"))[1].startswith("no host is enrolled")
    code, out, _ = await run("enrol", "shop-1", "--key", KEY, "--app", "shop", "--app", "shop-*")
    assert (code, out) == (0, "host shop-1 of east may serve shop, shop-*\n")
    await run("enrol", "shop-2", "--key", KEY, "--app", "a", "--cluster", "west", "--json")
    code, out, _ = await run("enrol")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["shop-1", "east"],
        ["shop-2", "west"],
    ]
    code, out, _ = await run("enrol", "shop-1", "--remove")
    assert (code, out) == (0, "host shop-1 of east is trusted no more\n")
    code, out, _ = await run("enrol", "--cluster", "east", "--json")
    assert json.loads(out) == {"enrolments": []}
    code, _, err = await run("enrol", "shop-3", "--key", "ed25519:x", "--app", "a")
    assert (code, "/key: public key" in err) == (1, True)


# ---- explain ----


async def test_a_refusal_is_explained(run: Run, gateway: Gateway) -> None:
    """10.4, 12.4: what would be done, and why: the hosts that get no requests, with reasons."""
    gateway.all_hosts = [FakeHost("h1", state="unhealthy", reason="lease_expired")]
    code, out, _ = await run("explain", "shop.smart-app.test")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "g1 of cluster east: 503 no_upstream")
    assert "  no request h1 is unhealthy: lease_expired" in lines
    assert "  app        shop (not registered, but announced)" in lines
    code, out, _ = await run("explain", "shop.smart-app.test", "--json")
    (found,) = json.loads(out)["gateways"]
    assert (found["registered"], found["status"]) == (False, 503)


async def test_a_full_window_is_no_fault_of_hosts(run: Run, gateway: Gateway) -> None:
    """10.4: a caller that asked too often is told so, and no host that is well as the reason."""
    gateway.all_hosts = [
        FakeHost("h1"),
        FakeHost("h2", state="drained", reason="verified"),
        FakeHost("h3", apps=(), refused_apps=(("shop", "app_not_enrolled"),)),
    ]
    full = "5 of 5 are used: the limit of this app is 5 requests in 60 s; the next one fits in 3 s"
    gateway.explained = {
        **REFUSED,
        **{"status": 429, "reason": "rate_limited"},
        "steps": [{"step": "limit", "result": full}],
    }
    _, out, _ = await run("explain", "shop.smart-app.test")
    lines = out.splitlines()
    assert lines[:2] == ["g1 of cluster east: 429 rate_limited", f"  limit      {full}"]
    assert [line for line in lines if "no request" in line] == [
        "  no request h2 is drained: verified",
        "  no request h3 is healthy: app_not_enrolled",
    ]


async def test_what_would_serve_it_is_shown(run: Run, gateway: Gateway) -> None:
    """10.4: who would be asked, one after the other."""
    host = {
        **{"host_id": "h1", "address": "http://10.0.0.5:9000", "weight": 100},
        **{"outstanding": 2, "suspect": True},
    }
    gateway.explained = {
        **REFUSED,
        **{"outcome": "forwarded", "status": None, "reason": None},
        "cors": {"origin": "https://a.example", "allowed": False},
        "steps": [{"step": "plan", "result": "the app is west's to serve"}],
        "attempts": [
            {
                **{"place": "owner", "cluster": "west", "set_aside": True},
                **{"hosts": [], "hosts_total": None},
            },
            {
                **{"place": "local", "cluster": "east", "set_aside": False},
                **{"hosts": [host], "hosts_total": 3},
            },
        ],
    }
    code, out, _ = await run("explain", "shop.smart-app.test", "--client", "203.0.113.7")
    assert (code, out.splitlines()[0]) == (0, "g1 of cluster east: sent on to west")
    assert "  first      owner: west, set aside for it keeps failing\n" in out
    assert "suspect\n             ... and 2 more\n" in out
    assert "pages of https://a.example may not read the answer" in out


@pytest.mark.parametrize(
    "words", [("--client", "x"), ("--method", "G T"), ("--path", "x"), ("--origin", "a b")]
)
async def test_what_cannot_be_asked_about(run: Run, words: tuple[str, ...]) -> None:
    """10.4: a question that is none is refused with what would be right."""
    code, _, err = await run("explain", "shop.smart-app.test", *words)
    assert (code, err.startswith(f"smartgw explain: {words[0][2:]}: ")) == (1, True)


async def test_nobody_carries_traffic(run: Run, gateway: Gateway) -> None:
    """10.4: without a process that carries traffic there is no answer to give."""
    gateway.broken = True
    code, _, err = await run("explain", "shop.smart-app.test")
    assert (code, err) == (1, "smartgw explain: no worker answers; ask again\n")


# ---- tokens ----


async def test_an_issuer_of_ones_own(run: Run, tmp_path: Path) -> None:
    """12.4, 10.2: `smartgw token` makes an issuer's key and its key set, and tokens that count."""
    key = tmp_path / "issuer.seed"
    code, out, _ = await run("token", str(key), "--keygen")
    assert (code, "[[auth.issuer]]" in out) == (0, True)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    issuer = {
        "issuer": "smartgw-development",
        "jwks_file": f"{key}.jwks.json",
        "roles": ["service", "session"],
    }
    credentials = Credentials(Auth.model_validate({"issuer": [issuer]}), Operator())
    credentials.start()
    try:
        _, token, _ = await run("token", str(key), "--sub", "deploy")
        caller = await credentials.service([f"Bearer {token.strip()}"], internal=False)
        assert caller is not None
        assert (caller.role, caller.subject) == ("service", "deploy")
        _, out, _ = await run("token", str(key), "--role", "session", "--sid", "s", "--json")
        field = f"Bearer {json.loads(out)['token']}"
        caller = await credentials.caller([field])
        assert caller is not None
        assert (caller.role, caller.session_id) == ("session", "s")
        for words in (("--ttl", "-60"), ("--audience", "x"), ("--issuer", "x")):
            _, token, _ = await run("token", str(key), *words)
            assert await credentials.caller([f"Bearer {token.strip()}"]) is None
    finally:
        await credentials.stop()
    seed = key.read_text()
    code, _, err = await run("token", str(key), "--keygen")
    assert (code, "never overwritten" in err, key.read_text()) == (1, True, seed)


async def test_a_key_file_that_is_none(run: Run, tmp_path: Path) -> None:
    """12.4: the error says how to make one."""
    code, _, err = await run("token", str(tmp_path / "none"))
    assert (code, "--keygen" in err) == (1, True)
