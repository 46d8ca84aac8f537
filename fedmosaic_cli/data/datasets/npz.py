"""The user's own arrays in one npz file: images `x`, labels `y`, and optionally `domain`, `test` and `client`.

`x` is uint8 [examples, height, width] or [examples, height, width, channels]; `y` and `domain` are integers or names;
`test` marks the test split; `client` is the client of each example (scheme `natural`).
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
    """Return the file itself, or the only npz file in the directory."""
    if data_dir.is_file():
        return data_dir
    files = sorted(data_dir.glob("*.npz")) if data_dir.is_dir() else []
    if len(files) > 1:
        raise RequestError(f"{len(files)} npz files here ({data_dir}): name one of them with --data-dir")
    return files[0] if files else None


def load_npz(path: Path, options: LoadOptions) -> Dataset:
    """Load and check the arrays."""
    arrays = read_named_arrays(path, NPZ_ARRAYS)
    images = to_image_array(arrays["x"], path)
    size = len(images)
    labels, class_names = to_labels(per_example_values(arrays, "y", size, path), path)
    domain_ids, domain_names = encode_optional(arrays, "domain", size, path)
    client_ids, _ = encode_optional(arrays, "client", size, path)
    test_mask = to_test_mask(per_example_values(arrays, "test", size, path), path) if "test" in arrays else None
    used = len(np.unique(labels))
    warnings = () if used == len(class_names) else (f"{used} of {len(class_names)} classes have examples",)
    return Dataset(
        "npz", images, labels, class_names, domain_ids, domain_names, test_mask, client_ids, warnings=warnings
    )


def inspect_npz(path: Path) -> UserDataInfo:
    arrays = read_named_arrays(path, ("y", "domain", "client"))
    size = arrays["y"].size
    domain_names, client_names = (encode_optional(arrays, name, size, path)[1] for name in ("domain", "client"))
    return UserDataInfo(size, domain_names, len(client_names) or None)


def read_named_arrays(
    path: Path, names: Collection[str], known: Collection[str] = NPZ_ARRAYS, required: tuple[str, ...] = ("x", "y")
) -> dict[str, NDArray[Any]]:
    """Read the arrays `names` that the file contains; `known` arrays are allowed in it and `required` ones needed."""
    example = ", ".join(f"{name}=..." for name in required)

    def select_names(present: Collection[str]) -> list[str]:
        unknown = set(present) - set(known)
        if unknown:
            raise RequestError(f"unknown array '{min(unknown)}' ({path}): allowed are {', '.join(known)}")
        missing = set(required) - set(present)
        if missing:
            raise RequestError(f"no array '{min(missing)}' ({path}): write it with numpy.savez(file, {example})")
        return [name for name in names if name in present]

    try:
        return read_npz(path, select_names)
    except (RequestError, MemoryError, PermissionError):
        raise
    except Exception as error:  # a hostile archive can cause any exception
        raise RequestError(f"cannot read: {error} ({path}): write it with numpy.savez(file, {example})") from None


def to_image_array(x: NDArray[Any], path: Path, name: str = "x") -> NDArray[np.uint8]:
    if x.dtype != np.uint8:
        raise RequestError(f"{name} is {x.dtype}, not uint8 ({path}): save pixels from 0 to 255")
    images = x[..., None] if x.ndim == 3 else x
    if x.ndim and not len(images):
        raise RequestError(f"{name} has no examples ({path}): save some")
    if images.ndim != 4 or images.shape[-1] not in ALLOWED_CHANNELS or 0 in images.shape:
        raise RequestError(
            f"{name} has shape {x.shape} ({path}): it must be [n, height, width] or [n, height, width, 1 or 3]"
        )
    return images


def per_example_values(arrays: dict[str, NDArray[Any]], name: str, num_examples: int, path: Path) -> NDArray[Any]:
    """Return an array with one value per example."""
    values = arrays[name]
    if values.shape != (num_examples,):
        raise RequestError(
            f"{name} has shape {values.shape} for {num_examples} examples ({path}): save one value per example"
        )
    return values


def to_labels(values: NDArray[Any], path: Path) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels and class names; classes are integers from 0 on, or names."""
    if values.dtype.kind not in "iu":
        return encode_values(values, "y", path)
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < MAX_CLASSES:
        raise RequestError(
            f"y runs from {values.min()} to {values.max()} ({path}): number classes from 0 to {MAX_CLASSES - 1}"
        )
    return values.astype(np.int64), tuple(str(number) for number in range(int(values.max(initial=-1)) + 1))


def encode_values(values: NDArray[Any], array_name: str, path: Path) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the index of each value among the sorted distinct values, and their names."""
    if values.dtype.kind not in "iuU":
        raise RequestError(f"{array_name} is {values.dtype} ({path}): it must contain integers or strings")
    found, numbers = np.unique(values, return_inverse=True)
    names = tuple(str(value) for value in found.tolist())
    if not all(name.isprintable() for name in names):
        raise RequestError(f"{array_name} contains a name that is not printable ({path}): rename it")
    return numbers.reshape(-1).astype(np.int64), names


def encode_optional(
    arrays: dict[str, NDArray[Any]], name: str, num_examples: int, path: Path
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Encode an array that need not exist."""
    return (
        encode_values(per_example_values(arrays, name, num_examples, path), name, path)
        if name in arrays
        else (None, ())
    )


def to_test_mask(values: NDArray[Any], path: Path) -> NDArray[np.bool_]:
    if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise RequestError(f"test is {values.dtype} ({path}): it must be true or false, 1 or 0, per example")
    return values.astype(bool)


SOURCE = DatasetSource(
    description="your arrays in <data-dir>/*.npz: x, y and, if you have them, domain, test, client",
    find=find_npz,
    load=load_npz,
    setup_hint="name the file with --data-dir",
    inspect=inspect_npz,
)
