"""wellknown.py: a reserved path in any spelling is ours, what only looks like one is the app's."""

from __future__ import annotations

import time
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.routing.wellknown import is_reserved

OURS = [
    # As it is, and with something behind it.
    *("/.well-known/smartgw/challenge", "/.well-known/smartgw/"),
    *("/.well-known/smartgw-challenge/t", "/.well-known/smartgw/a/b?c#d", "/.well-known/smartgw/?"),
    # Encoded, once and more often, with and without dots and slashes.
    *("/%2ewell-known/smartgw/x", "/%2Ewell%2Dknown/smartgw/x", "/.well-known%2Fsmartgw%2fx"),
    *("/.well-known/%73martgw/x", "/.well-known/smartg%77/", "/%2F.well-known/smartgw/x"),
    *("/.well-known/smartgw%2fx", "/%252ewell-known/smartgw/x", "/.well-known%252Fsmartgw/x"),
    *("/%25252ewell-known/smartgw/x", "/%2525252ewell-known/smartgw/x", "/.well-known/smart%67w/"),
    *("/%25%32%65well-known/smartgw/x", "/.well-known/smartgw%2Dchallenge/t"),
    # In other case, as hosts on some file systems read it.
    *("/.WELL-KNOWN/smartgw/x", "/.well-known/SmartGW/x", "/.Well-Known/SMARTGW-Challenge/t"),
    # Dot segments.
    *("/./.well-known/smartgw/x", "/.well-known/./smartgw/x", "/a/../.well-known/smartgw/x"),
    *("/../.well-known/smartgw/x", "/../../../.well-known/smartgw/x"),
    *("/a/b/../../.well-known/smartgw/",),
    *("/.well-known/a/../smartgw/x", "/.well-known/smartgw/a/../x", "/.well-known/smartgw/."),
    *("/%2e/.well-known/smartgw/x", "/a/%2e%2e/.well-known/smartgw/x"),
    *("/a/.%2e/.well-known/smartgw/",),
    *("/a%2f..%2f.well-known/smartgw/x", "/a/%252e%252e/.well-known/smartgw/x"),
    *("/.well-known/../.well-known/smartgw/", "/.well-known/smartgw/../smartgw/x"),
    # Empty segments: dropped by some, counted by others (RFC 3986 5.2.4).
    *("//.well-known/smartgw/x", "/.well-known//smartgw/x", "/.well-known/smartgw//x"),
    *("///.well-known///smartgw/",),
    *("/a//../../.well-known/smartgw/x", "/a//../.well-known/smartgw/x"),
    *("/.well-known/smartgw//../challenge", "/.well-known//../smartgw/x"),
    *("/.well-known/smartgw/%2f../x",),
    # `//name` is a host to those who read a URL reference.
    *("//a/.well-known/smartgw/x", "/%2fa/.well-known/smartgw/x", "/\\a/.well-known/smartgw/x"),
    # Backslashes: separators to some, letters to others.
    *("/\\/a/.well-known/smartgw/", "/.well-known\\smartgw/x", "/.well-known%5Csmartgw%5cx"),
    *("/a\\..\\.well-known/smartgw/x", "/a/..\\.well-known/smartgw/x"),
    *("/.well-known/smartgw/..\\x",),
    # Path parameters: kept by some, dropped by others.
    *("/.well-known;a=b/smartgw/x", "/.well-known/smartgw;a/x", "/;a/.well-known/smartgw/x"),
    *("/a/..;b/.well-known/smartgw/x", "/.well-known/smartgw/..;/challenge"),
    *("/.;/.well-known/smartgw/",),
    *("/.well-known/a/..;/smartgw/x", "/.well-known%3b/smartgw/x"),
    # What ends a path for some: NUL, `?` and `#`, encoded.
    *("/.well-known/smartgw/%00.png", "/.well-known/smartgw/%3fx", "/.well-known/smartgw/%23x/y"),
    *("/a%3f/%2e%2e/.well-known/smartgw/x", "/a%00/%2e%2e/.well-known/smartgw/x"),
    *("/a%23/../.well-known/smartgw/challenge", "/.well-known/smartgw/a%3f/../../../b"),
    # Spaces and dots at the end of names, which Windows drops.
    *("/.well-known%20/smartgw/x", "/.well-known/smartgw%20/x", "/.well-known./smartgw./x"),
    *("/%09.well-known/smartgw/x", "/a/%20..%20/.well-known/smartgw/x"),
    *("/.well-known/smartgw/%20..%20/x",),
    # Old and other encodings: overlong UTF-8, %u, compatibility forms.
    *("/%c0%aewell-known/smartgw/x", "/.well-known%c0%afsmartgw/x"),
    *("/%e0%80%aewell-known/smartgw/x",),
    *("/%u002ewell-known/smartgw/x", "/.well-known/%u0073martgw/x", "/%uff0ewell-known/smartgw/x"),
    *("/%ef%bc%8ewell-known/smartgw/x", "/\uff0ewell-known/smartgw/x"),
    *("/.well-known/\uff53martgw/x",),
    *("/.well-\u212anown/smartgw/x", "/.well-known/\u017fmartgw/x"),
    *("/%f0%80%80%aewell-known/smartgw/",),
]

