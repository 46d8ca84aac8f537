"""A split that PFLlib made: `train/<client>.npz` and `test/<client>.npz`, taken over as it is (scheme `natural`).

PFLlib stores images as floats, normalised with mean 0.5 and standard deviation 0.5; here they become bytes again.
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
# How far a stored float may lie from the byte that it came from.
ROUNDING_TOLERANCE = 0.05


def find_pfllib(data_dir: Path) -> Path | None:
    return data_dir if all((data_dir / part / "0.npz").is_file() for part in SPLIT_DIRS) else None


def num_pfllib_clients(path: Path) -> int:
    """How many clients there are, numbered from 0 on in both parts."""
    numbers = [int(file.stem) for part in SPLIT_DIRS for file in (path / part).glob("*.npz") if file.stem.isdecimal()]
    clients = max(numbers, default=-1) + 1
    for part in SPLIT_DIRS:
        for client in range(clients):
            if not (path / part / f"{client}.npz").is_file():
                raise RequestError(f"{part}/{client}.npz is missing ({path}): the split is not complete")
    return clients


def load_pfllib(path: Path, options: LoadOptions) -> Dataset:
    """All examples of all clients, each marked with its client and its part."""
    images, labels, holders, test = [], [], [], []
    clients = num_pfllib_clients(path)
    for part in SPLIT_DIRS:
        for client in range(clients):
            file = path / part / f"{client}.npz"
            x, y = read_pfllib_file(file)
            images.append(to_uint8_images(x, file))
            labels.append(y)
            holders.append(np.full(len(y), client))
            test.append(np.full(len(y), part == "test"))
            options.data_dirs.on_progress("reading the split", len(images), 2 * clients)
    if len({array.shape[1:] for array in images}) > 1:
        raise RequestError(f"images differ in shape from client to client ({path}): the split is damaged")
    together = np.concatenate(labels).astype(np.int64)
    if not len(together):
        raise RequestError(f"the split holds no examples ({path}): make it anew")
    return Dataset(
        name="pfllib",
        images=np.concatenate(images),
        labels=together,
        class_names=tuple(str(number) for number in range(int(together.max()) + 1)),
        client_ids=np.concatenate(holders),
        test_mask=np.concatenate(test),
    )


def read_pfllib_file(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    content = read_pickled_npz_member(path, "data")
    try:
        x, y = (np.asarray(content.get(name, content.get(name.encode()))) for name in ("x", "y"))
    except (AttributeError, ValueError):
        raise RequestError(f"no mapping of x and y ({path}): this is not a split of PFLlib") from None
    if x.ndim != 4 or y.shape != x.shape[:1] or x.dtype.kind != "f" or y.dtype.kind not in "iu" or y.min(initial=0) < 0:
        raise RequestError(
            f"x is {x.dtype} {x.shape} and y {y.dtype} {y.shape} ({path}): this is not a split of PFLlib"
        )
    if y.max(initial=0) >= MAX_CLASSES:
        raise RequestError(f"label {y.max()} ({path}): there may be {MAX_CLASSES} classes")
    return x, y


def to_uint8_images(x: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    """[n, channels, height, width] in [-1, 1] as uint8 [n, height, width, channels]."""
    values = (x.transpose(0, 2, 3, 1).astype(np.float64) + 1) * 127.5
    nearest = np.rint(values)
    if (
        not np.abs(values - nearest).max(initial=0) < ROUNDING_TOLERANCE
        or nearest.min(initial=0) < 0
        or nearest.max(initial=0) > 255
    ):
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
