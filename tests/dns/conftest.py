"""What holds for every test of the zones."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run what has sockets under both loops: the gateway has uvloop, other programs asyncio's,
    and the two do some things in another order.
    """
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
