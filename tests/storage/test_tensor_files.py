"""Tensors written one by one give the bytes of safetensors, and only such files are read."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.checkpoint_state import StateArrays
from fedmosaic_cli.storage import tensor_files
from fedmosaic_cli.storage.checkpoints import Checkpoint, read_newest_checkpoint, write_checkpoint
from fedmosaic_cli.storage.tensor_files import (
    FORMAT_NAMES,
    TensorFile,
    TensorSource,
    TensorSpec,
    layout_of,
    tensor_blocks,
)

pytestmark = pytest.mark.unit

TYPES = [np.dtype(name) for name in FORMAT_NAMES]
TENSORS = st.sampled_from(TYPES).flatmap(
    lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=6).filter("__metadata__".__ne__)


def content(arrays):
    return b"".join(tensor_blocks(arrays, layout_of(arrays)))


@given(st.dictionaries(NAMES, TENSORS, max_size=6))
@settings(max_examples=60, deadline=None)
def test_bytes_equal_those_of_safetensors(arrays):
    assert content(arrays) == safetensors.numpy.save(arrays)


@pytest.mark.parametrize("block", [1, 7, 100, 1 << 20])
def test_bytes_do_not_depend_on_the_block_size(monkeypatch, block):
    arrays = {dtype.name: np.arange(9).astype(dtype) for dtype in TYPES} | {"view": np.arange(12.0).reshape(3, 4).T}
    monkeypatch.setattr(tensor_files, "BLOCK_BYTES", block)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    assert content(arrays) == safetensors.numpy.save(contiguous)


def test_state_of_tensors_in_any_memory_order_is_written_like_arrays():
    tensors = {
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(1),
        "view": torch.arange(6).view(2, 3).T,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "expanded": torch.zeros(1).expand(3),
    }
    arrays = {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}
    assert content(StateArrays(tensors)) == safetensors.numpy.save(arrays)


@given(st.dictionaries(NAMES, TENSORS, max_size=4))
@settings(max_examples=30, deadline=None)
def test_what_was_written_is_read(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("tensors") / "state.safetensors"
    path.write_bytes(content(arrays))
    found = TensorFile(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found.spec(name) == TensorSpec(array.dtype, array.shape)
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


HEADERS = [
    b"[]",
    b"{}x",
    b'{"a":1}',
    b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
    b'{"a":{"dtype":"F9","shape":[1],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
    b'{"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}}',
    b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("header", HEADERS)
def test_other_headers_are_refused(tmp_path, header):
    path = tmp_path / "state.safetensors"
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(RequestError, match="not a file of tensors"):
        TensorFile(path)


@pytest.mark.parametrize("size", [0, 3, 8, 40, -1])
def test_a_shorter_file_is_refused(tmp_path, size):
    path = tmp_path / "state.safetensors"
    path.write_bytes(content({"a": np.zeros(3)})[:size])
    with pytest.raises(RequestError, match="not a file of tensors"):
        TensorFile(path)


class MadeOnAccess(TensorSource):
    """Tensors that exist only while they are used, like those on a GPU."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def spec(self, name: str) -> TensorSpec:
        return TensorSpec(np.dtype("float32"), (self.size,))

    def __getitem__(self, name: str) -> np.ndarray:
        return np.full(self.size, int(name), np.float32)

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self.count))

    def __len__(self) -> int:
        return self.count


def test_a_checkpoint_is_written_and_read_without_a_second_copy_of_its_state(tmp_path):
    count, size = 20, 500_000
    origin = {"config": {}, "environment": {"versions": {}}, "nonidentical": []}
    tracemalloc.start()
    try:
        write_checkpoint(tmp_path, Checkpoint(1, MadeOnAccess(count, size), {}, {}, origin))
        found, _ = read_newest_checkpoint(tmp_path)
        assert [float(found.arrays[str(number)].mean()) for number in range(count)] == list(range(count))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 4 * size, "at most a few of the 20 tensors are in memory at a time"


@pytest.mark.parametrize("keep_open", [True, False])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, keep_open):
    path = tmp_path / "state.safetensors"
    path.write_bytes(safetensors.numpy.save({"a": np.zeros(3), "b": np.ones(3)}))
    tensors = TensorFile(path, keep_open=keep_open)
    assert tensors["a"].tolist() == [0, 0, 0]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x01")
    os.utime(path, ns=(1, 1))
    with pytest.raises(RequestError, match="changed while it was read"):
        _ = tensors["b"]


def test_a_file_that_is_removed_can_still_be_read(tmp_path):
    path = tmp_path / "state.safetensors"
    path.write_bytes(safetensors.numpy.save({"a": np.zeros(3)}))
    tensors = TensorFile(path)
    path.unlink()
    assert tensors["a"].tolist() == [0, 0, 0]


def test_a_file_that_was_replaced_since_its_digest_was_checked_is_refused(tmp_path):
    path, other = tmp_path / "state.safetensors", tmp_path / "other"
    for file in (path, other):
        file.write_bytes(safetensors.numpy.save({"a": np.zeros(3)}))
    checked = path.stat()
    other.replace(path)
    with pytest.raises(RequestError, match="changed while it was read"):
        TensorFile(path, checked)


def test_the_header_is_read_from_the_file_that_was_opened(tmp_path, monkeypatch):
    path, other = tmp_path / "state.safetensors", tmp_path / "other"
    path.write_bytes(safetensors.numpy.save({"a": np.zeros(3)}))
    other.write_bytes(safetensors.numpy.save({"b": np.ones(3)}))
    open_file = os.open

    def open_and_replace(*arguments):
        fd = open_file(*arguments)
        other.replace(path)
        return fd

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_and_replace)
        tensors = TensorFile(path)
    assert {name: array.tolist() for name, array in tensors.items()} == {"a": [0, 0, 0]}
