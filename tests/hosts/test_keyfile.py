"""keyfile.py: against a real file system."""

import os
from pathlib import Path

import pytest

from smartgw_hosts.identity import encode64
from smartgw_hosts.keyfile import KeyFileError, generate, load


def _write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_what_is_generated_is_loaded(tmp_path: Path) -> None:
    """12.4: `keygen` makes a key that only its owner can read, whatever the umask."""
    path = tmp_path / "host.key"
    before = os.umask(0)
    try:
        made = generate(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("smartgw-seed:")
    assert path.read_text().endswith("\n")
    assert load(path).public_key == made.public_key
    assert load(str(path)).public_key != generate(tmp_path / "other.key").public_key


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    """12.4: a second `keygen` at the same place is refused, through a symbolic link too."""
    path = tmp_path / "host.key"
    made = generate(path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for there in (path, link):
        with pytest.raises(KeyFileError, match=r"never overwritten; .* --show"):
            generate(there)
    assert load(path).public_key == made.public_key
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    """11.5: an error says what was wrong and what would be right."""
    with pytest.raises(KeyFileError, match="cannot be created"):
        generate(tmp_path / "no" / "host.key")
    with pytest.raises(KeyFileError, match=r"cannot be read.*smartgw keygen"):
        load(tmp_path / "no" / "host.key")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620, 0o610])
def test_a_key_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    """2.1: a host owns its key; the error names the file, its mode and the remedy."""
    path = tmp_path / "host.key"
    generate(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"host\.key: .*mode {mode:04o}.*chmod 600 .*host\.key"):
        load(path)


def test_a_read_only_key_behind_a_link_is_fine(tmp_path: Path) -> None:
    """2.1: secrets that an orchestrator mounts are links to read-only files."""
    path = tmp_path / "host.key"
    made = generate(path)
    path.chmod(0o400)
    (tmp_path / "link").symlink_to(path)
    assert load(tmp_path / "link").public_key == made.public_key


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"smartgw-seed:",
        b"smartgw-seed:" + encode64(b"s" * 31).encode() + b"\n",
        b"smartgw-seed:" + encode64(b"s" * 33).encode() + b"\n",
        b"smartgw-seed:" + encode64(b"s" * 32).encode() + b"=\n",
        b"smartgw-seed:" + encode64(b"s" * 32).encode() + b"\n\n",
        b"smartgw-seed: " + encode64(b"s" * 32).encode() + b"\n",
        encode64(b"s" * 32).encode() + b"\n",
        b"smartgw-seed:\xff\xfe",
        b"x" * 100_000,
    ],
)
def test_other_contents_are_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    """2.1: neither the error nor what is chained to it shows a part of the seed."""
    path = _write(tmp_path / "host.key", content)
    with pytest.raises(KeyFileError, match="not a key file") as caught:
        load(path)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert encode64(b"s" * 32)[:8] not in str(caught.value)


def test_a_newline_lost_in_copying_does_not_matter(tmp_path: Path) -> None:
    """2.1: the seed is what counts."""
    made = generate(tmp_path / "host.key")
    text = (tmp_path / "host.key").read_bytes().rstrip(b"\n")
    assert load(_write(tmp_path / "copy.key", text)).public_key == made.public_key


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """11.5: a directory or a FIFO in its place is an error at once, never a wait."""
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(KeyFileError, match="not a file"):
        load(tmp_path / "fifo")
    (tmp_path / "directory").mkdir(0o700)
    with pytest.raises(KeyFileError):
        load(tmp_path / "directory")
