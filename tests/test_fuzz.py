"""A short run of the fuzzing on every change, and faults planted to see that it finds them."""

from __future__ import annotations

import time

import pytest

from smartgw_hosts import chunked, http1
from tests import fuzz_readers
from tests.fuzz import ALLOWED, Run, shrunk

SECONDS = 3.0


def test_three_seconds() -> None:
    """3.5, 3.6: no crash, nothing accepted that both others refuse, no framing that differs."""
    run = Run(seed=20_261)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        run.one()
    assert run.found == []
    # The inputs are no mere noise: enough of them are whole messages to three readers.
    assert run.verdicts["whole"] > run.count * 0.1


def test_same_seed_same_inputs() -> None:
    """12.8: a seed repeats a run, so that what was found can be found again."""
    one, two = Run(seed=7), Run(seed=7)
    for run in (one, two):
        for _ in range(300):
            run.one()
    assert one.verdicts == two.verdicts


def test_every_allowance_has_its_reason() -> None:
    """3.6: each difference that is meant is listed, with why."""
    for allowed in ALLOWED:
        assert allowed.what
        assert allowed.reader in ("", "h11", "llhttp")
        assert len(allowed.why) > 40


def lenient_coding(value: bytes) -> bytes:
    return value


def lenient_length(value: bytes) -> int:
    return int(value.strip(b"+") or b"0")


def lenient_size(body: chunked.ChunkedBody, line: bytes) -> None:
    body._left = int(line.strip(b"\r\n +-").partition(b";")[0] or b"0", 16)
    body._state = chunked._DATA if body._left else chunked._TRAILER


def stripping_partial(data: bytes, bounds: http1.Bounds) -> None:
    if data.endswith(b"\r"):
        raise http1.MessageRefused(400, "planted")


@pytest.mark.parametrize(
    ("module", "name", "fault", "what"),
    [
        (http1, "_transfer_coding", lenient_coding, "accepted"),
        (http1, "_content_length", lenient_length, "accepted"),
        (chunked.ChunkedBody, "_size_line", lenient_size, "accepted"),
        (fuzz_readers, "check_partial", stripping_partial, "pieces"),
    ],
)
def test_planted_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, fault: object, what: str
) -> None:
    """3.6: a reader of ours that is a little lenient, or minds the pieces, does not get by."""
    monkeypatch.setattr(module, name, fault)
    run = Run(seed=1)
    while not any(it.what == what for it in run.found):
        run.one()
        assert run.count < 6_000
    [found, *_] = [it for it in run.found if it.what == what]
    small = shrunk(run, found)
    assert small.what == what
    assert len(small.case.data) <= len(found.case.data)
