"""The listener on a real nats-server: what hosts say becomes what the gateway may route to."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from smartgw.trust import Trust
from smartgw_hosts import listener as listener_module
from smartgw_hosts import wire
from smartgw_hosts.bus import Bus
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.listener import AT_ONCE, EnrolmentSource, Listener
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import HostRecord, HostState, PoolSettings
from smartgw_hosts.wire import Kind
from tests.hosts.bus_messages import CLUSTER, Speaker, identity_of
from tests.servers import Nats

SETTINGS = PoolSettings(heartbeat=0.2, missed=3)
"""A lease of 0.6 s, so that silence shows soon."""


class FakeProber:
    """A prober of our own port: what it answers, how long it takes, and what it was asked."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.seconds = 0.0
        self.asked: list[tuple[str, str, PublicKey]] = []
        self.under_way = self.most = 0
        self.raises: set[str] = set()
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def prove(self, host_id: str, address: str, key: PublicKey) -> Verdict:
        self.asked.append((host_id, address, key))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.seconds)
            await self.proceed.wait()
        finally:
            self.under_way -= 1
        if host_id in self.raises:
            raise RuntimeError("a prober's fault")
        return self.verdicts.get(host_id, Verdict(Proof.OK))


class FixedTrust:
    """An enrolment list that never changes."""

    def __init__(self, *hosts: str, apps: tuple[str, ...] = ("*",)) -> None:
        self.current = tuple(
            Enrolment(host, identity_of(host).public_key, CLUSTER, apps) for host in hosts
        )

    async def watch(self, changed: Callable[[tuple[Enrolment, ...]], None]) -> None:
        await asyncio.Event().wait()


class Clock:
    """The monotonic clock, which may be let jump."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Ear:
    """A gateway's discovery, and a bus to speak on."""

    listener: Listener
    pool: Pool
    prober: FakeProber
    speech: Bus
    hearing: Bus
    clock: Clock
    table: dict[str, HostRecord] = field(default_factory=dict)
    history: list[tuple[str, str, str]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)

    def on_update(self, records: Sequence[HostRecord], removed: Sequence[str]) -> None:
        self.batches.append(len(records) + len(removed))
        for record in records:
            self.table[record.host_id] = record
            self.history.append((record.host_id, record.state, record.reason))
        for host_id in removed:
            del self.table[host_id]
            self.history.append((host_id, "removed", ""))

    def say(self, speaker: Speaker, kind: Kind = Kind.HEARTBEAT, *, ago: float = 0.0) -> bool:
        message = speaker.message(kind, time.time() - ago - 1_800_000_000)
        return self.speech.publish(*wire.encode(message, CLUSTER, speaker.identity))

    def state(self, host_id: str = "h1") -> str:
        record = self.table.get(host_id)
        return "" if record is None else record.state

    async def until(self, condition: Callable[[], object], seconds: float = 4) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {self.history} {self.pool.counters}"
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def beating(self, *speakers: Speaker) -> AsyncIterator[None]:
        """While entered, these hosts send heartbeats, and their absence is not for lack of them."""

        async def beat() -> None:
            while True:
                for speaker in speakers:
                    self.say(speaker)
                await asyncio.sleep(0.1)

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def ear(
    server: Nats,
    trust: EnrolmentSource | None = None,
    settings: PoolSettings = SETTINGS,
    patience: float = 0.5,
) -> AsyncIterator[Ear]:
    pool, prober, clock = Pool(CLUSTER, settings), FakeProber(), Clock()
    hearing, speech = (
        Bus([server.url], name=name, timeout=patience, backoff=(0.05, 0.1))
        for name in ("ear", "mouth")
    )
    listener = Listener(
        hearing,
        pool,
        trust or FixedTrust("h1", "h2"),
        prober,
        lambda records, removed: heard.on_update(records, removed),
        clock=clock,
        tick=0.05,
    )
    heard = Ear(listener, pool, prober, speech, hearing, clock)
    try:
        await listener.start()
        for bus in (hearing, speech):
            await bus.start()
            await asyncio.wait_for(bus.wait_connected(), 5)
        yield heard
    finally:
        await listener.stop()
        await hearing.stop()
        await speech.stop()


