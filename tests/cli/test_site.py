"""What a site says of itself, and what keeps it running."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fedmosaic_cli.cli.site_log import SiteLog
from fedmosaic_cli.federation.site import HandledRequest
from fedmosaic_cli.federation.site_dir import SiteFiles, systemd_unit


def test_a_full_disk_does_not_end_a_site_that_has_an_answer(tmp_path, monkeypatch):
    diary = SiteLog(SiteFiles(tmp_path), quiet=True)
    diary.on_request(HandledRequest("turn", "toy", 1, 0.1, 10))
    before = (tmp_path / "status.json").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedmosaic_cli.federation.site_dir.write_atomic", full)
        diary.on_request(HandledRequest("turn", "toy", 2, 0.1, 10, "failed"))
    assert (tmp_path / "status.json").read_bytes() == before
    diary.on_request(HandledRequest("turn", "toy", 3, 0.1, 10))
    assert "turn 3 of toy" in (tmp_path / "status.json").read_text()


@pytest.mark.parametrize("line", ["User=1000", 'ReadWritePaths="/srv/our site"', "Restart=always"])
def test_systemd_runs_a_site_as_whoever_made_it_and_lets_it_write_nowhere_else(line):
    assert line in systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000).splitlines()
