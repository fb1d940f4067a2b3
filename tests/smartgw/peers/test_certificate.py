"""certificate.py: TLS between gateways proves the identity key, and nothing else is asked."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from smartgw.peers.certificate import key_of, receiving, sending
from smartgw_hosts.identity import Identity

_C1 = Identity.from_seed(b"1" * 32)


def _meet(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Do a handshake in memory; returns the client's and the server's end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    for _ in range(8):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return ends


def test_the_other_side_shows_its_identity_key() -> None:
    """4.5: TLS with the peer's key pinned by the directory: the certificate is of that very key."""
    client, server = _meet(receiving(_C1, "c1"), sending())
    assert key_of(client) == _C1.public_key
    assert client.version() == "TLSv1.3"
    # The sender shows none: its marks prove it.
    assert key_of(server) is None


def test_older_versions_are_refused() -> None:
    """4.5: TLS 1.3, of which the key is a signed part, or no link."""
    old = sending()
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        _meet(receiving(_C1, "c1"), old)


def test_a_certificate_of_another_kind_of_key_proves_nothing(tmp_path: Path) -> None:
    """4.5: whoever answers at a gateway's address with some certificate is not the gateway."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "c1")])
    day = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=9_000))
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "other.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    assert key_of(_meet(server, sending())[0]) is None
