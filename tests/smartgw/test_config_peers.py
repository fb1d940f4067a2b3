"""The settings of the directory of clusters: which are refused, and with which remedy."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from smartgw.config import ConfigError, load
from smartgw.config_peers import Peers
from smartgw_hosts import keyfile

BASE = """\
cluster = "eu"
base_domains = ["smart-app.example"]
host_networks = ["10.0.0.0/8"]
trust = { mode = "first-use" }
"""


@pytest.mark.parametrize(
    "url",
    [
        "https://api.smart-app.example",
        "https://api.smart-app.example:8443/lists/of.json",
        "http://127.0.0.1:9080",
        "http://localhost:9080",
        "http://10.1.2.3",
        "http://[fd00::1]:80/",
    ],
)
def test_validators_are_urls(url: str) -> None:
    """4.3: validators are polled over HTTP; without TLS only where addresses are private."""
    assert Peers.model_validate({"validators": [url]}).validators == (url,)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"validators": ["http://api.smart-app.example"]}, "not protected on its way"),
        ({"validators": ["http://8.8.8.8"]}, "not protected on its way"),
        ({"validators": ["ftp://10.0.0.1"]}, "is not a URL"),
        ({"validators": ["https://user:pass@a.example"]}, "is not a URL"),
        ({"validators": ["https://a.example/ b"]}, "is not a URL"),
        ({"validators": ["https://a.example/\n"]}, "is not a URL"),
        ({"validators": ["https://a.example"] * 2}, "stands there twice"),
        ({"file": "c.json", "validators": ["https://a.example"]}, "beside peers.file"),
        ({"grace": 5}, "not above peers.interval"),
        ({"interval": 60}, "not above peers.interval"),
        ({"interval": 0}, "greater than 0"),
        ({"url": "x"}, "not permitted"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(values: dict[str, Any], fault: str) -> None:
    """11.5: bad configuration is refused with what was wrong."""
    # The default of grace is judged with a given interval, too.
    with pytest.raises(ValidationError, match=fault):
        Peers.model_validate(values)


def test_a_directory_needs_an_identity(tmp_path: Path) -> None:
    """4.3, 11.5: without a key of the cluster nobody would know its forwards; the remedy says how
    to make one.
    """
    path = tmp_path / "smartgw.toml"
    path.write_text(f'{BASE}[peers]\nfile = "clusters.json"\n')
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    (problem,) = caught.value.problems
    assert problem.key == "peers"
    assert problem.line == 5
    assert "smartgw keygen" in problem.remedy
    keyfile.generate(tmp_path / "cluster.seed")
    path.write_text(f'{path.read_text()}[identity]\nseed_file = "cluster.seed"\n')
    settings = load(path, {})
    assert settings.peers.file == tmp_path / "clusters.json"


def test_a_gateway_starts_without_its_directory(tmp_path: Path) -> None:
    """11.2: started without a directory it serves: a file that is not there yet is no fault, a
    folder in its place is one.
    """
    keyfile.generate(tmp_path / "cluster.seed")
    path = tmp_path / "smartgw.toml"
    identity = '[identity]\nseed_file = "cluster.seed"\n'
    path.write_text(f'{BASE}{identity}[peers]\nfile = "clusters.json"\n')
    load(path, {})
    (tmp_path / "clusters.json").mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        load(path, {})
