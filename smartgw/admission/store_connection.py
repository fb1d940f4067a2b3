"""One connection to a Redis or Valkey server: commands out, answers in, in order.

Owns the transport and who waits for which answer. The protocol's packing and parsing are
hiredis's; what is asked is shared_counters.py's, which server store_places.py's.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

import hiredis

from smartgw.admission.breaker import Fault, fault_of

_MOST_BYTES: Final = 1 << 20
"""No answer that we ask for is a tenth of it."""

Answered = Callable[[object], None]


class StoreError(Exception):
    """The store cannot be asked. `fault` says why, the text is for the log and without secrets."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


def pack(words: Sequence[str | bytes | int]) -> bytes:
    """Return a command as bytes of the protocol."""
    # hiredis tells type checkers that a command has one word.
    command: bytes = hiredis.pack_command(tuple(words))  # type: ignore[arg-type]
    return command


class StoreConnection(asyncio.Protocol):
    """Made by `store_places.connect`. `on_lost` is called once, with the fault, when it is of no
    use any more; no callback of `send` comes after that.
    """

    def __init__(self) -> None:
        self.on_lost: Callable[[Fault], None] | None = None
        self.lost: Fault | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = hiredis.Reader()
        self._waiting: deque[Answered] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        try:
            reader.feed(data)
            while (answer := reader.gets()) is not False:
                if not waiting:
                    self.close(Fault.ANSWER)
                    return
                waiting.popleft()(answer)
                if self.lost is not None:
                    return
        except hiredis.ProtocolError:
            self.close(Fault.ANSWER)
            return
        if reader.len() > _MOST_BYTES:
            self.close(Fault.ANSWER)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(Fault.CLOSED)

    def send(self, command: bytes, answered: Answered) -> None:
        """Send a packed command; `answered` gets its answer: an error is a hiredis.ReplyError."""
        assert self._transport is not None
        self._waiting.append(answered)
        self._transport.write(command)

    async def call(self, *words: str | bytes | int) -> object:
        """Send a command and return its answer; for what is asked before there is traffic.

        Raises:
            StoreError: an error answer, or the connection ended.
        """
        if self.lost is not None:
            raise StoreError(self.lost, "the connection has ended")
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def answered(answer: object) -> None:
            if not future.done():
                future.set_result(answer)

        before = self.on_lost

        def lost(fault: Fault) -> None:
            if not future.done():
                future.set_exception(StoreError(fault, "the connection ended"))
            if before is not None:
                before(fault)

        self.on_lost = lost
        try:
            self.send(pack(words), answered)
            answer = await future
        finally:
            self.on_lost = before
        if isinstance(answer, hiredis.ReplyError):
            # The words of a server, which may repeat ours: only the first is told.
            raise StoreError(fault_of(str(answer)), f"answers {str(answer).split(' ')[0][:40]}")
        return answer

    def close(self, fault: Fault = Fault.CLOSED) -> None:
        """End it; what was sent may still be carried out."""
        if self.lost is not None:
            return
        self.lost = fault
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()
        if self.on_lost is not None:
            self.on_lost(fault)
