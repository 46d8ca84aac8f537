"""Certificates of the coordinator and key pairs of the sites.

The public functions need the package cryptography, which comes with Flower.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.flwr_commands import INSTALL_COMMAND
from fedmosaic_cli.federation.flower.superlink import Credentials
from fedmosaic_cli.storage import files
from fedmosaic_cli.storage.syscalls import private_files

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    PEM, NO_PASSWORD = serialization.Encoding.PEM, serialization.NoEncryption()
    HAS_CRYPTOGRAPHY = True
except ImportError:
    HAS_CRYPTOGRAPHY = False

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

VALID_DAYS = 365
CA_FILE, CA_KEY_FILE, SERVER_CERTIFICATE_FILE, SERVER_KEY_FILE = "ca.crt", "ca.key", "server.pem", "server.key"
CA_NAME, SERVER_NAME = "fedmosaic authority", "fedmosaic coordinator"
KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
MAX_KEY_BYTES = 1 << 16
KeyT = TypeVar("KeyT")


def require_cryptography() -> None:
    """Raise `RequestError` if the package cryptography is not installed."""
    if not HAS_CRYPTOGRAPHY:
        raise RequestError(f"certificates need the package cryptography (keys): {INSTALL_COMMAND}")


def create_certificate_authority(folder: Path, hosts: Sequence[str], days: int = VALID_DAYS) -> Credentials:
    """Create a certificate authority and a server certificate for a SuperLink.

    The sites need `ca.crt`. The two private keys never leave the coordinator.

    Args:
        folder: Where the four files go. Existing files are never overwritten.
        hosts: The names and addresses under which sites reach the SuperLink.
        days: How long both certificates are valid.

    Returns:
        The paths that the SuperLink needs.

    Raises:
        RequestError: There is no host, or one of the files exists.
    """
    require_cryptography()
    if not hosts:
        raise RequestError(
            "a certificate must name a host (hosts): give the names under which sites reach this machine"
        )
    names = (CA_FILE, CA_KEY_FILE, SERVER_CERTIFICATE_FILE, SERVER_KEY_FILE)
    require_absent([folder / name for name in names])
    files.make_directories(folder)
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    for name, key in ((CA_KEY_FILE, ca_key), (SERVER_KEY_FILE, server_key)):
        pem = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_PASSWORD)
        files.write_new_private_file(folder / name, pem)
    files.write_new_file(folder / CA_FILE, ca_certificate(ca_key, days).public_bytes(PEM))
    certificate = server_certificate(server_key, ca_key, hosts, days)
    files.write_new_file(folder / SERVER_CERTIFICATE_FILE, certificate.public_bytes(PEM))
    return Credentials(folder / CA_FILE, folder / SERVER_CERTIFICATE_FILE, folder / SERVER_KEY_FILE)


def ca_certificate(key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """Return a self-signed certificate of an authority."""
    return (
        certificate_builder(CA_NAME, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )


def server_certificate(
    key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey, hosts: Sequence[str], days: int
) -> x509.Certificate:
    """Return a certificate of a SuperLink, signed by the authority."""
    return (
        certificate_builder(SERVER_NAME, key, days)
        .add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, SHA256())
    )


def certificate_builder(subject: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    """Return a certificate without extensions. It is valid from an hour ago, because clocks differ."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CA_NAME)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def key_usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in uses for name in KEY_USAGES})


def general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


@private_files()
def create_node_key(path: Path) -> Path:
    """Create a site's private key at `path` and its public key in `path`.pub. Return the path of the public key.

    Directories and files that it creates are for this user only.
    """
    require_cryptography()
    public = path.with_name(f"{path.name}.pub")
    require_absent([path, public])
    files.make_directories(path.parent)
    key = ec.generate_private_key(ec.SECP384R1())
    files.write_new_private_file(path, key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, NO_PASSWORD))
    openssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    files.write_new_file(public, openssh + b"\n")
    return public


def check_certificate(path: Path, host: str | None = None) -> None:
    """Raise `RequestError` if a certificate is missing, not valid now, or does not name the host."""
    require_cryptography()
    certificate = read_key_file(path, 1 << 20, x509.load_pem_x509_certificate)
    if certificate is None:
        raise RequestError(f"not a certificate ({path}): give one in PEM format")
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise RequestError(
            f"the certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d} ({path}): create a new one"
        )
    if now < certificate.not_valid_before_utc:
        raise RequestError(
            f"the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on ({path}): check the clock"
        )
    hosts = certificate_hosts(certificate)
    if host is not None and not hosts:
        raise RequestError(f"the certificate names no host ({path}): create one that names {host}")
    if host is not None and host not in hosts:
        raise RequestError(
            f"the certificate does not name {host}, but {', '.join(hosts)} ({path}): create one that does"
        )


def certificate_hosts(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that a certificate is valid for."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in extension.value]


def check_private_key(path: Path) -> None:
    """Raise `RequestError` if a file is not a site's private key or other users can read it."""
    require_cryptography()
    key = read_key_file(path, MAX_KEY_BYTES, lambda data: serialization.load_ssh_private_key(data, None))
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RequestError(f"not the private key of a site ({path}): create a new one with 'fedmosaic site init'")
    if path.stat().st_mode & 0o077:
        raise RequestError(f"other users can read this key ({path}): chmod 600, and replace it if it was copied")


def check_public_key(path: Path) -> None:
    """Raise `RequestError` if a file is not a site's public key."""
    require_cryptography()
    key = read_key_file(path, MAX_KEY_BYTES, serialization.load_ssh_public_key)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise RequestError(f"not the public key of a site ({path}): give the file that ends in .pub")


def read_key_file(path: Path, max_bytes: int, load: Callable[[bytes], KeyT]) -> KeyT | None:
    """Return what a file contains, or None if it cannot be decoded."""
    try:
        return load(files.read_regular_file(path, max_bytes))
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError if the key has a password
        return None


def require_absent(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise RequestError(f"the file exists already ({path}): use it, or move it away")
