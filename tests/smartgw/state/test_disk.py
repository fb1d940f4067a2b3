"""The folder of the snapshot: always a whole file, and never one that stops the gateway."""

import errno
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from smartgw.state.disk import StateFolder
from smartgw.state.last_good import KIND
from smartgw.state.sealed import Fault
from smartgw.state.snapshot import Contents, encode, encode_host
from smartgw_hosts import keyfile
from tests.gateway import identity_of, seed_file
from tests.smartgw.state.test_snapshot import HOST

HOSTS = [encode_host(replace(HOST, host_id=f"h{number}")) for number in range(3)]


def hosts_in(path: Path, seed: Path | None = None) -> StateFolder[Contents]:
    """A folder for snapshots of hosts."""
    return StateFolder(path, "c1", KIND, seed)


def write(folder: StateFolder[Contents], hosts: list[str], time: float) -> None:
    """Write a snapshot of these hosts."""
    folder.write(
        lambda stamp, identity: encode(
            hosts,
            cluster=stamp.cluster,
            generation=stamp.generation,
            time=stamp.time,
            identity=identity,
        ),
        time,
    )


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder[Contents]:
    """A folder with one snapshot of three hosts."""
    folder = hosts_in(tmp_path / "state")
    assert folder.load() is None
    write(folder, HOSTS, 1000.0)
    folder.close()
    return folder


def again(folder: StateFolder[Contents]) -> StateFolder[Contents]:
    """The same folder after a restart."""
    return hosts_in(folder.path)


def kept_aside(folder: StateFolder[Contents]) -> list[str]:
    return sorted(path.name for path in folder.path.glob("*.refused-*"))


def test_a_restart_finds_what_was_written(folder: StateFolder[Contents]) -> None:
    """11.2: The last good snapshot survives a restart; generations rise over restarts."""
    fresh = again(folder)
    contents = fresh.load()
    assert contents is not None
    assert [host.host_id for host in contents.hosts] == ["h0", "h1", "h2"]
    assert (contents.generation, contents.time) == (1, 1000.0)
    write(fresh, HOSTS[:1], 2000.0)
    contents = again(folder).load()
    assert contents is not None
    assert (contents.generation, len(contents.hosts)) == (2, 1)
    assert {path.name for path in folder.path.iterdir()} == {
        *("snapshot", "generation", "identity.seed", "lock")
    }


def test_an_identity_is_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """9.5: Without a named identity the gateway makes one, for itself alone, and says so."""
    with caplog.at_level(logging.INFO):
        hosts_in(tmp_path / "state").load()
    seed = tmp_path / "state/identity.seed"
    assert stat.S_IMODE(seed.stat().st_mode) == 0o600
    assert stat.S_IMODE(seed.parent.stat().st_mode) == 0o700
    assert "made an identity" in caplog.text
    assert keyfile.load(seed).public_key.key_id in caplog.text


def test_a_named_identity_signs(tmp_path: Path) -> None:
    """9.5: A named identity is used, and what another one signed is refused."""
    named = hosts_in(tmp_path / "state", seed_file(tmp_path / "a.seed", "a"))
    write(named, HOSTS, 1000.0)
    named.close()
    assert not (tmp_path / "state/identity.seed").exists()
    other = hosts_in(tmp_path / "state", seed_file(tmp_path / "b.seed", "b"))
    assert other.load() is None
    assert other.refused is Fault.FOREIGN_KEY


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda data: data[:-5], Fault.TRUNCATED),
        (lambda data: data[:-5] + b"x" + data[-4:], Fault.BAD_SIGNATURE),
        (lambda data: b"", Fault.TRUNCATED),
        (lambda data: data.replace(b"snapshot 1", b"snapshot 2"), Fault.NEWER_FORMAT),
        (lambda data: os.urandom(2000), Fault.MALFORMED),
    ],
)
def test_a_refused_file_is_set_aside(
    folder: StateFolder[Contents], caplog: pytest.LogCaptureFixture, spoil: object, fault: Fault
) -> None:
    """11.2: What is refused is set aside with its reason, and the next start is a clean one."""
    path = folder.path / "snapshot"
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
    fresh = again(folder)
    assert fresh.load() is None
    assert fresh.refused is fault
    assert kept_aside(folder) == [f"snapshot.refused-{fault}-1"]
    assert fault in caplog.text
    assert fresh.load() is None
    assert fresh.refused is None
    write(fresh, HOSTS, 3000.0)
    contents = again(folder).load()
    assert contents is not None
    assert contents.generation == 2, "above all that were ever written"


