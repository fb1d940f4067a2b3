"""Where the store is: one server, behind Sentinels, in a Redis Cluster; with TLS (6.6)."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from smartgw.admission import store_places
from smartgw.admission.breaker import Fault
from smartgw.admission.store_connection import StoreError
from smartgw.admission.store_places import Address, Places
from tests.listening import listening, stop_listening
from tests.servers import Valkey, free_port
from tests.smartgw.admission.asking import asking, until

SLOT = store_places.slot_of("c1")


class Sentinel(Valkey):
    """A Sentinel that watches one server as `counters`, alone able to decide."""

    def __init__(self, watched: Valkey) -> None:
        super().__init__("--sentinel")
        self.conf = self.folder / "sentinel.conf"
        self.conf.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor counters 127.0.0.1 {watched.port} 1\n"
            "sentinel down-after-milliseconds counters 500\n"
            "sentinel failover-timeout counters 3000\n"
        )

    def command(self) -> list[str]:
        return [self.binary, str(self.conf), "--sentinel"]


class Member(Valkey):
    """A member of a Redis Cluster."""

    def __init__(self) -> None:
        super().__init__(
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"),
            *("--cluster-port", str(free_port())),
        )

    @property
    def id(self) -> str:
        return self.ask("CLUSTER", "MYID").splitlines()[1]


async def test_sentinels_name_the_primary_and_its_successor() -> None:
    """6.6: the primary that the Sentinels name is asked; after a failover the new one is."""
    with Valkey() as primary, Valkey("--replicaof", "127.0.0.1", str(primary.port)) as replica:
        await until(lambda: "slave0" in primary.ask("INFO", "replication"))
        with Sentinel(primary) as sentinel:
            addresses = (Address("127.0.0.1", 1), Address("127.0.0.1", sentinel.port))
            places = Places("sentinel", addresses, primary="counters", password=None)
            async with asking(places) as asker:
                asker.ask("app x 1")
                assert (await asker.answers(1))[0][0] == 0
                assert "app x 1" in primary.ask("KEYS", "*")
                await until(lambda: str(replica.port) in sentinel.ask("SENTINEL REPLICAS counters"))
                primary.kill()
                await until(lambda: not asker.up)
                await until(lambda: asker.up, within=30)
                asker.ask("app x 2")
                assert (await asker.answers(1))[0][0] == 0
                assert "app x 2" in replica.ask("KEYS", "*")


async def test_a_name_that_no_sentinel_knows() -> None:
    """6.6: Sentinels that do not know the primary are told as such."""
    with Valkey() as primary, Sentinel(primary) as sentinel:
        places = Places("sentinel", (Address("127.0.0.1", sentinel.port),), primary="other")
        with pytest.raises(StoreError) as raised:
            await store_places.connect(places, "c1")
        assert raised.value.fault is Fault.REFUSED


async def test_a_redis_cluster_is_asked_where_our_slot_is() -> None:
    """6.6: in a Redis Cluster all counters have one hash tag; they are followed when they move."""
    with Member() as one, Member() as other:
        one.ask("CLUSTER", "MEET", "127.0.0.1", str(other.port), other.options[-1])
        one.ask("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
        other.ask("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
        for member in (one, other):
            await until(lambda m=member: "cluster_state:ok" in m.ask("CLUSTER", "INFO"), 20)  # type: ignore[misc]
        owner, rest = (one, other) if SLOT < 8192 else (other, one)
        places = Places("cluster", (Address("127.0.0.1", rest.port),))
        async with asking(places) as asker:
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == 0
            assert int(owner.ask("CLUSTER", "COUNTKEYSINSLOT", str(SLOT))[1:]) > 0
            # The slot moves, as an operator would move it.
            owner.ask("FLUSHALL")
            rest.ask("CLUSTER", "SETSLOT", str(SLOT), "NODE", rest.id)
            owner.ask("CLUSTER", "SETSLOT", str(SLOT), "NODE", rest.id)
            asker.ask("app x 1")
            await asker.answers(1)
            assert asker.shared.breaker.fault is Fault.MOVED
            await until(lambda: asker.up)
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == 0
            assert int(rest.ask("CLUSTER", "COUNTKEYSINSLOT", str(SLOT))[1:]) > 0


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and localhost that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "store")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "store.pem", folder / "store.key"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return public, private


class TlsEnd(asyncio.Protocol):
    """Ends TLS before a server that has none: this one was built without."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._early = b""
        self._to: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = transport
        self._task = asyncio.ensure_future(self._join())

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        self._to, _ = await loop.create_connection(
            lambda: _Back(self._client), "127.0.0.1", self._port
        )
        self._to.write(self._early)

    def data_received(self, data: bytes) -> None:
        if self._to is None:
            self._early += data
        else:
            self._to.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._to is not None:
            self._to.close()


class _Back(asyncio.Protocol):
    def __init__(self, client: asyncio.BaseTransport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)  # type: ignore[attr-defined]


async def test_tls_with_an_authority_of_its_own(tmp_path: Path) -> None:
    """6.6: valkeys:// is TLS, and whoever cannot prove its name is not asked."""
    public, private = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    with Valkey() as server:
        end = await asyncio.get_running_loop().create_server(
            lambda: TlsEnd(server.port), "127.0.0.1", 0, ssl=context
        )
        port = end.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cafile=public)
        async with asking(Places("server", (Address("localhost", port),), tls=trusting)) as asker:
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == 0
        for host, tls in (
            ("127.0.0.1", trusting),
            ("localhost", ssl.create_default_context()),
        ):
            with pytest.raises(StoreError) as raised:
                await store_places.connect(Places("server", (Address(host, port),), tls=tls), "c1")
            assert raised.value.fault is Fault.TLS
        await stop_listening(end)
        await asyncio.sleep(0.05)


async def test_a_unix_socket_and_a_database(tmp_path: Path) -> None:
    """6.6: a store on the same machine needs no port; a numbered database is selected."""
    path = tmp_path / "v.sock"
    with Valkey("--unixsocket", str(path)) as server:
        places = Places("server", (Address(path=str(path)),), database=3)
        async with asking(places) as asker:
            asker.ask("app x 1")
            assert (await asker.answers(1))[0][0] == 0
        assert "db3" in server.ask("INFO", "keyspace")


async def test_the_example_of_a_configuration_is_enough() -> None:
    """Operations: a store with infra/valkey/valkey.conf lets a gateway in, and nobody else."""
    text = (Path(__file__).parents[3] / "infra/valkey/valkey.conf").read_text()
    digest = hashlib.sha256(b"secret").hexdigest()
    with Valkey(config=text.replace("#" + "0" * 64, f"#{digest}")) as server:
        address = Address("127.0.0.1", server.port)
        places = Places("server", (address,), username="smartgw", password="secret")
        async with asking(places) as asker:
            asker.ask("app x 1")
            assert (await asker.answers(1))[0] == (0, [1, 60_000_000])
        assert server.ask("GET", "x").startswith("-NOAUTH")


@pytest.mark.parametrize(
    "answer", [b"*0\r\n", b":1\r\n", b"*2\r\n$1\r\n\xff\r\n$1\r\nx\r\n", b"*1\r\n*1\r\n:0\r\n"]
)
async def test_what_is_no_address(answer: bytes) -> None:
    """6.6: a Sentinel or member that tells nonsense is a fault and no crash."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with listening(say) as port:
        address = Address("127.0.0.1", port)
        for places in (
            Places("sentinel", (address,), primary="counters"),
            Places("cluster", (address,)),
        ):
            with pytest.raises(StoreError):
                await store_places.connect(places, "c1")
