"""Keys and certificates."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography")

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.keys import (
    check_certificate,
    check_private_key,
    check_public_key,
    create_certificate_authority,
    create_node_key,
)


def test_an_authority_signs_a_certificate_for_all_hosts(tmp_path):
    credentials = create_certificate_authority(tmp_path / "credentials", ["127.0.0.1", "::1", "link.example"])
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "credentials").iterdir()}
    assert modes["ca.key"] == modes["server.key"] == 0o600
    assert sorted(modes) == ["ca.crt", "ca.key", "server.key", "server.pem"]
    for host in ("127.0.0.1", "::1", "link.example"):
        check_certificate(credentials.certificate, host)
    with pytest.raises(RequestError, match=r"does not name other\.example, but 127\.0\.0\.1, ::1, link\.example"):
        check_certificate(credentials.certificate, "other.example")
    with pytest.raises(RequestError, match="names no host"):
        check_certificate(credentials.ca_certificate, "127.0.0.1")


def test_the_certificate_is_signed_by_the_authority(tmp_path):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    credentials = create_certificate_authority(tmp_path, ["127.0.0.1"])
    root = x509.load_pem_x509_certificate(credentials.ca_certificate.read_bytes())
    certificate = x509.load_pem_x509_certificate(credentials.certificate.read_bytes())
    certificate.verify_directly_issued_by(root)
    other = create_certificate_authority(tmp_path / "other", ["127.0.0.1"])
    with pytest.raises(InvalidSignature):
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(other.ca_certificate.read_bytes()))


@pytest.mark.parametrize("existing", ["ca.crt", "ca.key", "server.pem", "server.key"])
def test_existing_files_are_never_overwritten(tmp_path, existing):
    (tmp_path / existing).write_text("mine")
    with pytest.raises(RequestError, match="the file exists already"):
        create_certificate_authority(tmp_path, ["127.0.0.1"])
    assert [path.name for path in tmp_path.iterdir()] == [existing]


def test_an_expired_certificate_is_refused(tmp_path):
    credentials = create_certificate_authority(tmp_path, ["127.0.0.1"], days=0)
    with pytest.raises(RequestError, match="the certificate expired on"):
        check_certificate(credentials.certificate, "127.0.0.1")


def test_a_certificate_needs_a_host(tmp_path):
    with pytest.raises(RequestError, match="must name a host"):
        create_certificate_authority(tmp_path, [])


def test_a_node_key_is_private_and_has_a_public_part(tmp_path):
    public = create_node_key(tmp_path / "keys" / "site")
    assert public == tmp_path / "keys" / "site.pub"
    assert (tmp_path / "keys" / "site").stat().st_mode & 0o777 == 0o600
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert (tmp_path / "keys" / "site").read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    check_private_key(tmp_path / "keys" / "site")
    check_public_key(public)
    with pytest.raises(RequestError, match="the file exists already"):
        create_node_key(tmp_path / "keys" / "site")


def test_invalid_keys_and_readable_private_keys_are_refused(tmp_path):
    public = create_node_key(tmp_path / "site")
    (tmp_path / "text").write_text("no key")
    for check, path, message in (
        (check_private_key, public, "not the private key of a site"),
        (check_private_key, tmp_path / "none", "file is missing"),
        (check_public_key, tmp_path / "site", "not the public key of a site"),
        (check_public_key, tmp_path / "text", "not the public key of a site"),
        (check_certificate, tmp_path / "text", "not a certificate"),
        (check_certificate, tmp_path / "none", "file is missing"),
    ):
        with pytest.raises(RequestError, match=message):
            check(path)
    (tmp_path / "site").chmod(0o644)
    with pytest.raises(RequestError, match="other users can read this key"):
        check_private_key(tmp_path / "site")