def test_an_older_one_put_back(
    folder: StateFolder[Contents], caplog: pytest.LogCaptureFixture
) -> None:
    """11.2: An older snapshot that was put back is refused, and how to insist is said."""
    old = (folder.path / "snapshot").read_bytes()
    write(folder, HOSTS, 2000.0)
    folder.close()
    (folder.path / "snapshot").write_bytes(old)
    fresh = again(folder)
    assert fresh.load() is None
    assert fresh.refused is Fault.ROLLED_BACK
    assert "remove the file named generation" in caplog.text
    (folder.path / "snapshot").write_bytes(old)
    (folder.path / "generation").unlink()
    assert again(folder).load() is not None


def test_refused_files_are_bounded(folder: StateFolder[Contents]) -> None:
    """11.2: A file that is refused again and again does not fill the disk."""
    for number in range(1, 13):
        (folder.path / "snapshot").write_bytes(b"%d" % number)
        assert again(folder).load() is None
    assert kept_aside(folder) == sorted(f"snapshot.refused-malformed-{n}" for n in range(8, 13))


def test_what_is_no_file(folder: StateFolder[Contents]) -> None:
    """11.2: Whatever stands in the snapshot's place, the gateway starts."""
    path = folder.path / "snapshot"
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)):
        path.unlink(missing_ok=True)
        make(path)
        assert again(folder).load() is None
    (folder.path / "generation").write_bytes(b"\xff not a number")
    write(folder, HOSTS, 2000.0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_failed_write_leaves_the_old_one(
    folder: StateFolder[Contents], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """11.2: A full or broken disk costs the new snapshot, never the old one."""

    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(code)):
        write(folder, HOSTS[:1], 2000.0)
    monkeypatch.undo()
    folder.close()
    contents = again(folder).load()
    assert contents is not None
    assert len(contents.hosts) == 3
    assert not (folder.path / "snapshot.new").exists()


def test_one_process_writes(folder: StateFolder[Contents]) -> None:
    """11.1, 11.2: In a handover the old generation writes to its end, then the new one, above."""
    old, new = again(folder), again(folder)
    write(old, HOSTS, 2000.0)
    assert new.load() is not None
    with pytest.raises(OSError, match="another process writes there"):
        write(new, HOSTS, 3000.0)
    write(old, HOSTS, 4000.0)
    old.close()
    write(new, HOSTS, 5000.0)
    contents = again(folder).load()
    assert contents is not None
    assert contents.generation == 4


WRITING = """
import sys
from pathlib import Path
from tests.smartgw.state.test_disk import HOSTS, hosts_in, write
folder = hosts_in(Path(sys.argv[1]))
print(folder.load() is not None, flush=True)
while True:
    write(folder, HOSTS * 100, 1000.0)
"""


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """11.2: Killed at any moment of a write, the next start finds a whole snapshot."""
    root = Path(__file__).parents[3]
    generation = 0
    for number in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITING, str(tmp_path / "s")], cwd=root, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == (b"True" if number else b"False")
        time.sleep(0.05 + 0.013 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        contents = hosts_in(tmp_path / "s").load()
        assert contents is not None
        assert contents.generation > generation
        generation = contents.generation


def test_not_written_by_others(folder: StateFolder[Contents]) -> None:
    """11.2: A snapshot that somebody else signed is not used."""
    data = encode(HOSTS, cluster="c1", generation=9, time=1, identity=identity_of("thief"))
    (folder.path / "snapshot").write_bytes(data)
    fresh = again(folder)
    assert fresh.load() is None
    assert fresh.refused is Fault.FOREIGN_KEY
