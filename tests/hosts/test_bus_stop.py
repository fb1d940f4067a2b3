"""11.1: a gateway ends when it is told to, wherever its bus is at that moment."""

import asyncio

import pytest

from smartgw_hosts.bus import Bus
from tests.servers import free_port


@pytest.mark.parametrize("steps", range(16))
async def test_stop_ends_a_dial_at_any_step(steps: int) -> None:
    """11.1: a cancellation that meets the end of a refused dial is not lost."""
    bus = Bus([f"nats://127.0.0.1:{free_port()}"], name="test")
    await bus.start()
    for _ in range(steps):
        await asyncio.sleep(0)
    await asyncio.wait_for(bus.stop(), 5)
