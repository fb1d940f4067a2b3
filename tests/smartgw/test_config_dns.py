"""The settings of DNS: which are refused, and with which remedy."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from smartgw.config import ConfigError, load
from smartgw.config_dns import Dns

BASE = """\
cluster = "eu"
base_domains = ["smart-app.example"]
host_networks = ["10.0.0.0/8"]
trust = { mode = "first-use" }
"""


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"listen": ["ns1.example:53"]}, "is no IP address with a port"),
        ({"listen": ["192.0.2.1"]}, "is not host:port"),
        ({"listen": ["192.0.2.1:53"] * 2}, "stands there twice"),
        ({"resolvers": ["dns.example:53"]}, "is no IP address with a port"),
        ({"rate": -1}, "greater than or equal to 0"),
        ({"rate": True}, "is not a whole number"),
        ({"rate": 1.5}, "is not a whole number"),
        ({"recursion": True}, "not permitted"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(values: dict[str, Any], fault: str) -> None:
    """11.5: bad configuration is refused with what was wrong."""
    with pytest.raises(ValidationError, match=fault):
        Dns.model_validate(values)


def test_nobody_is_asked_and_nothing_served_by_default() -> None:
    """8.2: recursion is off by default."""
    assert (Dns().listen, Dns().resolvers) == ((), ())


def test_zones_are_served_where_they_are_kept(tmp_path: Path) -> None:
    """11.5: a nameserver that can have no zone is a mistake."""
    path = tmp_path / "smartgw.toml"
    served = '[dns]\nlisten = ["127.0.0.1:53"]\n'
    path.write_text(BASE + served)
    with pytest.raises(ConfigError, match=r"without state\.bucket there is no zone"):
        load(path, {})
    path.write_text(f'{BASE}[state]\nbucket = "smartgw"\n{served}')
    assert load(path, {}).dns.listen == ("127.0.0.1:53",)