async def test_announce_verify_route() -> None:
    """1.5, 2.1: an enrolled host that announces itself is challenged, then healthy."""
    async with Nats() as server, ear(server) as heard:
        heard.say(Speaker(apps=("shop", "blog")), Kind.ANNOUNCE)
        await heard.until(lambda: heard.state() == HostState.HEALTHY)
        assert heard.table["h1"].apps == ("shop", "blog")
        assert heard.prober.asked == [
            ("h1", "http://10.0.0.1:8001", identity_of("h1").public_key),
        ]


async def test_a_heartbeat_announces() -> None:
    """1.3: a gateway that has just started fills its pool from heartbeats alone."""
    async with Nats() as server, ear(server) as heard:
        heard.say(Speaker())
        await heard.until(lambda: heard.state() == HostState.HEALTHY)


async def test_leave() -> None:
    """1.5: a host that leaves is unhealthy at once; a forged leave removes nobody (1.2)."""
    async with Nats() as server, ear(server) as heard:
        speaker = Speaker()
        async with heard.beating(speaker):
            await heard.until(lambda: heard.state() == HostState.HEALTHY)
            forger = Speaker(key_of="stranger", boot=speaker.boot, sequence=10_000)
            heard.say(forger, Kind.LEAVE)
            await heard.until(lambda: heard.pool.counters["bad_signature"] == 1)
            assert heard.state() == HostState.HEALTHY
        heard.say(speaker, Kind.LEAVE)
        await heard.until(lambda: heard.table["h1"].reason == "left")
        assert heard.state() == HostState.UNHEALTHY


async def test_missed_heartbeats_and_return() -> None:
    """1.6: three missed heartbeats make a host unhealthy; it returns only by a fresh proof."""
    async with Nats() as server, ear(server) as heard:
        speaker = Speaker()
        heard.say(speaker)
        await heard.until(lambda: heard.state() == HostState.HEALTHY)
        began = time.monotonic()
        await heard.until(lambda: heard.state() == HostState.UNHEALTHY)
        assert heard.table["h1"].reason == "lease_expired"
        assert time.monotonic() - began > 0.3
        await asyncio.sleep(0.5)  # one challenge a second to one address
        async with heard.beating(speaker):
            await heard.until(lambda: heard.state() == HostState.HEALTHY)
        assert len(heard.prober.asked) == 2


async def test_the_bus_away_demotes_nobody() -> None:
    """1.7: while the bus is away nothing expires, nor when it comes back."""
    async with Nats() as server, ear(server) as heard:
        speakers = Speaker("h1"), Speaker("h2")
        async with heard.beating(*speakers):
            await heard.until(lambda: heard.state("h1") == heard.state("h2") == HostState.HEALTHY)
            told = len(heard.history)
            server.kill()
            await asyncio.sleep(2)
            server.start()
            await asyncio.wait_for(heard.hearing.wait_connected(), 5)
            await asyncio.sleep(1)
            assert heard.history[told:] == []
        # And it is the bus that was the reason: now that it is there, silence counts.
        await heard.until(lambda: heard.state("h1") == heard.state("h2") == HostState.UNHEALTHY)


@pytest.mark.parametrize("patience", [0.5, 2.0], ids=["no answer", "a late answer"])
async def test_a_frozen_bus_demotes_nobody(patience: float) -> None:
    """1.7: a bus that stood still was away: its answer to a PING that was sent meanwhile says
    nothing of the hosts, whose heartbeats wait behind it."""
    async with Nats() as server, ear(server, patience=patience) as heard:
        heard.say(Speaker())
        await heard.until(lambda: heard.state() == HostState.HEALTHY)
        await asyncio.sleep(0.2)  # the bus was asked for the first time
        server.freeze()
        await asyncio.sleep(2.1)  # the lease is due, and the bus was asked, after 0.6 s
        server.thaw()
        await asyncio.sleep(0.4)
        assert heard.state() == HostState.HEALTHY
        await heard.until(lambda: heard.state() == HostState.UNHEALTHY, 5)


async def test_a_stall_of_our_clock_demotes_nobody() -> None:
    """1.7: a 12 s stall costs no host its place: after it every lease has a full term."""
    async with Nats() as server, ear(server) as heard:
        heard.say(Speaker())
        await heard.until(lambda: heard.state() == HostState.HEALTHY)
        heard.clock.ahead += 12
        await heard.until(lambda: heard.listener.counters["stalls"] == 1)
        await asyncio.sleep(0.4)
        assert heard.state() == HostState.HEALTHY
        await heard.until(lambda: heard.state() == HostState.UNHEALTHY)


