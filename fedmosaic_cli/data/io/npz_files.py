"""Reading untrusted npz files: nothing is executed, and sizes are checked before memory is allocated."""

from __future__ import annotations

import math
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from numpy.typing import NDArray

MAX_EXPANSION_RATIO = 100
EXPANSION_ALLOWANCE_BYTES = 1 << 30


def read_npz(
    path: Path,
    select_names: Callable[[Collection[str]], Collection[str]],
    allowance_bytes: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Read the arrays that `select_names` selects from the names in a file.

    The content may have `allowance_bytes`, or more in proportion to the file size. A file that is not an npz archive
    raises any exception of the libraries that read it.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a file")
    with zipfile.ZipFile(path) as archive:
        check_zip_expansion(archive, path, allowance_bytes)
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        return {name: read_npz_member(archive, name) for name in select_names(names)}


def read_npz_member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read an array whose size matches its header."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        shape, _, dtype = read_npy_header(member)
        size = info.file_size - member.tell()
    if dtype.hasobject or not dtype.itemsize or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"'{name}' does not match its header")
    with archive.open(info) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array


def read_npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, Fortran order and dtype at the start of an array."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    return shape, is_fortran, dtype


def check_zip_expansion(archive: zipfile.ZipFile, path: Path, allowance_bytes: int | None = None) -> None:
    """Raise `RequestError` for an archive that expands far beyond its size."""
    size = sum(info.file_size for info in archive.infolist())
    allowed = EXPANSION_ALLOWANCE_BYTES if allowance_bytes is None else allowance_bytes
    if size > max(allowed, MAX_EXPANSION_RATIO * path.stat().st_size):
        raise RequestError(f"{path.stat().st_size} bytes would expand to {size} ({path}): this is not a data file")
