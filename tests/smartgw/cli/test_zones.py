"""`smartgw zones` and `smartgw dig` against the real API."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from smartgw.api.zone_operations import MOST_FILE
from smartgw.cli import main
from smartgw.cli.zones import zone_of
from smartgw.config_limits import Rates
from tests.apis import serving
from tests.smartgw.api import issuing
from tests.smartgw.api.fakes import FakeGateway, api_of
from tests.smartgw.api.zone_stores import with_zones

Run = Callable[..., Any]
FILE = """\
$ORIGIN example.com.
$TTL 300
@ 3600 IN SOA ns1 hostmaster 7 7200 900 1209600 300
@ IN NS ns1
ns1 A 192.0.2.53
* A 192.0.2.1
"""


@pytest.fixture
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[FakeGateway]:
    """A gateway that keeps zones, with the rates of the test's parameter."""
    store, dns = with_zones()
    yield FakeGateway(durable=store, dns=dns, rates=getattr(request, "param", Rates()))
    await dns.stop()


@pytest.fixture
async def run(
    gateway: FakeGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> AsyncIterator[Run]:
    """Runs a command as a service; gives code, output and errors."""
    for name in ("TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"SMARTGW_{name}", raising=False)
    api, credentials = api_of(gateway, issuing.auth(tmp_path))
    credentials.start()
    async with serving(api.internal("localhost")) as address:
        monkeypatch.setenv("SMARTGW_ENDPOINT", address)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "service").write_text(issuing.token())
        (tmp_path / "session").write_text(issuing.token("session"))

        async def run(*words: str, token: str = "service") -> tuple[int, str, str]:
            given = ("--token-file", str(tmp_path / token))
            try:
                code = await asyncio.to_thread(main, (words[0], *given, *words[1:]))
            except SystemExit as end:
                code = int(end.code or 0)
            said = capsys.readouterr()
            return code, said.out, said.err

        yield run
    await credentials.stop()


async def test_a_zone_is_made_filled_shown_and_deleted(run: Run) -> None:
    """12.4: `smartgw zones` reads and writes zones."""
    code, out, _ = await run("zones")
    assert (code, out) == (0, "no zone is there; smartgw zones make ZONE --nameserver NAME\n")
    code, out, _ = await run("zones", "make", "example.com", "-n", "ns1.example.net")
    assert code == 0
    assert out.startswith("example.com. is at serial ")
    assert "  + example.com. 3600 NS ns1.example.net.\n" in out
    code, out, _ = await run("zones", "set", "example.com", "*", "A", "192.0.2.1", "192.0.2.2")
    assert code == 0
    assert out.splitlines()[1:] == [
        "  - NXDOMAIN",
        "  + *.example.com. 300 A 192.0.2.1",
        "  + *.example.com. 300 A 192.0.2.2",
    ]
    wanted = ("zones", "set", "example.com", "a.www", "TXT", '"v=DKIM1; p=x"', "--ttl", "60")
    code, dry, _ = await run(*wanted, "--dry-run")
    assert "example.com. would be at serial" in dry
    code, out, _ = await run(*wanted)
    assert dry.splitlines()[1:] == out.splitlines()[1:]
    assert "answers of others that change:" in out
    assert "  www.example.com. A is no longer answered by *.example.com.\n" in out
    assert "is so already: serial" in (await run(*wanted))[1]
    code, out, _ = await run("zones", "show", "example.com", "--type", "TXT")
    assert out == 'a.www.example.com.  60  TXT  "v=DKIM1; p=x"\n'
    code, out, _ = await run("zones", "show", "example.com", "--name", "nothing")
    assert out == "no such records\n"
    assert (await run("zones", "delete", "example.com", "a.www", "TXT"))[0] == 0
    assert (await run("zones", "list"))[1].splitlines()[1].split()[:1] == ["example.com."]
    code, out, _ = await run("zones", "delete", "example.com")
    assert out.startswith("example.com. is deleted\n")
    code, _, err = await run("zones", "show", "example.com")
    assert (code, err) == (1, "smartgw zones: no zone example.com. is there\n")


async def test_files_are_imported_compared_and_exported(run: Run, tmp_path: Path) -> None:
    """12.4, 8.6: master files, with the number of the line that is wrong."""
    path = tmp_path / "file.zone"
    path.write_text(FILE)
    code, out, _ = await run("zones", "import", str(path))
    assert (code, out.splitlines()[0]) == (0, "example.com. is at serial 7, 4 records")
    _, text, _ = await run("zones", "export", "example.com")
    assert "* 300 IN A 192.0.2.1\n" in text
    out_path = tmp_path / "out"
    assert (await run("zones", "export", "example.com", "-o", str(out_path)))[0] == 0
    assert out_path.read_text() == text
    path.write_text(FILE + "www A 192.0.2.9\n")
    code, out, _ = await run("zones", "diff", "example.com", str(path))
    soa = "example.com. 3600 SOA ns1.example.com. hostmaster.example.com."
    assert (code, out.splitlines()) == (
        0,
        [
            "example.com. would be at serial 8, 5 records",
            f"  - {soa} 7 7200 900 1209600 300",
            f"  + {soa} 8 7200 900 1209600 300",
            "  - www.example.com. 300 A 192.0.2.1",
            "  + www.example.com. 300 A 192.0.2.9",
            "answers of others that change:",
            "  *.www.example.com. A is no longer answered by *.example.com.",
            "  - *.www.example.com. 300 A 192.0.2.1",
            "  + NXDOMAIN",
        ],
    )
    path.write_text(FILE + "www A nonsense\n")
    code, _, err = await run("zones", "import", str(path))
    assert code == 1
    assert err.startswith(f"{path}:7: ")
    code, _, err = await run("zones", "import", str(tmp_path / "none"))
    assert (code, err) == (1, f"smartgw zones: {tmp_path}/none: No such file or directory\n")


async def test_a_folder_of_zones_is_imported(run: Run, tmp_path: Path) -> None:
    """12.4: many at once; those that are refused are told, and the others made."""
    folder = tmp_path / "zones"
    folder.mkdir()
    for number in range(5):
        (folder / f"z{number}.test.zone").write_text("@ SOA ns. root. 1 2 3 4 5\n@ NS ns.\n")
    (folder / "broken.test").write_text("@ SOA\n")
    code, out, err = await run("zones", "import", str(folder))
    assert (code, out) == (1, "5 zones with 10 records, 1 refused\n")
    assert f"{folder}/broken.test:1: " in err
    code, out, _ = await run("zones", "--json")
    assert [zone["zone"] for zone in json.loads(out)["zones"]] == [f"z{n}.test." for n in range(5)]
    code, out, _ = await run("zones", "import", str(folder / "z1.test.zone"), "--zone", "x.test")
    assert out.startswith("x.test. is at serial 1, 2 records\n")


async def test_a_file_that_cannot_be_taken_is_named(
    run: Run, gateway: FakeGateway, tmp_path: Path
) -> None:
    """12.4: which of many files it was, and how far the import came."""
    folder = tmp_path / "zones"
    folder.mkdir()
    for name in ("a.test", "b.test", "c.test"):
        (folder / name).write_text("@ SOA ns. root. 1 2 3 4 5\n@ NS ns.\n")
    with (folder / "b.test").open("ab") as large:
        large.truncate(MOST_FILE + 1)
    code, out, err = await run("zones", "import", str(folder))
    assert (code, out) == (1, "2 zones with 4 records, 1 refused\n")
    assert f"{folder}/b.test: " in err
    gateway.dns.zones.known = False
    code, _, err = await run("zones", "import", str(folder))
    assert code == 1
    assert f"{folder}/a.test: the zones are not known yet" in err
    assert "(0 of 3 are imported)" in err


@pytest.mark.parametrize("gateway", [Rates(services=3, window=1)], ids=["few"], indirect=True)
async def test_an_import_takes_no_more_than_its_service_may(
    run: Run, gateway: FakeGateway, tmp_path: Path
) -> None:
    """6.2, 12.4: a load of many zones waits where it is told to, and loses none."""
    folder = tmp_path / "zones"
    folder.mkdir()
    for number in range(6):
        (folder / f"z{number}.test.zone").write_text("@ SOA ns. root. 1 2 3 4 5\n@ NS ns.\n")
    code, out, _ = await run("zones", "import", str(folder))
    assert (code, out) == (0, "6 zones with 12 records, 0 refused\n")


@pytest.mark.parametrize(
    ("name", "text", "zone"),
    [
        ("example.com.zone", "", "example.com"),
        ("db.example.com", "@ SOA ns. root. 1 2 3 4 5\n$ORIGIN sub.example.com.\n", "example.com"),
        ("x", "; a comment\n$TTL 5\n$origin Example.com.\n@ SOA\n", "Example.com."),
        ("example.com", "\n", "example.com"),
        ("a.db", "", "a"),
        # As BIND writes the zones of others, and named-compilezone all.
        (
            "db.x",
            "$ORIGIN .\n$TTL 5\nExample.com IN SOA ns. root. (\n 1 2 3 4 5)\n",
            "Example.com.",
        ),
        ("dump.txt", "example.com. 5 IN SOA ns. root. 1 2 3 4 5\n", "example.com."),
        ("x", "$ORIGIN com.\nexample 5 SOA ns root 1 2 3 4 5\n", "example.com."),
        ("x", "\ufeff$ORIGIN example.com.\n@ 5 SOA ns root 1 2 3 4 5\n", "example.com."),
        ("example.com", "$ORIGIN sub\n@ 5 SOA ns. root. 1 2 3 4 5\n", "sub"),
    ],
)
def test_which_zone_a_file_is_of(name: str, text: str, zone: str) -> None:
    """12.4: the one whose SOA it begins with, else what its $ORIGIN says, else its name."""
    assert zone_of(Path(name), text.encode()) == zone


@pytest.mark.parametrize(
    "words",
    [
        ("make", "", "-n", "ns1.example.com."),
        ("make", "example.com", "-n", ""),
        ("delete", ""),
        ("set", "", "@", "A", "192.0.2.1"),
        ("show", "example.com", "--name", ""),
    ],
)
async def test_an_empty_name_is_not_the_root(run: Run, words: tuple[str, ...]) -> None:
    """12.4: what a script forgot to name is not the zone of all names."""
    code, out, err = await run("zones", *words)
    assert (code, out) == (1, "")
    assert "a name is empty" in err


async def test_the_app_wildcard_is_set(run: Run) -> None:
    """8.4: by one command."""
    code, out, _ = await run("zones", "wildcard", "192.0.2.10", "2001:db8::10")
    assert code == 0
    assert "  + *.smart-app.test. 300 A 192.0.2.10\n" in out
    code, out, _ = await run("zones", "wildcard", "192.0.2.10", "2001:db8::10", "--json")
    assert json.loads(out)["zones"][0]["changed"] is False


async def test_dig_asks_as_a_session(run: Run) -> None:
    """12.4: `smartgw dig` asks a gateway as a session would, and tells what is left."""
    await run("zones", "wildcard", "192.0.2.10")
    code, out, _ = await run("dig", "shop.smart-app.test", token="session")
    assert (code, out) == (
        0,
        ";; status: NOERROR, flags: aa rd\n"
        ";shop.smart-app.test. A\n"
        "\n"
        ";; ANSWER\n"
        "shop.smart-app.test. 300 A 192.0.2.10\n"
        "\n"
        ";; AUTHORITY\n"
        "smart-app.test. 3600 NS ns.smart-app.test.\n"
        "\n"
        ";; ADDITIONAL\n"
        "ns.smart-app.test. 300 A 192.0.2.10\n"
        "\n"
        ";; 599 of 600 queries left of this address\n"
        ";; 119 of 120 queries left of this session\n"
        ";; 9999 of 10000 queries left of its day\n",
    )
    code, out, _ = await run("dig", "elsewhere.test", "TYPE65280", token="session")
    assert out.startswith(";; status: REFUSED, flags: rd\n;elsewhere.test. TYPE65280\n")
    code, out, _ = await run("dig", "x.smart-app.test", "MX", "--json", token="session")
    assert json.loads(out)["Authority"][0]["type"] == 6
    code, _, err = await run("dig", "a..b", token="session")
    assert code == 1
    assert "is not a name" in err


async def test_wrong_usage_is_told(run: Run) -> None:
    """12.4: exit codes 1 refused or failed, 2 wrong usage."""
    assert (await run("zones", "set", "example.com"))[0] == 2
    code, _, err = await run("zones", "delete", "example.com", "www")
    assert (code, err) == (
        1,
        "smartgw zones: name a type behind the name, or neither for the whole zone\n",
    )
    code, _, err = await run("zones", "set", "example.com", "www", "A", "::1")
    assert code == 1
    assert err.startswith("smartgw zones: /rdata/0: '::1' is no rdata of A: ")
    code, _, err = await run("zones", "set", "example.com", "www", "A", "192.0.2.1")
    assert (code, err) == (1, "smartgw zones: no zone example.com. is there\n")
