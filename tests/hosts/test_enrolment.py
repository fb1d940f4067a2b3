"""enrolment.py: who is enrolled, for what."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_hosts.enrolment import Enrolment, EnrolmentError, parse
from smartgw_hosts.identity import Identity

_KEY = Identity.from_seed(b"k" * 32).public_key
_GOOD = {"id": '"h1"', "key": f'"{_KEY.text}"', "cluster": '"eu"', "apps": '["shop", "blog-*"]'}


def _entry(**members: str | None) -> str:
    """One entry as TOML: the good one with some members written otherwise, or left out."""
    written = {**_GOOD, **members}
    lines = [f"{name} = {value}" for name, value in written.items() if value is not None]
    return "\n".join(["[[host]]", *lines, ""])


def test_a_list_is_read() -> None:
    """1.4: an enrolment gives key, cluster, the apps (patterns allowed) and an expiry."""
    expiring = _entry(id='"h2"', apps="[]", expires="2027-01-01T01:00:00+01:00")
    assert parse(_entry() + expiring) == (
        Enrolment("h1", _KEY, "eu", ("shop", "blog-*"), None),
        Enrolment("h2", _KEY, "eu", (), 1798761600.0),
    )
    assert parse(_entry(key=f'"{_KEY.value.hex()}"'))[0].key == _KEY
    assert parse("") == () == parse("# nobody yet\n") == parse("host = []")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[host]", "not TOML: .*line 1"),
        ("a = " + "[" * 100_000, "not TOML"),
        ('hosts = "x"', "'hosts': unknown; a list has only"),
        ("host = 1", r"host: must be written \[\[host\]\]"),
        ("host = [1]", r"host: must be written \[\[host\]\]"),
        ("[host]\nid = 'h'", r"host: must be written \[\[host\]\]"),
        (_entry(id=None), "entry 1: id: missing; an entry needs"),
        (_entry(key=None), "entry 1: key: missing"),
        (_entry(cluster=None), "entry 1: cluster: missing"),
        (_entry(apps=None), "entry 1: apps: missing"),
        (_entry(expire="2027-01-01T00:00:00Z"), "entry 1: 'expire': unknown; an entry has id"),
        (_entry(id='"a.b"'), "entry 1: id: 'a.b': must match"),
        (_entry(id="7"), "entry 1: id: of type int: must match"),
        (_entry(cluster='">"'), "entry 1: cluster: '>': must match"),
        (_entry(key="1"), "entry 1: key: must be a string"),
        (_entry(key='"ed25519:AAAA"'), "entry 1: key: .*32 bytes; copy it"),
        (_entry(key=f'"{"01" + "00" * 31}"'), "entry 1: key: .*small order"),
        (_entry(apps='"shop"'), "entry 1: apps: must be a list"),
        (_entry(apps="[1]"), "entry 1: apps: app id of type int: must be a string"),
        (_entry(apps='[""]'), "entry 1: apps: .*1 to 256 bytes"),
        (_entry(apps=r'["a\u0000"]'), "entry 1: apps: .*control"),
        (_entry(expires='"2027-01-01T00:00:00Z"'), "entry 1: expires: .*without quotes"),
        (_entry(expires="2027-01-01T00:00:00"), "entry 1: expires: must be a time with an offset"),
        (_entry(expires="2027-01-01"), "entry 1: expires: must be a time with an offset"),
        (_entry(expires="1798761600"), "entry 1: expires: must be a time with an offset"),
        (_entry() + _entry(), "entry 2: id: h1 has entry 1; keep one"),
    ],
)
def test_a_fault_refuses_the_whole_list(text: str, problem: str) -> None:
    """11.5: what is refused says where, what was wrong and what would be right."""
    with pytest.raises(EnrolmentError) as caught:
        parse(text)
    assert len(caught.value.problems) == 1
    assert re.match(problem, caught.value.problems[0])


def test_each_entry_at_fault_is_named() -> None:
    """11.5: one run shows the faults of all entries."""
    with pytest.raises(EnrolmentError) as caught:
        parse(_entry(id='"-"') + _entry() + _entry(id='"h3"', key='"x"'))
    assert [problem[:12] for problem in caught.value.problems] == ["entry 1: id:", "entry 3: key"]
    assert str(caught.value).splitlines() == list(caught.value.problems)


@pytest.mark.parametrize(
    ("pattern", "app", "expected"),
    [
        ("shop", "shop", True),
        ("shop", "Shop", False),
        ("shop", "shop2", False),
        ("*", "", True),
        ("*", "anything at all", True),
        ("blog-*", "blog-", True),
        ("blog-*", "blog-7", True),
        ("blog-*", "my-blog-7", False),
        ("*-blog", "my-blog", True),
        ("*-blog", "my-blog-7", False),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a*a", "a", False),
        ("ab*ba", "aba", False),
        ("a**b", "ab", True),
        ("a?c", "abc", False),
        ("a?c", "a?c", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a.c", "abc", False),
        ("*x*", "a\u2028x", True),
    ],
)
def test_patterns(pattern: str, app: str, expected: bool) -> None:
    """1.4: an announcement for an app that its host may not serve is refused for that app."""
    assert Enrolment("h", _KEY, "eu", (pattern,)).allows(app) is expected


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_patterns_mean_what_a_regular_expression_would(pattern: str, app: str) -> None:
    """1.4: `*` stands for any characters, none too."""
    expression = ".*".join(map(re.escape, pattern.split("*")))
    expected = re.fullmatch(expression, app) is not None
    assert Enrolment("h", _KEY, "eu", (pattern,)).allows(app) is expected


def test_a_pattern_of_many_stars_costs_nothing() -> None:
    """1.8: no announced app makes the judging slow."""
    enrolment = Enrolment("h", _KEY, "eu", ("*a" * 120 + "*b",))
    assert not enrolment.allows("a" * 256)


def test_exact_apps() -> None:
    """1.4: apps enrolled by their id are known before any host announces them."""
    enrolment = Enrolment("h", _KEY, "eu", ("shop", "blog-*", "*", "a?"))
    assert enrolment.exact_apps == ("shop", "a?")
    assert not Enrolment("h", _KEY, "eu", ()).allows("shop")
