"""whereabouts.py: where the directory's gateways are, by address and by name."""

import asyncio
from collections.abc import Callable

from smartgw.peers.directory import Mode, View
from smartgw.peers.whereabouts import Endpoints, Whereabouts
from smartgw_hosts.clusters import ClusterList, parse
from tests.forwarders import entry, list_text


def _view(*gateways: str) -> View:
    return View(Mode.FRESH, "c1", parse(list_text(entry("c1", *gateways))))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_gateways_are_known_by_address_at_once_and_by_name_soon() -> None:
    """2.5: never an address that a gateway of the directory listens on."""
    told: list[Endpoints] = []
    places = Whereabouts(told.append)
    try:
        places.follow(_view("http://192.0.2.1:80", "http://[2001:db8::1]:81"))
        assert told == [frozenset({("192.0.2.1", 80), ("2001:db8::1", 81)})]
        places.follow(_view("http://192.0.2.1:80", "http://localhost:82"))
        await _until(lambda: ("127.0.0.1", 82) in told[-1])
        assert ("192.0.2.1", 80) in told[-1]
        places.follow(_view("http://localhost:83", "http://no-such-name.invalid:84"))
        await _until(lambda: ("127.0.0.1", 83) in told[-1])
        assert not [port for _, port in told[-1] if port != 83]
        places.follow(View(Mode.UNKNOWN, "c1", ClusterList(())))
        assert told[-1] == frozenset()
    finally:
        await places.stop()
