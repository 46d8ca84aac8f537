"""Local data of a site in a federation: directories of images, or arrays in an npz file.

Images are decoded as for the data set `folder`. Sites cannot see each other's data, so all of it is converted to the
shape of the public set, which all sites have.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.datasets.npz import per_example_values, read_named_arrays, to_image_array
from fedmosaic_cli.data.io.image_cache import load_images
from fedmosaic_cli.data.io.image_folders import list_class_images, list_subdirectories
from fedmosaic_cli.errors import RequestError, unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.io.image_folders import ImageFile

    ImageArray = NDArray[np.uint8]
    IntArray = NDArray[np.int64]

SITE_ARRAYS = ("images", "labels")
CLASSES_HINT = "every site has to name the same --classes"
# Weights of red, green and blue in 65536ths, as in Pillow (ITU-R 601).
LUMA_WEIGHTS = (19_595, 38_470, 7_471)


@dataclass(frozen=True)
class SiteExamples:
    """Images with labels that index the given classes, and a name per example for messages."""

    path: Path
    images: ImageArray
    labels: IntArray
    example_names: Sequence[str]
    warnings: tuple[str, ...] = ()


def load_site_images(path: Path, image_size: int | None, data_dirs: DataDirs) -> tuple[ImageArray, tuple[str, ...]]:
    """Return the images below a directory in path order, or those of an npz file, and warnings about them."""
    if path.is_file():
        reject_image_size(path, image_size)
        arrays = read_named_arrays(path, ["images"], SITE_ARRAYS, ("images",))
        return to_image_array(arrays["images"], path, "images"), ()
    files = list(iter_images_below(path))
    if not files:
        raise RequestError(f"no images found ({path}): name a directory that contains images")
    decoded = load_images(path, files, image_size, data_dirs)
    return decoded.images, decoded.warnings


def iter_images_below(root: Path) -> Iterator[ImageFile]:
    """Yield all images in a directory tree; links to the same directory count once."""
    seen: set[str] = set()
    pending = ["."]
    while pending:
        folder = pending.pop()
        real = os.path.realpath(root / folder)
        if real not in seen:
            seen.add(real)
            pending += [f"{folder}/{name}" for name in reversed(list_subdirectories(root, folder))]
            yield from list_class_images(root, [folder], "", "")


def load_site_examples(
    path: Path, class_names: Sequence[str], image_size: int | None, data_dirs: DataDirs
) -> SiteExamples:
    """Load one directory of images per class, or the arrays `images` and `labels` of an npz file.

    Labels in an npz file are class names or indices into `class_names`.
    """
    if path.is_file():
        reject_image_size(path, image_size)
        arrays = read_named_arrays(path, SITE_ARRAYS, SITE_ARRAYS, SITE_ARRAYS)
        images = to_image_array(arrays["images"], path, "images")
        labels = to_class_ids(per_example_values(arrays, "labels", len(images), path), class_names, path)
        return SiteExamples(path, images, labels, [f"image {number}" for number in range(len(images))])
    folders = list_subdirectories(path, "")
    for name in folders:
        if name not in class_names:
            raise unknown_name_error("class", name, class_names, str(path), CLASSES_HINT)
    files = list_class_images(path, folders, "", "")
    if not files:
        raise RequestError(f"no images found ({path}): put them into one directory per class")
    decoded = load_images(path, files, image_size, data_dirs)
    kept = [files[position] for position in decoded.kept_positions]
    labels = np.array([class_names.index(file.label) for file in kept], dtype=np.int64)
    return SiteExamples(path, decoded.images, labels, [file.relative_path for file in kept], decoded.warnings)


def reject_image_size(path: Path, image_size: int | None) -> None:
    if image_size is not None:
        raise RequestError(f"images of an npz file are not resized ({path}): leave --image-size out")


def to_class_ids(values: NDArray[Any], class_names: Sequence[str], path: Path) -> IntArray:
    """Convert class names or class numbers to indices into `class_names`."""
    if values.dtype.kind == "U":
        names, positions = np.unique(values, return_inverse=True)
        for name in names.tolist():
            if name not in class_names:
                raise unknown_name_error("class", name, class_names, str(path), CLASSES_HINT)
        numbers: IntArray = np.array([class_names.index(name) for name in names.tolist()], dtype=np.int64)
        return numbers[positions.reshape(-1)]
    if values.dtype.kind not in "iu":
        raise RequestError(f"labels is {values.dtype} ({path}): it must contain class names or class numbers")
    if not 0 <= int(values.min()) <= int(values.max()) < len(class_names):
        raise RequestError(
            f"labels range from {values.min()} to {values.max()} for {len(class_names)} classes ({path}): "
            f"number them from 0 to {len(class_names) - 1}, in the order of --classes"
        )
    return values.astype(np.int64)


def match_public_shape(examples: SiteExamples, public_shape: tuple[int, ...]) -> SiteExamples:
    """Convert the examples to the number of channels of the public set; the image size must be the same."""
    height, width, channels = public_shape
    if examples.images.shape[1:3] != (height, width):
        size = f"{examples.images.shape[2]}x{examples.images.shape[1]}"
        hint = f"add --image-size {width}" if height == width and examples.path.is_dir() else "resize them"
        raise RequestError(f"images are {size} and the public set's {width}x{height} ({examples.path}): {hint}")
    if examples.images.shape[-1] == channels:
        return examples
    if channels == 1:
        warning = f"{len(examples.images)} colour images were made grey, as the public set is ({examples.path})"
        return replace(examples, images=to_grayscale(examples.images), warnings=(*examples.warnings, warning))
    return replace(examples, images=np.repeat(examples.images, channels, axis=-1))


def to_grayscale(images: ImageArray) -> ImageArray:
    """Convert colour images to grey, bit-identical to Pillow."""
    grey = [((image.astype(np.uint32) @ np.array(LUMA_WEIGHTS, dtype=np.uint32) + 0x8000) >> 16) for image in images]
    return np.array(grey, dtype=np.uint8)[..., None]


def duplicate_positions(images: ImageArray, others: ImageArray) -> list[int]:
    """Return the positions of images that are identical to one of the others."""
    known = {image_digest(image) for image in others}
    return [position for position, image in enumerate(images) if image_digest(image) in known]


def image_digest(image: ImageArray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
