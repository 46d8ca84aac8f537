"""The log, the user and the systemd unit of a site."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.privacy_ledger import PrivacyLedger
from fedmosaic_cli.federation.site import HandledRequest
from fedmosaic_cli.federation.site_dir import SiteFiles, SiteLog, SiteSettings
from fedmosaic_cli.federation.systemd_unit import systemd_unit
from fedmosaic_cli.federation.usage_limits import UsageLimits, UsageRecord
from fedmosaic_cli.labels.privacy.accounting import Release
from fedmosaic_cli.storage import files
from fedmosaic_cli.storage.lock import directory_lock
from tests.federation.sites import export_shards


def test_a_full_disk_does_not_keep_a_site_from_responding(tmp_path, monkeypatch):
    log = SiteLog(SiteFiles(tmp_path), print_line=lambda line: None)
    log.on_request(HandledRequest(protocol.LOCAL_ROUND, "toy", 1, 0.1, 10))
    before = (tmp_path / "status.json").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedmosaic_cli.federation.site_dir.write_atomic", full)
        log.on_request(HandledRequest(protocol.LOCAL_ROUND, "toy", 2, 0.1, 10, "failed"))
    assert (tmp_path / "status.json").read_bytes() == before
    log.on_request(HandledRequest(protocol.LOCAL_ROUND, "toy", 3, 0.1, 10))
    assert "local round 3 of toy" in (tmp_path / "status.json").read_text()


READABLE = [Path("/home/our user/100%/client-000.npz"), Path("/srv/ca.crt"), Path("/tmp/ca.crt"), Path("/usr/lib")]
STATE_DIR = Path("/home/our user/.local/state")


@pytest.mark.parametrize(
    "line",
    [
        "User=1000",
        'ReadWritePaths="/srv/our site" "/home/our user/.local/state/fedmosaic/ledgers"',
        'BindPaths="/srv/our site" "/home/our user/.local/state/fedmosaic/ledgers"',
        'Environment="XDG_STATE_HOME=/home/our user/.local/state"',
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
    assert line in systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000, STATE_DIR, READABLE).splitlines()


def test_the_systemd_unit_shows_of_home_only_what_the_site_reads():
    lines = systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000, STATE_DIR, READABLE).splitlines()
    assert [line for line in lines if line.startswith("BindReadOnlyPaths")] == [
        'BindReadOnlyPaths="/home/our user/100%%/client-000.npz"',
        'BindReadOnlyPaths="/tmp/ca.crt"',
    ]


def test_the_systemd_unit_of_a_site_with_a_gpu_keeps_the_devices():
    assert "PrivateDevices" not in systemd_unit("/usr/bin/python3", Path("/srv/site"), 1000, STATE_DIR, has_gpu=True)


def test_the_systemd_unit_of_root_says_so():
    assert "--allow-root" in systemd_unit("/usr/bin/python3", Path("/srv/site"), 0, STATE_DIR)
    assert "--allow-root" not in systemd_unit("/usr/bin/python3", Path("/srv/site"), 1000, STATE_DIR)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_rates_the_unit_as_little_exposed(tmp_path):
    unit = tmp_path / "fedmosaic-site.service"
    unit.write_text(systemd_unit("/usr/bin/python3", Path("/srv/our site"), 1000, STATE_DIR, READABLE))
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
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

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
        "error: a site executes its coordinator's plans and must not run as root (uid 0): use another user, "
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
    assert "must not run as root" in result.stderr
    assert CliRunner().invoke(app, [*start, "--allow-root"], prog_name="fedmosaic").exit_code == 0
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert CliRunner().invoke(app, start, prog_name="fedmosaic").exit_code == 0


def test_site_init_writes_for_this_user_only_and_binds_what_the_site_reads(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.federation.systemd_unit.HIDDEN_DIRS", (tmp_path,))
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
    assert "note: other users can read this directory" in result.stderr


SETTINGS = {"shard": "/data/client-000.npz", "superlink": "fed.example.org:443", "max_epsilon": 8.0}


@pytest.fixture
def site(tmp_path) -> Path:
    """A site that has taken part in runs of two coordinators and released 300 labels."""
    folder = tmp_path / "site"
    folder.mkdir()
    SiteFiles(folder).save_settings(SiteSettings(**SETTINGS))
    usage = UsageRecord(folder / "usage.json", UsageLimits())
    for _ in range(3):
        usage.count_run("fed.example.org:443", folder / "runs")
    usage.count_steps("fed.example.org:443", 1200)
    usage.add_seconds("fed.example.org:443", 900.0)
    usage.count_run_without_noise("fed.example.org:443")
    usage.count_run("other.example.org:443", folder / "runs")
    UsageRecord(folder / "usage.json", UsageLimits(), lambda: "2020-01-01").count_run("old", folder / "runs")
    ledger = PrivacyLedger(folder / "privacy-ledger.jsonl", "data", 10, tmp_path / "anchors")
    for number in (1, 2):
        ledger.append("run", [Release(number, "krr", 150, 0.1)])
    (folder / "runs").mkdir()
    (folder / "runs" / "model").write_bytes(bytes(5_000_000))
    return folder


def site_status(folder: Path, *options: str):
    result = CliRunner().invoke(app, ["site", "status", "--site-dir", str(folder), *options], prog_name="fedmosaic")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout) if options else result.stdout.splitlines()


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


STATUS_LINES = [
    "shard: /data/client-000.npz",
    "coordinator: fed.example.org:443, authority -",
    "may upload: labels",
    "metrics: withheld (because of --max-epsilon)",
    "minima: batch size 8, learning rate 1e-06, 20 examples per metric",
    "fed.example.org:443: runs today 3 of 20, steps today 1,200 of 1,000,000, hours today 0.25 of 24",
    "other.example.org:443: runs today 1 of 20, steps today 0 of 1,000,000, hours today 0.00 of 24",
    "old: runs today 0 of 20, steps today 0 of 1,000,000, hours today 0.00 of 24",
    "disk: 0.005 of 20 GB",
]


def test_the_status_shows_policy_use_limits_and_spent_epsilon(site, tmp_path):
    before = snapshot(tmp_path)
    lines = site_status(site)
    assert lines[:-1] == ["not running", *STATUS_LINES]
    assert lines[-1].startswith("epsilon spent: 3.3")
    assert lines[-1].endswith(" of 8 at delta 1e-05, 2 releases; 1 run without noise, for which there is no epsilon")
    document = site_status(site, "--json")
    assert document["usage"]["today"]["fed.example.org:443"] == {"runs": 3, "steps": 1200, "hours": 0.25}
    assert document["usage"]["disk_gb"] == 0.005
    assert document["privacy"].pop("epsilon") == pytest.approx(3.36, abs=0.01)
    assert document["privacy"] == {"max_epsilon": 8.0, "delta": 1e-5, "releases": 2, "runs_without_noise": 1}
    assert document["settings"]["max_runs_per_day"] == 20
    assert snapshot(tmp_path) == before


def test_the_status_of_a_running_site_shows_the_settings_it_was_started_with(site, tmp_path):
    with directory_lock(site):
        log = SiteLog(SiteFiles(site), print_line=lambda line: None)
        log.on_start(SiteSettings(**{**SETTINGS, "max_epsilon": 4.0, "max_runs_per_day": 5}))
        with (site / "privacy-ledger.jsonl").open("ab") as ledger:
            ledger.write(b'{"classes": 10')  # the site is writing an entry
        before = snapshot(tmp_path)
        lines = site_status(site)
        assert snapshot(tmp_path) == before
    assert lines[0].startswith("running, process ")
    assert any(line.startswith("fed.example.org:443: runs today 3 of 5,") for line in lines)
    assert lines[-1].endswith(" of 4 at delta 1e-05, 2 releases; 1 run without noise, for which there is no epsilon")
    lines = site_status(site)
    assert lines[0] == "not running"
    assert lines[-1].endswith(" of 8 at delta 1e-05, 2 releases; 1 run without noise, for which there is no epsilon")


def test_the_status_of_an_unused_site_shows_its_limits_and_creates_no_file(tmp_path):
    SiteFiles(tmp_path).save_settings(SiteSettings(shard="client-000.npz"))
    before = snapshot(tmp_path)
    lines = site_status(tmp_path)
    assert lines[-3:] == [
        "any coordinator: runs today 0 of 20, steps today 0 of 1,000,000, hours today 0.00 of 24",
        "disk: 0.000 of 20 GB",
        "epsilon spent: 0 (no limit) at delta 1e-05, 0 releases",
    ]
    assert "metrics: rounded" in lines
    assert snapshot(tmp_path) == before


def test_the_status_refuses_a_damaged_ledger(site):
    path = site / "privacy-ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"count":150', b'"count":1', 1))
    result = CliRunner().invoke(app, ["site", "status", "--site-dir", str(site)], prog_name="fedmosaic")
    assert result.exit_code != 0
    assert result.stderr == f"error: line 2 of the privacy ledger is damaged ({path}): restore the file\n"


def test_the_status_does_not_import_torch(site):
    script = (
        "import sys\n"
        "from fedmosaic_cli.cli.app import app\n"
        "try:\n"
        f"    app(['site', 'status', '--site-dir', {str(site)!r}])\n"
        "except SystemExit as leaving:\n"
        "    assert leaving.code == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "epsilon spent" in done.stdout


def test_site_init_writes_the_limits_to_site_json(shards, tmp_path):
    assert run_site_init(tmp_path, "--allow-root").exit_code == 0
    stored = json.loads((tmp_path / "site" / "site.json").read_text())
    expected = {"max_runs_per_day": 20, "max_steps_per_day": 1_000_000, "max_hours_per_day": 24.0, "max_disk_gb": 20.0}
    expected |= {"min_batch_size": 8, "min_examples": 20, "min_lr": 1e-6, "delta": 1e-5, "max_epsilon": None}
    assert expected.items() <= stored.items()


def test_the_help_of_site_init_shows_its_options_and_examples(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = CliRunner().invoke(app, ["site", "init", "--help"], prog_name="fedmosaic").stdout
    for option in ("--shard", "--superlink", "--ca", "--allow-upload", "--max-epsilon", "--metrics"):
        assert option in text
    assert "fedmosaic site init --shard client-003.npz --max-epsilon 8" in text
