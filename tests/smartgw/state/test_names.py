"""Hostnames and origins in their registered form (smartgw/state/names.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.state.names import (
    canonical_hostname,
    canonical_label,
    canonical_origin,
    is_hostname,
    is_label,
    is_origin,
)

HOSTNAMES = [
    ("shop.example.com", "shop.example.com"),
    ("SHOP.Example.com.", "shop.example.com"),
    # R04 and 3.2: the built-in codec maps this one to fass.de.
    ("faß.de", "xn--fa-hia.de"),
    ("FAß.de", "xn--fa-hia.de"),
    ("münchen.example", "xn--mnchen-3ya.example"),
    ("MÜNCHEN.example", "xn--mnchen-3ya.example"),
    ("mu\u0308nchen.example", "xn--mnchen-3ya.example"),
    ("XN--MNCHEN-3YA.example", "xn--mnchen-3ya.example"),
    ("日本語.jp", "xn--wgv71a119e.jp"),
    ("r3---sn-x.example", "r3---sn-x.example"),
    ("4.example", "4.example"),
]
NO_HOSTNAMES = [
    *("", ".", "shop", "shop.", "a..b", ".a.b", "a.b..", "*.example.com", "a b.c", "a_b.example"),
    *("-a.example", "a-.example", "x@evil.example", "a.example:80", "a/b.c", "a.example/"),
    # IP addresses, in every form that a browser takes for one.
    *("1.2.3.4", "127.1", "a.0x7f", "a.0x", "a.1", "[::1]", "::1"),
    # Not names by IDNA 2008, or not what their A-label says.
    *("☃.example", "ﬁ.example", "\uff45.example", "日本語。jp", "xn--a.example", "xn--.example"),
    *("xn--fass-9za.example", "xn--zzzzzzz99999999999999.example", "a\u200db.example"),
    *("a" * 64 + ".example", "ü" * 64 + ".example", ".".join(["a" * 60] * 5), "a\n.example"),
]


@pytest.mark.parametrize(("text", "hostname"), HOSTNAMES)
def test_a_hostname_has_one_form(text: str, hostname: str) -> None:
    """3.2: IDN hostnames are converted by IDNA 2008 with a round-trip check."""
    assert canonical_hostname(text) == hostname
    assert canonical_hostname(hostname) == hostname
    assert is_hostname(hostname)


@pytest.mark.parametrize("text", NO_HOSTNAMES)
def test_what_is_no_hostname_is_refused(text: str) -> None:
    """3.2: what does not come back the same, or could be taken for an address, is refused."""
    with pytest.raises(ValueError, match=r".: |must|not"):
        canonical_hostname(text)
    assert not is_hostname(text)


@pytest.mark.parametrize(
    ("text", "label"), [("shop", "shop"), ("Shop", "shop"), ("ü", "xn--tda"), ("1", "1")]
)
def test_a_label_has_one_form(text: str, label: str) -> None:
    """3.3: a label is a DNS label of the app's own."""
    assert canonical_label(text) == label
    assert is_label(label)


@pytest.mark.parametrize("text", ["", "a.b", "-a", "a-", "a_b", "a" * 64, "*", "a\n"])
def test_what_is_no_label_is_refused(text: str) -> None:
    """3.3: exactly one label, which the wildcard certificate covers."""
    with pytest.raises(ValueError, match="must be"):
        canonical_label(text)
    assert not is_label(text)


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://app.example.com", "https://app.example.com"),
        ("HTTPS://App.Example.com:443/", "https://app.example.com"),
        ("http://app.example.com:80", "http://app.example.com"),
        ("https://app.example.com:080", "https://app.example.com:80"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("https://faß.de", "https://xn--fa-hia.de"),
        ("http://[0:0::1]:8080", "http://[::1]:8080"),
        ("http://127.0.0.1", "http://127.0.0.1"),
        ("capacitor://localhost", "capacitor://localhost"),
    ],
)
def test_an_origin_has_one_form(text: str, origin: str) -> None:
    """3.9: origins are compared exactly with the serialised origin."""
    assert canonical_origin(text) == origin
    assert is_origin(origin)


@pytest.mark.parametrize(
    "text",
    [
        *("", "*", "null", "app.example.com", "https://", "https://a.example/path", "https://a b"),
        *(
            "https://a.example?x",
            "https://u@a.example",
            "https://a.example:0",
            "https://a.example:",
        ),
        *("https://a.example:65536", "https://[::1", "https://*.example", "http://127.1"),
        *("http://0x7f.1", "https://a.example:\uff18", "//a.example", "https://a.example//"),
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    """3.9: no wildcard, no opaque origin, nothing that no browser sends."""
    with pytest.raises(ValueError, match=r"must be|not|Expected|At least|longer"):
        canonical_origin(text)
    assert not is_origin(text)


@given(st.text(max_size=40))
def test_every_text_is_refused_or_comes_to_rest(text: str) -> None:
    """3.2: the canonical form of a canonical form is itself."""
    for canonical, holds in ((canonical_hostname, is_hostname), (canonical_origin, is_origin)):
        try:
            once = canonical(text)
        except ValueError:
            assert not holds(text)
        else:
            assert canonical(once) == once
            assert holds(once)
