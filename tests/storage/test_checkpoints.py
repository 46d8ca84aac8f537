"""Checkpoints are used only if they are intact."""

from __future__ import annotations

import numpy as np
import pytest

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.storage.checkpoints import Checkpoint, list_checkpoints, read_newest_checkpoint, write_checkpoint


def checkpoint(number: int) -> Checkpoint:
    arrays = {"a": np.full(3, number, dtype=np.float32)}
    origin = {"config": {}, "environment": {"versions": {}}, "nonidentical": []}
    return Checkpoint(number, arrays, {"b": number}, {"rounds.jsonl": b"line\n" * number}, origin)


def test_newest_checkpoint_is_read_and_two_are_kept(tmp_path):
    for number in (1, 99_999, 100_000):
        write_checkpoint(tmp_path, checkpoint(number))
    found, damaged = read_newest_checkpoint(tmp_path)
    assert (found.round, found.values, len(found.logs["rounds.jsonl"])) == (100_000, {"b": 100_000}, 500_000)
    assert damaged == {}
    assert found.arrays["a"].tolist() == [100_000] * 3
    assert [path.name for path in list_checkpoints(tmp_path)] == ["round-99999", "round-100000"]


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "state.safetensors"])
def test_damaged_checkpoint_is_skipped(tmp_path, name):
    for number in (1, 2):
        write_checkpoint(tmp_path, checkpoint(number))
    path = tmp_path / "round-00002" / name
    path.write_bytes(path.read_bytes()[:-3])
    found, damaged = read_newest_checkpoint(tmp_path)
    assert found.round == 1
    assert "round-00002" in damaged[path.parent]
    assert path.exists(), "the damaged checkpoint is evidence and stays"


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "rounds.jsonl"])
def test_checkpoint_with_a_changed_byte_is_damaged(tmp_path, name):
    for number in (1, 2):
        write_checkpoint(tmp_path, checkpoint(number))
    path = tmp_path / "round-00002" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found, damaged = read_newest_checkpoint(tmp_path)
    assert found.round == 1
    assert list(damaged) == [path.parent]


def test_no_checkpoint_is_none_and_only_damaged_ones_are_an_error(tmp_path):
    assert read_newest_checkpoint(tmp_path / "nothing") == (None, {})
    write_checkpoint(tmp_path, checkpoint(1))
    (tmp_path / "round-00001" / "state.json").unlink()
    with pytest.raises(RunStateError, match="no valid checkpoint"):
        read_newest_checkpoint(tmp_path)
