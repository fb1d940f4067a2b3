"""Which names no app can have: those of the gateway and of its zones (contract 3.3, 7.3).

Owns that, for whoever takes a claim and for the table, which leaves them out whatever was stored.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

PROOF_LABEL: Final = "verify"
"""Below it domains are proven (contract 7.2)."""


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
        taken = {PROOF_LABEL}
        for base in bases:
            for name in (*own, *bases):
                # The label that stands right before the base, of a longer name as well: what is
                # below shop.api.example is not an app's when the gateway is api.example.
                if name.endswith(f".{base}"):
                    taken.add(name.removesuffix(f".{base}").rpartition(".")[2])
        return cls(frozenset(taken), own | frozenset(bases), tuple(f".{base}" for base in bases))

    def has_label(self, label: str) -> bool:
        """Tell whether no app may have a label."""
        return label in self.labels

    def has_hostname(self, hostname: str) -> bool:
        """Tell whether no app may have an exact hostname: under a base domain a label says it."""
        return hostname in self.hostnames or hostname.endswith(self.zones)
