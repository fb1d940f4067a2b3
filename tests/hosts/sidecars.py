"""A sidecar in a thread and an event loop of its own, so that blocking tests can talk to it."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from smartgw_hosts.sidecar import Sidecar
from smartgw_hosts.write_guard import WriteGuard
from tests.hosts.challenges import responder
from tests.raw_http import Downstream


@dataclass(slots=True)
class Running:
    """A started sidecar."""

    sidecar: Sidecar
    loop: asyncio.AbstractEventLoop
    port: int

    def connect(self, timeout: float = 10.0, receive_buffer: int | None = None) -> Downstream:
        """A client's connection to it."""
        address = ("127.0.0.1", self.port)
        return Downstream(address, timeout=timeout, receive_buffer=receive_buffer)

    def call(self, what: Callable[[], object]) -> None:
        """Run something on its loop."""
        self.loop.call_soon_threadsafe(what)

    def stop(self, grace: float) -> None:
        """Stop gracefully, and wait for that."""
        asyncio.run_coroutine_threadsafe(self.sidecar.stop(grace), self.loop).result(30)


@contextmanager
def sidecar(
    to: int,
    *,
    raw: bool = False,
    connections: int = 100,
    guarded: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Iterator[Running]:
    """In front of 127.0.0.1:`to`; afterwards nothing of it is left, or the test fails.

    `guarded`: the apps that it serves, and the gateways that are asked for the list of clusters.
    """
    started: list[Running] = []
    ready = threading.Event()
    over = asyncio.Event()
    faults: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        guard = None if guarded is None else WriteGuard("c1", lambda: guarded[0], guarded[1])
        made = Sidecar(
            *(responder(), ("127.0.0.1", 0), ("127.0.0.1", to), raw),
            connections=connections,
            guard=guard,
        )
        await made.start()
        if guard is not None:
            guard.start()
        started.append(Running(made, loop, made.port))
        ready.set()
        await over.wait()
        await made.stop(0.05)
        if guard is not None:
            await guard.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(10)
    try:
        yield started[0]
    finally:
        started[0].call(over.set)
        thread.join(30)
    assert not thread.is_alive()
    assert faults == []
    assert started[0].sidecar.connections == 0
