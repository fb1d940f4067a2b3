"""The recording on disk: bounded, whole after a kill, and never in the way."""

import errno
import os
import time
from pathlib import Path

import pytest

from smartgw.state import recording
from smartgw.state.recording import Recording
from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import PoolSettings, Verify
from smartgw_hosts.tape import Player, RecordedPool, read
from smartgw_hosts.wire import Kind
from tests.gateway import wait_until
from tests.hosts.bus_messages import CLUSTER, WALL, Speaker, identity_of

MOST = 64 << 10


class Session:
    """One run of a gateway: a recorded pool that hears one host."""

    def __init__(self, path: Path, most: int = MOST) -> None:
        self.recording = Recording(path, most)
        self.pool = RecordedPool(CLUSTER, PoolSettings(), self.recording.note)
        self.recording.start(self.pool)
        self.host = Speaker(apps=tuple(f"app-{n}" for n in range(20)))
        self.began = time.monotonic()
        key = identity_of("h1").public_key
        self.pool.enrol([Enrolment("h1", key, CLUSTER, ("*",))], self.began, WALL)

    def beat(self) -> None:
        now = time.monotonic()
        wall = WALL + now - self.began
        signed = self.host.signed(Kind.HEARTBEAT, wall - WALL)
        for action in self.pool.receive(signed, now, round(wall * 1000)):
            if isinstance(action, Verify):
                self.pool.verdict(action.ticket, Verdict(Proof.OK), now)

    def written(self) -> None:
        """Wait until everything was taken out of the queue and written."""
        wait_until(lambda: not self.recording._queue)
        time.sleep(2 * recording.FLUSH)


def played(path: Path) -> Pool:
    player = Player()
    with path.open("rb") as file:
        for entry in read(file):
            player.play(entry)
    return player.pool


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recording, "FLUSH", 0.02)
    return tmp_path / "discovery.jsonl"


def test_two_files_in_turn(path: Path) -> None:
    """1.9: A recording is bounded; each of its two files can be played by itself."""
    session = Session(path)
    for _ in range(30):
        for _ in range(10):
            session.beat()
        session.written()
        if session.recording.before.exists():
            break
        assert path.stat().st_size <= MOST // 2
    for _ in range(5):
        session.beat()
    session.recording.stop()
    assert path.stat().st_size + session.recording.before.stat().st_size <= MOST
    assert played(path).dump() == session.pool.dump()
    assert played(session.recording.before).record("h1") is not None
    assert session.recording.counters["lost"] == 0


def test_a_restart_goes_on_in_the_same_file(path: Path) -> None:
    """1.9: A gateway that was killed within a line begins anew after the last whole one."""
    first = Session(path)
    first.beat()
    first.recording.stop()
    lines = path.read_bytes().count(b"\n")
    with path.open("ab") as file:
        file.write(b'["tick",12.5,')
    second = Session(path)
    second.beat()
    second.recording.stop()
    assert path.read_bytes().count(b"\n") > lines
    with path.open("rb") as file:
        begins = [entry.line for entry in read(file) if entry.kind == "begin"]
    assert begins == [1, lines + 1]
    assert played(path).dump() == second.pool.dump()


def test_a_cut_beginning(path: Path) -> None:
    """1.9: However long the line that was cut off, what stands before it is kept."""
    path.write_bytes(b"x" * 200_000)
    session = Session(path, 10 << 20)
    session.recording.stop()
    assert played(path).records() == []
    with path.open("ab") as file:
        file.write(b"x" * 200_000)
    session = Session(path, 10 << 20)
    session.recording.stop()
    assert played(path).dump() == session.pool.dump()


def test_a_file_of_another_version(path: Path) -> None:
    """1.9: What another version wrote is kept as the file before, and not mixed with ours."""
    path.write_bytes(b'["begin",1.5,1800000000.0,99,"c1",{},{},"start","0123456789abcdef"]\n')
    session = Session(path)
    session.recording.stop()
    assert b',99,"c1"' in session.recording.before.read_bytes()
    assert played(path).dump() == session.pool.dump()


def test_a_disk_that_does_not_keep_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.9: When inputs come faster than they are written, memory is bounded and the recording
    begins anew, so that it still gives the same table."""
    monkeypatch.setattr(recording, "QUEUED", 50)
    session = Session(path, 10 << 20)
    for _ in range(100_000):
        session.beat()
        assert len(session.recording._queue) <= 51
        if session.recording.counters["lost"]:
            break
    session.written()
    session.beat()
    session.recording.stop()
    assert session.recording.counters["lost"] > 0
    assert played(path).dump() == session.pool.dump()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """1.9: A full disk costs the recording, never the gateway; later it begins anew."""
    monkeypatch.setattr(recording, "RETRY", 0.1)
    session = Session(path)
    session.written()
    write = os.write

    def fail(descriptor: int, data: bytes) -> int:
        if len(data) < 400:
            return write(descriptor, data)
        write(descriptor, bytes(data)[:100])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", fail)
    session.beat()
    wait_until(lambda: os.strerror(code) in session.recording.fault)
    session.beat()
    monkeypatch.setattr(os, "write", write)
    time.sleep(0.15)
    session.beat()
    wait_until(lambda: not session.recording.fault)
    session.recording.stop()
    assert played(path).dump() == session.pool.dump()


def test_more_hosts_than_fit(path: Path) -> None:
    """1.9: A bound that cannot hold the state is told; nothing beyond it is written."""
    session = Session(path, 600)
    session.beat()
    wait_until(lambda: "raise discovery.record_bytes" in session.recording.fault)
    session.recording.stop()
    assert path.stat().st_size <= 300


def test_one_process_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1.9, 11.1: In a handover the old generation records to its end, then the new one."""
    monkeypatch.setattr(recording, "RETRY", 0.1)
    old = Session(path)
    old.written()
    new = Session(path)
    wait_until(lambda: "another process writes it" in new.recording.fault)
    old.beat()
    old.recording.stop()
    time.sleep(0.15)
    new.beat()
    wait_until(lambda: not new.recording.fault)
    new.recording.stop()
    with path.open("rb") as file:
        assert [entry.input[-1] for entry in read(file) if entry.kind == "begin"] == [
            *("start", "lost")
        ]
    assert played(path).dump() == new.pool.dump()
