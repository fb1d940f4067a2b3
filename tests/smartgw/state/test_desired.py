"""The desired state as one value, and who holds which name (smartgw/state/desired.py)."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from smartgw.state.desired import Desired, Difference, Draft, Entry, Skipped, Sweep
from smartgw.state.records import Kind, Record, app_key, encode, enrolment_key, key_of, register
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.identity import Identity

KEY = Identity.from_seed(bytes(32)).public_key
NAMES = ["one.example", "two.example", "three.example"]
APPS = ["a", "b", "c", "D"]


def entry(record: Record, revision: int) -> Entry:
    """What the store says of a record that was written at a revision."""
    return Entry(key_of(record), encode(record), revision, float(revision))


def taken(
    base: Desired, entries: Iterable[Entry], sweep: Sweep | None = None, bucket: str = "b"
) -> tuple[Desired, Difference]:
    """Take all in as one change."""
    draft = Draft(base)
    revision = base.revision
    for some in entries:
        draft.take(some, sweep)
        revision = max(revision, some.revision)
    if sweep is not None:
        for key, stored in base.records.items():
            if sweep.missed(key, stored):
                draft.forget(key, sweep)
    return draft.done(revision, bucket)


def same(one: Desired, other: Desired) -> bool:
    """Whether the two say the same of everything."""
    return (
        dict(one.records.items()) == dict(other.records.items())
        and dict(one.claims.items()) == dict(other.claims.items())
        and (one.digest, one.skipped, one.newer, one.contested)
        == (other.digest, other.skipped, other.newer, other.contested)
    )


def names_of(desired: Desired) -> dict[str, str]:
    """Who has which name, as routes are made of it."""
    found: dict[str, str] = {}
    for app in desired.apps():
        label, hostnames = desired.names(app)
        for name in ([] if label is None else [label]) + list(hostnames):
            assert name not in found, "one label, one app"
            found[name] = app.app_id
    return found


@st.composite
def writes(draw: st.DrawFn) -> list[Entry]:
    """A history of the bucket: revisions rise."""
    found = []
    for revision in range(1, draw(st.integers(1, 25)) + 1):
        app_id = draw(st.sampled_from(APPS))
        kind = draw(st.sampled_from(["app", "app", "app", "gone", "newer", "broken", "host"]))
        record: Record = register(
            app_id=app_id,
            label=draw(st.sampled_from([None, None, "a", "shared"])),
            hostnames=draw(st.lists(st.sampled_from(NAMES), max_size=3)),
        )
        if kind == "host":
            record = Enrolment(app_id, KEY, "eu-1", ("*",))
        value = {"gone": None, "newer": b'{"v":2}', "broken": b"x"}.get(kind, encode(record))
        found.append(Entry(key_of(record), value, revision, float(revision)))
    return found


def last(history: Sequence[Entry]) -> list[Entry]:
    """What a bucket gives to who asks for the last of each key, in its order."""
    by_key = {some.key: some for some in history}
    return sorted(by_key.values(), key=lambda some: some.revision)


@given(writes())
def test_the_way_to_a_state_does_not_matter(history: list[Entry]) -> None:
    """1.9, 7.5: the same records are the same state, with one digest, at every gateway."""
    at_once, _ = taken(Desired(), history)
    from_the_end, _ = taken(Desired(), last(history))
    one_by_one = Desired()
    for some in history:
        before = one_by_one
        one_by_one, difference = taken(one_by_one, [some])
        changed = {
            app_id
            for app_id in APPS
            if before.stored(app_key(app_id)) != one_by_one.stored(app_key(app_id))
            or {n for n, a in names_of(before).items() if a == app_id}
            != {n for n, a in names_of(one_by_one).items() if a == app_id}
        }
        assert changed <= difference.apps
        assert set(before.enrolments()) == set(one_by_one.enrolments()) or difference.enrolments
    assert same(at_once, from_the_end)
    assert same(at_once, one_by_one)
    readable = [some for some in at_once.records.values() if not isinstance(some, Skipped)]
    assert len(readable) + at_once.skipped == len(at_once.records)


@given(writes())
def test_of_two_that_claim_a_name_the_first_has_it(history: list[Entry]) -> None:
    """3.3, 5: one label, one app; all gateways give it to the same one."""
    desired, _ = taken(Desired(), history)
    claims: dict[str, list[tuple[int, str]]] = {}
    for app in desired.apps():
        stored = desired.stored(app_key(app.app_id))
        assert stored is not None
        for name in app.claims:
            claims.setdefault(name, []).append((stored.revision, app.app_id))
    assert names_of(desired) == {name: min(some)[1] for name, some in claims.items()}
    assert {n: desired.holder(n) for n in claims} == names_of(desired)
    assert desired.contested == sum(len(some) > 1 for some in claims.values())


@given(writes(), st.data())
def test_a_missed_message_heals_itself(history: list[Entry], data: st.DataObject) -> None:
    """Control plane: periodic full reconciliation, so that a missed message heals itself."""
    truth, _ = taken(Desired(), history)
    lost = data.draw(st.sets(st.sampled_from(history)))
    began = data.draw(st.integers(0, len(history)))
    heard = [some for some in history if some not in lost]
    desired, _ = taken(Desired(), [some for some in heard if some.revision <= began])
    # While the whole is read, single changes come in, before and after what is read of their key.
    sweep = Sweep("b", began, replace=False)
    whole = last(history) if data.draw(st.booleans()) else last(history[:began])
    new = [some for some in history if some.revision > began]
    mixed = data.draw(st.permutations([(some, i) for i, some in enumerate([*whole, *new])]))
    order = {
        0: [p for p in mixed if p[1] < len(whole)],
        1: [p for p in mixed if p[1] >= len(whole)],
    }
    for some in order:
        order[some].sort(key=lambda pair: pair[1])
    merged = [order[int(index >= len(whole))].pop(0)[0] for _, index in mixed]
    desired, _ = taken(desired, merged, sweep)
    assert same(desired, truth)


@given(writes(), writes())
def test_another_bucket_takes_the_place_of_the_one_before(
    before: list[Entry], after: list[Entry]
) -> None:
    """Control plane: a bucket restored from a backup is taken in as one change, whatever its
    revisions are.
    """
    old, _ = taken(Desired(), before)
    moved = [Entry(some.key, some.value, some.revision, some.time + 0.5) for some in after]
    truth, _ = taken(Desired(), moved)
    new, difference = taken(old, last(moved), Sweep("other", len(after), replace=True), "other")
    assert same(new, truth)
    assert new.bucket == "other"
    differing = {a for a in APPS if old.stored(app_key(a)) != new.stored(app_key(a))}
    assert differing <= difference.apps


def test_reading_the_same_again_changes_nothing() -> None:
    """R09: a full resync of what is known already touches no route."""
    history = [entry(register(app_id=app_id), n) for n, app_id in enumerate(APPS, 1)]
    desired, _ = taken(Desired(), history)
    for replace in (False, True):
        again, difference = taken(desired, history, Sweep("b", len(history), replace=replace))
        assert not difference
        assert same(again, desired)
        assert again.records is desired.records


def test_an_older_message_does_not_undo_a_newer_one() -> None:
    """1.2's sister: what comes late does not win."""
    new = entry(register(app_id="a", limit=5), 7)
    desired, _ = taken(Desired(), [new])
    for some in (entry(register(app_id="a"), 3), Entry(new.key, None, 3, 3.0), new):
        unchanged, difference = taken(desired, [some])
        assert not difference
        assert same(unchanged, desired)


