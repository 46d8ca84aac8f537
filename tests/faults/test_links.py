"""Symbolic links inside run and shard directories: nothing outside is read, changed or removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage import checkpoints, syscalls
from fedmosaic_cli.storage.lock import LOCK_FILE, directory_lock, is_locked
from tests.faults.conftest import EVALUATE, RUN, TRAIN, results

LONGER = (*TRAIN, "--rounds", "5")
REFUSAL = "symbolic links are not used here"


@pytest.fixture
def home(reference_run, tmp_path) -> Path:
    """Return a copy of a finished run, in the working directory of the commands."""
    shutil.copytree(reference_run, tmp_path, dirs_exist_ok=True)
    return tmp_path


def replace_by_link(path: Path, target: Path) -> Path:
    """Move a file or directory away and leave a link to it."""
    shutil.move(path, target)
    path.symlink_to(target)
    return target


def test_resume_does_not_write_through_a_linked_lock_file(home, run_command):
    victim = home / "victim.txt"
    victim.write_text("kept")
    (home / RUN / LOCK_FILE).symlink_to(victim)
    result = run_command(*LONGER)
    assert victim.read_text() == "kept"
    assert result.exit_code == 2
    assert result.stderr == f"error: {REFUSAL} ({RUN / LOCK_FILE}): replace it by what it points to, or remove it\n"


def test_a_lock_does_not_follow_a_link(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(victim)
    assert not is_locked(tmp_path / "run")
    with pytest.raises(RequestError, match=REFUSAL), directory_lock(tmp_path / "run"):
        pass
    with pytest.raises(OSError, match="symbolic"):
        syscalls.open_append(tmp_path / "run" / LOCK_FILE)
    assert victim.read_text() == "kept"


def test_rotation_does_not_remove_files_behind_a_linked_checkpoints_directory(home, run_command):
    foreign = replace_by_link(home / RUN / "checkpoints", home / "foreign")
    (foreign / "round-00001").mkdir()
    (foreign / "round-00001" / "thesis.tex").write_text("kept")
    before = sorted(foreign.rglob("*"))
    result = run_command(*LONGER)
    assert sorted(foreign.rglob("*")) == before
    assert result.exit_code == 2
    assert f"{REFUSAL} ({RUN / 'checkpoints'})" in result.stderr


def test_a_checkpoint_is_not_written_to_a_linked_directory(tmp_path):
    foreign = tmp_path / "foreign"
    (foreign / "round-00001").mkdir(parents=True)
    (tmp_path / "checkpoints").symlink_to(foreign)
    metadata = {"config": {}, "environment": {"versions": {}}, "nonidentical": []}
    with pytest.raises(RequestError, match=REFUSAL):
        checkpoints.write_checkpoint(tmp_path / "checkpoints", checkpoints.Checkpoint(9, {}, {}, {}, metadata))
    assert [path.name for path in foreign.iterdir()] == ["round-00001"]


@pytest.mark.parametrize(
    "name", ["config.yaml", "rounds.jsonl", "models", "models/client-000.safetensors", "tensorboard"]
)
@pytest.mark.parametrize("command", [LONGER, EVALUATE], ids=["train", "evaluate"])
def test_links_inside_a_run_directory_are_refused(home, run_command, name, command):
    (home / RUN / "tensorboard").mkdir()
    replace_by_link(home / RUN / name, home / "elsewhere")
    result = run_command(*command)
    assert result.exit_code == 2
    assert f"{REFUSAL} ({RUN / name})" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["manifest.json", "public.npz", "client-001.npz"])
def test_linked_shard_files_are_refused(home, run_command, name):
    replace_by_link(home / "shards" / name, home / "elsewhere")
    result = run_command(*LONGER)
    assert result.exit_code == 2
    assert f"{REFUSAL} (shards/{name})" in result.stderr


def test_a_run_directory_may_be_reached_through_links(home, run_command):
    """A link to the whole directory, or in a parent's path, changes nothing."""
    replace_by_link(home / "runs", home / "disk")
    replace_by_link(home / "shards", home / "shards-on-disk")
    run = home / "disk" / RUN.relative_to("runs")
    replace_by_link(run, home / "seed-on-another-disk")
    assert run_command(*TRAIN).exit_code == 0
    result = run_command(*LONGER)
    assert result.exit_code == 0, result.stderr
    assert "5/5" in result.stderr
    assert run_command(*EVALUATE).exit_code == 0
    assert results(home)
