"""told.py: what comes back beside the answer to a forward."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.errors import ANSWERS, Reason
from smartgw.routing.told import NOTHING, Told, line, parse

_NAME = b"x-smartgw-answer: "


@given(
    st.sampled_from([reason for reason in Reason if ANSWERS[reason].status in (502, 503, 504)]),
    st.sampled_from((b"none", b"partial", b"full")),
    st.none() | st.sampled_from(("none", "0123456789abcdef")),
)
def test_a_failure_comes_out_as_it_went_in(reason: Reason, sent: bytes, epoch: str | None) -> None:
    """4.7: 502, 503 and 504 of a gateway are tagged; 4.6: an epoch that differs is told."""
    status = ANSWERS[reason].status
    told = line(reason, status, sent, epoch)
    assert told is not None
    assert parse(told.removeprefix(_NAME), status) == Told(reason, sent, epoch is not None)


@pytest.mark.parametrize("reason", [Reason.RESERVED_PATH, Reason.BAD_REQUEST, None])
def test_what_is_no_failure_is_not_tagged(reason: Reason | None) -> None:
    """4.7: other answers of a gateway, and the app's, are answers."""
    status = 500 if reason is None else ANSWERS[reason].status
    assert line(reason, status, b"none", None) is None
    assert line(reason, status, b"none", "0123456789abcdef") == _NAME + b"epoch=0123456789abcdef"


def test_the_apps_own_503_is_not_tagged() -> None:
    """4.7: only failures that a gateway makes itself."""
    assert line(None, 503, b"full", None) is None
    assert parse(None, 503) == NOTHING


def test_a_reason_of_a_later_version_is_a_failure_all_the_same() -> None:
    """4.7: clusters are not updated at the same moment."""
    value = b"failed=of_tomorrow; sent=none"
    assert parse(value, 503).failed is Reason.NO_UPSTREAM
    assert parse(value, 504).failed is Reason.UPSTREAM_TIMEOUT
    assert parse(value, 502).failed is Reason.UPSTREAM_REFUSED


@given(st.binary())
def test_no_bytes_raise(value: bytes) -> None:
    """4.7: what cannot be read says nothing."""
    parse(value, 502)


@pytest.mark.parametrize(
    "value", [b"failed", b"failed=x", b"failed=x; sent=some", b"epoch=xyz", b"x; epoch=none", b";"]
)
def test_what_is_not_the_form_says_nothing(value: bytes) -> None:
    """4.7: one form only."""
    assert parse(value, 502) == NOTHING
