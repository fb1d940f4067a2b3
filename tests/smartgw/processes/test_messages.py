"""What control process and workers say to each other."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.peers.directory import Mode, View
from smartgw.processes.messages import (
    MAX_MESSAGE,
    PART_BYTES,
    BadMessage,
    Frames,
    apps_messages,
    clusters_message,
    encode,
    hosts_messages,
    hosts_of,
    registered_messages,
    registered_of,
    view_of,
)
from smartgw.routing.policy import DEFAULT_POLICY
from smartgw.routing.table import HostUpdate
from smartgw.state.desired import Desired, Draft, Entry
from smartgw.state.records import encode as encode_record
from smartgw.state.records import key_of, register
from smartgw_hosts.clusters import MAX_BYTES, parse
from tests.gateway import identity_of
from tests.validators import cluster_key, entry, list_text

KEY = identity_of("host").public_key


def host(host_id: str, *apps: str, cut: bool = False) -> HostUpdate:
    return HostUpdate(host_id, "http://10.0.0.1:80", KEY, apps, 100, not cut, cut)


@given(st.lists(st.dictionaries(st.text(), st.text()), max_size=5), st.data())
def test_messages_pass_however_they_are_cut(
    parts: list[dict[str, str]], data: st.DataObject
) -> None:
    """11.1: messages come out as they went in, wherever the stream is cut."""
    messages = [{"parts": part, "type": "x"} for part in parts]
    stream = b"".join(map(encode, messages))
    frames, got, place = Frames(), [], 0
    while place < len(stream):
        size = data.draw(st.integers(1, len(stream) - place))
        got += frames.feed(stream[place : place + size])
        place += size
    assert got == messages


@pytest.mark.parametrize(
    "stream",
    [
        (MAX_MESSAGE + 1).to_bytes(4, "big"),
        b"\0\0\0\1{",
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b"\0\0\0\x0a" + b'{"type":1}',
        b"\0\0\0\2\xff\xff",
    ],
)
def test_what_is_no_message(stream: bytes) -> None:
    """11.1: what is too long or no message ends the channel before it is stored."""
    with pytest.raises(BadMessage):
        Frames().feed(stream)


def test_a_message_too_long_is_not_sent() -> None:
    """11.1: messages are bounded in size on both sides."""
    with pytest.raises(BadMessage):
        encode({"type": "x" * (MAX_MESSAGE + 1)})


@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.tuples(st.lists(st.text(max_size=40), max_size=20), st.booleans()),
        max_size=80,
    ),
    st.sets(st.text("xyz", min_size=1), max_size=20),
)
def test_hosts_come_out_as_they_went_in(
    hosts: dict[str, tuple[list[str], bool]], gone: set[str]
) -> None:
    """3.8, 1.4: a worker learns every change of a host, and whether its connections are cut."""
    known = {name: host(name, *apps, cut=cut) for name, (apps, cut) in hosts.items()}
    updates, removed = [], []
    for message in hosts_messages([*known, *gone], known):
        some, left = hosts_of(json.loads(encode(message)[4:]))
        updates += some
        removed += left
    assert updates == list(known.values())
    assert set(removed) == gone


def test_many_hosts_are_many_messages() -> None:
    """11.1: a whole table does not hold a worker's traffic up: it comes in small parts."""
    known = {f"h{n}": host(f"h{n}", f"app-{n}") for n in range(5_000)}
    messages = list(hosts_messages(known, known))
    assert max(len(encode(message)) for message in messages) < 2 * PART_BYTES
    assert sum(len(message["updates"]) for message in messages) == 5_000


@given(st.sets(st.text(max_size=200)), st.sets(st.text(max_size=200)), st.booleans())
def test_declared_apps(before: set[str], after: set[str], complete: bool) -> None:
    """11.2: the apps that exist, and whether all are known, arrive as a change."""
    apps = set(before)
    messages = list(apps_messages(after, before, complete))
    for message in messages:
        apps |= set(message.get("add", ()))
        apps -= set(message.get("remove", ()))
    assert apps == after
    assert messages[-1] == {"type": "complete", "complete": complete}


@pytest.mark.parametrize(
    "view",
    [
        View(Mode.NONE, "c1"),
        View(Mode.UNKNOWN, "c1", None, {"c2": (cluster_key(2),)}),
        View(Mode.UNKNOWN, "c1", parse(list_text())),
        View(
            Mode.GRACE,
            "c1",
            parse(list_text("c1", entry("c2", 2, state="draining"), affinity=False)),
            {"c2": (cluster_key(2), cluster_key(3))},
        ),
    ],
    ids=lambda view: f"{view.mode}",
)
def test_the_clusters_pass(view: View) -> None:
    """4.6, 11.1: workers see the clusters as the control process does, with whose keys verify."""
    (message,) = Frames().feed(encode(clusters_message(view)))
    assert view_of(message) == view


def test_the_largest_list_of_clusters_passes() -> None:
    """4.3: a list that is taken can be told on, with ports that it left out."""
    urls = [[f"https://g{n}-{m}.example" for m in range(37)] for n in range(205)]
    entries = [entry(f"c{n}", n, gateways=urls[n]) for n in range(205)]
    data = list_text(*entries).replace(b", ", b",").replace(b": ", b":")
    assert MAX_BYTES * 0.8 < len(data) <= MAX_BYTES
    view = View(Mode.FRESH, "c1", parse(data))
    (message,) = Frames().feed(encode(clusters_message(view)))
    assert view_of(message) == view


def test_registered_apps_come_in_parts_and_are_one_change() -> None:
    """11.1: the workers get the desired state from one process; none waits for a large table."""
    apps = [
        register(app_id=f"app {n}", hostnames=[f"{w}.app-{n}.example" for w in ("a", "b", "c")])
        for n in range(1000)
    ]
    apps.append(
        register(
            app_id="shop",
            label="store",
            state="suspended",
            origins=["https://a.example"],
            own_cors=True,
            limit=7,
        )
    )
    draft = Draft(Desired())
    for revision, app in enumerate(apps, 1):
        draft.take(Entry(key_of(app), encode_record(app), revision, 0.0))
    desired, _ = draft.done(len(apps), "b")
    *parts, last = [
        json.loads(encode(message)[4:])
        for message in registered_messages([*(app.app_id for app in apps), "gone"], desired)
    ]
    assert last == {"type": "publish"}
    assert len(parts) > 3
    assert all(len(encode(part)) < 2 * PART_BYTES for part in parts)
    told = [app for part in parts for app in registered_of(part)[0]]
    assert told == [desired.update(app.app_id) for app in apps]
    assert told[0].policy is DEFAULT_POLICY
    assert [gone for part in parts for gone in registered_of(part)[1]] == ["gone"]
