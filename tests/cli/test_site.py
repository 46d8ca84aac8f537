"""The log, the user and the systemd unit of a site."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.federation.site import HandledRequest
from fedmosaic_cli.federation.site_dir import SiteFiles, SiteLog, systemd_unit
from fedmosaic_cli.storage import files
from tests.federation.sites import export_shards


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


READABLE = [Path("/home/our user/100%/client-000.npz"), Path("/srv/ca.crt"), Path("/tmp/ca.crt"), Path("/usr/lib")]


@pytest.mark.parametrize(
    "line",
    [
        "User=1000",
        'ReadWritePaths="/srv/our site"',
        'BindPaths="/srv/our site"',
        'BindReadOnlyPaths="/home/our user/100%%/client-000.npz"',
        'BindReadOnlyPaths="/tmp/ca.crt"',
        "Restart=always",
        "UMask=0077",
        "ProtectHome=tmpfs",
        "PrivateDevices=yes",
        "CapabilityBoundingSet=",
        "SystemCallFilter=@system-service",
    ],
)
def test_the_systemd_unit_restricts_user_paths_and_system_calls(line):
    assert line in systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000, READABLE).splitlines()


def test_the_systemd_unit_shows_of_home_only_what_the_site_reads():
    lines = systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000, READABLE).splitlines()
    assert [line for line in lines if line.startswith("BindReadOnlyPaths")] == [
        'BindReadOnlyPaths="/home/our user/100%%/client-000.npz"',
        'BindReadOnlyPaths="/tmp/ca.crt"',
    ]


def test_the_systemd_unit_of_a_site_with_a_gpu_keeps_the_devices():
    assert "PrivateDevices" not in systemd_unit("/usr/bin/python3", Path("/srv/site"), 1000, has_gpu=True)


def test_the_systemd_unit_of_root_says_so():
    assert "--allow-root" in systemd_unit("/usr/bin/python3", Path("/srv/site"), 0)
    assert "--allow-root" not in systemd_unit("/usr/bin/python3", Path("/srv/site"), 1000)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_rates_the_unit_as_little_exposed(tmp_path):
    unit = tmp_path / "fedmosaic-site.service"
    unit.write_text(systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000, READABLE))
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=25", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this version of systemd-analyze reads no unit files")
    assert done.returncode == 0, done.stdout + done.stderr


def run_site_init(folder: Path, *options: str):
    shard = folder / "shards" / "client-000.npz"
    arguments = ["site", "init", "--shard", str(shard), "--site-dir", str(folder / "site"), *options]
    return CliRunner().invoke(app, arguments, prog_name="fedmosaic")


@pytest.fixture
def shards(tmp_path, monkeypatch) -> Path:
    """Exported shards, and keys without cryptography."""
    monkeypatch.setattr("fedmosaic_cli.runner.prepare.partition_plots", lambda manifest: {})

    def create_node_key(path):
        files.make_directories(path.parent)
        files.write_new_file(path, b"a key")

    monkeypatch.setattr("fedmosaic_cli.federation.flower.keys.create_node_key", create_node_key)
    return export_shards(tmp_path).path


def test_a_site_refuses_to_be_set_up_by_root(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    result = run_site_init(tmp_path)
    assert result.exit_code == 2
    assert result.stderr == (
        "error: a site does what its coordinator plans and must not do it as root (uid 0): use another user, "
        "or add --allow-root\n"
    )
    assert not (tmp_path / "site").exists()
    assert run_site_init(tmp_path, "--allow-root").exit_code == 0


def test_a_site_refuses_to_be_started_by_root(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("fedmosaic_cli.federation.flower.flwr_commands.require_flower", lambda *_: "1.41")
    monkeypatch.setattr("fedmosaic_cli.cli.site.run_site", lambda *_: None)
    shard = str(shards / "client-000.npz")
    start = ["site", "start", "--shard", shard, "--site-dir", str(tmp_path / "site"), "--insecure"]
    start += ["--superlink", "127.0.0.1:9"]
    result = CliRunner().invoke(app, start, prog_name="fedmosaic")
    assert result.exit_code == 2
    assert "must not do it as root" in result.stderr
    assert CliRunner().invoke(app, [*start, "--allow-root"], prog_name="fedmosaic").exit_code == 0
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert CliRunner().invoke(app, start, prog_name="fedmosaic").exit_code == 0


def test_site_init_writes_for_this_user_only_and_binds_what_the_site_reads(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.federation.site_dir.HIDDEN_DIRS", (tmp_path,))
    assert run_site_init(tmp_path, "--allow-root").exit_code == 0
    site = tmp_path / "site"
    assert {path.stat().st_mode & 0o777 for path in site.iterdir()} == {0o600}
    assert site.stat().st_mode & 0o777 == 0o700
    unit = SiteFiles(site).unit_path.read_text()
    for name in ("client-000.npz", "manifest.json", "public.npz"):
        assert f'BindReadOnlyPaths="{shards / name}"' in unit
    assert "client-001.npz" not in unit


def test_site_init_notes_a_directory_that_others_can_read(shards, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site").chmod(0o755)
    result = run_site_init(tmp_path, "--allow-root")
    assert result.exit_code == 0
    assert "note: other users can look into this directory" in result.stderr
