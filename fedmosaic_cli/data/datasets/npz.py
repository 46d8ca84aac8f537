"""The user's own arrays in one npz file: `x` images, `y` labels; `domain`, `test` and `client` where there are such.

`x` is uint8 [examples, height, width] or [examples, height, width, channels], `y` whole numbers or names. `domain` are
names or numbers, `test` marks the test part, `client` numbers who holds an example (scheme `natural`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import MAX_CLASSES, DatasetSource, LoadOptions, UserDataInfo
from fedmosaic_cli.data.io.npz_files import read_npz
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from numpy.typing import NDArray

NPZ_ARRAYS = ("x", "y", "domain", "test", "client")
ALLOWED_CHANNELS = (1, 3)


def find_npz(data_dir: Path) -> Path | None:
    """The file itself, or the only npz file in the directory."""
    if data_dir.is_file():
        return data_dir
    files = sorted(data_dir.glob("*.npz")) if data_dir.is_dir() else []
    if len(files) > 1:
        raise RequestError(f"{len(files)} npz files here ({data_dir}): name one of them with --data-dir")
    return files[0] if files else None


def load_npz(path: Path, options: LoadOptions) -> Dataset:
    """The arrays, checked."""
    arrays = read_named_arrays(path, NPZ_ARRAYS)
    images = to_image_array(arrays["x"], path)
    size = len(images)
    labels, class_names = to_labels(per_example_values(arrays, "y", size, path), path)
    domains: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()
    if "domain" in arrays:
        domains, domain_names = encode_values(per_example_values(arrays, "domain", size, path), "domain", path)
    test = to_test_mask(per_example_values(arrays, "test", size, path), path) if "test" in arrays else None
    holders = (
        encode_values(per_example_values(arrays, "client", size, path), "client", path)[0]
        if "client" in arrays
        else None
    )
    used = len(np.unique(labels))
    remarks = () if used == len(class_names) else (f"{used} of {len(class_names)} classes have examples",)
    return Dataset("npz", images, labels, class_names, domains, domain_names, test, holders, warnings=remarks)


def inspect_npz(path: Path) -> UserDataInfo:
    arrays = read_named_arrays(path, ("y", "domain", "client"))
    size = arrays["y"].size
    domains = (
        encode_values(per_example_values(arrays, "domain", size, path), "domain", path)[1] if "domain" in arrays else ()
    )
    clients = (
        encode_values(per_example_values(arrays, "client", size, path), "client", path)[1] if "client" in arrays else ()
    )
    return UserDataInfo(size, domains, len(clients) or None)


def read_named_arrays(
    path: Path, names: Collection[str], known: Collection[str] = NPZ_ARRAYS, required: tuple[str, ...] = ("x", "y")
) -> dict[str, NDArray[Any]]:
    """Those arrays of the file that are asked for. `needed` are the names of the images and, if wanted, the labels."""
    example = ", ".join(f"{name}=..." for name in required)

    def choose(there: Collection[str]) -> list[str]:
        strange = set(there) - set(known)
        if strange:
            raise RequestError(f"unknown array '{min(strange)}' ({path}): there may be {', '.join(known)}")
        missing = set(required) - set(there)
        if missing:
            raise RequestError(f"no array '{min(missing)}' ({path}): write it with numpy.savez(file, {example})")
        return [name for name in names if name in there]

    try:
        return read_npz(path, choose)
    except (RequestError, MemoryError, PermissionError):
        raise
    except Exception as error:  # a hostile archive fails in any way it likes
        raise RequestError(f"cannot read: {error} ({path}): write it with numpy.savez(file, {example})") from None


def to_image_array(x: NDArray[Any], path: Path, name: str = "x") -> NDArray[np.uint8]:
    if x.dtype != np.uint8:
        raise RequestError(f"{name} is {x.dtype}, not uint8 ({path}): save pixels from 0 to 255")
    images = x[..., None] if x.ndim == 3 else x
    if x.ndim and not len(images):
        raise RequestError(f"{name} holds no examples ({path}): save some")
    if images.ndim != 4 or images.shape[-1] not in ALLOWED_CHANNELS or 0 in images.shape:
        raise RequestError(
            f"{name} has shape {x.shape} ({path}): it must be [n, height, width] or [n, height, width, 1 or 3]"
        )
    return images


def per_example_values(arrays: dict[str, NDArray[Any]], name: str, num_examples: int, path: Path) -> NDArray[Any]:
    """One value an example."""
    values = arrays[name]
    if values.shape != (num_examples,):
        raise RequestError(
            f"{name} has shape {values.shape} for {num_examples} examples ({path}): there must be one each"
        )
    return values


def to_labels(values: NDArray[Any], path: Path) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Classes: whole numbers from 0 on, which name themselves, or names."""
    if values.dtype.kind not in "iu":
        return encode_values(values, "y", path)
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < MAX_CLASSES:
        raise RequestError(
            f"y runs from {values.min()} to {values.max()} ({path}): number classes from 0 to {MAX_CLASSES - 1}"
        )
    return values.astype(np.int64), tuple(str(number) for number in range(int(values.max(initial=-1)) + 1))


def encode_values(values: NDArray[Any], array_name: str, path: Path) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Numbers for the values that occur, and their names."""
    if values.dtype.kind not in "iuU":
        raise RequestError(f"{array_name} is {values.dtype} ({path}): it must be whole numbers or texts")
    found, numbers = np.unique(values, return_inverse=True)
    names = tuple(str(value) for value in found.tolist())
    if not all(name.isprintable() for name in names):
        raise RequestError(f"{array_name} holds a name that is not text ({path}): rename it")
    return numbers.reshape(-1).astype(np.int64), names


def to_test_mask(values: NDArray[Any], path: Path) -> NDArray[np.bool_]:
    """True where an example is for testing."""
    if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise RequestError(f"test is {values.dtype} ({path}): it must be true or false, 1 or 0, for each example")
    return values.astype(bool)


SOURCE = DatasetSource(
    description="your arrays in <data-dir>/*.npz: x, y and, if you have them, domain, test, client",
    find=find_npz,
    load=load_npz,
    setup_hint="name the file with --data-dir",
    inspect=inspect_npz,
)
