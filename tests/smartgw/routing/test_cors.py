"""cors.py: who may read an app's answers from another origin, and which fields say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.routing import cors
from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy

SHOP = b"https://shop.example"
LISTED = AppPolicy(origins=frozenset((SHOP, b"http://localhost:5173")))
OPTED_OUT = AppPolicy(origins=frozenset((SHOP,)), own_cors=True)

REFUSED = [
    *(b"https://shop.example.", b"https://SHOP.example", b"HTTPS://shop.example"),
    *(b"https://shop.example/", b"https://shop.example:443", b"http://shop.example"),
    *(b"https://a.shop.example", b"https://shop.example.evil.example", b"shop.example", b""),
    *(b"https://shop.example, https://shop.example", b"https://shop.example http://x", b"*"),
    *(b"http://localhost", b"http://localhost:51730", b"null", b"https://shop.exampl\xe9"),
]


def fields(lines: list[bytes]) -> dict[bytes, bytes]:
    """Lines, and lines joined by CRLF, as lower-case name -> value; a name twice is an error."""
    found: dict[bytes, bytes] = {}
    for line in b"\r\n".join(lines).split(b"\r\n"):
        name, _, value = line.partition(b":")
        assert name.lower() not in found
        found[name.lower()] = value.strip()
    return found


def names(value: bytes) -> list[bytes]:
    """The members of a list of field names, in lower case."""
    return [name.strip().lower() for name in value.split(b",")]


def completed(policy: AppPolicy, origin: bytes | None, *lines: bytes) -> list[bytes]:
    """An app's answer with these lines, after us."""
    made = list(lines)
    starts = (b"set-cookie:", b"vary:", b"access-control-")
    marked = [place for place, line in enumerate(made) if line.lower().startswith(starts)]
    cors.complete(policy, origin, made, marked)
    return made


# ---- who is allowed ----


@pytest.mark.parametrize("origin", sorted(LISTED.origins))
def test_listed_origins(origin: bytes) -> None:
    """3.9: an origin on the app's list is allowed."""
    assert cors.allows(LISTED, origin)


@pytest.mark.parametrize("origin", REFUSED)
def test_other_origins(origin: bytes) -> None:
    """3.9: origins are compared exactly, with their scheme, case and port; several are none."""
    assert not cors.allows(LISTED, origin)


def test_null_is_nobody() -> None:
    """3.9: `null`, which every sandboxed frame sends, is not allowed even where it is listed."""
    assert not cors.allows(AppPolicy(origins=frozenset((b"null",))), b"null")


def test_nobody_by_default() -> None:
    """3.9: an app allows no origin unless told so."""
    assert not cors.allows(DEFAULT_POLICY, SHOP)
    assert not cors.allows(LISTED, None)


# ---- preflights ----


def test_preflight() -> None:
    """3.9: a listed origin may use the method and the fields that it asked for, for 600 s."""
    lines = cors.preflight(LISTED, SHOP, b"PATCH", b"authorization,x-request-id")
    assert fields(lines) == {
        b"vary": b"Origin",
        b"access-control-allow-origin": SHOP,
        b"access-control-allow-credentials": b"true",
        b"access-control-allow-methods": b"PATCH",
        b"access-control-allow-headers": b"authorization,x-request-id",
        b"access-control-max-age": b"600",
    }


@pytest.mark.parametrize("origin", REFUSED)
def test_refused_preflight(origin: bytes) -> None:
    """3.9: an origin that is not listed gets no allow headers."""
    lines = cors.preflight(LISTED, origin, b"GET", b"x-a")
    assert fields(lines) == {b"vary": b"Origin", b"access-control-max-age": b"600"}


@pytest.mark.parametrize("method", [b"", b"GET, POST", b"G T", b"GET\t"])
def test_preflight_for_no_method(method: bytes) -> None:
    """3.9: what is no method is not allowed."""
    assert b"access-control-allow-methods" not in fields(cors.preflight(LISTED, SHOP, method, b""))


@pytest.mark.parametrize("asked", [b"", b"a b", b"a,,b", b",", b"a;b", b"x-\xe9", b"a\x0bb"])
def test_preflight_for_no_names(asked: bytes) -> None:
    """3.9: what is no list of names is not sent back."""
    made = fields(cors.preflight(LISTED, SHOP, b"PUT", asked))
    assert made[b"access-control-allow-methods"] == b"PUT"
    assert b"access-control-allow-headers" not in made


# ---- answers ----


def test_answer_to_a_listed_origin() -> None:
    """3.9, R45: exactly one Access-Control-Allow-Origin, ours; the app's own fields are gone."""
    lines = completed(
        *(LISTED, SHOP, b"Access-Control-Allow-Origin: *", b"X-A: 1"),
        *(b"access-control-allow-credentials: false", b"Access-Control-Expose-Headers: X-A"),
        *(b"ACCESS-CONTROL-ALLOW-ORIGIN: https://evil.example", b"X-B: 2"),
    )
    assert lines[:2] == [b"X-A: 1", b"X-B: 2"]
    made = fields(lines)
    assert made[b"access-control-allow-origin"] == SHOP
    assert made[b"access-control-allow-credentials"] == b"true"
    assert made[b"vary"] == b"Origin"
    exposed = names(made[b"access-control-expose-headers"])
    for name in (b"x-ratelimit-limit", b"ratelimit", b"x-failover-cluster", b"x-request-id"):
        assert name in exposed


