"""Which label an app has by itself, and which names no app can have (contract 3.3, 7.3).

Owns that, for whoever takes a claim and for the table, which leaves the gateway's own names out
whatever was stored.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

PROOF_LABEL: Final = "verify"
"""Below it domains are proven (contract 7.2)."""
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")


def default_label(app_id: str) -> str | None:
    """Return the label of an app that names none: its id where that is a DNS label. Upper case
    gets none, so that two apps never meet in one.
    """
    return app_id if _LABEL.match(app_id) else None


@dataclass(frozen=True, slots=True)
class Reserved:
    """`labels` under any base domain; `hostnames` and all that is under `zones`."""

    labels: frozenset[str] = frozenset((PROOF_LABEL,))
    hostnames: frozenset[str] = frozenset()
    zones: tuple[str, ...] = ()

    @classmethod
    def of(cls, base_domains: Iterable[str], own_hostnames: Iterable[str]) -> Self:
        """Of the settings: names as A-labels in lower case."""
        bases, own = tuple(base_domains), frozenset(own_hostnames)
        names = ((name, f".{base}") for name in own | {*bases} for base in bases)
        labels = {name.removesuffix(zone) for name, zone in names if name.endswith(zone)}
        return cls(
            frozenset(labels | {PROOF_LABEL}), own | {*bases}, tuple(f".{base}" for base in bases)
        )

    def has_label(self, label: str) -> bool:
        """Tell whether no app may have a label."""
        return label in self.labels

    def has_hostname(self, hostname: str) -> bool:
        """Tell whether no app may have an exact hostname: under a base domain a label says it."""
        return hostname in self.hostnames or hostname.endswith(self.zones)
