"""Reading a log while another process writes it."""

from __future__ import annotations

import os

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.log_tail import LogTail


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.jsonl"


def write(log, text, mode="a"):
    with log.open(mode) as file:
        file.write(text)


def test_only_new_lines_are_read(log, monkeypatch):
    read, asked = os.pread, []

    def spy(handle, count, offset):
        asked.append((count, offset))
        return read(handle, count, offset)

    monkeypatch.setattr(os, "pread", spy)
    tail = LogTail(log)
    assert tail.read_new_lines() == (False, [])
    write(log, '{"a": 1}\n{"a": 2}\n')
    assert tail.read_new_lines() == (True, [{"a": 1}, {"a": 2}])
    write(log, '{"a": 3}\n')
    assert tail.read_new_lines() == (False, [{"a": 3}])
    assert tail.read_new_lines() == (False, [])
    assert asked == [(18, 0), (9, 18), (0, 27)]


def test_incomplete_line_is_not_read(log):
    tail = LogTail(log)
    write(log, '{"a": 1}\n{"a"')
    assert tail.read_new_lines() == (True, [{"a": 1}])
    write(log, ": 2}")
    assert tail.read_new_lines() == (False, [])
    write(log, "\n")
    assert tail.read_new_lines() == (False, [{"a": 2}])


def test_truncated_log_is_read_from_the_start(log):
    tail = LogTail(log)
    write(log, '{"a": 1}\n{"a": 2}\n')
    tail.read_new_lines()
    write(log, '{"a": 7}\n', "w")
    assert tail.read_new_lines() == (True, [{"a": 7}])


def test_replaced_log_is_read_from_the_start(log):
    tail = LogTail(log)
    write(log, '{"a": 1}\n')
    tail.read_new_lines()
    other = log.with_name("other")
    write(other, '{"a": 7}\n{"a": 8}\n')
    other.replace(log)
    assert tail.read_new_lines() == (True, [{"a": 7}, {"a": 8}])


def test_deleted_log_is_empty_until_recreated(log):
    tail = LogTail(log)
    write(log, '{"a": 1}\n')
    tail.read_new_lines()
    log.unlink()
    assert tail.read_new_lines() == (True, [])
    assert tail.modified_at is None
    assert tail.read_new_lines() == (False, [])
    write(log, '{"a": 1}\n')
    assert tail.read_new_lines() == (True, [{"a": 1}])


def test_initial_bytes_limit_the_first_read(log):
    write(log, "".join(f'{{"a": {number}}}\n' for number in range(10, 60)))
    tail = LogTail(log, initial_bytes=25)
    assert tail.read_new_lines() == (True, [{"a": 58}, {"a": 59}])
    assert not tail.is_complete
    write(log, '{"a": 60}\n')
    assert tail.read_new_lines() == (False, [{"a": 60}])
    whole = LogTail(log, initial_bytes=10**6)
    assert len(whole.read_new_lines()[1]) == 51
    assert whole.is_complete


@pytest.mark.parametrize("line", ["nonsense", "[1]", "3", "[" * 100_000, "\x00"], ids=lambda line: line[:8])
def test_damaged_line_fails_every_read(line, log):
    tail = LogTail(log)
    write(log, f'{{"a": 1}}\n{line}\n')
    for _ in range(2):
        with pytest.raises(RequestError, match="the file is damaged"):
            tail.read_new_lines()
        write(log, '{"a": 2}\n')
    write(log, '{"a": 3}\n', "w")
    assert tail.read_new_lines() == (True, [{"a": 3}])


def test_pipe_is_refused(log):
    os.mkfifo(log)
    with pytest.raises(RequestError, match="not a file"):
        LogTail(log).read_new_lines()


def test_too_large_log_is_refused(log):
    log.touch()
    os.truncate(log, 1 << 40)
    with pytest.raises(RequestError, match="too large"):
        LogTail(log).read_new_lines()