@pytest.mark.parametrize("origin", [None, *REFUSED])
@pytest.mark.parametrize("policy", [LISTED, DEFAULT_POLICY])
def test_answer_to_others(policy: AppPolicy, origin: bytes | None) -> None:
    """3.9: for others none of these fields remains, and Vary says that it depends on Origin."""
    own = b"Access-Control-Allow-Origin: " + (origin or b"*")
    assert completed(policy, origin, own, b"X-A: 1") == [b"X-A: 1", b"Vary: Origin"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([b"Vary: Accept-Encoding"], [b"Vary: Accept-Encoding, Origin"]),
        ([b"vary:accept,\tCookie"], [b"vary:accept,\tCookie, Origin"]),
        ([b"Vary: Origin"], [b"Vary: Origin"]),
        ([b"Vary: Accept, ORIGIN"], [b"Vary: Accept, ORIGIN"]),
        ([b"Vary: X-Origin"], [b"Vary: X-Origin, Origin"]),
        ([b"Vary: origin", b"Vary: Accept"], [b"Vary: origin", b"Vary: Accept"]),
        ([b"Vary: A", b"Vary: B"], [b"Vary: A", b"Vary: B, Origin"]),
        ([b"Vary:"], [b"Vary: Origin"]),
        ([b"Vary: *"], [b"Vary: *", b"Vary: Origin"]),
        ([b"Vary: Accept", b"Vary: *"], [b"Vary: Accept, Origin", b"Vary: *"]),
        ([], [b"Vary: Origin"]),
    ],
)
def test_vary(given: list[bytes], sent: list[bytes]) -> None:
    """3.9: always `Vary: Origin`, once, joined to what the app's answer varies by."""
    own = [b"Access-Control-Max-Age: 5", b"X-A: 1"]
    expected = [*sent, b"X-A: 1"] if given else [b"X-A: 1", *sent]
    if given == [b"Vary: *"]:
        expected = [b"Vary: *", b"X-A: 1", b"Vary: Origin"]
    assert completed(DEFAULT_POLICY, None, *given, *own) == expected


def test_own_cors() -> None:
    """3.9: an app that does its own CORS has all of its fields passed, and none of ours."""
    lines = [b"Access-Control-Allow-Origin: *", b"Vary: Accept", b"Access-Control-Max-Age: 5"]
    assert completed(OPTED_OUT, SHOP, *lines) == lines
    assert completed(OPTED_OUT, None, b"X-A: 1") == [b"X-A: 1"]


def test_interim_answers() -> None:
    """3.9: in an interim answer the app's CORS fields go as well, and nothing is added."""
    lines = [b"Link: </a>", b"Access-Control-Allow-Origin: *", b"Vary: Accept"]
    kept = list(lines)
    cors.remove(DEFAULT_POLICY, kept, [1, 2])
    assert kept == [lines[0], lines[2]]
    kept = list(lines)
    cors.remove(OPTED_OUT, kept, [1, 2])
    assert kept == lines


def test_answers_of_ours() -> None:
    """3.9: our own errors carry them too, also for an app that does its own CORS."""
    for policy in (LISTED, OPTED_OUT):
        made = fields(cors.of_ours(policy, SHOP))
        assert made[b"access-control-allow-origin"] == SHOP
        assert made[b"vary"] == b"Origin"
    assert cors.of_ours(LISTED, b"https://evil.example") == [b"Vary: Origin"]
    assert cors.of_ours(DEFAULT_POLICY, None) == [b"Vary: Origin"]


NAMES = ("Vary", "vary", "Access-Control-Allow-Origin", "Access-Control-X", "Set-Cookie", "X-A")
VALUES = ("*", "Origin", "accept", "Origin, accept", "", "https://shop.example")


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8),
    st.sampled_from([None, SHOP, b"https://evil.example"]),
    st.sampled_from([LISTED, DEFAULT_POLICY]),
)
def test_any_answer(
    given_lines: list[tuple[str, str]], origin: bytes | None, policy: AppPolicy
) -> None:
    """3.9, R45: whatever the app says, one allow-origin for the listed, `Origin` varied by once
    more at most than the app said itself, other lines untouched and in order.
    """
    lines = [f"{name}: {value}".encode() for name, value in given_lines]
    made = b"\r\n".join(completed(policy, origin, *lines)).split(b"\r\n")
    allowed = cors.allows(policy, origin)
    found = [line for line in made if line.lower().startswith(b"access-control-allow-origin:")]
    assert found == ([b"Access-Control-Allow-Origin: " + SHOP] if allowed else [])
    assert [line for line in made if line[:3] in (b"X-A", b"Set")] == [
        line for line in lines if line[:3] in (b"X-A", b"Set")
    ]

    def varied(lines: list[bytes]) -> list[bytes]:
        value = b",".join(line[5:] for line in lines if line.lower().startswith(b"vary:"))
        return sorted(name for name in names(value) if name)

    said = varied(lines)
    assert varied(made) == sorted(said if b"origin" in said else [*said, b"origin"])
