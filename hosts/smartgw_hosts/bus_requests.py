"""Questions to whoever answers on the bus, each with its own answer or a clear failure.

Owns the inbox and what waits for an answer: nothing waits longer than it was told to, nor beyond
the connection that the question went out on. Does not know what is asked (bus.py carries it).
"""

import asyncio
import re
import secrets

from smartgw_hosts.bus import Bus, BusAway
from smartgw_hosts.bus_queue import Delivery

WAITING = 10_000
"""Questions under way at once."""
_NO_RESPONDERS = re.compile(rb"NATS/1\.0 503\b")


class AnswerLost(BusAway):
    """The question had left and no answer came: what was asked for may have been done."""


class Nobody(BusAway):
    """Nobody on the bus answers to that subject: nothing was done."""


class BusRequests:
    """Ask over `bus`; make it before `bus.start()`. `inbox` is a subject of this gateway's own,
    below which answers come: its permissions must allow to hear `<inbox>.>`.
    """

    def __init__(self, bus: Bus, inbox: str) -> None:
        self._bus = bus
        # Another process of the same name must not take our answers for its own.
        self._prefix = f"{inbox}.{secrets.token_hex(8)}."
        self._waiting: dict[str, asyncio.Future[Delivery]] = {}
        self._count = 0
        bus.follow(f"{self._prefix}*", self._answered, WAITING)

    async def ask(
        self, subject: str, payload: bytes = b"", *, headers: bytes = b"", patience: float = 2.0
    ) -> Delivery:
        """Send a question, return the answer.

        Raises AnswerLost, Nobody, or BusAway when the question did not leave.
        """
        if len(self._waiting) >= WAITING:
            raise BusAway("too many questions wait for an answer")
        self._count += 1
        reply = f"{self._prefix}{self._count}"
        answered = asyncio.get_running_loop().create_future()
        self._waiting[reply] = answered
        try:
            if not self._bus.publish(subject, payload, reply=reply, headers=headers):
                raise BusAway("no connection to the bus")
            async with asyncio.timeout(patience):
                delivery: Delivery = await answered
        except TimeoutError:
            raise AnswerLost(f"no answer within {patience:g} s") from None
        finally:
            del self._waiting[reply]
        if _NO_RESPONDERS.match(delivery.headers):
            raise Nobody("nobody answers there")
        return delivery

    def lost(self) -> None:
        """The connection is gone, and with it every answer that has not come."""
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(AnswerLost("the connection to the bus was lost"))

    def _answered(self, delivery: Delivery) -> None:
        answered = self._waiting.get(delivery.subject)
        if answered is not None and not answered.done():
            answered.set_result(delivery)
