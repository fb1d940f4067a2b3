"""enrolment_file.py: against a real file that changes, breaks and disappears."""

import logging
import os
import re
from pathlib import Path

import pytest

from smartgw_hosts.enrolment import EnrolmentError
from smartgw_hosts.enrolment_file import EnrolmentFile
from smartgw_hosts.identity import Identity

_KEY = Identity.from_seed(b"k" * 32).public_key


def _list(*ids: str) -> str:
    return "".join(
        f'[[host]]\nid = "{id_}"\nkey = "{_KEY.text}"\ncluster = "eu"\napps = ["*"]\n'
        for id_ in ids
    )


def _ids(file: EnrolmentFile) -> list[str]:
    return [enrolment.host_id for enrolment in file.current]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "hosts.toml").write_text(_list("h1", "h2"))
    return tmp_path / "hosts.toml"


def test_the_list_is_in_force_from_the_start(path: Path) -> None:
    """1.4: trust comes from outside the announcement."""
    file = EnrolmentFile(path)
    assert _ids(file) == ["h1", "h2"]
    assert not file.poll()


def test_a_change_is_in_force_when_it_has_held_still(path: Path) -> None:
    """1.4: a list that is being written removes nobody."""
    file = EnrolmentFile(path)
    path.write_text("")  # as an editor does before it writes
    assert not file.poll()
    path.write_text(_list("h2"))
    assert not file.poll()
    assert _ids(file) == ["h1", "h2"]
    assert file.poll()
    assert _ids(file) == ["h2"]
    assert not file.poll()


def test_a_file_replaced_by_one_of_the_same_size_and_time(path: Path) -> None:
    """1.4: a changed file is seen however it was changed."""
    file = EnrolmentFile(path)
    other = path.with_suffix(".new")
    other.write_text(_list("h1", "h9"))
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert [file.poll(), file.poll()] == [False, True]
    assert _ids(file) == ["h1", "h9"]


def test_the_same_list_written_again_is_no_change(path: Path) -> None:
    """1.4: nobody is verified again because a comment was added."""
    file = EnrolmentFile(path)
    path.write_text("# a comment\n" + _list("h1", "h2"))
    assert [file.poll(), file.poll(), file.poll()] == [False, False, False]


@pytest.mark.parametrize("content", [b"[[host", b'[[host]]\nid = "h1"\n', b"\xff\xfe"])
def test_a_bad_file_leaves_the_list_in_force(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """11.1: a bad file leaves the old in force and says so, once, with the file and the fault."""
    file = EnrolmentFile(path)
    path.write_bytes(content)
    for _ in range(5):
        assert not file.poll()
    assert _ids(file) == ["h1", "h2"]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert str(path) in errors[0].getMessage()
    assert "correct it" in errors[0].getMessage()
    assert re.fullmatch(
        r"hosts\.toml( line 1| entry 1)? is refused, the list of \d\d:\d\d is in force",
        file.refused,
    )
    path.write_text(_list("h2"))
    assert [file.poll(), file.poll()] == [False, True]
    assert file.refused == ""


def test_a_file_that_disappears_leaves_the_list_in_force(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """11.1: a lost file is a bad file; when it is back unchanged, nothing has changed."""
    file = EnrolmentFile(path)
    path.rename(path.with_suffix(".away"))
    for _ in range(4):
        assert not file.poll()
    assert _ids(file) == ["h1", "h2"]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    path.with_suffix(".away").rename(path)
    assert file.refused
    assert [file.poll(), file.poll(), file.poll()] == [False, False, False]
    assert file.refused == ""


@pytest.mark.parametrize(
    ("content", "fault"),
    [(None, "cannot be read"), ("x = 1", "'x': unknown"), ("[[host]]", "entry 1: id: missing")],
)
def test_a_bad_file_at_the_start_is_refused(path: Path, content: str | None, fault: str) -> None:
    """11.5: bad configuration is refused at start with the file and what was wrong."""
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(EnrolmentError) as caught:
        EnrolmentFile(path)
    assert str(caught.value).startswith(f"{path}: {fault}")
