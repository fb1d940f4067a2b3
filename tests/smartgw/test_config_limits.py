"""The settings of limits and of the store that counts: which are refused, and what they become."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from smartgw.admission.store_places import Address
from smartgw.config import ConfigError, load
from smartgw.config_limits import Rates, Store
from smartgw.wiring import store_places

BASE = """\
cluster = "eu"
base_domains = ["smart-app.example"]
host_networks = ["10.0.0.0/8"]
trust = { mode = "first-use" }
"""
ONE = "valkey://10.0.0.5:6379"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"servers": ["valkey://user:secret@10.0.0.5:6379"]}, "carries a user or password"),
        ({"servers": ["10.0.0.5:6379"]}, "is not one"),
        ({"servers": ["http://10.0.0.5:6379"]}, "is not one"),
        ({"servers": ["valkey://10.0.0.5"]}, "is not one"),
        ({"servers": ["valkey://10.0.0.5:99999"]}, "is not one"),
        ({"servers": ["valkey://10.0.0.5:6379/x"]}, "is not one"),
        ({"servers": ["unix:relative"]}, "is not one"),
        ({"servers": [ONE, ONE]}, "stands there twice"),
        ({"servers": [ONE, "valkey://10.0.0.6:6379"]}, "would count without the others"),
        ({"kind": "cluster"}, "without servers"),
        ({"servers": [ONE], "kind": "sentinel"}, "know servers by name"),
        ({"servers": [ONE], "primary": "counters"}, "has no meaning"),
        (
            {"servers": [ONE, "valkeys://10.0.0.6:6379"], "kind": "cluster"},
            "with TLS and without",
        ),
        ({"servers": [f"{ONE}/2"], "kind": "cluster"}, "no numbered databases"),
        ({"servers": [ONE], "username": "a b"}, "1 to 256"),
        ({"servers": [ONE], "budget": 2}, "less than or equal"),
        ({"servers": [ONE], "budget": 0}, "greater than"),
    ],
    ids=str,
)
def test_wrong_stores_are_refused(values: dict[str, Any], fault: str) -> None:
    """11.5: bad configuration is refused with what was wrong, and no password is shown."""
    with pytest.raises(ValidationError, match=fault) as raised:
        Store.model_validate(values)
    assert "secret" not in str(raised.value.errors(include_input=False))


@pytest.mark.parametrize(
    "values",
    [{"requests": 0}, {"unknown": -1}, {"window": 0.5}, {"window": 7200}, {"callers": 10}],
    ids=str,
)
def test_wrong_rates_are_refused(values: dict[str, Any]) -> None:
    """11.5: a limit lets something through, and a window is between a second and an hour."""
    with pytest.raises(ValidationError):
        Rates.model_validate(values)


def test_the_defaults_are_the_contracts() -> None:
    """6.1, 6.2, 6.4: 600 for an app and for our own hostnames, 100 for unknown names, in 60 s."""
    rates = Rates()
    assert (rates.requests, rates.own, rates.unknown, rates.window) == (600, 600, 100, 60)
    assert Store().servers == ()
    assert Store().budget == 0.05


def test_a_password_is_in_a_file_that_is_closed(tmp_path: Path) -> None:
    """11.5: the password is never in the configuration; an open file is refused with the remedy."""
    secret = tmp_path / "store.password"
    secret.write_text("correct horse\nsecond line\n")
    secret.chmod(0o644)
    path = tmp_path / "smartgw.toml"
    path.write_text(
        f'{BASE}[store]\nservers = ["{ONE}/3"]\nusername = "smartgw"\n'
        'password_file = "store.password"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == ("store.password_file", 8)
    assert "chmod 600" in problem.remedy
    secret.chmod(0o600)
    settings = load(path, {})
    places = store_places(settings)
    assert places is not None
    assert (places.username, places.password, places.database) == ("smartgw", "correct horse", 3)
    assert places.addresses == (Address("10.0.0.5", 6379),)
    assert places.tls is None
    assert "horse" not in repr(settings) + repr(places)


@pytest.mark.parametrize(
    ("server", "address", "tls"),
    [
        ("redis://counters:6380", Address("counters", 6380), False),
        ("valkeys://[fd00::5]:6379", Address("fd00::5", 6379), True),
        ("rediss://10.0.0.5:6379", Address("10.0.0.5", 6379), True),
        ("unix:///run/valkey.sock", Address(path="/run/valkey.sock"), False),
    ],
)
def test_what_a_server_becomes(tmp_path: Path, server: str, address: Address, tls: bool) -> None:
    """6.6: addresses of every form, with TLS and without."""
    path = tmp_path / "smartgw.toml"
    path.write_text(f'{BASE}[store]\nservers = ["{server}"]\n')
    places = store_places(load(path, {}))
    assert places is not None
    assert places.addresses == (address,)
    assert (places.tls is not None) == tls


def test_without_servers_there_is_no_store(tmp_path: Path) -> None:
    """6.6: one process counts in memory."""
    path = tmp_path / "smartgw.toml"
    path.write_text(BASE)
    assert store_places(load(path, {})) is None


def test_a_wrong_url_is_not_shown(tmp_path: Path) -> None:
    """11.5: a URL that may hold a password is refused without being repeated."""
    path = tmp_path / "smartgw.toml"
    path.write_text(f'{BASE}[store]\nservers = ["valkey://me:hunter2@10.0.0.5:6379"]\n')
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert "hunter2" not in str(caught.value)
    path.write_text(f'{BASE}[store]\nservers = "valkey://me:hunter2@10.0.0.5:6379"\n')
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert "hunter2" not in str(caught.value)
