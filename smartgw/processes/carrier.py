"""Who carries a gateway's traffic, as the composition root sees it."""

from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol

from smartgw.config import Settings
from smartgw.peers.directory import View
from smartgw.processes.drain import Step
from smartgw.routing.table import HostUpdate
from smartgw.state.desired import Desired


class Carrier(Protocol):
    """This process (`traffic.Traffic`) or several (`crew.Crew`)."""

    def apply(self, updates: Sequence[HostUpdate], removed: Sequence[str]) -> None: ...
    def declare(self, apps: Collection[str], complete: bool) -> None: ...
    def register(self, desired: Desired, apps: Collection[str]) -> None: ...
    def follow_clusters(self, view: View) -> None: ...
    def reload(self, settings: Settings, api: str | None) -> None: ...
    def order(self, step: Step) -> Awaitable[None]: ...
