"""The whole corpora of raw requests and raw answers, as `python -m tests.corpus` runs them."""

from __future__ import annotations

from pathlib import Path

from tests import corpus

DATA = Path(__file__).parents[2] / "data"


def failures(folder: Path, count: int) -> dict[str, list[str]]:
    results = corpus.run(folder)
    assert len(results) == count
    return {result.file: result.fail for result in results if result.fail}


def test_raw_requests() -> None:
    """12.5: what is not surely framed is refused, the rest passes once and unharmed (197 raw
    requests).
    """
    assert failures(DATA / "http1", 197) == {}


def test_raw_answers() -> None:
    """12.5: a hostile upstream harms neither its own client nor the next one (26 raw answers)."""
    assert failures(DATA / "responses", 26) == {}
