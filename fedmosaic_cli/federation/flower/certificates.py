"""What certificates say. Loaded where some are made or read: it needs the package cryptography."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def ca_certificate(key: EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """The certificate of an authority, by itself."""
    uses = {"key_cert_sign": True, "crl_sign": True}
    return (
        certificate_builder("fedmosaic authority", "fedmosaic authority", key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(**uses), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )


def server_certificate(
    key: EllipticCurvePrivateKey,
    ca_key: EllipticCurvePrivateKey,
    hosts: Sequence[str],
    days: int,
) -> x509.Certificate:
    """The certificate of a SuperLink, by an authority."""
    return (
        certificate_builder("fedmosaic coordinator", "fedmosaic authority", key, days)
        .add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, SHA256())
    )


def certificate_builder(subject: str, issuer: str, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    """A certificate that says whose key this is and how long that holds. Clocks may differ by an hour."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(common_name(subject))
        .issuer_name(common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def key_usage(**uses: bool) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: uses.get(name, False) for name in KEY_USAGES})


def general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def certificate_hosts(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a certificate is for."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in extension.value]


def private_key_pem(key: EllipticCurvePrivateKey) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return bytes(certificate.public_bytes(Encoding.PEM))
