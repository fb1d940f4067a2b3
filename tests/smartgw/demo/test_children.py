"""The demo's children: started, watched and ended, with all that they start themselves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smartgw.demo.children import Child, Died, Guard, end, tail, wait_for
from tests.servers import alive

# Starts a child of its own, says its pid, and ignores SIGTERM.
STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""

# A demo in small: a guard and one stubborn child, whose pids it prints.
PARENT = f"""
import os, sys, time
from pathlib import Path
from smartgw.demo.children import Child, Guard
log = Path(sys.argv[1])
guard = Guard()
child = Child("c", [sys.executable, "-c", {STUBBORN!r}], log, guard, os.environ)
while not log.read_text().endswith("\\n"):
    time.sleep(0.01)
print(child.pid, log.read_text(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard()
    yield made
    made.close()


def gone(*pids: int) -> bool:
    deadline = time.monotonic() + 2.0
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def run(code: str, log: Path, guard: Guard) -> Child:
    return Child("a-child", [sys.executable, "-c", code], log, guard, os.environ)


def test_end_takes_the_children_of_children_too(tmp_path: Path, guard: Guard) -> None:
    """12.1: leaves no process behind, not even one that ignores SIGTERM and what it started."""
    log = tmp_path / "log"
    child = run(STUBBORN, log, guard)
    wait_for(lambda: log.read_text().endswith("\n"), [child], 5.0, "its pid")
    end([child], lambda: False, grace=0.2)
    assert gone(child.pid, int(log.read_text()))


def test_an_impatient_user_does_not_wait(tmp_path: Path, guard: Guard) -> None:
    """12.1: a second Ctrl-C ends at once."""
    log = tmp_path / "log"
    child = run(STUBBORN, log, guard)
    wait_for(lambda: log.read_text().endswith("\n"), [child], 5.0, "its pid")
    began = time.monotonic()
    end([child], lambda: True, grace=60.0)
    assert time.monotonic() - began < 30.0


def test_a_frozen_child_is_ended(tmp_path: Path, guard: Guard) -> None:
    """12.1: a child under SIGSTOP is ended like any other."""
    child = run("import time; time.sleep(600)", tmp_path / "log", guard)
    child.signal(signal.SIGSTOP)
    end([child], lambda: False, grace=2.0)
    assert gone(child.pid)


def test_sigkill_of_the_parent_takes_all(tmp_path: Path) -> None:
    """12.1: also after SIGKILL: the child, and its own child, which the kernel does not end."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
    finally:
        parent.kill()
        parent.communicate()
    assert gone(*pids)


def test_a_child_that_dies_is_reported_with_the_end_of_its_log(
    tmp_path: Path, guard: Guard
) -> None:
    """12.1: what died, how, and its last words."""
    child = run("raise SystemExit('no such \\x1b[31mport')", tmp_path / "log", guard)
    with pytest.raises(Died) as died:
        wait_for(lambda: False, [child], 5.0, "ready")
    assert str(died.value) == (
        f"a-child ended with 1; the end of {tmp_path / 'log'}:\n    no such ?[31mport"
    )


def test_a_child_that_dies_without_a_word(tmp_path: Path, guard: Guard) -> None:
    """12.1: an empty log is called so."""
    with pytest.raises(Died, match=r"a-child ended with 3; its log is empty \("):
        wait_for(lambda: False, [run("raise SystemExit(3)", tmp_path / "log", guard)], 5.0, "ready")


def test_waiting_ends(tmp_path: Path, guard: Guard) -> None:
    """12.1: a child that never gets ready is reported, not waited for for ever."""
    child = run("import time; print('still', flush=True); time.sleep(9)", tmp_path / "log", guard)
    with pytest.raises(Died, match="an answer not within"):
        wait_for(lambda: False, [child], 0.5, "an answer")
    end([child], lambda: True)


def test_the_tail_is_short(tmp_path: Path) -> None:
    """12.1: the tail of a log, however long the log is."""
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert tail(log).splitlines()[0] == "    line 99985"
    assert tail(log).splitlines()[-1] == "    line 99999"