async def test_a_proof_that_fails_in_a_stall_is_repeated() -> None:
    """1.7: an answer that could not reach us while we stood still is no fault of the host."""
    async with Nats() as server, ear(server) as heard:
        heard.prober.verdicts["h1"] = Verdict(Proof.TIMEOUT)
        heard.prober.proceed.clear()
        async with heard.beating(Speaker()):
            await heard.until(lambda: heard.prober.under_way)
            heard.clock.ahead += 12
            await heard.until(lambda: heard.listener.counters["stalls"] == 1)
            heard.prober.proceed.set()
            await asyncio.sleep(0)
            heard.prober.verdicts.clear()
            await heard.until(lambda: heard.state() == HostState.HEALTHY)
        assert HostState.UNHEALTHY not in [state for _, state, _ in heard.history]


STALLED = """
import asyncio, sys
from tests.hosts.test_listener import FakeProber, FixedTrust, SETTINGS
from smartgw_hosts.bus import Bus
from smartgw_hosts.listener import Listener
from smartgw_hosts.pool import Pool

async def main():
    def told(records, removed):
        for record in records:
            print(record.host_id, record.state, flush=True)
    bus = Bus([sys.argv[1]], name="stalled", timeout=0.5)
    listener = Listener(bus, Pool("c1", SETTINGS), FixedTrust("h1"), FakeProber(), told, tick=0.05)
    await listener.start()
    await bus.start()
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_stopped_gateway_demotes_nobody() -> None:
    """1.7: a gateway that got no processor for five lease terms keeps its hosts."""
    root = Path(__file__).parents[2]
    async with Nats() as server, ear(server) as heard, heard.beating(Speaker()):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STALLED, server.url, cwd=root, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(10):
                while await process.stdout.readline() != b"h1 healthy\n":
                    pass
            process.send_signal(SIGSTOP)
            await asyncio.sleep(3)
            process.send_signal(SIGCONT)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    pytest.fail((await process.stdout.readline()).decode())
        finally:
            process.send_signal(SIGKILL)
            await process.wait()


async def test_a_removed_enrolment_ends_routing(tmp_path: Path) -> None:
    """1.4: a removed enrolment ends routing within 2 s; one that is added begins it."""
    file = tmp_path / "hosts.toml"

    def enrol(*hosts: str) -> None:
        # A name that stands for a whole new file, as an operator's editor writes it.
        (tmp_path / "new").write_text(
            "".join(
                f'[[host]]\nid = "{host}"\nkey = "{identity_of(host).public_key.text}"\n'
                f'cluster = "{CLUSTER}"\napps = ["*"]\n'
                for host in hosts
            )
        )
        (tmp_path / "new").replace(file)

    enrol("h1")
    async with (
        Nats() as server,
        ear(server, Trust(file, "c1", lambda apps: None)) as heard,
        heard.beating(Speaker("h1"), Speaker("h2")),
    ):
        await heard.until(lambda: heard.state("h1") == HostState.HEALTHY)
        assert heard.state("h2") == HostState.PROVISIONAL
        enrol("h2")
        await heard.until(lambda: heard.state("h1") == HostState.UNHEALTHY, 2)
        assert heard.table["h1"].reason == "not_enrolled"
        await heard.until(lambda: heard.state("h2") == HostState.HEALTHY, 2)


async def test_a_provisional_host_is_never_dialled() -> None:
    """1.4: a key that is not enrolled stays provisional and is never challenged."""
    async with Nats() as server, ear(server) as heard:
        async with heard.beating(Speaker("stranger"), Speaker("h1")):
            await heard.until(lambda: heard.state("h1") == HostState.HEALTHY)
            await asyncio.sleep(0.5)
        assert heard.state("stranger") == HostState.PROVISIONAL
        assert {host for host, _, _ in heard.prober.asked} == {"h1"}


async def test_refused_messages_are_counted_and_hurt_no_other() -> None:
    """1.2: unsigned, badly signed, stale and replayed messages are counted and ignored."""
    async with Nats() as server, ear(server) as heard:
        speaker = Speaker()
        heard.speech.publish(f"smartgw.{CLUSTER}.host.h1.heartbeat", b"{}")
        heard.speech.publish(f"smartgw.{CLUSTER}.host.h1.dance", b"x" * 100)
        heard.speech.publish(f"smartgw.{CLUSTER}.host.h1.leave", b"x" * 70_000)
        heard.say(Speaker(key_of="stranger"))
        heard.say(speaker, ago=60)
        heard.say(speaker)
        speaker.sequence -= 1
        heard.say(speaker)
        await heard.until(lambda: heard.state() == HostState.HEALTHY)
        counted = {reason: count for reason, count in heard.pool.counters.items() if count}
        assert counted == {
            "unsigned": 1,
            "bad_subject": 1,
            "oversize": 1,
            "unknown_key": 1,
            "stale": 1,
            "replayed": 1,
        }


async def test_a_failing_prober_and_a_failing_table_end_nothing() -> None:
    """1.8: what raises for one host is a failed proof of that host, and the others go on."""
    async with Nats() as server, ear(server) as heard:
        heard.prober.raises.add("h1")
        failures: list[int] = []

        def fail_once(records: Sequence[HostRecord], removed: Sequence[str]) -> None:
            if not failures:
                failures.append(1)
                raise RuntimeError("a table's fault")
            Ear.on_update(heard, records, removed)

        heard.on_update = fail_once  # type: ignore[method-assign]
        async with heard.beating(Speaker("h1"), Speaker("h2")):
            await heard.until(lambda: heard.state("h2") == HostState.HEALTHY)
            await heard.until(lambda: heard.state("h1") == HostState.UNHEALTHY)
            assert heard.table["h1"].reason == "verification: unreachable"
            heard.prober.raises.clear()
            await heard.until(lambda: heard.state("h1") == HostState.HEALTHY)
    assert failures


async def test_a_proof_that_never_ends_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.1: the answer must come in time, whatever the prober waits for."""
    monkeypatch.setattr(listener_module, "PROOF_TIMEOUT", 0.2)
    async with Nats() as server, ear(server) as heard, heard.beating(Speaker()):
        heard.prober.proceed.clear()
        await heard.until(lambda: heard.state() == HostState.UNHEALTHY)
        assert heard.table["h1"].reason == "verification: timeout"


