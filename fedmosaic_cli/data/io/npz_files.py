"""Reading npz files of others: nothing is executed, and nothing is believed before it is seen to fit."""

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
    """Those arrays that are chosen, by name, out of the names that there are.

    So many bytes may always come out of a file, and more only in proportion to its size.
    A file that is no such archive fails with an error of the libraries that read it, whichever that is.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a file")
    with zipfile.ZipFile(path) as archive:
        check_zip_expansion(archive, path, allowance_bytes)
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        return {name: read_npz_member(archive, name) for name in select_names(names)}


def read_npz_member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """One array, which is as large as its header says."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        shape, _, kind = read_npy_header(member)
        held = info.file_size - member.tell()
    if kind.hasobject or not kind.itemsize or math.prod(shape) * kind.itemsize != held:
        raise ValueError(f"'{name}' is not the array that its header tells of")
    with archive.open(info) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array


def read_npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and kind of the array that begins here."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(file)
    return shape, fortran, kind


def check_zip_expansion(archive: zipfile.ZipFile, path: Path, allowance_bytes: int | None = None) -> None:
    """Refuse an archive that would fill the memory out of next to nothing."""
    size = sum(info.file_size for info in archive.infolist())
    allowed = EXPANSION_ALLOWANCE_BYTES if allowance_bytes is None else allowance_bytes
    if size > max(allowed, MAX_EXPANSION_RATIO * path.stat().st_size):
        raise RequestError(f"{size} bytes would come out of {path.stat().st_size} ({path}): this is no data")
