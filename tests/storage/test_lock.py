"""One writer a directory; whoever merely asks is in nobody's way."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.storage.lock import LOCK_FILE, directory_lock, is_locked


def test_a_lock_is_held_while_somebody_writes_and_not_after(tmp_path):
    folder = tmp_path / "run"
    assert not is_locked(folder)
    assert not folder.exists()
    with directory_lock(folder):
        assert is_locked(folder)
        with pytest.raises(RunStateError, match="another process is writing here, process"), directory_lock(folder):
            pass
    assert not is_locked(folder)


def test_a_lock_file_that_was_left_behind_holds_nothing(tmp_path):
    (tmp_path / LOCK_FILE).write_text("left behind")
    assert not is_locked(tmp_path)
    assert (tmp_path / LOCK_FILE).read_text() == "left behind"


def test_whoever_asks_keeps_nobody_from_beginning(tmp_path):
    """The question takes the lock for an instant; here the instant is a long one."""
    (tmp_path / LOCK_FILE).write_text("left behind")
    asking = os.open(tmp_path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    answered = threading.Timer(0.03, os.close, [asking])
    answered.start()
    with directory_lock(tmp_path):
        assert is_locked(tmp_path)
    answered.join()


def test_others_may_ask_at_the_same_time(tmp_path):
    (tmp_path / LOCK_FILE).write_text("left behind")
    asking = os.open(tmp_path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    assert not is_locked(tmp_path)
    os.close(asking)
