"""Reading published pickles without trusting them: CIFAR-10, PFLlib's splits and FedBN's lists.

A pickle may call anything that can be imported, and NumPy's classes do not check the state they receive. The names that
arrays need are therefore mapped to classes of this module, which check plain values. All other names are refused.
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

# Booleans, integers, floats, bytes and strings.
ALLOWED_DTYPE_KINDS = "biufSU"


class SafeDtype:
    """Replaces numpy.dtype: a kind and a size, nothing nested."""

    def __init__(self, text: Any, *flags: Any) -> None:
        code = text.decode("ascii") if isinstance(text, bytes) else str(text)
        self.dtype = np.dtype(object) if code in ("O", "O8", "|O") else np.dtype(code)
        if self.dtype.kind not in ALLOWED_DTYPE_KINDS + "O" or self.dtype.subdtype or self.dtype.names:
            raise pickle.UnpicklingError(f"it contains values of type {code}")

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order in ("<", ">"):
            self.dtype = np.dtype(order + self.dtype.str[1:])


class SafeArray:
    """Replaces numpy.ndarray: filled from bytes of the right length or from a list of values."""

    def __init__(self, *ignored: Any) -> None:
        self.value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.set_value(dtype, shape, "F" if is_fortran else "C", data)

    def set_value(self, dtype: SafeDtype, shape: Any, order: str, data: Any) -> None:
        shape = tuple(int(side) for side in shape)
        if dtype.dtype.kind == "O":
            if not isinstance(data, list) or len(data) != prod(shape):
                raise pickle.UnpicklingError("an object array has the wrong length")
            self.value = data[0] if shape == () else data
        else:
            self.value = array_from_bytes(data, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def array_from_bytes(data: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    content = data.encode("latin1") if isinstance(data, str) else bytes(data)
    return np.frombuffer(content, dtype=dtype)


def safe_scalar(dtype: SafeDtype, data: Any) -> Any:
    """Replaces numpy's scalar."""
    return array_from_bytes(data, dtype.dtype)[0].item()


def safe_frombuffer(data: Any, dtype: SafeDtype, shape: Any, order: str) -> SafeArray:
    """Replaces numpy's frombuffer."""
    array = SafeArray()
    array.set_value(dtype, shape, order, data)
    return array


def safe_encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Replaces _codecs.encode, which old pickles use for bytes."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return (text.decode("latin1") if isinstance(text, bytes) else str(text)).encode("latin1")


ALLOWED_GLOBALS: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): safe_encode,
    ("__builtin__", "bytes"): lambda: b"",  # the empty bytes of old pickles
    ("numpy", "dtype"): SafeDtype,
    ("numpy", "ndarray"): SafeArray,
}
for core in ("numpy.core", "numpy._core"):
    ALLOWED_GLOBALS[f"{core}.multiarray", "_reconstruct"] = SafeArray
    ALLOWED_GLOBALS[f"{core}.multiarray", "scalar"] = safe_scalar
    ALLOWED_GLOBALS[f"{core}.numeric", "_frombuffer"] = safe_frombuffer


class SafeUnpickler(pickle.Unpickler):
    """Builds containers, numbers, strings and replacements of arrays; nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED_GLOBALS[module, name]


def read_safe_pickle(path: Path) -> Any:
    """Read the content of a pickle. Strings of Python 2 become bytes."""
    with path.open("rb") as file:
        return safe_unpickle(file, path)


def read_pickled_npz_member(path: Path, member: str) -> Any:
    """Read an object that was saved as a member of an npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_zip_expansion(archive, path)
            file = io.BytesIO(archive.read(f"{member}.npy"))
        shape, _, dtype = read_npy_header(file)
    except (KeyError, ValueError, OSError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RequestError(f"not an npz file with '{member}' in it: {error} ({path}): download it again") from None
    if dtype != np.dtype(object) or shape != ():
        raise RequestError(f"'{member}' contains {dtype} {shape}, not one object ({path}): this is another format")
    return safe_unpickle(file, path)


def safe_unpickle(file: BinaryIO, path: Path) -> Any:
    try:
        return unwrap_arrays(SafeUnpickler(file, encoding="bytes").load())
    except Exception as error:  # a damaged pickle can cause any exception, also MemoryError
        reason = str(error) or type(error).__name__
        raise RequestError(f"not a safe pickle: {reason} ({path}): download the file again") from None


def unwrap_arrays(value: Any) -> Any:
    """Replace SafeArray objects in containers by their arrays."""
    if isinstance(value, SafeArray):
        return unwrap_arrays(value.value)
    if isinstance(value, dict):
        return {key: unwrap_arrays(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(unwrap_arrays(item) for item in value)
    return value
