"""Certificates and keys: an authority that vouches for the SuperLink, and a key by which each site is known."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.flower_version import INSTALL
from fedmosaic_cli.federation.flower.superlink import Papers
from fedmosaic_cli.storage import files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAYS = 365
CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.pem", "server.key"


def make_authority(folder: Path, hosts: Sequence[str], days: int = DAYS) -> Papers:
    """An authority, and a certificate by it for a SuperLink that is reached under these names and addresses.

    Nothing that is there is overwritten. `ca.crt` is for the sites; the two keys are for nobody.
    """
    check_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedmosaic_cli.federation.flower.certificates import (
        authority_certificate,
        certificate_bytes,
        private_bytes,
        server_certificate,
    )

    if not hosts:
        raise RequestError(
            "a certificate must name a host (hosts): give the names under which sites reach this machine"
        )
    names = (CA, CA_KEY, SERVER, SERVER_KEY)
    check_absent([folder / name for name in names])
    files.make_directories(folder)
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = authority_certificate(authority, days)
    certificate = server_certificate(server, authority, hosts, days)
    files.put_private(folder / CA_KEY, private_bytes(authority))
    files.put_private(folder / SERVER_KEY, private_bytes(server))
    files.put(folder / CA, certificate_bytes(root))
    files.put(folder / SERVER, certificate_bytes(certificate))
    return Papers(folder / CA, folder / SERVER, folder / SERVER_KEY)


def make_node_key(path: Path) -> Path:
    """A key for a site at `path`, and beside it, in `path`.pub, what the coordinator is to be given; where that is."""
    check_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    public = path.with_name(f"{path.name}.pub")
    check_absent([path, public])
    files.make_directories(path.parent)
    key = ec.generate_private_key(ec.SECP384R1())
    files.put_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    files.put(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def check_certificate(path: Path, host: str | None = None) -> None:
    """Refuse a certificate whose time is over or has not come, or that does not name a host."""
    check_cryptography()
    from cryptography import x509

    from fedmosaic_cli.federation.flower.certificates import hosts_of

    try:
        certificate = x509.load_pem_x509_certificate(files.read_file(path, 1 << 20))
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
    if host is not None and (named := hosts_of(certificate)) and host not in named:
        raise RequestError(f"the certificate does not name {host}, but {', '.join(named)} ({path}): make one that does")
    if host is not None and not hosts_of(certificate):
        raise RequestError(f"the certificate names no host ({path}): make one that names {host}")


def check_key(path: Path) -> None:
    """Refuse what is no private key of a site, or lies open to others."""
    check_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(files.read_file(path, 1 << 16), None)
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
    check_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(files.read_file(path, 1 << 16))
    except FileNotFoundError:
        raise RequestError(f"file is missing ({path}): check the path") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # the second if it wants a password
        key = None
    if not isinstance(key, EllipticCurvePublicKey):
        raise RequestError(f"not the public key of a site ({path}): give the file that ends in .pub")


def check_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise RequestError(f"certificates need the package cryptography (keys): {INSTALL}") from None


def check_absent(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            raise RequestError(f"there is one already ({path}): move it away, or use it")
