"""One place among the workers: the process in it, its channel, and who comes next.

Owns the life of one worker process after another. A place keeps what its workers had counted.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smartgw import memory
from smartgw.config import Settings
from smartgw.peers.directory import Mode, View
from smartgw.processes.channel import Channel
from smartgw.processes.drain import Step
from smartgw.processes.messages import (
    Message,
    apps_messages,
    clusters_message,
    hosts_messages,
    registered_messages,
)
from smartgw.processes.restarts import Restarts, Silence
from smartgw.processes.sockets import LINKS, Listener
from smartgw.processes.tally import add, exported
from smartgw.processes.traffic import Endpoints
from smartgw.proxy.counters import Counters
from smartgw.proxy.explain import Question
from smartgw.routing.table import HostUpdate
from smartgw.state.desired import Desired

_log = logging.getLogger(__name__)


def _doing(pid: int | None) -> str:
    """Return what the kernel says of a process: stopped, waiting for a disk, asleep, and where."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return f", state {state} in {Path(f'/proc/{pid}/wchan').read_text()}"
    except (OSError, IndexError):
        return ""


class Setup:
    """What every worker must know; the one that starts is told all of it."""

    def __init__(
        self,
        settings: Settings,
        listeners: tuple[Listener, ...],
        own: Endpoints,
        api: str | None,
        as_json: bool,
        on_suspect: Callable[[str], None],
        on_stale: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.listeners = listeners
        self.api = api
        self.as_json = as_json
        self.on_suspect = on_suspect
        self.on_stale = on_stale
        self.hosts: dict[str, HostUpdate] = {}
        self.desired: Desired | None = None
        self.apps: frozenset[str] = frozenset()
        self.complete = False
        self.view = View(Mode.NONE, settings.cluster)
        self.retiring = False
        self.accepting = False
        self.stopped = False
        self._own = sorted(own)

    def message(self) -> Message:
        """The settings, as a message; of the memory each process may have an even part."""
        values = self.settings.model_dump(mode="json")
        mib = self.settings.limits.memory_mib
        limit = memory.limit() if mib is None else mib << 20
        if limit is not None:
            part = limit // (self.settings.processes.workers + 1)
            values["limits"]["memory_mib"] = max(1, part >> 20)
        return {
            "type": "settings",
            "settings": values,
            "own": self._own,
            "api": self.api,
        }

    def order(self, step: Step) -> None:
        """Remember what a step of a drain means for workers that come later."""
        if step is Step.RETIRE:
            self.retiring = True
        elif step is Step.STOP:
            self.accepting, self.stopped = False, True
        elif step is Step.RESUME:
            self.retiring, self.accepting, self.stopped = False, True, False


class Seat:
    """Attributes: `counters` are the living worker's, `counted` those of all that died."""

    def __init__(self, number: int, setup: Setup) -> None:
        self.number = number
        self.serving = asyncio.Event()
        self.restarts = Restarts()
        self.counters: Mapping[str, Any] | None = None
        self.counted: Mapping[str, Any] = exported(Counters())
        self.memory = 0
        self._cpu = [0.0, 0.0]
        self._log_lines = ([0, 0], [0, 0])
        self._setup = setup
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel | None = None
        self._silence = Silence()
        self._changed: dict[str, None] = {}
        self._registered: dict[str, None] = {}
        self._registered_due = False
        self.registered_told = True
        self._told: frozenset[str] = frozenset()
        self._told_all = self._resume_due = False
        self._apps_due = False
        self._clusters_due = False
        self._wake = asyncio.Event()
        self._asked: asyncio.Future[None] | None = None
        self._asked_about = 0
        self._explaining: dict[int, asyncio.Future[dict[str, Any] | None]] = {}
        self._life: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process in this place, None between two of them."""
        return None if self._process is None else self._process.pid

    @property
    def cpu(self) -> float:
        """CPU seconds of all workers of this place."""
        return sum(self._cpu)

    @property
    def log(self) -> tuple[int, int]:
        """Lines of the access log written and dropped, by all workers of this place."""
        now, before = self._log_lines
        return now[0] + before[0], now[1] + before[1]

    def start(self) -> None:
        """Begin to keep a worker in this place; no harm when there is one."""
        if self._life is not None and not self._life.done():
            return
        self._life = asyncio.create_task(self._live(), name=f"worker {self.number}")

    async def stop(self, patience: float) -> None:
        """End the worker, by force after so many seconds."""
        self._stopping = True
        self.send({"type": "stop"})
        if self._life is None:
            return
        if self._process is None:
            self._life.cancel()
        _, late = await asyncio.wait([self._life], timeout=patience)
        if late:
            self._kill()
            await asyncio.wait([self._life])

    # ---- what it is told ----

    def hosts_changed(self, host_ids: Iterable[str]) -> None:
        """These hosts are told as they are when their turn comes, however often they change."""
        if self._channel is not None:
            self._changed.update(dict.fromkeys(host_ids))
            self._wake.set()

    def registered_changed(self, app_ids: Iterable[str]) -> None:
        """These registered apps are told as they are when their turn comes."""
        if self._channel is not None:
            self._registered.update(dict.fromkeys(app_ids))
            self._registered_due, self.registered_told = True, False
            self._wake.set()

    def apps_changed(self) -> None:
        """The declared apps are told when their turn comes."""
        self._apps_due = True
        self._wake.set()

    def clusters_changed(self) -> None:
        """The clusters are told as they are when their turn comes."""
        self._clusters_due = True
        self._wake.set()

    def order(self, step: Step) -> None:
        """Have the worker do a step of a drain; it accepts again only when it knows everything."""
        self._resume_due = step is Step.RESUME and not self._told_all
        if not self._resume_due:
            self.send({"type": "order", "step": step.value})

    def send(self, message: Message) -> None:
        """Tell the worker, if there is one; it comes after what was sent before."""
        if self._channel is not None:
            self._channel.send(message)

    def ask(self) -> "asyncio.Future[None]":
        """Ask for its counters; done when they have come or the worker is gone."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self.send({"type": "stats"})
        return asyncio.shield(self._asked)

    def explain(self, question: Question) -> "asyncio.Future[dict[str, Any] | None]":
        """Ask what it would do with a request; None when it is gone before it says so."""
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._asked_about += 1
        self._explaining[self._asked_about] = answer
        self.send({"type": "explain", "number": self._asked_about, "question": asdict(question)})
        return answer

    def tick(self) -> None:
        """A second has passed: end a worker that says nothing."""
        if self._channel is not None and self._silence.tick():
            doing = _doing(self.pid)
            _log.error(
                "worker %d (pid %s%s) says nothing: it is ended", self.number, self.pid, doing
            )
            self._kill()

    # ---- its life ----

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        while not (self._stopping or self._setup.stopped):
            born = loop.time()
            fault: Exception | None = None
            try:
                ended = await self._one_life()
            except OSError as error:
                ended = f"could not be started: {error}"
            except Exception as error:  # an error of ours must not leave the place empty
                ended, fault = f"was given up: {type(error).__name__}", error
            self._bury()
            if self._stopping:
                return
            if self._setup.stopped:
                _log.info("worker %d %s; none follows while there is a drain", self.number, ended)
                return
            delay = self.restarts.died(loop.time() - born)
            _log.error(
                "worker %d %s; replaced in %.2f s", self.number, ended, delay, exc_info=fault
            )
            await asyncio.sleep(delay)

    async def _one_life(self) -> str:
        ours, theirs = socket.socketpair()
        fds = [
            ("--links" if listener.name == LINKS else "--listen", listener.socket.fileno())
            for listener in self._setup.listeners
        ]
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "smartgw", "worker"),
                    *("--channel", str(theirs.fileno()), "--parent", str(os.getpid())),
                    *(word for option, fd in fds for word in (option, str(fd))),
                    *(("--json",) if self._setup.as_json else ()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *(fd for _, fd in fds)),
                )
        except BaseException:
            ours.close()
            raise
        self._silence.begin()
        try:
            channel = await Channel.open(ours, self._heard, self._closed)
            try:
                await self._accompany(channel)
            finally:
                channel.close()
        finally:
            self._kill()
            code = await self._process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
        return f"(pid {self.pid}) {how}"

    async def _accompany(self, channel: Channel) -> None:
        """Tell the worker what there is to know until it ends; raises what that raises."""
        assert self._process is not None
        # The settings first, before anything else can be sent.
        channel.send(self._setup.message())
        if self._setup.retiring:
            channel.send({"type": "order", "step": Step.RETIRE.value})
        self._channel = channel
        if self._stopping or self._setup.stopped:  # meanwhile: there is nothing it could carry
            channel.send({"type": "stop"})
        feeding = asyncio.create_task(self._feed(channel))
        ending = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait((feeding, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (feeding, ending):
                task.cancel()
            told, _ = await asyncio.gather(feeding, ending, return_exceptions=True)
        # That nothing can be sent any more is no fault of ours: the worker ends, or is ended.
        if isinstance(told, Exception) and not isinstance(told, OSError):
            raise told

    async def _feed(self, channel: Channel) -> None:
        """Tell the worker the whole, have it accept, then tell it each change."""
        self._changed = dict.fromkeys(self._setup.hosts)
        desired = self._setup.desired
        self._registered_due = desired is not None
        self._registered = {} if desired is None else {a.app_id: None for a in desired.apps()}
        self._told, self._apps_due, self._clusters_due = frozenset(), True, True
        await self._tell(channel)
        channel.send({"type": "accept" if self._setup.accepting else "started"})
        self._told_all = True
        if self._resume_due:
            self.order(Step.RESUME)
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._tell(channel)

    async def _tell(self, channel: Channel) -> None:
        setup = self._setup
        while self._changed or self._registered_due or self._apps_due or self._clusters_due:
            if self._clusters_due:
                self._clusters_due = False
                channel.send(clusters_message(setup.view))
                await channel.room()
            changed, self._changed = self._changed, {}
            for message in hosts_messages(changed, setup.hosts):
                channel.send(message)
                await channel.room()
            if self._registered_due and setup.desired is not None:
                registered, self._registered = self._registered, {}
                self._registered_due = False
                for message in registered_messages(registered, setup.desired):
                    channel.send(message)
                    # Others have their turn, though the worker is quick to take it.
                    await asyncio.sleep(0)
                    await channel.room()
                self.registered_told = not self._registered_due
            if self._apps_due:
                self._apps_due = False
                apps, complete = setup.apps, setup.complete
                for message in apps_messages(apps, self._told, complete):
                    channel.send(message)
                    await channel.room()
                self._told = apps

    def _heard(self, message: Message) -> None:
        self._silence.heard()
        match message["type"]:
            case "started":
                self.serving.set()
            case "explained":
                self._explained(message["number"], message["answer"])
            case "suspect":
                self._setup.on_suspect(str(message["host"]))
            case "stale":
                self._setup.on_stale()
            case "counters":
                self.counters = message["counters"]
                self._log_lines[0][:] = message["log"]
                self.memory = message["memory"]
                self._cpu[0] = message["cpu"]
                self._answered()

    def _explained(self, number: int, answer: dict[str, Any] | None) -> None:
        future = self._explaining.pop(number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _closed(self) -> None:
        # It can neither be told anything any more nor say anything.
        if not self._stopping:
            self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _bury(self) -> None:
        """Keep what the worker had counted, forget what it held."""
        self.serving.clear()
        self._process = self._channel = None
        self._told_all = self._resume_due = False
        if self.counters is not None:
            total = Counters()
            add(total, self.counted)
            add(total, self.counters, ended=True)
            self.counted, self.counters = exported(total), None
        now, before = self._log_lines
        before[0], before[1] = before[0] + now[0], before[1] + now[1]
        now[:] = [0, 0]
        self._cpu = [0.0, sum(self._cpu)]
        self.memory = 0
        self._answered()
        for number in list(self._explaining):
            self._explained(number, None)

    def _answered(self) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
        self._asked = None
