"""Reading idx files, the format of MNIST and its relatives, compressed with gzip or not."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

IDX_UNSIGNED_BYTE = 8
# The largest published file, the training images of EMNIST by class, has 547 MB. A hostile one may expand without end.
MAX_IDX_BYTES = 1 << 30


def find_idx_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file, compressed or not."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the bytes of an idx file: two zeros, the type, the number of dimensions, the shape, the values.

    Raises:
        RequestError: The file cannot be read, or its length is not that of its header.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:3] != bytes([0, 0, IDX_UNSIGNED_BYTE]):
                raise RequestError(f"not an idx file of bytes ({path}): download the file again")
            header = file.read(4 * start[3])
            shape = tuple(np.frombuffer(header, ">u4").tolist()) if len(header) == 4 * start[3] else ()
            num_bytes = prod(shape)
            if num_bytes > MAX_IDX_BYTES:
                raise RequestError(f"the header announces {num_bytes} bytes ({path}): download the file again")
            # One byte more shows whether the file is too long.
            content = file.read(num_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError(f"cannot read: {error} ({path}): download the file again") from None
    if not shape or len(content) != num_bytes:
        found = len(content) if len(content) < num_bytes else "more"
        raise RequestError(f"{num_bytes} bytes expected by the header, {found} found ({path}): download the file again")
    return np.frombuffer(content, np.uint8).reshape(shape)
