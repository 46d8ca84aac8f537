"""Certificates and keys: an authority that vouches for the SuperLink, and a key by which each site is known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.flower_version import INSTALL_COMMAND
from fedmosaic_cli.federation.flower.superlink import Credentials
from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VALID_DAYS = 365
CA_FILE, CA_KEY_FILE, SERVER_CERTIFICATE_FILE, SERVER_KEY_FILE = "ca.crt", "ca.key", "server.pem", "server.key"


def create_certificate_authority(folder: Path, hosts: Sequence[str], days: int = VALID_DAYS) -> Credentials:
    """An authority, and a certificate by it for a SuperLink that is reached under these names and addresses.

    Nothing that is there is overwritten. `ca.crt` is for the sites; the two keys are for nobody.
    """
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedmosaic_cli.federation.flower.certificates import (
        ca_certificate,
        certificate_pem,
        private_key_pem,
        server_certificate,
    )

    if not hosts:
        raise RequestError(
            "a certificate must name a host (hosts): give the names under which sites reach this machine"
        )
    names = (CA_FILE, CA_KEY_FILE, SERVER_CERTIFICATE_FILE, SERVER_KEY_FILE)
    require_absent([folder / name for name in names])
    files.make_directories(folder)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = ca_certificate(authority, days)
    certificate = server_certificate(server, authority, hosts, days)
    files.write_new_private_file(folder / CA_KEY_FILE, private_key_pem(authority))
    files.write_new_private_file(folder / SERVER_KEY_FILE, private_key_pem(server))
    files.write_new_file(folder / CA_FILE, certificate_pem(root))
    files.write_new_file(folder / SERVER_CERTIFICATE_FILE, certificate_pem(certificate))
    return Credentials(folder / CA_FILE, folder / SERVER_CERTIFICATE_FILE, folder / SERVER_KEY_FILE)


def create_node_key(path: Path) -> Path:
    """A key for a site at `path`, and beside it, in `path`.pub, what the coordinator is to be given; where that is."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    public = path.with_name(f"{path.name}.pub")
    require_absent([path, public])
    files.make_directories(path.parent)
    key = ec.generate_private_key(ec.SECP384R1())
    files.write_new_private_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    files.write_new_file(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def check_certificate(path: Path, host: str | None = None) -> None:
    """Refuse a certificate whose time is over or has not come, or that does not name a host."""
    require_cryptography()
    from cryptography import x509

    from fedmosaic_cli.federation.flower.certificates import certificate_hosts

    try:
        certificate = x509.load_pem_x509_certificate(files.read_regular_file(path, 1 << 20))
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except ValueError:
        raise RequestError(f"not a certificate ({path}): give one in PEM form") from None
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise RequestError(
            f"the certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d} ({path}): make it anew"
        )
    if now < certificate.not_valid_before_utc:
        raise RequestError(
            f"the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on ({path}): check the clock"
        )
    if host is not None and (named := certificate_hosts(certificate)) and host not in named:
        raise RequestError(f"the certificate does not name {host}, but {', '.join(named)} ({path}): make one that does")
    if host is not None and not certificate_hosts(certificate):
        raise RequestError(f"the certificate names no host ({path}): make one that names {host}")


def check_private_key(path: Path) -> None:
    """Refuse what is no private key of a site, or lies open to others."""
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(files.read_regular_file(path, 1 << 16), None)
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # the second if it wants a password
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise RequestError(f"not the private key of a site ({path}): make one anew")
    if path.stat().st_mode & 0o077:
        raise RequestError(f"others can read this key ({path}): chmod 600, and make a new one if anybody did")


def check_public_key(path: Path) -> None:
    """Refuse what is no public key of a site."""
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(files.read_regular_file(path, 1 << 16))
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # the second if it wants a password
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise RequestError(f"not the public key of a site ({path}): give the file that ends in .pub")


def require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise RequestError(f"certificates need the package cryptography (keys): {INSTALL_COMMAND}") from None


def require_absent(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise RequestError(f"there is one already ({path}): move it away, or use it")
