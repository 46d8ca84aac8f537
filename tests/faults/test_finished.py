"""`--resume` of a finished run writes nothing, so that it works on read-only media."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from fedmosaic_cli.storage import syscalls
from tests.faults.conftest import RUN, TRAIN
from tests.faults.faulty_disk import REQUESTS


@pytest.fixture
def home(reference_run, tmp_path):
    shutil.copytree(reference_run, tmp_path, dirs_exist_ok=True)
    return tmp_path


def snapshot(folder):
    """Return the times of the last change and of the last change of a name, for files and directories."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in (folder, *folder.rglob("*"))}


def test_resume_of_a_finished_run_touches_nothing(home, run_command):
    before = snapshot(home / "runs")
    result = run_command(*TRAIN)
    assert result.exit_code == 0, result.stderr
    assert snapshot(home / "runs") == before
    assert "fedmosaic" in result.stdout


def test_resume_of_a_finished_run_works_on_read_only_media(home, run_command, monkeypatch):
    def read_only(*arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(arguments[0]))

    for name in REQUESTS:
        monkeypatch.setattr(syscalls, name, read_only)
    monkeypatch.setattr(syscalls, "free_bytes", lambda path: 0)
    shutil.rmtree(home / RUN / "checkpoints")
    result = run_command(*TRAIN)
    assert result.exit_code == 0, result.stderr


def test_a_finished_run_with_a_damaged_file_is_still_repaired(home, run_command):
    path = home / RUN / "rounds.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    result = run_command(*TRAIN)
    assert result.exit_code == 0, result.stderr
    assert "missing or damaged" in result.stderr
    assert path.read_bytes() == content
    assert not (home / RUN / ".lock").exists()


def test_a_finished_run_that_changes_during_the_command_is_not_continued_without_a_lock(home, run_command, monkeypatch):
    from fedmosaic_cli.cli import train

    real = train.check_resources

    def check_resources(*arguments):
        (home / RUN / "summary.json").unlink()  # as another process does that continues the run
        return real(*arguments)

    monkeypatch.setattr(train, "check_resources", check_resources)
    result = run_command(*TRAIN)
    assert result.exit_code == 3
    assert "another process changed this finished run" in result.stderr
