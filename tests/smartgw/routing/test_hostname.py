"""hostname.py: which hostname an authority names, in one form, or none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.routing.hostname import hostname_of


@pytest.mark.parametrize(
    ("authority", "hostname"),
    [
        (b"myapp.example", b"myapp.example"),
        (b"MYAPP.Example", b"myapp.example"),
        (b"myapp.example.", b"myapp.example"),
        (b"myapp.example:8443", b"myapp.example"),
        (b"MyApp.Example.:80", b"myapp.example"),
        (b"myapp.example:", b"myapp.example"),
        (b"myapp.example.:", b"myapp.example"),
        (b"myapp.example:0", b"myapp.example"),
        (b"myapp.example:65535", b"myapp.example"),
        (b"myapp.example:00080", b"myapp.example"),
        (b"a", b"a"),
        (b"localhost", b"localhost"),
        (b"a_b._x.example", b"a_b._x.example"),
        (b"xn--mnchen-3ya.example", b"xn--mnchen-3ya.example"),
        (b"XN--MNCHEN-3YA.example", b"xn--mnchen-3ya.example"),
        (b"a--b.example", b"a--b.example"),
        (b"1.2.3", b"1.2.3"),
        (b"127.0.0.1", b"127.0.0.1"),
        (b"127.0.0.1:80", b"127.0.0.1"),
        (b"[::1]", b"[::1]"),
        (b"[::1]:8443", b"[::1]"),
        (b"[2001:DB8::A]:", b"[2001:db8::a]"),
        (b"[::ffff:127.0.0.1]", b"[::ffff:127.0.0.1]"),
        (b"x" * 63 + b".example", b"x" * 63 + b".example"),
        (b".".join([b"x" * 49] * 5) + b".aaa", b".".join([b"x" * 49] * 5) + b".aaa"),
        (b".".join([b"x" * 49] * 5) + b".aaa.:65535", b".".join([b"x" * 49] * 5) + b".aaa"),
    ],
)
def test_hostnames(authority: bytes, hostname: bytes) -> None:
    """3.2: lower-cased, port and one trailing dot dropped; IDN in A-label form (R01-R04)."""
    assert hostname_of(authority) == hostname


@pytest.mark.parametrize(
    "authority",
    [
        *(b"", b".", b"..", b"a..", b".a", b"a..b", b":", b":80", b".:80", b"a..:80"),
        *(b"a b", b" a", b"a ", b"a\tb", b"a,b", b"a, b", b"x@evil", b"@", b"a@", b"u:p@a"),
        *(b"a:b", b"a:-1", b"a:+1", b"a:65536", b"a:99999", b"a:000080", b"a:8 0", b"a: 80"),
        *(b"a:80:81", b"a::80", b"a:80:", b"a:0x50", b"a:\xb2", b"a:80/", b"::1", b"fe80::1"),
        *(b"[::1", b"::1]", b"[]", b"[::1]x", b"[::1]:x", b"[::1]:80:81", b"[::1].", b"x[::1]"),
        *(b"[[::1]]", b"[::1]]", b"[127.0.0.1]", b"[::g]", b"[1::2::3]", b"[::1%25eth0]"),
        *(b"[::1%eth0]", b"[v1.x]", b"[:::]", b"[1:2:3:4:5:6:7]", b"[a]", b"[::1]@evil", b"[::1 ]"),
        *(b"a/b", b"a?b", b"a#b", b"a\\b", b"a;b", b"a=b", b"a!b", b"a*b", b"*.a", b"*", b"a%2eb"),
        *(b"a%b", b"a'b", b'"a"', b"(a)", b"a~b", b"a+b", b"a$b", b"a&b", b"a|b", b"<a>", b"`a`"),
        *(b"-a", b"a-", b"-", b"a.-b", b"a-.b", b"a.b-", b"x-:80"),
        *(
            "münchen.example".encode(),
            b"a\xe3\x80\x82b",
            b"a\xff",
            b"\x00",
            b"a\x00",
            b"a\r",
            b"a\n",
        ),
        *(b"a\x7f", b"a\nb", b"http://a", b"//a", "\u212aa".encode(), "a\uff0eb".encode()),
        *(b"x" * 64, b"a." + b"x" * 64 + b".b", b".".join([b"x" * 49] * 5) + b".aaaa"),
        *(b"a." * 126 + b"aa", b"a" * 10_000),
    ],
)
def test_no_hostname(authority: bytes) -> None:
    """3.2: an invalid one (`a b`, `a,b`, `x@evil`, `[::1`, raw UTF-8) names nothing (R03, R06)."""
    assert hostname_of(authority) is None


@given(st.binary(max_size=30) | st.text("aZ-_.:[]0f%@ ", max_size=20).map(str.encode))
def test_one_form(authority: bytes) -> None:
    """3.2: what comes out is the one form: it names itself, in any case and with any port."""
    hostname = hostname_of(authority)
    if hostname is not None:
        assert hostname_of(hostname) == hostname
        assert hostname_of(hostname.upper() + b":443") == hostname
        assert hostname == hostname.lower()
        assert re.fullmatch(rb"\[[0-9a-f:.]+\]|[a-z0-9_.-]+", hostname)


LABEL = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10}[a-z0-9_])?", fullmatch=True)


@given(st.lists(LABEL, min_size=1, max_size=8), st.sampled_from(["", ":", ":80", ":65535"]))
def test_all_names(labels: list[str], port: str) -> None:
    """3.2: every name of valid labels is one, with or without port and trailing dot."""
    name = ".".join(labels)
    assert hostname_of(f"{name}{port}".encode()) == name.encode()
    assert hostname_of(f"{name.upper()}.{port}".encode()) == name.encode()
    assert hostname_of(f"{name}..{port}".encode()) is None
