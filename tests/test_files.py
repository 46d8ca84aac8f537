"""A file is there whole or not at all, and a failed writer leaves nothing behind."""

from __future__ import annotations

import io

import pytest

from fedmosaic_cli.files import new_directory, write, write_stream


class Breaks(io.BytesIO):
    """Content that cannot be read to its end."""

    def read(self, size=-1):
        if self.tell():
            raise OSError("the source is gone")
        return super().read(3)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path):
    write(tmp_path / "file", b"old")
    with pytest.raises(OSError, match="gone"):
        write_stream(tmp_path / "file", Breaks(b"new content"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_a_directory_that_was_not_finished_is_no_directory(tmp_path):
    def half() -> None:
        with new_directory(tmp_path / "folder") as folder:
            (folder / "file").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert list(tmp_path.iterdir()) == []
