"""Records and their form in the store (smartgw/state/records.py)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.routing.policy import DEFAULT_POLICY, AppPolicy, AppState
from smartgw.routing.reserved import default_label
from smartgw.state.records import (
    App,
    FieldError,
    Unreadable,
    app_key,
    check_enrolment,
    decode,
    encode,
    enrolment_key,
    key_of,
    register,
)
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import Identity

KEY = Identity.from_seed(bytes(32)).public_key
SHOP = register(
    app_id="shop",
    label="Store",
    hostnames=["www.example.com", "Faß.de", "www.example.com"],
    state="suspended",
    origins=["https://Example.com:443", "http://localhost:3000"],
    own_cors=True,
    limit=50,
    labels={"team": "checkout", "a/b": ""},
)
ENROLMENT = Enrolment("shop-1", KEY, "eu-1", ("shop", "shop-*"), 1_900_000_000.0)
ENROLMENT_KEY = enrolment_key("eu-1", "shop-1")


def test_an_app_is_registered_in_one_form() -> None:
    """3.2, 3.9: what was written differently and means the same is the same record."""
    assert (
        App(
            "shop",
            "store",
            ("www.example.com", "xn--fa-hia.de"),
            AppState.SUSPENDED,
            ("http://localhost:3000", "https://example.com"),
            True,
            50,
            (("a/b", ""), ("team", "checkout")),
        )
        == SHOP
    )
    assert SHOP.claims == ("store", "www.example.com", "xn--fa-hia.de")
    origins = frozenset((b"http://localhost:3000", b"https://example.com"))
    assert SHOP.policy == AppPolicy(AppState.SUSPENDED, origins, True, 50)
    assert register(app_id="shop").policy is DEFAULT_POLICY


@pytest.mark.parametrize(
    ("app_id", "label"), [("shop", "shop"), ("Shop", None), ("a_b", None), ("x" * 64, None)]
)
def test_the_label_is_by_default_the_app_id(app_id: str, label: str | None) -> None:
    """Ids, 3.3: an app's label is by default the app id where that is one."""
    assert default_label(app_id) == label
    assert register(app_id=app_id).served_label == label
    assert register(app_id=app_id, label="other").served_label == "other"


@pytest.mark.parametrize(
    ("members", "pointer"),
    [
        ({"app_id": ""}, "/app_id"),
        ({"app_id": "a\n"}, "/app_id"),
        ({"app_id": "é" * 129}, "/app_id"),
        ({"label": "a.b"}, "/label"),
        ({"hostnames": ["ok.example", "bad"]}, "/hostnames/1"),
        ({"hostnames": [f"{n}.example" for n in range(1001)]}, "/hostnames"),
        ({"state": "off"}, "/state"),
        ({"origins": ["https://ok.example", "*"]}, "/origins/1"),
        ({"limit": 0}, "/limit"),
        ({"limit": 1_000_001}, "/limit"),
        ({"labels": {"": "x"}}, "/labels/"),
        ({"labels": {"a/b~": "x"}}, "/labels/a~1b~0"),
        ({"labels": {"a": "x" * 257}}, "/labels/a"),
        ({"labels": {"a": "\x00"}}, "/labels/a"),
        ({"labels": {str(n): "" for n in range(65)}}, "/labels"),
        ({"hostnames": [f"{n:03}{'x' * 59}.example" for n in range(1000)]}, ""),
    ],
)
def test_what_no_app_may_have_is_refused_where_it_stands(
    members: dict[str, Any], pointer: str
) -> None:
    """10.3: one error shape with a pointer to the field."""
    with pytest.raises(FieldError) as refused:
        register(**{"app_id": "shop", **members})
    assert refused.value.pointer == pointer
    assert str(refused.value)


@pytest.mark.parametrize(
    ("enrolment", "pointer"),
    [
        (Enrolment("a.b", KEY, "eu-1", ()), "/host_id"),
        (Enrolment("a", KEY, "*", ()), "/cluster"),
        (Enrolment("a", KEY, "eu-1", ("ok", "")), "/apps/1"),
        (Enrolment("a", KEY, "eu-1", tuple(str(n) for n in range(1001))), "/apps"),
        (Enrolment("a", KEY, "eu-1", tuple("é" * 120 + str(n) for n in range(999))), "/apps"),
        (Enrolment("a", KEY, "eu-1", (), float("nan")), "/expires"),
    ],
)
def test_what_no_enrolment_may_have_is_refused(enrolment: Enrolment, pointer: str) -> None:
    """Ids: checked before any use, for they stand in NATS subjects."""
    with pytest.raises(FieldError) as refused:
        check_enrolment(enrolment)
    assert refused.value.pointer == pointer
    assert check_enrolment(ENROLMENT) is ENROLMENT