APPS = [
    *("/", "//", "/?", "/p", "/.well-known", "/.well-known/", "/.well-known/smartgwx/challenge"),
    *("/.well-known/smartgw", "/.well-known/smartgw-challenge", "/.well-known/smartgw?x=/y"),
    *("/x/../.well-known/smartgw", "/.well-known/smartgw/..", "/.well-known%2fsmartgw"),
    *("/.well-known/smartg/x", "/.well-known/smartgw-challenges/x", "/.well-known/xsmartgw/x"),
    *("/.well-known/smartgw_challenge/x", "/.well-known/smartgw-/x", "/well-known/smartgw/x"),
    *("/.well-knownx/smartgw/x", "/..well-known/smartgw/x", "/x.well-known/smartgw/x"),
    *("/x/.well-known/smartgw/challenge", "/.well-known/x/smartgw/challenge", "/smartgw/x"),
    *("/.well-known/acme-challenge/token", "/.well-known/openid-configuration", "/api/v3/admin"),
    *("/.well-known/smartgw/../x", "/.well-known/../smartgw/x", "/.well-known/a/smartgw/../x"),
    *("/.well-known/smartgw/../../x", "/x/../y/.well-known/smartgw/"),
    *("/.well-known/a/%2e%2e/b/smartgw/x",),
    *("/?/.well-known/smartgw/challenge", "/p?a=/.well-known/smartgw/"),
    *("/?%2f.well-known%2fsmartgw",),
    *("/x%2f.well-known%2fsmartgw", "/x/%2e/.well-known/smartgw", "/x;/.well-known/smartgw/"),
    *("/100%", "/%zz", "/%", "/%25", "/%25252525", "/a%2525b", "/é/.well-known/x", "/%e9%ff"),
    *("/.well-known.smartgw/x", "/.well-known-smartgw", "/.well-known%20smartgw/x", "*"),
]


@pytest.mark.parametrize("target", OURS)
def test_reserved(target: str) -> None:
    """3.1: the reserved paths, matched after decoding and removing dot segments, are ours.

    In every reading that some host may have of the target.
    """
    assert is_reserved(target.encode())
    assert is_reserved(target.encode() + b"?x=1")


@pytest.mark.parametrize("target", APPS)
def test_the_apps(target: str) -> None:
    """3.1: everything else on an app's hostname belongs to the app."""
    assert not is_reserved(target.encode())


def test_enough_spellings() -> None:
    """3.1: 60 spellings of the reserved paths, and 30 that must pass."""
    assert len(set(OURS)) >= 60
    assert len(set(APPS)) >= 30


def remove_dot_segments(path: str) -> str:
    """RFC 3986 5.2.4, word for word."""
    out: list[str] = []
    segments = path.split("/")[1:]
    for place, segment in enumerate(segments):
        last = place == len(segments) - 1
        if segment == "..":
            if out:
                out.pop()
            if last:
                out.append("")
        elif segment == ".":
            if last:
                out.append("")
        else:
            out.append(segment)
    return "/" + "/".join(out)


PIECES = st.sampled_from(
    [
        *("/", "/", "/", ".", "..", "/../", "//", ".well-known", "smartgw", "smartgw-challenge"),
        *("x", ";a", "\\", " ", "\0", "?", "#", "%", "é"),
    ]
)
PATHS = st.lists(PIECES, max_size=12).map(lambda pieces: "/" + "".join(pieces))


@given(PATHS, st.integers(0, 3), st.sets(st.sampled_from("./-swx;\\?# "), max_size=4))
def test_what_the_rfc_reads(path: str, times: int, safe: set[str]) -> None:
    """3.1: whatever decoding and RFC 3986 make a reserved path of is one, before decoding too."""
    target = path.replace("?", "%3f").replace("#", "%23") if not times else path
    for _ in range(times):
        target = quote(target, safe="".join({*safe, "/"} - {"?", "#", "%"}))
    read = target.encode()
    for _ in range(4):
        plain = remove_dot_segments(read.partition(b"?")[0].decode("utf-8", "replace"))
        if plain.startswith(("/.well-known/smartgw/", "/.well-known/smartgw-challenge/")):
            assert is_reserved(target.encode())
        read = unquote_to_bytes(read.partition(b"?")[0]).replace(b"?", b"%3f")


@given(st.lists(st.sampled_from(["a", "b.c", "well-known", "smartgw", "x-y"]), max_size=6))
def test_plain_paths_pass(segments: list[str]) -> None:
    """3.1: a path that nothing needs to be done to is the app's unless it begins with ours."""
    path = "/" + "/".join(segments)
    assert not is_reserved(path.encode())
    assert not is_reserved(("/z/.well-known" + path).encode())
    assert is_reserved(("/.well-known/smartgw" + path).encode())
    assert not is_reserved(b"/.well-known/smartgw")


@given(st.binary(max_size=40))
def test_any_bytes(target: bytes) -> None:
    """3.1: no target is beyond judgement."""
    assert is_reserved(b"/" + target) in (True, False)


def test_hostile_targets_cost_little() -> None:
    """3.11: a target of 8 KiB made to be hard costs no more than some hundred requests' time."""
    hard = [
        b"/.well-known/x/smartgw" + b"/..;a" * 1_600,
        b"/" + b"%25" * 2_600 + b".well-known/smartgw",
        b"/x/.well-known/xsmartgw/" + b"a\\b;c " * 1_300,
        b"/x/.well-known/xsmartgw/" + b";%2525252f" * 28,
        b"/%" + b"25" * 4_000 + b"2ewell-known/smartgw",
    ]
    for target in hard:
        begun = time.process_time()
        for _ in range(10):
            is_reserved(target)
        assert (time.process_time() - begun) / 10 < 0.05
