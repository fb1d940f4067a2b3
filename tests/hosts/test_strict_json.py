"""strict_json.py: one reading or none."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.strict_json import parse_object


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":{"b":1,"b":1}}', "twice"),
        (b'{"a":1,"\\u0061":2}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e400}', "range"),
        (b'{"a":-1e400}', "range"),
        (b'{"a":' + b"9" * 5000 + b"}", "4300"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b'{"a":[["\\ud800"]]}', "surrogate"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'\xef\xbb\xbf{"a":1}', "JSON"),
        (b'{"a":' + b"[" * 60_000, "deep"),
        (b'{"a":' * 60_000, "deep"),
        (b'{"a":1} x', "JSON"),
        (b'{"a":1}{}', "JSON"),
        (b'{"a":"\n"}', "JSON"),
        (b"{'a':1}", "JSON"),
        (b"", "JSON"),
        (b"[]", "object"),
        (b'"a"', "object"),
        (b"null", "object"),
    ],
)
def test_what_two_readers_could_take_differently_is_refused(text: bytes, fault: str) -> None:
    """1.2: a signature is over bytes, so the bytes may mean one thing only."""
    with pytest.raises(ValueError, match=fault):
        parse_object(text)


def test_an_object_is_read() -> None:
    """1.2: a well-formed description is read as it was written, surrogate pairs included."""
    assert parse_object(b' {"a": "\\ud83d\\ude00", "b": [1, 1.5, true, null]} ') == {
        "a": "😀",
        "b": [1, 1.5, True, None],
    }


@given(st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
def test_any_bytes_give_an_object_or_a_value_error(data: bytes) -> None:
    """1.2: nothing that stands on the bus can raise anything else."""
    with contextlib.suppress(ValueError):
        assert parse_object(data) == json.loads(data)