@pytest.mark.parametrize("record", [SHOP, register(app_id="ä b"), ENROLMENT])
def test_a_record_comes_back_as_it_was_stored(record: App | Enrolment) -> None:
    """7.5: what was written at one gateway is the same at all."""
    assert decode(key_of(record), encode(record)) == record


def test_keys_are_safe_in_a_subject_and_sort_as_ids_do() -> None:
    """Ids: `*`, `>` and `.` would do harm in NATS subjects."""
    ids = sorted(["a", "ab", "b", "A", "0", "é", "a.b", "*", ">", " ", "x" * 256, "~", "a" * 30])
    keys = [app_key(app_id) for app_id in ids]
    assert all(key.removeprefix("apps.").isalnum() and key.isascii() for key in keys)
    by_bytes = sorted(ids, key=str.encode)
    assert sorted(keys) == [app_key(app_id) for app_id in by_bytes]
    assert enrolment_key("eu-1", "shop-1") == "enrolments.eu-1.shop-1"


def changed(record: App | Enrolment, **members: object) -> bytes:
    """The stored form of a record, with other members."""
    found = json.loads(encode(record)) | members
    return json.dumps({k: v for k, v in found.items() if v is not ...}).encode()


@pytest.mark.parametrize(
    ("key", "value", "newer"),
    [
        (app_key("shop"), changed(SHOP, v=2), True),
        (app_key("shop"), changed(SHOP, v=2, more=1), True),
        (app_key("shop"), changed(SHOP, v=0), False),
        (app_key("shop"), changed(SHOP, v=True), False),
        (app_key("shop"), changed(SHOP, v=...), False),
        (app_key("shop"), changed(SHOP, more=1), False),
        (app_key("shop"), changed(SHOP, limit=...), False),
        (app_key("shop"), changed(SHOP, limit=True), False),
        (app_key("shop"), changed(SHOP, limit=0), False),
        (app_key("shop"), changed(SHOP, state="off"), False),
        (app_key("shop"), changed(SHOP, label="Store"), False),
        (app_key("shop"), changed(SHOP, hostnames=["Www.example.com"]), False),
        (app_key("shop"), changed(SHOP, hostnames=["b.example", "a.example"]), False),
        (app_key("shop"), changed(SHOP, hostnames="a.example"), False),
        (app_key("shop"), changed(SHOP, hostnames=[1]), False),
        (app_key("shop"), changed(SHOP, origins=["https://a.example/"]), False),
        (app_key("shop"), changed(SHOP, own_cors=1), False),
        (app_key("shop"), changed(SHOP, labels=[]), False),
        (app_key("shop"), changed(SHOP, labels={"a": 1}), False),
        (app_key("shop"), changed(SHOP, app_id=1), False),
        (app_key("other"), encode(SHOP), False),
        ("zones.x", encode(SHOP), False),
        ("apps", encode(SHOP), False),
        (app_key("shop"), b"", False),
        (app_key("shop"), b"[]", False),
        (app_key("shop"), b'{"v":1,"v":1}', False),
        (app_key("shop"), b"[" * 50_000, False),
        (app_key("shop"), b" " * 60_001, False),
        (app_key("shop"), b"\xff", False),
        (ENROLMENT_KEY, changed(ENROLMENT, key="ed25519:x"), False),
        (ENROLMENT_KEY, changed(ENROLMENT, key=None), False),
        (ENROLMENT_KEY, changed(ENROLMENT, expires="2027"), False),
        (ENROLMENT_KEY, changed(ENROLMENT, apps=["a\n"]), False),
        (ENROLMENT_KEY, changed(ENROLMENT, host_id="shop-2"), False),
        (ENROLMENT_KEY, changed(ENROLMENT, cluster="a.b"), False),
    ],
)
def test_what_this_version_cannot_read_is_not_read_in_part(
    key: str, value: bytes, newer: bool
) -> None:
    """11.2: a record of a newer version, or a broken one, is skipped and kept as it is."""
    with pytest.raises(Unreadable) as refused:
        decode(key, value)
    assert refused.value.newer is newer
    assert str(refused.value).isprintable()


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_skipped(value: bytes) -> None:
    """11.2: a record that cannot be read is never a crash."""
    with pytest.raises(Unreadable):
        decode(app_key("shop"), value)
