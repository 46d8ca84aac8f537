"""One writer per directory; checking the lock does not block a writer."""

from __future__ import annotations

import fcntl
import os

import pytest

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.storage import lock
from fedmosaic_cli.storage.lock import LOCK_FILE, directory_lock, is_locked


def test_lock_is_held_within_the_context_only(tmp_path):
    folder = tmp_path / "run"
    assert not is_locked(folder)
    assert not folder.exists()
    with directory_lock(folder):
        assert is_locked(folder)
        with pytest.raises(RunStateError, match="another process is writing here, process"), directory_lock(folder):
            pass
    assert not is_locked(folder)


def test_stale_lock_file_does_not_lock(tmp_path):
    (tmp_path / LOCK_FILE).write_text("left behind")
    assert not is_locked(tmp_path)
    assert (tmp_path / LOCK_FILE).read_text() == "left behind"


def test_is_locked_does_not_block_a_writer(tmp_path, monkeypatch):
    """Checking takes a shared lock, here for longer than a writer waits."""
    (tmp_path / LOCK_FILE).write_text("left behind")
    asking = os.open(tmp_path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    answers = []

    def finish_asking(folder):
        answers.append(is_locked(folder))
        os.close(asking)
        return answers[-1]

    monkeypatch.setattr(lock, "is_locked", finish_asking)
    with directory_lock(tmp_path):
        assert answers == [False]
        assert is_locked(tmp_path)


def test_is_locked_ignores_other_readers(tmp_path):
    (tmp_path / LOCK_FILE).write_text("left behind")
    asking = os.open(tmp_path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    assert not is_locked(tmp_path)
    os.close(asking)
