"""The bytes of a kept desired state: what is written is read back, and nothing else is read."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.state import decisions
from smartgw.state.decisions import Decisions, read, sealed
from smartgw.state.desired import Desired, Draft, Entry
from smartgw.state.records import Record, app_key, encode, enrolment_key, key_of, register
from smartgw.state.sealed import Fault, SnapshotRefused, Stamp
from smartgw_hosts.enrolment import Enrolment
from tests.gateway import identity_of

OURS = identity_of("the cluster")
RECORDS: list[Record] = [
    register(app_id="shop", hostnames=["www.example.com"], origins=["https://a.example"]),
    register(app_id="tön", label="store", state="suspended", limit=9, labels={"a": "b c"}),
    Enrolment("h1", OURS.public_key, "c1", ("shop", "s *"), 1_900_000_000.25),
]
VALUES = {
    **{key_of(record): encode(record) for record in RECORDS},
    app_key("newer"): b'{"v": 2,\n "more": " "}',
    app_key("broken"): b"\xff\n\x00 ~",
    "zones.x": b"",
}


def state(values: dict[str, bytes]) -> Desired:
    """What comes of a bucket with these values."""
    draft = Draft(Desired())
    for revision, (key, value) in enumerate(values.items(), 3):
        draft.take(Entry(key, value, revision, 1_800_000_000.123456 + revision))
    return draft.done(len(values) + 9, "2026-01-01T00:00:00.123456789Z")[0]


def written(desired: Desired, *, cluster: str = "c1", generation: int = 7) -> bytes:
    stamp = Stamp(cluster, generation, 1_800_000_000.5)
    return sealed(desired, stamp, OURS, lambda: None)


def reading(data: bytes, seen: int = 0) -> Decisions:
    return read(data, cluster="c1", key=OURS.public_key, seen=seen, breathe=lambda: None)


def fault(data: bytes, seen: int = 0) -> Fault:
    with pytest.raises(SnapshotRefused) as refused:
        reading(data, seen)
    assert str(refused.value).isprintable()
    return refused.value.fault


STATE = state(VALUES)
DATA = written(STATE)


def same(one: Desired, other: Desired) -> bool:
    return (
        dict(one.records.items()) == dict(other.records.items())
        and dict(one.claims.items()) == dict(other.claims.items())
        and (one.digest, one.revision, one.bucket) == (other.digest, other.revision, other.bucket)
        and (one.skipped, one.newer) == (other.skipped, other.newer)
    )


@pytest.mark.parametrize("desired", [STATE, Desired(), state({app_key("shop"): b"x"})])
def test_what_is_written_is_read(desired: Desired) -> None:
    """11.2: the snapshot holds the desired state; the digest stays the same over a restart."""
    kept = reading(written(desired), seen=7)
    assert same(kept.desired, desired)
    assert (kept.generation, kept.time) == (7, 1_800_000_000.5)


def test_what_another_version_may_read_is_kept() -> None:
    """11.2: a record that this version cannot read is kept as it is."""
    kept = reading(DATA).desired
    assert kept.skipped == 3
    assert kept.newer == 1
    again = reading(written(kept)).desired
    assert again.records.get(app_key("newer")) == STATE.records.get(app_key("newer"))
    assert kept.enrolment("c1", "h1") == RECORDS[2]
    assert kept.stored(enrolment_key("c1", "h1")) == STATE.stored(enrolment_key("c1", "h1"))


def test_truncated_at_every_byte() -> None:
    """Control plane: a truncated snapshot, cut at every byte: never a crash, never served."""
    for length in range(len(DATA)):
        assert fault(DATA[:length]) in (Fault.TRUNCATED, Fault.MALFORMED)
    assert fault(DATA[:-1]) is Fault.TRUNCATED


def test_every_byte_altered() -> None:
    """Control plane: an altered snapshot: never a crash, never served."""
    for index in range(len(DATA)):
        for bit in (0, 3, 7):
            data = bytearray(DATA)
            data[index] ^= 1 << bit
            assert fault(bytes(data)) in Fault
    assert fault(DATA + b"\n") is Fault.MALFORMED


def test_older_newer_and_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control plane: an older snapshot, a newer format, another's: never a crash, never served."""
    assert fault(DATA, seen=8) is Fault.ROLLED_BACK
    assert fault(written(STATE, cluster="c2")) is Fault.FOREIGN_CLUSTER
    with monkeypatch.context() as patch:
        patch.setattr(decisions, "FORM", replace(decisions.FORM, version=2))
        data = written(STATE)
    assert fault(data) is Fault.NEWER_FORMAT
    with pytest.raises(SnapshotRefused) as refused:
        read(
            DATA,
            cluster="c1",
            key=identity_of("another").public_key,
            seen=0,
            breathe=lambda: None,
        )
    assert refused.value.fault is Fault.FOREIGN_KEY


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b'{"cluster":"c1","generation":1,"time":1,"bucket":"b","revision":1,"records":1}\n',
        b'{"cluster":"c1","generation":1,"time":1,"bucket":"b","revision":-1,"records":0}\n',
        b'{"cluster":"c1","generation":1,"time":1,"bucket":1,"revision":1,"records":0}\n',
        b'{"cluster":"c1","generation":true,"time":1,"bucket":"b","revision":1,"records":0}\n',
        *(
            b'{"cluster":"c1","generation":1,"time":1,"bucket":"b","revision":1,"records":1}\n'
            + line
            + b"\n"
            for line in (b"", b"a 1 1", b"a x 1 1 {}", b"a 1 x 1 {}", b"a 1 1 z {}", b"a 1 1 1 ~?")
        ),
    ],
)
def test_signed_but_of_other_rules(body: bytes) -> None:
    """11.2: What our key signed but no version of ours can mean is refused, never a crash."""
    assert fault(decisions.FORM.seal(body, OURS)) is Fault.MALFORMED


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    """11.2: Whatever stands in the file, it is refused for a reason."""
    assert fault(data) in Fault