def test_a_name_goes_to_the_next_when_its_holder_lets_go() -> None:
    """3.3: one label, one app, also when contradicting records are resolved."""
    first = register(app_id="a", hostnames=["one.example"])
    second = register(app_id="b", hostnames=["one.example", "two.example"])
    desired, difference = taken(Desired(), [entry(first, 1), entry(second, 2)])
    assert desired.names(second) == ("b", ("two.example",))
    desired, difference = taken(desired, [entry(register(app_id="a"), 3)])
    assert difference.apps == {"a", "b"}
    assert desired.names(second) == ("b", ("one.example", "two.example"))
    assert desired.contested == 0


def test_pages_are_in_the_order_of_ids() -> None:
    """10.3: pagination where lists grow."""
    ids = sorted(["a", "aa", "b", "0", "é", "zz"], key=str.encode)
    history = [entry(register(app_id=app_id), n) for n, app_id in enumerate(reversed(ids), 1)]
    history.append(entry(Enrolment("h", KEY, "eu-1", ()), 99))
    desired, _ = taken(Desired(), history)
    seen: list[str] = []
    after = ""
    while page := desired.page(Kind.APPS, after, 4):
        seen += [stored.record.app_id for _, stored in page]  # type: ignore[union-attr]
        after = page[-1][0]
    assert seen == ids
    assert [key for key, _ in desired.page(Kind.ENROLMENTS)] == [enrolment_key("eu-1", "h")]
    assert desired.enrolment("eu-1", "h") == Enrolment("h", KEY, "eu-1", ())
    assert desired.enrolment("eu-2", "h") is None
    assert desired.app("aa") == register(app_id="aa")
