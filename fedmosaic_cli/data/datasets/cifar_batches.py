"""Data sets stored as the pickled batches of CIFAR-10 and CIFAR-100. Pickles are read without executing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.io.safe_pickle import read_safe_pickle
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IMAGE_SIZE = 32


def load_cifar_batches(
    name: str, train_paths: Sequence[Path], test_path: Path, class_names: tuple[str, ...], label_key: bytes = b"labels"
) -> Dataset:
    """Load training and test images of 32x32 pixels.

    Args:
        name: Name of the data set.
        train_paths: Files of the training split.
        test_path: File of the test split.
        class_names: Names of the classes in the order of their labels.
        label_key: Key of the labels in each file.

    Raises:
        RequestError: A file is damaged or has other contents.
    """
    paths = [*train_paths, test_path]
    # Preallocated and filled file by file, so that the images are never in memory twice.
    max_images = sum(batch.stat().st_size for batch in paths) // (3 * IMAGE_SIZE * IMAGE_SIZE)
    images = np.empty((max_images, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    labels: list[Any] = []
    for batch in paths:
        pixels, classes = read_cifar_batch(batch, label_key, len(class_names))
        start = sum(map(len, labels))
        images[start : start + len(classes)] = pixels
        labels.append(classes)
    return Dataset(
        name=name,
        images=images[: sum(map(len, labels))],
        labels=np.concatenate(labels),
        class_names=class_names,
        test_mask=np.repeat([False] * len(train_paths) + [True], [len(classes) for classes in labels]),
    )


def read_cifar_batch(path: Path, label_key: bytes, num_classes: int) -> tuple[Any, Any]:
    """Read images [n, 32, 32, 3] and labels of one file, which stores images as [red, green, blue] planes."""
    content = read_safe_pickle(path)
    try:
        pixels, labels = np.asarray(content[b"data"]), np.asarray(content[label_key], dtype=np.int64)
        images = pixels.reshape(-1, 3, IMAGE_SIZE, IMAGE_SIZE).transpose(0, 2, 3, 1)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise RequestError(f"not a batch of CIFAR images ({path}): download the data set again") from None
    if pixels.dtype != np.uint8 or labels.shape != images.shape[:1] or not np.isin(labels, range(num_classes)).all():
        raise RequestError(f"images and labels do not match ({path}): download the data set again")
    return images, labels
