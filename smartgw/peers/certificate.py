"""TLS between gateways, with no authority: a certificate is what its key is (contract 4.5).

Owns the certificate that a cluster's identity makes of itself, how TLS is set up on both sides of
a link, and which key the other side has proven. Which key is right, the cluster list says.
"""

import datetime
import os
import ssl

from smartgw_hosts.identity import Identity, KeyRefused, PublicKey

# RFC 5280 4.1.2.5: for a certificate that ends when its key does. Nobody looks at either.
_FIRST_DAY = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NO_LAST_DAY = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


def receiving(identity: Identity, cluster: str) -> ssl.SSLContext:
    """Return how a gateway of this cluster receives links: TLS 1.3, as its identity."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A session that is taken up again would show no certificate.
    context.num_tickets = 0
    # Only a file is taken; one without a name is on no disk and ends with this function.
    descriptor = os.memfd_create("smartgw-link", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, _pem(identity, cluster))
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def sending() -> ssl.SSLContext:
    """Return how a link is opened. Whom it has reached is for `key_of` to say: TLS 1.3 proves that
    the other side holds the key of its certificate, whoever may have signed that.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def key_of(tls: ssl.SSLObject) -> PublicKey | None:
    """Return the key that the other side of a connection has proven; None: not an Ed25519 one."""
    # Late, for it takes 7 MiB, and plain links need none of it.
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    shown = tls.getpeercert(binary_form=True)
    if not shown:
        return None
    try:
        key = x509.load_der_x509_certificate(shown).public_key()
        return PublicKey(key.public_bytes_raw()) if isinstance(key, Ed25519PublicKey) else None
    except (ValueError, TypeError, KeyRefused):
        return None


def _pem(identity: Identity, cluster: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = serialization.load_der_private_key(identity.pkcs8(), None)
    assert isinstance(key, Ed25519PrivateKey)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, cluster)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FIRST_DAY)
        .not_valid_after(_NO_LAST_DAY)
        .sign(key, None)
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
