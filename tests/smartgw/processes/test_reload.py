"""Which settings SIGHUP changes."""

from typing import Any

import pytest

from smartgw.config import Settings
from smartgw.processes.reload import merge


def settings(**changes: Any) -> Settings:
    return Settings.model_validate(
        {
            "cluster": "eu-1",
            "gateway": "g1",
            "base_domains": ["a.test"],
            "host_networks": ["10.0.0.0/8"],
            "trust": {"mode": "first-use"},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, ()),
        ({"deadlines": {"head": 3}, "base_domains": ["b.test"], "log": {"level": "error"}}, ()),
        ({"cluster": "eu-2", "deadlines": {"head": 3}}, ("cluster",)),
        ({"listen": {"internal": "127.0.0.1:1"}}, ("listen.internal",)),
        ({"log": {"access": "off", "level": "debug"}}, ("log.access",)),
        ({"processes": {"workers": 2, "drain": 3}}, ("processes.workers",)),
        ({"discovery": {"heartbeat": 1, "missed": 9}}, ("discovery.heartbeat", "discovery.missed")),
    ],
)
def test_what_changes_and_what_is_named(changes: dict[str, Any], kept: tuple[str, ...]) -> None:
    """11.1: SIGHUP changes what needs no new sockets, and names the rest."""
    current, wanted = settings(), settings(**changes)
    values, found = merge(current.model_dump(), wanted.model_dump())
    assert found == kept
    merged = Settings.model_validate(values)
    assert merged.deadlines == wanted.deadlines
    assert merged.base_domains == wanted.base_domains
    assert merged.log.level == wanted.log.level
    assert merged.processes.drain == wanted.processes.drain
    assert (merged.cluster, merged.listen, merged.log.access) == ("eu-1", current.listen, "stdout")
    assert merged.processes.workers == 1
    assert merged.discovery == current.discovery
