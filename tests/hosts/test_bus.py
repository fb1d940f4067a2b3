"""The bus against a real nats-server: every known way in which a NATS client falls silent."""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

import nats
import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from nacl.utils import random as random_bytes

from smartgw_hosts import bus_queue
from smartgw_hosts.bus import Bus, BusAway
from smartgw_hosts.bus_connection import BusAddress
from smartgw_hosts.bus_queue import JOBS, QUEUED_BYTES, Delivery
from tests.listening import listening
from tests.servers import Nats, free_port

Got = list[tuple[str, bytes]]


@asynccontextmanager
async def running(
    *servers: str,
    subjects: tuple[str, ...] = ("t.>",),
    handler: Callable[[str, bytes], None] | None = None,
    limit: int = 20_000,
    up: bool = True,
    nkey_seed: str | None = None,
    tls: ssl.SSLContext | None = None,
    on_state: Callable[[bool], None] | None = None,
    ping_interval: float = 5.0,
) -> AsyncIterator[tuple[Bus, Got]]:
    """A started bus with short patience, and what it has received."""
    got: Got = []
    bus = Bus(
        servers,
        name="test",
        nkey_seed=nkey_seed,
        tls=tls,
        on_state=on_state,
        ping_interval=ping_interval,
        timeout=0.5,
        backoff=(0.05, 0.2),
    )
    for subject in subjects:
        bus.subscribe(subject, handler or (lambda s, p: got.append((s, p))), limit=limit)
    await bus.start()
    try:
        if up:
            await connected(bus)
        yield bus, got
    finally:
        await bus.stop()


async def connected(bus: Bus) -> None:
    async with asyncio.timeout(5):
        await bus.wait_connected()


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.01)


async def received(bus: Bus, got: Got, payload: bytes) -> bool:
    """Whether a message that the bus sends to itself comes back."""
    if not bus.publish("t.probe", payload):
        return False
    await bus.ping()
    return ("t.probe", payload) in got


