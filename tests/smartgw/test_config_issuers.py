"""10.2, 11.5: issuers are tables of which there may be several, each fault with its line."""

import json
import re
from pathlib import Path

import pytest

from smartgw.config import ConfigError, load

HEAD = """\
cluster = "eu-1"
base_domains = ["smart-app.example"]
host_networks = ["10.0.0.0/8"]
[trust]
mode = "first-use"
"""
JWKS = {
    "keys": [
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
    ]
}


def written(folder: Path, text: str) -> Path:
    (folder / "keys.json").write_text(json.dumps(JWKS))
    path = folder / "smartgw.toml"
    path.write_text(HEAD + text)
    return path


def faults(folder: Path, text: str) -> list[str]:
    """The problems as lines, without the file's name."""
    path = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def test_issuers_are_read_and_their_files_are_found_beside_the_configuration(
    tmp_path: Path,
) -> None:
    """10.2: JWKS by file or URL, what each may grant, and for whom tokens are made."""
    text = """
[[auth.issuer]]
issuer = "https://platform.example"
jwks_file = "keys.json"
roles = ["service", "session"]
[[auth.issuer]]
issuer = "https://id.example"
audience = "apps"
jwks_url = "https://id.example/jwks"
"""
    first, second = load(written(tmp_path, text), {}).auth.issuer
    assert (first.jwks_file, first.audience) == (tmp_path / "keys.json", "smartgw")
    assert first.roles == ("service", "session")
    assert (second.jwks_url, second.audience) == ("https://id.example/jwks", "apps")
    assert second.roles == ("session",)


def test_an_issuer_of_the_environment(tmp_path: Path) -> None:
    """11.5: a list of tables is JSON in a variable."""
    issuer = {"issuer": "i", "jwks_url": "http://127.0.0.1:9/jwks"}
    found = load(written(tmp_path, ""), {"SMARTGW_AUTH__ISSUER": json.dumps([issuer])})
    assert found.auth.issuer[0].jwks_url == "http://127.0.0.1:9/jwks"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('jwks_file = "none.json"', "No such file or directory"),
        ('jwks_file = "smartgw.toml"', "is no JWK set"),
        ('jwks_url = "ftp://id.example/"', "11: auth.issuer.jwks_url: 'ftp://id.example/' is not"),
        ('jwks_url = "http://id.example/"', 'write "https://id.example/"'),
        ('jwks_url = "https://u:p@id.example/"', "is not a URL"),
        ('roles = ["admin"]', "11: auth.issuer.roles: 'admin' is not known"),
        ("roles = []", "11: auth.issuer.roles: is empty"),
        ('jwk_url = "https://id.example/"', "did you mean auth.issuer.jwks_url"),
        ("", "9: auth.issuer.jwks_url: and jwks_file are both missing"),
    ],
)
def test_a_fault_stands_at_the_table_that_has_it(tmp_path: Path, line: str, said: str) -> None:
    """11.5: refused with the file, the line, the key, what was wrong and what would be right."""
    first = '[[auth.issuer]]\nissuer = "a"\njwks_file = "keys.json"\n'
    text = f'{first}[[auth.issuer]]\nissuer = "b"\n{line}'
    found = "\n".join(faults(tmp_path, text))
    assert said in found
    assert re.search(rf"^{11 if line else 9}: auth\.issuer\.", found, re.MULTILINE)


def test_an_issuer_stands_there_once_and_has_its_keys_from_one_place(tmp_path: Path) -> None:
    """11.5: two answers to one question are refused."""
    table = '[[auth.issuer]]\nissuer = "a"\njwks_file = "keys.json"\n'
    assert "stands there twice" in faults(tmp_path, table + table)[0]
    both = table + 'jwks_url = "https://id.example/"\n'
    assert "stands beside jwks_file" in faults(tmp_path, both)[0]
