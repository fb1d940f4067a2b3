"""The bytes of a snapshot: what is written is read back, and nothing else is read."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.state import snapshot
from smartgw.state.sealed import Fault, SnapshotRefused
from smartgw.state.snapshot import Contents, decode, encode, encode_host
from smartgw_hosts.records import KnownHost
from smartgw_hosts.wire import Description
from tests.gateway import identity_of

OURS = identity_of("the cluster")
HOST = KnownHost(
    "h1",
    1_700_000_000_000,
    Description(
        "http://10.0.0.1:8001", ("shop", "blög"), identity_of("h1").public_key, 100, "eu", "1.0"
    ),
)


def written(*hosts: KnownHost, cluster: str = "c1", generation: int = 7) -> bytes:
    return encode(
        map(encode_host, hosts),
        cluster=cluster,
        generation=generation,
        time=1_800_000_000.5,
        identity=OURS,
    )


def read(data: bytes, seen: int = 0) -> Contents:
    return decode(data, cluster="c1", key=OURS.public_key, seen=seen)


def fault(data: bytes, seen: int = 0) -> Fault:
    with pytest.raises(SnapshotRefused) as refused:
        read(data, seen)
    assert str(refused.value).isprintable()
    return refused.value.fault


DATA = written(HOST)


@pytest.mark.parametrize("hosts", [(), (HOST,), (HOST, replace(HOST, host_id="h2"))])
def test_what_is_written_is_read(hosts: tuple[KnownHost, ...]) -> None:
    """11.2: The snapshot holds the last healthy hosts, a generation and its time."""
    assert read(written(*hosts), seen=7) == Contents("c1", 7, 1_800_000_000.5, hosts)


texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)


@given(apps=st.lists(texts, max_size=4, unique=True), region=texts, weight=st.integers(1, 1000))
def test_any_host_is_read_back(apps: list[str], region: str, weight: int) -> None:
    """11.2: Whatever a host said of itself survives a restart unchanged."""
    described = replace(HOST.description, apps=tuple(apps), region=region, weight=weight)
    host = replace(HOST, description=described)
    assert read(written(host)).hosts == (host,)


def test_truncated_at_every_byte() -> None:
    """11.2: A snapshot that ends early is refused, wherever it ends."""
    for length in range(len(DATA)):
        assert fault(DATA[:length]) in (Fault.TRUNCATED, Fault.MALFORMED)
    assert fault(DATA[:-1]) is Fault.TRUNCATED
    assert fault(b"") is Fault.TRUNCATED


def test_every_bit_altered() -> None:
    """11.2: A snapshot in which any bit is another one is refused."""
    faults = set()
    for index in range(len(DATA)):
        for bit in range(8):
            data = bytearray(DATA)
            data[index] ^= 1 << bit
            faults.add(fault(bytes(data)))
    assert faults <= {
        Fault.MALFORMED,
        Fault.BAD_SIGNATURE,
        Fault.FOREIGN_KEY,
        Fault.NEWER_FORMAT,
        Fault.TRUNCATED,
    }
    assert fault(DATA + b"\n") is Fault.MALFORMED


def test_foreign() -> None:
    """11.2: A snapshot of another cluster, or by another key, is refused."""
    assert fault(written(HOST, cluster="c2")) is Fault.FOREIGN_CLUSTER
    with pytest.raises(SnapshotRefused) as refused:
        decode(DATA, cluster="c1", key=identity_of("another").public_key, seen=0)
    assert refused.value.fault is Fault.FOREIGN_KEY


def test_newer_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """11.2: A snapshot of a newer version is refused, not misread."""
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "FORM", replace(snapshot.FORM, version=2))
        data = written(HOST)
    assert fault(data) is Fault.NEWER_FORMAT


def test_older_generation() -> None:
    """11.2: An older snapshot that was put back is refused."""
    assert fault(DATA, seen=8) is Fault.ROLLED_BACK
    assert read(DATA, seen=7).generation == 7


def test_oversize(monkeypatch: pytest.MonkeyPatch) -> None:
    """11.2: A file that no gateway wrote cannot fill the memory."""
    monkeypatch.setattr(snapshot, "FORM", replace(snapshot.FORM, most=len(DATA)))
    assert read(DATA)
    monkeypatch.setattr(snapshot, "FORM", replace(snapshot.FORM, most=len(DATA) - 1))
    assert fault(DATA) is Fault.OVERSIZE


def test_signed_but_of_other_rules() -> None:
    """11.2: What our key signed but no version of ours can mean is refused, never a crash."""
    for bad in ('{"id": "a.b"}', "[]", "7", '{"id": "h1", "boot": true}'):
        data = encode([bad], cluster="c1", generation=1, time=0, identity=OURS)
        assert fault(data) is Fault.MALFORMED


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    """11.2: Whatever stands in the file, it is refused for a reason."""
    assert fault(data) in Fault
