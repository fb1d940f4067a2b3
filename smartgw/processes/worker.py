"""A worker: carries traffic by the routing table that its control process tells it (11.1).

Owns nothing but the carrying out of messages. It has no bus, no verification and no API; it ends
with the channel, and the kernel ends it with the control process.
"""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Sequence

from smartgw import memory
from smartgw.config import Settings
from smartgw.processes.channel import Channel
from smartgw.processes.drain import Step
from smartgw.processes.messages import Message, hosts_of, registered_of, view_of
from smartgw.processes.sockets import Listener, address_of
from smartgw.processes.tally import exported
from smartgw.processes.traffic import Traffic
from smartgw.proxy.explain import Question

REPORT_SECONDS = 1.0
PAUSE_SECONDS = 0.001
"""Between two parts of a change of registered apps, for requests."""

_log = logging.getLogger(__name__)


def inherited(name: str, fd: int) -> Listener:
    """Return an inherited listening socket."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return Listener(name, address_of(sock), sock)


class Worker:
    """Runs until the channel is closed or says so."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners
        self._channel: Channel | None = None
        self._traffic: Traffic | None = None
        self._apps: set[str] = set()
        # Bounded by what one read of the channel brings: it is not read while any wait.
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, end: socket.socket) -> None:
        """Carry traffic. `end` is this side of the channel."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # These go to the control process; a terminal or a service sends them to all.
            loop.add_signal_handler(number, lambda: None)
        self._channel = await Channel.open(
            end, self._heard, lambda: self._messages.put_nowait(None)
        )
        try:
            # One after the other: no message overtakes another that waits.
            while (message := await self._messages.get()) is not None:
                if message["type"] == "stop":
                    break
                await self._obey(message)
                if self._messages.empty():
                    self._channel.behind(False)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._traffic is not None:
                await self._traffic.stop()
                self._report()  # the last, with what the end itself counted
            self._channel.close()
            # The channel leaves with the next turn of the loop.
            await asyncio.sleep(0.05)

    def _heard(self, message: Message) -> None:
        self._messages.put_nowait(message)
        if self._channel is not None:  # it is, but for the very first
            self._channel.behind(True)

    async def _obey(self, message: Message) -> None:
        kind = message["type"]
        if kind == "settings":
            self._settings(message)
            return
        traffic = self._traffic
        assert traffic is not None, "settings come first"
        match kind:
            case "hosts":
                traffic.apply(*hosts_of(message))
                # Traffic has its turn before the next.
                await asyncio.sleep(0)
            case "registered":
                traffic.take_apps(*registered_of(message))
                # Before the first are in force, there is no traffic that could be held up.
                await asyncio.sleep(PAUSE_SECONDS if traffic.settled else 0)
            case "publish":
                traffic.publish_apps()
            case "apps":
                self._apps.update(message.get("add", ()))
                self._apps.difference_update(message.get("remove", ()))
            case "complete":
                traffic.declare(frozenset(self._apps), message["complete"])
            case "clusters":
                traffic.follow_clusters(view_of(message))
            case "accept":
                await traffic.accept()
                self._send({"type": "started"})
            case "started":
                self._send({"type": "started"})
            case "order":
                await traffic.order(Step(message["step"]))
            case "explain":
                answer = await traffic.explain(Question(**message["question"]))
                self._send({"type": "explained", "number": message["number"], "answer": answer})
            case "stats":
                self._report()

    def _settings(self, message: Message) -> None:
        settings = Settings.model_validate(message["settings"])
        logging.getLogger().setLevel(settings.log.level.upper())
        if self._traffic is not None:
            self._traffic.reload(settings, message["api"])
            return
        own = frozenset((str(host), int(port)) for host, port in message["own"])
        self._traffic = Traffic(
            settings, self._listeners, own, message["api"], self._suspect, self._stale
        )
        self._traffic.start()
        self._report_on()

    def _suspect(self, host_id: str) -> None:
        self._send({"type": "suspect", "host": host_id})

    def _stale(self) -> None:
        self._send({"type": "stale"})

    def _report_on(self) -> None:
        self._report()
        self._timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report_on)

    def _report(self) -> None:
        traffic = self._traffic
        assert traffic is not None
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._send(
            {
                "type": "counters",
                "counters": exported(traffic.counters),
                "log": [traffic.log.written, traffic.log.dropped],
                "memory": memory.resident(),
                "cpu": usage.ru_utime + usage.ru_stime,
            }
        )

    def _send(self, message: Message) -> None:
        assert self._channel is not None
        self._channel.send(message)
