"""ids.py: the grammar of ids, against what would do harm in a subject, a log or a path."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.ids import ID_PATTERN, check_app_id, check_id, dns_label


@pytest.mark.parametrize("value", ["a", "A9", "0", "eu-west_1", "a-", "a_", "x" * 64])
def test_good_ids_come_back(value: str) -> None:
    """Ids: cluster, host and gateway ids match `[A-Za-z0-9][A-Za-z0-9_-]{0,63}`."""
    assert check_id("host id", value) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-a",
        "_a",
        "a.b",
        "*",
        ">",
        "a b",
        "a\n",
        "a\0",
        "x" * 65,
        "x" * 5000,
        "é",
        "٣",
        None,
        1,
        True,
        b"a",
    ],
)
def test_bad_ids_are_refused(value: object) -> None:
    """Ids: they are checked before any use (`*`, `>`, `.` or 5,000 characters would do harm)."""
    with pytest.raises(ValueError, match=r"^cluster id .*must match ") as caught:
        check_id("cluster id", value)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()


@given(st.text(max_size=70))
def test_ids_are_exactly_the_pattern(value: str) -> None:
    """Ids: the pattern is the whole rule."""
    try:
        assert check_id("host id", value) == value
        accepted = True
    except ValueError:
        accepted = False
    assert accepted == (re.fullmatch(ID_PATTERN, value) is not None)


@pytest.mark.parametrize("value", ["a", "shop.v2/é *>", "x" * 256, "é" * 128, " ", "\u200b", "😀"])
def test_good_app_ids_come_back(value: str) -> None:
    """Ids: app ids are 1 to 256 bytes of UTF-8, compared exactly as given."""
    assert check_app_id(value) == value


@pytest.mark.parametrize(
    "value",
    ["", "x" * 257, "é" * 129, "a\n", "\0", "a\x7f", "a\x85", "\ud800", "a\udfff", None, 7, b"a"],
)
def test_bad_app_ids_are_refused(value: object) -> None:
    """Ids: app ids have no control characters (C0, DEL, C1) and no lone surrogates."""
    with pytest.raises(ValueError, match=r"^app id ") as caught:
        check_app_id(value)
    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", True),
        ("shop-1", True),
        ("Shop", True),
        ("0", True),
        ("xn--bcher-kva", True),
        ("x" * 63, True),
        ("", False),
        ("-a", False),
        ("a-", False),
        ("a_b", False),
        ("a.b", False),
        ("a\n", False),
        ("bücher", False),
        ("x" * 64, False),
    ],
)
def test_dns_label(text: str, expected: bool) -> None:
    """Ids: an app's hostname label is a DNS label."""
    assert dns_label(text) is expected
