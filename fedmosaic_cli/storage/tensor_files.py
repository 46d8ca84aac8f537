"""Tensors in the format of safetensors, written and read one at a time.

The bytes equal those of `safetensors.numpy.save`, which needs all tensors in memory three times.
"""

from __future__ import annotations

import json
import os
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.generic]

FORMAT_NAMES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The names of types in a header. Tensors are in the order of this table, then of their names."""
LENGTH_BYTES = 8
BLOCK_BYTES = 1 << 20


class TensorSpec(NamedTuple):
    """Type and shape of a tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class TensorSource(Mapping[str, "Array"]):
    """Tensors by name that are loaded when they are accessed."""

    @abstractmethod
    def spec(self, name: str) -> TensorSpec:
        """Return type and shape of a tensor without loading it."""


@dataclass(frozen=True)
class TensorLayout:
    """The header of a file, and where each tensor is, in the order of the file."""

    header: bytes
    offsets: dict[str, int]
    specs: dict[str, TensorSpec]
    num_bytes: int


def tensor_layout(specs: Mapping[str, TensorSpec]) -> TensorLayout:
    """Return the layout of a file with these tensors."""
    order = {dtype: rank for rank, dtype in enumerate(FORMAT_NAMES)}
    entries, offsets, end = {}, {}, 0
    for name in sorted(specs, key=lambda name: (order[specs[name].dtype.name], name)):
        spec = specs[name]
        start, end = end, end + spec.num_bytes
        offsets[name] = start
        entries[name] = {
            "dtype": FORMAT_NAMES[spec.dtype.name],
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    header = len(text).to_bytes(LENGTH_BYTES, "little") + text
    return TensorLayout(
        header,
        {name: len(header) + offset for name, offset in offsets.items()},
        {name: specs[name] for name in offsets},
        len(header) + end,
    )


def layout_of(arrays: Mapping[str, Array]) -> TensorLayout:
    """Return the layout of a file with these tensors."""
    if isinstance(arrays, TensorSource):
        return tensor_layout({name: arrays.spec(name) for name in arrays})
    return tensor_layout({name: TensorSpec(array.dtype, array.shape) for name, array in arrays.items()})


def tensor_blocks(arrays: Mapping[str, Array], layout: TensorLayout) -> Iterator[bytes | memoryview]:
    """Yield the content of a file. Small tensors are joined; large tensors are yielded without a copy."""

    def parts() -> Iterator[bytes | memoryview]:
        yield layout.header
        for name in layout.offsets:
            yield np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data

    return joined(parts())


def joined(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Join small parts to blocks of about `BLOCK_BYTES`."""
    block = bytearray()
    for part in parts:
        if len(block) + len(part) > BLOCK_BYTES:
            if block:
                yield bytes(block)
            block = bytearray()
        if len(part) > BLOCK_BYTES:
            yield part
        else:
            block += part
    if block:
        yield bytes(block)


class TensorFile(TensorSource):
    """The tensors of a file. Each access reads one tensor from the disk. A file that changes is an error.

    Args:
        path: The file.
        expected: Its status when its digest was checked; None if it was not.
        keep_open: Keep the file open, so that it can be read after its name is removed. Otherwise each access opens it:
            a process may have about a thousand open files.

    Raises:
        OSError: The file cannot be read.
        RequestError: The file does not have the header that belongs to its tensors, or is not the checked one.
    """

    def __init__(self, path: Path, expected: os.stat_result | None = None, keep_open: bool = True) -> None:
        self._path = path
        fd = open_for_reading(path)
        close = weakref.finalize(self, os.close, fd)
        self._version = file_version(os.fstat(fd) if expected is None else expected)
        self._layout = read_layout(fd, path)
        self._require_unchanged(fd)
        self._fd = fd if keep_open else None
        if not keep_open:
            close()

    def spec(self, name: str) -> TensorSpec:
        return self._layout.specs[name]

    def __getitem__(self, name: str) -> Array:
        spec = self._layout.specs[name]
        array = np.empty(spec.shape, spec.dtype)
        rest = array.reshape(-1).view(np.uint8).data
        position = self._layout.offsets[name]
        with self._opened() as fd:
            while rest:
                count = os.preadv(fd, [rest], position)
                if not count:
                    raise RequestError(f"the file ends too early ({self._path}): it was changed or is damaged")
                rest, position = rest[count:], position + count
            self._require_unchanged(fd)
        return array

    @contextmanager
    def _opened(self) -> Iterator[int]:
        if self._fd is not None:
            yield self._fd
            return
        fd = open_for_reading(self._path)
        try:
            yield fd
        finally:
            os.close(fd)

    def _require_unchanged(self, fd: int) -> None:
        if file_version(os.fstat(fd)) != self._version:
            raise RequestError(f"the file changed while it was read ({self._path}): repeat the command")

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.offsets)

    def __len__(self) -> int:
        return len(self._layout.offsets)


def open_for_reading(path: Path) -> int:
    """Open a file, but not through a symbolic link, and return its descriptor."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def file_version(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what differs if a file was replaced or written."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def read_layout(fd: int, path: Path) -> TensorLayout:
    """Read the header of an open file and check that it is the one that `tensor_layout` makes for its tensors."""
    types = {name: np.dtype(dtype) for dtype, name in FORMAT_NAMES.items()}
    problem = RequestError(f"not a file of tensors ({path}): it was changed or is damaged")
    with open(fd, "rb", closefd=False) as file:
        size = os.fstat(fd).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > size - LENGTH_BYTES:
            raise problem
        text = file.read(length)
    try:
        entries = json.loads(text)
        specs = {
            name: TensorSpec(types[entry["dtype"]], tuple(map(int, entry["shape"]))) for name, entry in entries.items()
        }
        layout = tensor_layout(specs)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise problem from None
    if layout.header[LENGTH_BYTES:] != text or layout.num_bytes != size:
        raise problem
    return layout
