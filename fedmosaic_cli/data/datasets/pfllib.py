"""A partition created by PFLlib: `train/<client>.npz` and `test/<client>.npz`, used unchanged (scheme `natural`).

PFLlib stores images as floats, normalised with mean 0.5 and standard deviation 0.5; they are converted back to bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import MAX_CLASSES, DatasetSource, LoadOptions, UserDataInfo
from fedmosaic_cli.data.io.safe_pickle import read_pickled_npz_member
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SPLIT_DIRS = ("train", "test")
# Largest difference between a stored float and the byte that it came from.
ROUNDING_TOLERANCE = 0.05


def find_pfllib(data_dir: Path) -> Path | None:
    return data_dir if all((data_dir / part / "0.npz").is_file() for part in SPLIT_DIRS) else None


def num_pfllib_clients(path: Path) -> int:
    """Return the number of clients, which are numbered from 0 on in both splits."""
    numbers = [int(file.stem) for part in SPLIT_DIRS for file in (path / part).glob("*.npz") if file.stem.isdecimal()]
    clients = max(numbers, default=-1) + 1
    for part in SPLIT_DIRS:
        for client in range(clients):
            if not (path / part / f"{client}.npz").is_file():
                raise RequestError(f"{part}/{client}.npz is missing ({path}): the split is not complete")
    return clients


def load_pfllib(path: Path, options: LoadOptions) -> Dataset:
    """Load the examples of all clients with client ids and test mask."""
    images, labels, client_ids, test = [], [], [], []
    clients = num_pfllib_clients(path)
    for part in SPLIT_DIRS:
        for client in range(clients):
            file = path / part / f"{client}.npz"
            x, y = read_pfllib_file(file)
            images.append(to_uint8_images(x, file))
            labels.append(y)
            client_ids.append(np.full(len(y), client))
            test.append(np.full(len(y), part == "test"))
            options.data_dirs.on_progress("reading the split", len(images), 2 * clients)
    if len({array.shape[1:] for array in images}) > 1:
        raise RequestError(f"images of different clients differ in shape ({path}): the split is damaged")
    all_labels = np.concatenate(labels).astype(np.int64)
    if not len(all_labels):
        raise RequestError(f"the split has no examples ({path}): create it again")
    return Dataset(
        name="pfllib",
        images=np.concatenate(images),
        labels=all_labels,
        class_names=tuple(str(number) for number in range(int(all_labels.max()) + 1)),
        client_ids=np.concatenate(client_ids),
        test_mask=np.concatenate(test),
    )


def read_pfllib_file(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    content = read_pickled_npz_member(path, "data")
    try:
        x, y = (np.asarray(content.get(name, content.get(name.encode()))) for name in ("x", "y"))
    except (AttributeError, ValueError):
        raise RequestError(f"no mapping with x and y ({path}): this is not a split of PFLlib") from None
    if x.ndim != 4 or y.shape != x.shape[:1] or x.dtype.kind != "f" or y.dtype.kind not in "iu" or y.min(initial=0) < 0:
        raise RequestError(
            f"x is {x.dtype} {x.shape} and y {y.dtype} {y.shape} ({path}): this is not a split of PFLlib"
        )
    if y.max(initial=0) >= MAX_CLASSES:
        raise RequestError(f"label {y.max()} is too large ({path}): at most {MAX_CLASSES} classes are supported")
    return x, y


def to_uint8_images(x: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    """Convert [n, channels, height, width] in [-1, 1] to uint8 [n, height, width, channels]."""
    values = (x.transpose(0, 2, 3, 1).astype(np.float64) + 1) * 127.5
    nearest = np.rint(values)
    in_range = 0 <= nearest.min(initial=0) <= nearest.max(initial=0) <= 255
    if not np.abs(values - nearest).max(initial=0) < ROUNDING_TOLERANCE or not in_range:
        raise RequestError(f"x was not normalised with mean 0.5 and deviation 0.5 ({path}): use --dataset npz")
    return nearest.astype(np.uint8)


def inspect_pfllib(path: Path) -> UserDataInfo:
    clients = num_pfllib_clients(path)
    examples = sum(len(read_pfllib_file(path / "train" / f"{client}.npz")[1]) for client in range(clients))
    return UserDataInfo(examples, num_clients=clients)


SOURCE = DatasetSource(
    description="a split that PFLlib made: <data-dir>/{train,test}/<client>.npz",
    find=find_pfllib,
    load=load_pfllib,
    setup_hint="name the directory that holds PFLlib's train and test with --data-dir",
    inspect=inspect_pfllib,
)
