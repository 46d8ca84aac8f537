"""Plug-in data sets: arrays, a `torch.utils.data.Dataset`, or a function that returns them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import MAX_CLASSES, DatasetSource, UserDataInfo
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.plugin_sources import describe_location, plugin_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ALLOWED_CHANNELS = (1, 3)


def plugin_dataset_source(
    name: str, images: Any, labels: Any, class_names: Sequence[str] | None, test_mask: Any
) -> DatasetSource:
    """Return the source of a data set in memory. A function is called when the data set is first used."""

    @cache
    def dataset() -> Dataset:
        where = describe_location(images) if callable(images) else f"data set {name}"
        try:
            return make_dataset(name, images, labels, class_names, test_mask)
        except RequestError as error:
            raise RequestError(str(error).replace(f"(data set {name})", f"({where})")) from None
        except Exception as error:
            failure = plugin_failure(error) or f"{type(error).__name__}: {error} ({where}): correct the plug-in"
            raise RequestError(str(failure)) from None

    return DatasetSource(
        description="registered from Python",
        find=lambda data_dir: data_dir if data_dir.exists() else Path.cwd(),
        load=lambda path, options: dataset(),
        setup_hint="register it",
        inspect=lambda path: UserDataInfo(len(dataset())),
    )


def make_dataset(name: str, images: Any, labels: Any, class_names: Sequence[str] | None, test_mask: Any) -> Dataset:
    """Return a checked data set from arrays, a torch data set, or a function that returns them."""
    if callable(images) and (isinstance(images, type) or not hasattr(images, "__getitem__")):
        images = images()
    if isinstance(images, Dataset):
        return images
    if isinstance(images, tuple) and labels is None:
        images, labels = images[:2]
    if labels is None:
        images, labels = arrays_from_pairs(images, name)
    pixels = image_array(images, name)
    values = np.asarray(labels)
    if values.ndim != 1 or len(values) != len(pixels):
        raise RequestError(f"{values.shape} labels for {len(pixels)} images (data set {name}): give one per image")
    numbers, names = encode_labels(values, class_names, name)
    mask = None if test_mask is None else np.asarray(test_mask, dtype=bool)
    if mask is not None and mask.shape != (len(pixels),):
        raise RequestError(
            f"a test mask of shape {mask.shape} for {len(pixels)} images (data set {name}): one per image"
        )
    return Dataset(name, pixels, numbers, names, test_mask=mask)


def arrays_from_pairs(pairs: Any, name: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the images and labels of a sequence of (image, label) pairs, e.g. a `torch.utils.data.Dataset`."""
    if not hasattr(pairs, "__getitem__") or not hasattr(pairs, "__len__"):
        raise RequestError(
            f"{type(pairs).__name__} is no data set (data set {name}): give arrays, or pairs of image and label"
        )
    images, labels = zip(*(pairs[index][:2] for index in range(len(pairs))), strict=True)
    return np.stack([pixel_array(image) for image in images]), np.array([int(label) for label in labels])


def pixel_array(image: Any) -> NDArray[np.uint8]:
    """Return an image as uint8 [height, width, channels], from a PIL image or a tensor [channels, ...] in [0, 1]."""
    array = np.asarray(image)
    if np.issubdtype(array.dtype, np.floating):
        if array.min(initial=0) < 0 or array.max(initial=0) > 1:
            raise RequestError("pixels are not in [0, 1] (data set): remove the normalisation; fedmosaic normalises")
        array = np.round(array * 255).astype(np.uint8)
        array = np.moveaxis(array, 0, -1) if array.ndim == 3 else array
    return array[..., None] if array.ndim == 2 else array


def image_array(images: Any, name: str) -> NDArray[np.uint8]:
    """Return images as uint8 [examples, height, width, channels]."""
    array = np.asarray(images)
    array = array[..., None] if array.ndim == 3 else array
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] not in ALLOWED_CHANNELS or not array.size:
        raise RequestError(
            f"images are {array.dtype} {array.shape} (data set {name}): give uint8 [examples, height, width, channels]"
        )
    return np.ascontiguousarray(array)


def encode_labels(
    values: NDArray[Any], class_names: Sequence[str] | None, name: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return class numbers and class names for labels that are numbers or names."""
    if np.issubdtype(values.dtype, np.integer):
        if values.min() < 0 or values.max() >= MAX_CLASSES:
            raise RequestError(f"labels from {values.min()} to {values.max()} (data set {name}): number them from 0")
        names = tuple(map(str, class_names if class_names is not None else range(int(values.max()) + 1)))
        if len(names) <= values.max():
            raise RequestError(f"{len(names)} class names for label {values.max()} (data set {name}): name all classes")
        return values.astype(np.int64), names
    found, numbers = np.unique(values.astype(str), return_inverse=True)
    return numbers.astype(np.int64), tuple(map(str, found))
