"""The guard of a running host: follows the list of clusters, and judges what comes (contract 4.8).

Owns when the cluster's gateways are asked, in which order, and what is logged. What a list means
for a write is guard.py's.
"""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from smartgw_hosts.addresses import AddressRefused, parse_address
from smartgw_hosts.clusters_source import ClustersSource, Listed, NoList, Without
from smartgw_hosts.guard import GRACE, Accept, Guard, NotOwner, app_of, is_write
from smartgw_hosts.quiet_log import QuietLog

INTERVAL: Final = 5.0
"""Seconds between two questions at most; each comes up to a tenth of it earlier."""
AGAIN: Final = 1.0
"""How soon the next may come when a write was refused, whose sender may have a newer list."""

_log = logging.getLogger(__name__)


class WriteGuard:
    """Judges the writes of one host of `cluster`, which serves what `apps()` returns.

    `gateways`: where gateways of that cluster are asked for the list of clusters, as
    `http://10.0.0.2:9080` (the internal listener) or `https://gateway.example` (its own hostname);
    the first that has one counts. Without any, every write is done and flagged. `tls`: what https
    ones are checked by, the system's authorities by default. Raises ValueError for a bad URL.
    """

    def __init__(
        self,
        cluster: str,
        apps: Callable[[], Collection[str]],
        gateways: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._guard = Guard(cluster)
        self._apps = apps
        self._sources = _sources(gateways, tls)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told: object = None
        self._quiet = QuietLog(60.0, _log)

    # ---- questions ----

    @property
    def counters(self) -> dict[str, int]:
        """Writes that were `refused`, and writes that were done `unsure` of the owner."""
        return dict(self._guard.counters)

    def owner_of(self, app_id: str) -> str | None:
        """Return the cluster that owns an app, None when it is unknown.

        Raises ValueError for what is no app id.
        """
        return self._guard.owner_of(app_id, time.monotonic())

    def check(self, app_id: str) -> bool:
        """Ask before a write, or a function call, that came by another way than HTTP.

        Returns whether it is sure that it may be done here; False: nobody knows, so it may.
        Raises NotOwner: it must not be done here.
        """
        judged = self._judge(app_id)
        if isinstance(judged, NotOwner):
            raise judged
        return judged is Accept.SURE

    def judge(self, method: str, fields: Iterable[tuple[bytes, bytes]]) -> Accept | NotOwner:
        """Judge an HTTP request by its method and its header fields; reads are always sure."""
        if not is_write(method):
            return Accept.SURE
        return self._judge(app_of(fields, self._apps()))

    def _judge(self, app_id: str | None) -> Accept | NotOwner:
        judged = self._guard.judge(app_id, time.monotonic())
        if isinstance(judged, NotOwner):
            self._quiet(logging.WARNING, "refused", f"a write for {app_id!a} was refused: {judged}")
            self._wake.set()
        elif judged is Accept.UNSURE and self._sources:
            text = f"a write for {app_id!a} was done without knowing which cluster owns the app"
            self._quiet(logging.WARNING, "unsure", text)
        return judged

    # ---- the list ----

    def start(self) -> None:
        """Begin to follow the list; whatever its gateways do, the app does not notice."""
        if self._sources:
            self._task = asyncio.create_task(self._follow(), name="smartgw-host-clusters")
        else:
            _log.info("no gateway is named to ask for the list of clusters: no write is refused")

    async def stop(self) -> None:
        """End it; the list that is in force stays so."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                await self._poll()
            except Exception as error:
                # Whatever it was, the next poll is another chance, and the grace goes on.
                self._guard.failed()
                text = "the list of clusters could not be followed; again soon"
                self._quiet(logging.ERROR, "fault", text, error=error)
            await asyncio.sleep(AGAIN)
            try:
                async with asyncio.timeout(INTERVAL * random.uniform(0.9, 1.0) - AGAIN):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _poll(self) -> None:
        found: Without | None = None
        for source in self._sources:
            try:
                answer = await source.ask()
                if isinstance(answer, Listed):
                    if answer.age >= GRACE:
                        raise NoList(f"its list was last confirmed {answer.age:g} s ago")
                    self._guard.take(answer.clusters, time.monotonic(), answer.age)
                    self._tell(answer.clusters.epoch, f"from {source.name}")
                    return
            except NoList as fault:
                text = f"no list of clusters from {source.name}: {fault}"
                self._quiet(logging.WARNING, source.name, text)
            else:
                found = found or answer
        match found:
            case Without.ALONE:
                self._guard.alone()
                self._tell(found, "there is none, this cluster is the only one")
            case Without.UNKNOWN:
                self._guard.forget()
                self._tell(found, "the gateways have none, so no write is refused")
            case None:
                self._guard.failed()
                self._told = None

    def _tell(self, what: object, text: str) -> None:
        if what != self._told:
            self._told = what
            shown = f" {what}" if isinstance(what, str) else ""
            _log.info("list of clusters%s: %s", shown, text)


def _sources(gateways: Sequence[str], tls: ssl.SSLContext | None) -> tuple[ClustersSource, ...]:
    addresses = []
    for text in gateways:
        try:
            addresses.append(parse_address(text))
        except AddressRefused as refused:
            raise ValueError(f"gateway {text[:80]!a} {refused}") from None
    if tls is None and any(address.scheme == "https" for address in addresses):
        tls = ssl.create_default_context()
    return tuple(ClustersSource(address, tls) for address in addresses)
