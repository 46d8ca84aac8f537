"""Reading the pickles that others publish data in, without trusting them.

CIFAR-10 comes as pickles, PFLlib's splits hold one inside an npz, FedBN's lists are pickled. A pickle may call anything
that can be imported, and NumPy's own classes believe whatever state they are handed. So neither is let in: the names
that arrays need stand for classes of this module, which hold plain values and check them; any other name is refused.
"""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from fedmosaic_cli.data.io.npz_files import check_zip_expansion, read_npy_header
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Booleans, whole numbers, floats, bytes and texts; objects only where they come one by one.
ALLOWED_DTYPE_KINDS = "biufSU"


class SafeDtype:
    """Stands for numpy.dtype: a kind and a size, nothing nested."""

    def __init__(self, text: Any, *flags: Any) -> None:
        code = text.decode("ascii") if isinstance(text, bytes) else str(text)
        self.dtype = np.dtype(object) if code in ("O", "O8", "|O") else np.dtype(code)
        if self.dtype.kind not in ALLOWED_DTYPE_KINDS + "O" or self.dtype.subdtype or self.dtype.names:
            raise pickle.UnpicklingError(f"it holds values of type {code}")

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order in ("<", ">"):
            self.dtype = np.dtype(order + self.dtype.str[1:])


class SafeArray:
    """Stands for numpy.ndarray: filled from bytes of the right length, or from a list of values."""

    def __init__(self, *ignored: Any) -> None:
        self.value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.set_value(kind, shape, "F" if fortran else "C", data)

    def set_value(self, dtype: SafeDtype, shape: Any, order: str, data: Any) -> None:
        shape = tuple(int(side) for side in shape)
        if dtype.dtype.kind == "O":
            if not isinstance(data, list) or len(data) != prod(shape):
                raise pickle.UnpicklingError("an array of objects does not have its length")
            self.value = data[0] if shape == () else data
        else:
            self.value = array_from_bytes(data, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def array_from_bytes(data: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    content = data.encode("latin1") if isinstance(data, str) else bytes(data)
    return np.frombuffer(content, dtype=dtype)


def safe_scalar(dtype: SafeDtype, data: Any) -> Any:
    """Stands for numpy's scalar: one value."""
    return array_from_bytes(data, dtype.dtype)[0].item()


def safe_frombuffer(data: Any, dtype: SafeDtype, shape: Any, order: str) -> SafeArray:
    """Stands for numpy's array from a buffer."""
    array = SafeArray()
    array.set_value(dtype, shape, order, data)
    return array


def safe_encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Stands for _codecs.encode, by which old pickles spell bytes."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return (text.decode("latin1") if isinstance(text, bytes) else str(text)).encode("latin1")


def empty_bytes() -> bytes:
    """Stands for bytes, by which old pickles spell that there are none."""
    return b""


ALLOWED_GLOBALS: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): safe_encode,
    ("__builtin__", "bytes"): empty_bytes,
}
ALLOWED_GLOBALS |= {("numpy", "dtype"): SafeDtype, ("numpy", "ndarray"): SafeArray}
for core in ("numpy.core", "numpy._core"):
    ALLOWED_GLOBALS[f"{core}.multiarray", "_reconstruct"] = SafeArray
    ALLOWED_GLOBALS[f"{core}.multiarray", "scalar"] = safe_scalar
    ALLOWED_GLOBALS[f"{core}.numeric", "_frombuffer"] = safe_frombuffer


class SafeUnpickler(pickle.Unpickler):
    """Builds containers, numbers, texts and stand-ins for arrays; nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED_GLOBALS[module, name]


def read_safe_pickle(path: Path) -> Any:
    """The plain content of a pickle. Texts of Python 2 become bytes."""
    with path.open("rb") as file:
        return safe_unpickle(file, path)


def read_pickled_npz_member(path: Path, member: str) -> Any:
    """The plain content of an object that was saved as one `member` of an npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_zip_expansion(archive, path)
            file = io.BytesIO(archive.read(f"{member}.npy"))
        shape, _, kind = read_npy_header(file)
    except (KeyError, ValueError, OSError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"not an npz file with '{member}' in it: {error} ({path}): fetch it anew") from None
    if kind != np.dtype(object) or shape != ():
        raise RequestError(f"'{member}' holds {kind} {shape}, not one object ({path}): this is another format")
    return safe_unpickle(file, path)


def safe_unpickle(file: BinaryIO, path: Path) -> Any:
    try:
        return unwrap_arrays(SafeUnpickler(file, encoding="bytes").load())
    except Exception as error:  # a damaged pickle fails in any way it likes, also by asking for all memory
        reason = str(error) or type(error).__name__
        raise RequestError(f"not a plain pickle: {reason} ({path}): fetch the file anew") from None


def unwrap_arrays(value: Any) -> Any:
    """The same containers with arrays in them."""
    if isinstance(value, SafeArray):
        return unwrap_arrays(value.value)
    if isinstance(value, dict):
        return {key: unwrap_arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(unwrap_arrays(item) for item in value)
    return value
