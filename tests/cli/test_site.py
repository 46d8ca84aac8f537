"""The log and the systemd unit of a site."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fedmosaic_cli.federation.site import HandledRequest
from fedmosaic_cli.federation.site_dir import SiteFiles, SiteLog, systemd_unit


def test_a_full_disk_does_not_keep_a_site_from_responding(tmp_path, monkeypatch):
    log = SiteLog(SiteFiles(tmp_path), print_line=lambda line: None)
    log.on_request(HandledRequest("turn", "toy", 1, 0.1, 10))
    before = (tmp_path / "status.json").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedmosaic_cli.federation.site_dir.write_atomic", full)
        log.on_request(HandledRequest("turn", "toy", 2, 0.1, 10, "failed"))
    assert (tmp_path / "status.json").read_bytes() == before
    log.on_request(HandledRequest("turn", "toy", 3, 0.1, 10))
    assert "turn 3 of toy" in (tmp_path / "status.json").read_text()


@pytest.mark.parametrize("line", ["User=1000", 'ReadWritePaths="/srv/our site"', "Restart=always"])
def test_the_systemd_unit_restricts_user_and_writable_paths(line):
    assert line in systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000).splitlines()