async def test_suspect_is_challenged_at_once() -> None:
    """3.7: a host that the data path could not reach is challenged at once."""
    async with Nats() as server, ear(server) as heard, heard.beating(Speaker()):
        await heard.until(lambda: heard.state() == HostState.HEALTHY)
        await asyncio.sleep(1)  # one challenge a second to one address
        heard.prober.verdicts["h1"] = Verdict(Proof.UNREACHABLE)
        heard.listener.suspect("h1")
        heard.listener.suspect("nobody")
        await heard.until(lambda: heard.state() == HostState.UNHEALTHY)


async def test_drops_of_ours_count_against_nobody() -> None:
    """1.7: heartbeats that we could not take in were not missed by the host."""
    async with Nats() as server, ear(server) as heard:
        heard.say(Speaker())
        await heard.until(lambda: heard.state() == HostState.HEALTHY)
        ends = time.monotonic() + 1.5
        while time.monotonic() < ends:
            heard.hearing.counters["drops"] += 1
            await asyncio.sleep(0.1)
        assert heard.state() == HostState.HEALTHY
        await heard.until(lambda: heard.state() == HostState.UNHEALTHY)


async def test_many_hosts_at_once() -> None:
    """1.8: of 1,000 hosts that announce at once all are verified, 64 at a time, and the changes
    come in batches."""
    names = [f"h{number}" for number in range(1000)]
    async with Nats() as server, ear(server, FixedTrust(*names), PoolSettings()) as heard:
        heard.prober.seconds = 0.2
        began, gap, last = time.monotonic(), 0.0, time.monotonic()
        said = [
            wire.encode(speaker.message(Kind.ANNOUNCE, time.time() - 1_800_000_000), CLUSTER, key)
            for speaker, key in ((Speaker(name), identity_of(name)) for name in names)
        ]
        last = time.monotonic()
        assert all([heard.speech.publish(*message) for message in said])
        while sum(r.state == HostState.HEALTHY for r in heard.pool.records()) < 1000:
            await asyncio.sleep(0)
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
            assert time.monotonic() - began < 60
        await heard.until(lambda: len(heard.table) == 1000)
        assert heard.prober.most == 64
        assert len(heard.batches) < 800
        assert 1 < max(heard.batches) <= AT_ONCE
        print(f"1000 hosts verified in {time.monotonic() - began:.2f} s, longest gap {gap:.3f} s")
