"""The access log: what a line says, and that nothing its sink does can hurt traffic."""

import asyncio
import fcntl
import json
import os
import re
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.accesslog import AccessLog, _Writer
from smartgw.logline import MAX_REMEMBERED, Entry, Formatter


def entry(
    *,
    start: float = 100.0,
    target: bytes = b"/a%2Fb",
    client: str = "203.0.113.7",
    hostname: bytes = b"shop.smart-app.localhost",
    status: int = 200,
    app_id: str | None = "shop",
    user_agent: bytes | None = b"curl/8.0",
) -> Entry:
    return (
        start,
        0.0012345,
        client,
        b"GET",
        hostname,
        target,
        "HTTP/1.1",
        status,
        0,
        1024,
        b"req-1",
        app_id,
        "h1",
        None,
        user_agent,
        "c2",
        "affinity",
        None,
        1,
    )


def one_line(value: Entry, *, query: bool = False, offset: float = 0.0) -> dict[str, Any]:
    data, failed = Formatter(query=query).lines([value], offset)
    assert failed == 0
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    record: dict[str, Any] = json.loads(data)
    return record


async def until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


def test_a_line_says_who_asked_what_and_how_it_went() -> None:
    """11.3: one JSON access-log line a request."""
    assert one_line(entry(), offset=1_700_000_000.0 - 100.0 + 0.0421) == {
        "time": "2023-11-14T22:13:20.042Z",
        "duration_ms": 1.234,
        "client": "203.0.113.7",
        "method": "GET",
        "hostname": "shop.smart-app.localhost",
        "target": "/a%2Fb",
        "protocol": "HTTP/1.1",
        "status": 200,
        "received": 0,
        "sent": 1024,
        "request_id": "req-1",
        "app_id": "shop",
        "host_id": "h1",
        "reason": None,
        "user_agent": "curl/8.0",
        "cluster": "c2",
        "forward": "affinity",
        "from_cluster": None,
        "attempts": 1,
    }


@pytest.mark.parametrize(("query", "logged"), [(False, "/reset?"), (True, "/reset?token=secret?x")])
def test_a_query_is_logged_only_when_asked_for(query: bool, logged: str) -> None:
    """11.3: secrets stand in queries, so a line holds the path and `?` alone."""
    assert one_line(entry(target=b"/reset?token=secret?x"), query=query)["target"] == logged


@given(st.binary(max_size=300), st.binary(max_size=300), st.text(max_size=80))
def test_a_line_is_valid_json_for_any_bytes(target: bytes, agent: bytes, app_id: str) -> None:
    """11.3: one line each, whatever a client sends: no byte can end a line or forge a member."""
    record = one_line(entry(target=target, user_agent=agent, app_id=app_id), query=True)
    assert record["target"].encode("latin-1") == target
    assert record["user_agent"].encode("latin-1") == agent
    assert record["app_id"] == app_id


def test_what_is_remembered_is_bounded() -> None:
    """11.3: hostnames and user agents of outsiders do not fill memory."""
    formatter = Formatter()
    formatter.lines(
        [
            entry(hostname=b"%d.example" % n, user_agent=b"x" * 9000 + b"%d" % n)
            for n in range(5000)
        ],
        0.0,
    )
    assert len(formatter._remembered) <= MAX_REMEMBERED
    assert max(map(len, formatter._remembered.values())) <= 256


def test_an_entry_that_cannot_be_formatted_costs_only_itself() -> None:
    """11.3: one line a request, also beside a broken one."""
    broken: Any = ("not", "an", "entry")
    data, failed = Formatter().lines([entry(), broken, entry()], 0.0)
    assert (data.count(b"\n"), failed) == (2, 1)


async def test_lines_are_written_within_moments_and_on_stop(tmp_path: Path) -> None:
    """11.3: lines are written in batches every 0.1 s, and the last ones before the end."""
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.start()
    before = time.time()
    log.append(entry(start=time.monotonic(), target=b"/first"))
    await until(lambda: log.written == 1, 1.0)
    for n in range(1000):
        log.append(entry(target=b"/%d" % n))
    await log.stop()
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [record["target"] for record in records] == ["/first", *(f"/{n}" for n in range(1000))]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", records[0]["time"])
    assert records[0]["time"][:16] == time.strftime("%Y-%m-%dT%H:%M", time.gmtime(before))
    assert (log.written, log.dropped) == (1001, 0)


async def test_off_keeps_nothing() -> None:
    """11.3: switched off, the log costs no memory."""
    log = AccessLog("off")
    log.start()
    for _ in range(1000):
        log.append(entry())
    assert len(log._entries) == 0
    await log.stop()
    assert (log.written, log.dropped) == (0, 0)