def user() -> tuple[str, str]:
    """An NKey user: seed, public key."""
    seed = nkeys.encode_seed(random_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode()


def users(*public: str, permissions: str = "") -> str:
    listed = ", ".join(f"{{ nkey: {key} {permissions} }}" for key in public)
    return f"authorization {{ users: [ {listed} ] }}"


async def raw_publish(server: Nats, *commands: bytes) -> None:
    """What a hostile publisher writes, with no client in between."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + b"".join(commands) + b"PING\r\n")
    assert await reader.readline() == b"PONG\r\n"
    writer.close()
    await writer.wait_closed()


def lines(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    return [line for line in caplog.messages if part in line]


async def test_publish_ping_and_receive() -> None:
    """A message comes back, and ping() returns the round trip after it was handled."""
    async with Nats() as server, running(server.url) as (bus, got):
        assert bus.publish("t.a", b"1")
        assert 0 < await bus.ping() < 0.5
        assert got == [("t.a", b"1")]


async def test_a_late_pong_ends_nothing() -> None:
    """A PONG that comes after ping() gave up does not end the read loop."""
    async with Nats() as server, running(server.url) as (bus, got):
        server.freeze()
        with pytest.raises(BusAway):
            await bus.ping()
        server.thaw()
        await bus.ping()
        assert await received(bus, got, b"after")
        assert bus.counters["generations"] == 1


async def test_a_raising_handler_hurts_only_its_message(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a handler is counted, logged once, and the next message is handled."""
    seen = []

    def handler(subject: str, payload: bytes) -> None:
        if payload == b"bad":
            raise RuntimeError("a handler's fault")
        seen.append(payload)

    async with Nats() as server, running(server.url, handler=handler) as (bus, _):
        for payload in (b"bad", b"1", b"bad", b"2", b"bad"):
            bus.publish("t.a", payload)
        await bus.ping()
        assert seen == [b"1", b"2"]
        assert bus.counters["handler_errors"] == 3
        assert bus.counters["generations"] == 1
    assert len(lines(caplog, "handler failed")) == 1


async def test_a_raising_on_state_hurts_nothing() -> None:
    """An exception in a callback of ours does not end the connection nor its supervision."""
    states = []

    def on_state(up: bool) -> None:
        states.append(up)
        raise RuntimeError("a callback's fault")

    async with Nats() as server, running(server.url, on_state=on_state) as (bus, got):
        server.kill()
        await until(lambda: not bus.connected)
        server.start()
        await connected(bus)
        assert await received(bus, got, b"after")
    assert states == [True, False, True, False]


async def test_a_user_removed_and_restored(caplog: pytest.LogCaptureFixture) -> None:
    """A server error that closes the library's client for good is survived; told once a change."""
    seed, public = user()
    _, other = user()
    async with (
        Nats(users(public, other)) as server,
        running(server.url, nkey_seed=seed) as (bus, got),
    ):
        server.reload(users(other))
        await until(lambda: bus.counters["dial_failures"] >= 5)
        assert not bus.connected
        assert not bus.publish("t.a", b"refused")
        server.reload(users(public, other))
        await connected(bus)
        assert await received(bus, got, b"after")
    assert len(lines(caplog, "cannot connect")) == 1
    assert "authorization violation" in lines(caplog, "cannot connect")[0].lower()
    assert seed not in caplog.text


async def test_bad_credentials_end_no_start(caplog: pytest.LogCaptureFixture) -> None:
    """start() returns with credentials that are refused, and the bus comes when they are not."""
    seed, public = user()
    _, other = user()
    async with (
        Nats(users(other)) as server,
        running(server.url, nkey_seed=seed, up=False) as (bus, got),
    ):
        await until(lambda: bus.counters["dial_failures"] >= 5)
        assert len(lines(caplog, "cannot connect")) == 1
        with pytest.raises(BusAway):
            await bus.ping()
        server.reload(users(other, public))
        await connected(bus)
        assert await received(bus, got, b"after")


async def test_too_many_subscriptions_is_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    """`max_subscriptions` closes the library's client; the bus is away until the limit is lifted.

    A connection that lacks a subscription would answer PINGs and bring no heartbeat.
    """
    async with (
        Nats("max_subscriptions: 1") as server,
        running(server.url, subjects=("t.>", "u.>"), up=False) as (bus, got),
    ):
        await until(lambda: bus.counters["dial_failures"] >= 2)
        assert not bus.connected
        assert lines(caplog, "maximum subscriptions exceeded")
        server.kill()
        server.configure("")
        server.start()
        await connected(bus)
        assert await received(bus, got, b"after")


async def test_a_refused_subscription_is_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    """A subscription refused or withdrawn by the server makes the bus away, not silent."""
    seed, public = user()
    allowed, denied = users(public), users(public, permissions=", permissions: {subscribe: x}")
    async with Nats(denied) as server, running(server.url, nkey_seed=seed, up=False) as (bus, got):
        await until(lambda: bus.counters["dial_failures"] >= 2)
        assert not bus.connected
        assert lines(caplog, "permissions violation for subscription")
        server.reload(allowed)
        await connected(bus)
        assert await received(bus, got, b"after")
        server.reload(denied)
        await until(lambda: not bus.connected)
        with pytest.raises(BusAway):
            await bus.ping()


async def test_a_refused_publish_is_told_and_the_connection_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A publish that permissions refuse is logged once and ends nothing."""
    seed, public = user()
    config = users(public, permissions=", permissions: {publish: t.ok}")
    async with Nats(config) as server, running(server.url, nkey_seed=seed) as (bus, got):
        for _ in range(3):
            bus.publish("t.no", b"1")
        bus.publish("t.ok", b"2")
        await bus.ping()
        assert got == [("t.ok", b"2")]
        assert bus.counters["errors"] == 3
        assert bus.counters["generations"] == 1
    assert len(lines(caplog, "permissions violation for publish")) == 1


async def test_publishes_while_offline_are_never_replayed() -> None:
    """While the bus is away publish() returns False, and nothing of it is sent later."""
    async with (
        Nats() as server,
        running(server.url) as (speaker, _),
        running(server.url) as (listener, got),
    ):
        server.kill()
        await until(lambda: not speaker.connected)
        assert not any([speaker.publish("t.stale", b"x") for _ in range(100)])
        server.start()
        await connected(listener)
        await connected(speaker)
        assert speaker.publish("t.fresh", b"y")
        await speaker.ping()
        await listener.ping()
        assert got == [("t.fresh", b"y")]


async def test_a_flood_leaves_the_loop_its_turns() -> None:
    """Handlers run in batches: 20,000 queued messages hold the event loop only for moments."""
    count, gaps, busy = 20_000, [0.0], 0

    def handler(subject: str, payload: bytes) -> None:
        nonlocal busy
        busy += sum(range(500))  # some 10 microseconds of work

    async with (
        Nats() as server,
        running(server.url, handler=handler) as (bus, _),
    ):
        await raw_publish(server, b"PUB t.a 2\r\nhi\r\n" * count)
        # Of this thread's own time: what others do on this machine is not the loop's doing.
        last = time.thread_time()
        while busy < count * sum(range(500)):
            await asyncio.sleep(0)
            gaps.append(time.thread_time() - last)
            last = time.thread_time()
        assert bus.counters["drops"] == 0
    assert max(gaps) < 0.25


async def test_a_slow_consumer_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """What exceeds the queue is dropped, counted and told; nothing is lost silently."""
    async with Nats() as server, running(server.url, limit=10) as (bus, got):
        await raw_publish(server, b"PUB t.a 2\r\nhi\r\n" * 1000)
        await until(lambda: bus.counters["messages"] == 1000)
        await bus.ping()
        assert bus.counters["drops"] > 0
        assert len(got) + bus.counters["drops"] == 1000
        assert await received(bus, got, b"after")
    assert len(lines(caplog, "dropped a message")) == 1


async def test_a_frozen_server_is_noticed() -> None:
    """A server that holds the connection and says nothing is given up after three ping intervals,
    15 s by default, and published messages do not pile up meanwhile."""
    default = inspect.signature(Bus).parameters["ping_interval"].default
    assert 3 * default <= 15
    async with Nats() as server, running(server.url, ping_interval=0.2) as (bus, got):
        server.freeze()
        sent = sum(bus.publish("t.a", b"x" * 100_000) for _ in range(200))
        assert sent < 200
        await until(lambda: not bus.connected)
        server.thaw()
        await connected(bus)
        assert await received(bus, got, b"after")


async def test_a_restarted_server_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    """After SIGKILL and restart the subscriptions are back without help; each return is logged."""
    caplog.set_level("INFO")
    async with Nats() as server, running(server.url) as (bus, got):
        for turn in (2, 3):
            server.kill()
            server.start()
            await until(lambda turn=turn: bus.counters["generations"] == turn)  # type: ignore[misc]
            await connected(bus)
            assert await received(bus, got, b"%d" % turn)
            assert len(lines(caplog, "bus: connected again after ")) == turn - 1


async def test_no_server_yet() -> None:
    """11.2: started without a bus; it is there when the bus is."""
    server = Nats()
    try:
        async with running(server.url, up=False) as (bus, got):
            await until(lambda: bus.counters["dial_failures"] >= 2)
            server.start()
            await connected(bus)
            assert await received(bus, got, b"after")
    finally:
        server.stop()


async def test_servers_in_order_of_preference() -> None:
    """The first server that answers is used, and another when that one goes."""
    async with Nats() as first, Nats() as second:
        nobody = f"nats://127.0.0.1:{free_port()}"
        async with running(nobody, first.url, second.url) as (bus, got):
            assert await received(bus, got, b"first")
            first.kill()
            await until(lambda: bus.counters["generations"] == 2)
            second.kill()
            await until(lambda: not bus.connected)


async def test_other_servers_of_the_cluster_are_learnt() -> None:
    """Servers that the configured one names are dialled when it is gone."""
    ports = free_port(), free_port()

    def member(number: int) -> str:
        return (
            f"server_name: n{number}\ncluster {{ name: c, listen: 127.0.0.1:{ports[number]}, "
            f'pool_size: -1, routes: ["nats-route://127.0.0.1:{ports[1 - number]}"] }}'
        )

    async with Nats(member(0)) as first, Nats(member(1)):
        client = await nats.connect(first.url)
        await until(lambda: client.discovered_servers)
        await client.close()
        async with running(first.url) as (bus, got):
            first.kill()
            await until(lambda: bus.counters["generations"] == 2)
            assert await received(bus, got, b"elsewhere")


async def test_hostile_messages_hurt_no_other() -> None:
    """1.2, 1.8: a subject that is not UTF-8 and a broken header block end no read loop."""
    async with Nats() as server, running(server.url) as (bus, got):
        await raw_publish(
            server,
            b"PUB t.\xff\xfe 1\r\nx\r\n",
            b"HPUB t.h 8 9\r\nNATS/1.0y\r\n",
            b"HPUB t.h 12 13\r\nNATS/1.0\xff\xff\r\nz\r\n",
            b"PUB t.last 1\r\n!\r\n",
        )
        await until(lambda: ("t.last", b"!") in got)
        assert bus.counters["generations"] == 1


async def test_a_read_loop_that_ended_is_replaced() -> None:
    """A connection whose reader has ended is given up, though the library calls it connected."""
    visits = 0

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.write(b'INFO {"max_payload":1000,"version":"2.15.1"}\r\n')
        async for line in reader:
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
            elif line.startswith(b"PUB"):
                writer.write(b"-ERR \r\n")  # no text: the library's parser raises
        writer.close()

    async with (
        listening(visit) as port,
        running(f"nats://127.0.0.1:{port}") as (bus, _),
    ):
        assert bus.publish("t.a", b"")
        await until(lambda: visits == 2 and bus.connected)


def certificate(folder: Path) -> None:
    """A certificate for 127.0.0.1 that signs itself: cert.pem and key.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bus")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


async def test_tls(tmp_path: Path) -> None:
    """Over TLS the bus comes back after a restart too, and trusts only the configured CA."""
    certificate(tmp_path)
    config = f'tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem" }}'
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with Nats(config) as server:
        url = f"tls://127.0.0.1:{server.port}"
        async with running(url, tls=trusted) as (bus, got):
            assert await received(bus, got, b"1")
            server.kill()
            server.start()
            await until(lambda: bus.counters["generations"] == 2)
            assert await received(bus, got, b"2")
        async with running(url, tls=ssl.create_default_context(), up=False) as (bus, _):
            await until(lambda: bus.counters["dial_failures"] >= 2)
            assert not bus.connected


async def test_tls_is_never_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """With tls:// no credentials are sent to a server that offers no TLS."""
    seen = b""

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        writer.write(b'INFO {"max_payload":1000,"version":"2.15.1","auth_required":true}\r\n')
        seen += await reader.read(1000)
        writer.close()

    async with listening(visit) as port:
        url = f"tls://user:hidden@127.0.0.1:{port}"
        async with running(url, up=False) as (bus, _):
            await until(lambda: bus.counters["dial_failures"] >= 1)
    assert seen == b""
    assert lines(caplog, "offers none")


async def test_no_secret_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Passwords, tokens and seeds stand in no log line, no error and no repr."""
    caplog.set_level(logging.DEBUG)
    async with Nats("authorization { user: u, password: right }") as server:
        url = f"nats://u:s3cr%40t@127.0.0.1:{server.port}"
        async with running(url, f"nats://t0k3n@127.0.0.1:{server.port}", up=False) as (bus, _):
            await until(lambda: bus.counters["dial_failures"] >= 2)
    assert lines(caplog, "cannot connect")
    shown = caplog.text + repr(BusAddress.parse(url)) + str(BusAddress.parse(url))
    for text in ("nats://u:pa/s3cr@t@h:1", "nats://u:s3cr@h:port", "http://u:s3cr@h"):
        with pytest.raises(ValueError, match="bus server 1: expected nats://") as refused:
            Bus([text], name="test")
        shown += str(refused.getrepr(style="value"))
    with pytest.raises(ValueError, match="NKey seed") as refused:
        Bus([server.url], name="test", nkey_seed="SUNOTs3crASEED")
    shown += str(refused.getrepr(style="value"))
    assert "s3cr" not in shown
    assert "t0k3n" not in shown


async def test_a_password_is_percent_decoded() -> None:
    """A password with characters of its own in a URL signs in, percent-encoded there."""
    async with (
        Nats('authorization { user: u, password: "p@/:%" }') as server,
        running(f"nats://u:p%40%2F%3A%25@127.0.0.1:{server.port}") as (bus, got),
    ):
        assert await received(bus, got, b"in")


async def test_stop_lets_the_last_words_out() -> None:
    """What was published before stop() reaches the server; stop() ends and may be repeated."""
    async with Nats() as server, running(server.url) as (listener, got):
        async with running(server.url) as (speaker, _):
            for number in range(100):
                speaker.publish("t.leave", b"%d" % number)
        await speaker.stop()
        assert not speaker.connected
        await listener.ping()
        assert len(got) == 100
        async with running(server.url) as (frozen, _):
            server.freeze()
            async with asyncio.timeout(20):
                await frozen.stop()
            server.thaw()


class Slow:
    """A job that notes on which threads it was worked; one of `bad` raises there."""

    threads: ClassVar[set[int]] = set()

    def __init__(self, delivery: Delivery, done: list[bytes], bad: bytes = b"") -> None:
        self.payload, self.done, self.bad = delivery.payload, done, bad
        self.worked = False

    def work(self) -> None:
        self.threads.add(threading.get_ident())
        self.worked = True
        if self.bad and self.payload == self.bad:
            raise RuntimeError("a job's fault")

    def finish(self) -> None:
        assert self.worked
        self.done.append(self.payload)


async def test_others_come_before_each_piece_of_work() -> None:
    """1.8: whoever has something to say says it before messages are read, and before some are
    handled, however many have come."""
    events: list[str] = []
    bus = Bus(("nats://127.0.0.1:1",), name="before", before=lambda: events.append("before"))

    def handle(_subject: str, _payload: bytes) -> None:
        events.append("message")
        end = time.perf_counter() + 0.001  # longer than a turn
        while time.perf_counter() < end:
            pass

    bus.subscribe("t.>", handle)
    for _ in range(5):
        bus._deliver("t.>", b"t.a", b"x", b"", b"")
    await bus.queue.handled()
    text = " ".join(events)
    assert text.startswith("before message before message")
    assert text.count("message") == 5
    async with Nats() as server:
        reading = Bus((server.url,), name="before", before=lambda: events.append("reads"))
        reading.subscribe("t.>", lambda *_: None)
        await reading.start()
        await connected(reading)
        events.clear()
        await raw_publish(server, b"PUB t.a 8000\r\n%b\r\n" % bytes(8000))
        await reading.ping()
        await reading.stop()
    assert len(events) > 4


@pytest.mark.parametrize("hurry", [False, True])
async def test_jobs_keep_their_order(hurry: bool) -> None:
    """1.8: what takes long is done on a thread while the loop pauses, and messages are finished as
    they came, each before a ping that was sent after it returns."""
    done: list[bytes] = []
    Slow.threads.clear()
    count = 5 * JOBS + 3
    bus = Bus(("nats://127.0.0.1:1",), name="jobs")
    bus.follow("t.>", lambda delivery: Slow(delivery, done))
    bus.queue.hurry = hurry
    for number in range(count):
        bus._deliver("t.>", b"t.a", b"%d" % number, b"", b"")
        if number == count // 2:
            half = asyncio.create_task(bus.queue.handled())
            await asyncio.sleep(0)
    await asyncio.wait_for(half, 5)
    assert len(done) >= count // 2 + 1
    bus._deliver("t.>", b"t.a", b"last", b"", b"")
    await asyncio.wait_for(bus.queue.handled(), 5)
    assert done == [b"%d" % number for number in range(count)] + [b"last"]
    assert hurry or Slow.threads - {threading.get_ident()}
    assert bus.queue.feeds["t.>"].queued == bus.queue._bytes == 0
    bus.queue.close()


async def test_a_raising_job_hurts_only_its_message(caplog: pytest.LogCaptureFixture) -> None:
    """What a job raises, on its thread too, is counted and told, and the next ones are done."""
    done: list[bytes] = []
    bus = Bus(("nats://127.0.0.1:1",), name="jobs")

    def handle(delivery: Delivery) -> Slow | None:
        if delivery.payload == b"cancelled":
            raise asyncio.CancelledError
        return Slow(delivery, done, bad=b"bad")

    bus.follow("t.>", handle)
    for payload in (b"1", b"bad", b"2", b"cancelled", b"3"):
        bus._deliver("t.>", b"t.a", payload, b"", b"")
    await asyncio.wait_for(bus.queue.handled(), 5)
    assert done == [b"1", b"2", b"3"]
    assert bus.counters["handler_errors"] == 2
    assert bus.queue.feeds["t.>"].queued == bus.queue._bytes == 0
    assert len(lines(caplog, "handler failed")) == 1
    bus.queue.close()


async def test_no_job_waits_for_the_thread() -> None:
    """1.8: a thread that stands still, as it does when the loop never sleeps, holds up nothing."""
    done: list[bytes] = []
    stuck = threading.Event()
    loop_thread = threading.get_ident()

    class Stuck(Slow):
        def work(self) -> None:
            if threading.get_ident() != loop_thread:
                stuck.wait(30)
            super().work()

    bus = Bus(("nats://127.0.0.1:1",), name="jobs")
    bus.follow("t.>", lambda delivery: Stuck(delivery, done))
    for number in range(500):
        bus._deliver("t.>", b"t.a", b"%d" % number, b"", b"")
    await asyncio.wait_for(bus.queue.handled(), 10)
    assert done == [b"%d" % number for number in range(500)]
    stuck.set()
    bus.queue.close()


async def test_the_turns_go_on_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """1.7: neither what comes before a turn nor a thread that cannot be started ends the bus."""
    done: list[bytes] = []
    fails = True

    def before() -> None:
        if fails:
            raise RuntimeError("a fault of somebody else")

    def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    bus = Bus(("nats://127.0.0.1:1",), name="jobs", before=before)
    bus.follow("t.>", lambda delivery: Slow(delivery, done))
    with monkeypatch.context() as patch:
        patch.setattr(bus_queue, "_Thread", no_thread)
        for number in range(100):
            bus._deliver("t.>", b"t.a", b"%d" % number, b"", b"")
        await asyncio.wait_for(bus.queue.handled(), 10)
    assert done == [b"%d" % number for number in range(100)]
    assert len(lines(caplog, "no thread for signatures: can't start")) == 1
    fails = False
    bus._deliver("t.>", b"t.a", b"after", b"", b"")
    await asyncio.wait_for(bus.queue.handled(), 5)
    assert done[-1] == b"after"
    assert bus.queue._helper is not None
    bus.queue.close()


async def test_a_hurry_leaves_nothing_to_the_thread() -> None:
    """1.8: what is kept is bounded though thousands are worked off without a pause."""
    done: list[bytes] = []
    bus = Bus(("nats://127.0.0.1:1",), name="jobs")
    most = 0

    def handle(delivery: Delivery) -> Slow:
        nonlocal most
        most = max(most, len(bus.queue._begun_now), len(bus.queue._jobs))
        return Slow(delivery, done)

    bus.follow("t.>", handle)
    bus.queue.hurry = True
    for number in range(5_000):
        bus._deliver("t.>", b"t.a", b"%d" % number, b"", b"")
    await asyncio.wait_for(bus.queue.handled(), 10)
    assert len(done) == 5_000
    assert most <= JOBS
    bus.queue.close()


async def test_jobs_end_with_the_bus() -> None:
    """What waits and what is under way is let go, whoever waits for it goes on, no thread stays."""
    threads = threading.active_count()
    done: list[bytes] = []
    bus = Bus(("nats://127.0.0.1:1",), name="jobs")
    bus.follow("t.>", lambda delivery: Slow(delivery, done))
    for number in range(1_000):
        bus._deliver("t.>", b"t.a", b"%d" % number, b"", b"")
    waiting = asyncio.create_task(bus.queue.handled())
    await until(lambda: done)
    assert threading.active_count() == threads + 1
    await bus.stop()
    await asyncio.wait_for(waiting, 5)
    had = len(done)
    await asyncio.sleep(0.05)
    assert len(done) == had < 1_000
    assert threading.active_count() == threads


async def test_what_makes_the_bus_press() -> None:
    """1.8: much that waits, by number, by size or for long, holds others up for longer."""
    bus = Bus(("nats://127.0.0.1:1",), name="press")
    bus.subscribe("t.>", lambda *_: None, limit=100)
    now = time.monotonic()
    bus._deliver("t.>", b"t.a", b"x", b"", b"")
    assert not bus.queue.pressing(now)
    assert bus.queue.pressing(now + 60)
    for _ in range(50):
        bus._deliver("t.>", b"t.a", b"x", b"", b"")
    assert bus.queue.pressing(now)


async def test_all_that_is_kept_of_a_message_counts() -> None:
    """1.8: what waits is bounded whatever part of a message is large."""
    for subject, payload, reply, headers in (
        (b"t." + b"\xff" * 4_000, b"", b"", b""),
        (b"t.a", bytes(8_000), b"", b""),
        (b"t.a", b"", b"\xff" * 4_000, b""),
        (b"t.a", b"", b"", bytes(8_000)),
    ):
        bus = Bus(("nats://127.0.0.1:1",), name="size")
        bus.subscribe("t.>", lambda *_: None, limit=100_000)
        for _ in range(5_000):
            bus._deliver("t.>", subject, payload, reply, headers)
        assert 0.7 < (5_000 - bus.counters["drops"]) * 8_000 / QUEUED_BYTES < 1.01
        assert bus.queue.pressing(time.monotonic())
