"""A log is read while somebody else writes it."""

from __future__ import annotations

import os

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.log_tail import Tail


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log.jsonl"


def write(log, text, mode="a"):
    with log.open(mode) as file:
        file.write(text)


def test_only_what_is_new_is_read(log, monkeypatch):
    read, asked = os.pread, []

    def spy(handle, count, offset):
        asked.append((count, offset))
        return read(handle, count, offset)

    monkeypatch.setattr(os, "pread", spy)
    tail = Tail(log)
    assert tail.new_lines() == (False, [])
    write(log, '{"a": 1}\n{"a": 2}\n')
    assert tail.new_lines() == (True, [{"a": 1}, {"a": 2}])
    write(log, '{"a": 3}\n')
    assert tail.new_lines() == (False, [{"a": 3}])
    assert tail.new_lines() == (False, [])
    assert asked == [(18, 0), (9, 18), (0, 27)]


def test_a_line_counts_once_it_is_written_to_the_end(log):
    tail = Tail(log)
    write(log, '{"a": 1}\n{"a"')
    assert tail.new_lines() == (True, [{"a": 1}])
    write(log, ": 2}")
    assert tail.new_lines() == (False, [])
    write(log, "\n")
    assert tail.new_lines() == (False, [{"a": 2}])


def test_a_log_that_shrank_is_read_anew(log):
    tail = Tail(log)
    write(log, '{"a": 1}\n{"a": 2}\n')
    tail.new_lines()
    write(log, '{"a": 7}\n', "w")
    assert tail.new_lines() == (True, [{"a": 7}])


def test_a_log_that_was_replaced_is_read_anew_even_if_it_is_longer(log):
    tail = Tail(log)
    write(log, '{"a": 1}\n')
    tail.new_lines()
    other = log.with_name("other")
    write(other, '{"a": 7}\n{"a": 8}\n')
    other.replace(log)
    assert tail.new_lines() == (True, [{"a": 7}, {"a": 8}])


def test_a_log_that_is_gone_is_empty_and_may_come_back(log):
    tail = Tail(log)
    write(log, '{"a": 1}\n')
    tail.new_lines()
    log.unlink()
    assert tail.new_lines() == (True, [])
    assert tail.modified is None
    assert tail.new_lines() == (False, [])
    write(log, '{"a": 1}\n')
    assert tail.new_lines() == (True, [{"a": 1}])


def test_with_a_window_the_first_look_begins_near_the_end(log):
    write(log, "".join(f'{{"a": {number}}}\n' for number in range(10, 60)))
    tail = Tail(log, window=25)
    assert tail.new_lines() == (True, [{"a": 58}, {"a": 59}])
    assert not tail.from_start
    write(log, '{"a": 60}\n')
    assert tail.new_lines() == (False, [{"a": 60}])
    whole = Tail(log, window=10**6)
    assert len(whole.new_lines()[1]) == 51
    assert whole.from_start


@pytest.mark.parametrize("line", ["nonsense", "[1]", "3", "[" * 100_000, "\x00"], ids=lambda line: line[:8])
def test_a_damaged_line_is_not_forgotten(line, log):
    tail = Tail(log)
    write(log, f'{{"a": 1}}\n{line}\n')
    for _ in range(2):
        with pytest.raises(RequestError, match="the file is damaged"):
            tail.new_lines()
        write(log, '{"a": 2}\n')
    write(log, '{"a": 3}\n', "w")
    assert tail.new_lines() == (True, [{"a": 3}])


def test_what_is_no_file_is_not_waited_for(log):
    os.mkfifo(log)
    with pytest.raises(RequestError, match="not a file"):
        Tail(log).new_lines()


def test_what_is_too_large_is_not_read(log):
    log.touch()
    os.truncate(log, 1 << 40)
    with pytest.raises(RequestError, match="too large"):
        Tail(log).new_lines()
