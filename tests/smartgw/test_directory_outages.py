"""A directory that fails in every way, under load, with a grace of a second."""

from collections.abc import Iterator

import pytest

from tests.drills.directory import FAILURES, Scale, Trial, sit_out, trial_of


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    with trial_of(Scale(hold=0.5, grace=1.0, interval=0.2)) as running:
        yield running


@pytest.mark.parametrize("name", FAILURES)
def test_a_directory_that_fails_costs_no_request(trial: Trial, name: str) -> None:
    """4.4: a discovery hiccup never takes an app down: stopped, answering [], {}, 500, garbage,
    10 MB, at 100 changes a second under load: 0 failed requests.
    """
    assert sit_out(trial, name).startswith("0 of ")


def test_the_list_was_put_to_use(trial: Trial) -> None:
    """4.2: while there was a list, requests went to the owners of their apps."""
    assert trial.forwarded() > 100
