"""Files are complete or absent, and a failed writer leaves nothing behind."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage import syscalls
from fedmosaic_cli.storage.files import (
    atomic_directory,
    locked_temporaries,
    read_checksummed_json,
    read_json,
    to_checksummed_json,
    write_atomic,
    write_new_file,
)


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_file_is_unchanged_if_writing_its_new_content_fails(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.EIO, "disk failure")

    write_atomic(tmp_path / "file", b"old")
    with monkeypatch.context() as patched:
        patched.setattr(syscalls, call, fail)
        with pytest.raises(OSError, match="disk failure"):
            write_atomic(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_unfinished_directory_is_removed(tmp_path):
    def half() -> None:
        with atomic_directory(tmp_path / "folder") as folder:
            (folder / "file").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert list(tmp_path.iterdir()) == []


def test_writers_do_not_remove_each_others_temporaries(tmp_path):
    """A temporary is unlocked for an instant after its creation."""

    def work(writer: int) -> None:
        for number in range(60):
            with atomic_directory(tmp_path / f"{writer}-{number}") as folder:
                write_new_file(folder / "file", b"content")
            write_atomic(tmp_path / f"{writer}-{number}.txt", b"content")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(list(tmp_path.iterdir())) == 2 * 4 * 60


def test_only_stale_temporaries_are_removed(tmp_path):
    left = tmp_path / ".file.0123456789ab.part"
    left.write_bytes(b"half")
    foreign = tmp_path / ".download.part"
    foreign.write_bytes(b"somebody else's")
    with locked_temporaries([tmp_path / "file"]) as [(_, alive)]:
        write_atomic(tmp_path / "other", b"new")
        assert alive.exists()
        assert not left.exists()
        alive.unlink()
    assert foreign.exists()


def test_any_flipped_bit_fails_the_checksum(tmp_path):
    path = tmp_path / "document.json"
    write_atomic(path, to_checksummed_json({"number": 1e-05, "text": "e"}))
    assert read_checksummed_json(path) == {"number": 1e-05, "text": "e"}
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(RequestError):
                read_checksummed_json(path)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, "", "\xff"])
def test_invalid_json_is_refused(tmp_path, text):
    (tmp_path / "file.json").write_text(text, encoding="latin-1")
    with pytest.raises(RequestError, match="not valid JSON"):
        read_json(tmp_path / "file.json")