async def test_a_deleted_file_is_made_again_and_reopen_follows_a_moved_one(tmp_path: Path) -> None:
    """11.3: a file that was deleted or rotated away never hurts traffic nor swallows lines."""
    path = tmp_path / "access.log"
    log = AccessLog(str(path))
    log.start()
    log.append(entry(target=b"/1"))
    await until(lambda: log.written == 1)
    path.unlink()
    log.append(entry(target=b"/2"))
    await until(lambda: log.written == 2)
    assert b"/2" in path.read_bytes()
    path.rename(tmp_path / "access.log.1")
    log.reopen()
    log.append(entry(target=b"/3"))
    await log.stop()
    assert b"/3" in path.read_bytes()
    assert log.dropped == 0


async def test_a_blocked_pipe_drops_and_counts_and_never_blocks_the_loop(tmp_path: Path) -> None:
    """11.3: a reader that has stopped reading costs lines, counted, and no time of the loop."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = AccessLog(str(fifo), max_pending_bytes=100_000)
        log.start()
        for _ in range(40):
            for _ in range(500):
                log.append(entry())
            # Blocked once, the loop would stand still for ever: nobody reads.
            await asyncio.sleep(0.001)
        await until(lambda: len(log._entries) == 0)
        assert log.dropped > 10_000
        await log.stop(patience=0.2)
    finally:
        os.close(reader)


async def test_a_dead_pipe_is_survived_and_taken_up_again(tmp_path: Path) -> None:
    """11.3: a reader that died costs lines, counted, until another one reads."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(str(fifo))
    log.start()
    os.close(reader)
    log.append(entry())
    await until(lambda: log.dropped == 1)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log.append(entry(target=b"/again"))
        await until(lambda: log.written == 1)
        assert json.loads(os.read(reader, 65536))["target"] == "/again"
    finally:
        await log.stop()
        os.close(reader)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
async def test_a_full_disk_drops_and_counts() -> None:
    """11.3: a full disk costs lines, counted, and nothing else."""
    log = AccessLog("/dev/full")
    log.start()
    for _ in range(10):
        log.append(entry())
    await log.stop()
    assert (log.written, log.dropped) == (0, 10)


async def test_a_file_that_cannot_be_opened_is_refused_at_start(tmp_path: Path) -> None:
    """11.5: bad configuration is refused at start."""
    with pytest.raises(FileNotFoundError):
        AccessLog(str(tmp_path / "no" / "such" / "folder")).start()


async def test_the_queue_is_bounded() -> None:
    """11.3: entries beyond the bound are dropped, oldest first, and counted."""
    log = AccessLog("/dev/null", max_entries=100)
    log.start()
    for _ in range(1000):
        log.append(entry())
    await log.stop()
    assert (log.written, log.dropped) == (100, 900)


def test_workers_share_a_pipe(tmp_path: Path) -> None:
    """11.1, 11.3: several processes log into one pipe, and no line is cut by another's."""
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    got = bytearray()

    def read() -> None:
        with open(fifo, "rb") as file:
            while data := file.read1(1 << 16):
                got.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    writers: list[_Writer] = []
    while len(writers) < 3:
        writer = _Writer(str(fifo))
        try:
            writer.open()
        except OSError:
            time.sleep(0.01)  # the reader has not come yet
            continue
        writers.append(writer)
    lines = [bytes([65 + number]) * 299 + b"\n" for number in range(3)]
    for writer, line in zip(writers, lines, strict=True):
        writer.start()
        for _ in range(20):
            writer.put(line * 256, 256)
    for writer in writers:
        writer.finish()
        writer.join()
    reader.join()
    found = bytes(got).splitlines(keepends=True)
    assert len(found) == 3 * 20 * 256
    assert set(found) == set(lines)


def test_a_descriptor_beyond_a_thousand_that_is_full() -> None:
    """11.3: a full pipe is waited for by its thread, whatever its descriptor's number is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    reading, writing = os.pipe()
    high = fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, 1024)
    os.set_blocking(high, False)
    writer = _Writer(None)
    writer._fd = high
    line = b"x" * 1023 + b"\n"
    count = 256  # more than a pipe holds

    def write() -> None:
        assert writer._write(line * count) == len(line) * count

    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(write)
        received = 0
        while received < len(line) * count:
            received += len(os.read(reading, 65536))
        written.result(5)
    for fd in (reading, writing, high):
        os.close(fd)
