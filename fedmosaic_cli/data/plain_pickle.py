"""Reading the pickles that others publish data in, without running what may be hidden in them.

CIFAR-10 comes as pickles, PFLlib's splits hold one inside an npz, FedBN's lists are pickled. A pickle may call anything
that can be imported; this reader knows the handful of names that plain arrays need, and refuses all others.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

ARRAY_PARTS = {
    (module, name)
    for core in ("numpy.core.multiarray", "numpy._core.multiarray")
    for module, name in ((core, "_reconstruct"), (core, "scalar"), ("numpy", "ndarray"), ("numpy", "dtype"))
} | {("_codecs", "encode")}


class PlainUnpickler(pickle.Unpickler):
    """Builds containers, numbers, texts and arrays; nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def read_pickle(path: Path) -> Any:
    """The plain content of a pickle. Texts of Python 2 become bytes."""
    with path.open("rb") as file:
        return unpickle(file, path)


def read_pickled_member(path: Path, member: str) -> Any:
    """The plain content of an object that was saved as one `member` of an npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            file = io.BytesIO(archive.read(f"{member}.npy"))
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise RequestError(f"not an npz file with '{member}' in it ({path}): {error}") from None
    if dtype != np.dtype(object) or shape != ():
        raise RequestError(f"'{member}' holds {dtype} {shape}, not one object ({path}): this is another format")
    return unpickle(file, path).item()


def unpickle(file: BinaryIO, path: Path) -> Any:
    try:
        return PlainUnpickler(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle fails in any way it likes
        raise RequestError(f"not a plain pickle: {error} ({path}): fetch the file anew") from None
