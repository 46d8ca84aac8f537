"""What somebody brings into a federation from a disk of their own: directories of images, or arrays in an npz file.

Images are decoded as those of the data set `folder` are. Nobody sees what the others bring, so all of it is made like
the public set, which everybody has.
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
# How much of red, green and blue makes grey, in 65536ths: as Pillow has it (ITU-R 601).
LUMA_WEIGHTS = (19_595, 38_470, 7_471)


@dataclass(frozen=True)
class SiteExamples:
    """Images with labels that index the classes named; `names` tell where each lies, `remarks` what was odd."""

    path: Path
    images: ImageArray
    labels: IntArray
    example_names: Sequence[str]
    warnings: tuple[str, ...] = ()


def load_site_images(path: Path, image_size: int | None, data_dirs: DataDirs) -> tuple[ImageArray, tuple[str, ...]]:
    """The images below a directory, in the order of their paths, or those of an npz file; and what was odd."""
    if path.is_file():
        reject_image_size(path, image_size)
        return to_image_array(
            read_named_arrays(path, ["images"], SITE_ARRAYS, ("images",))["images"], path, "images"
        ), ()
    files = list(iter_images_below(path))
    if not files:
        raise RequestError(f"no images here ({path}): name a directory that holds some, in directories or not")
    pictures = load_images(path, files, image_size, data_dirs)
    return pictures.images, pictures.warnings


def iter_images_below(root: Path) -> Iterator[ImageFile]:
    """All images in a directory and in those inside it, whatever these are called; each directory counts once."""
    seen: set[str] = set()
    waiting = ["."]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(root / folder)
        if real not in seen:
            seen.add(real)
            waiting += [f"{folder}/{name}" for name in reversed(list_subdirectories(root, folder))]
            yield from list_class_images(root, [folder], "", "")


def load_site_examples(
    path: Path, class_names: Sequence[str], image_size: int | None, data_dirs: DataDirs
) -> SiteExamples:
    """Images in a directory a class, or the arrays `images` and `labels` of an npz file."""
    if path.is_file():
        reject_image_size(path, image_size)
        return site_examples_from_npz(path, class_names)
    folders = list_subdirectories(path, "")
    for name in folders:
        if name not in class_names:
            raise unknown_name_error("class", name, class_names, str(path), CLASSES_HINT)
    files = list_class_images(path, folders, "", "")
    if not files:
        raise RequestError(f"no images here ({path}): put them into a directory a class")
    pictures = load_images(path, files, image_size, data_dirs)
    kept = [files[position] for position in pictures.kept_positions]
    labels = np.array([class_names.index(file.label) for file in kept], dtype=np.int64)
    return SiteExamples(path, pictures.images, labels, [file.relative_path for file in kept], pictures.warnings)


def reject_image_size(path: Path, image_size: int | None) -> None:
    if image_size is not None:
        raise RequestError(f"images of an npz file stay as they are ({path}): leave --image-size out")


def site_examples_from_npz(path: Path, class_names: Sequence[str]) -> SiteExamples:
    """The examples of an npz file; labels are names of classes, or their numbers in the order named."""
    arrays = read_named_arrays(path, SITE_ARRAYS, SITE_ARRAYS, SITE_ARRAYS)
    images = to_image_array(arrays["images"], path, "images")
    labels = to_class_ids(per_example_values(arrays, "labels", len(images), path), class_names, path)
    return SiteExamples(path, images, labels, [f"image {number}" for number in range(len(images))])


def to_class_ids(values: NDArray[Any], class_names: Sequence[str], path: Path) -> IntArray:
    """Classes as numbers in the order named."""
    if values.dtype.kind == "U":
        found, places = np.unique(values, return_inverse=True)
        for name in found.tolist():
            if name not in class_names:
                raise unknown_name_error("class", name, class_names, str(path), CLASSES_HINT)
        numbers: IntArray = np.array([class_names.index(name) for name in found.tolist()], dtype=np.int64)
        return numbers[places.reshape(-1)]
    if values.dtype.kind not in "iu":
        raise RequestError(f"labels is {values.dtype} ({path}): it must be names of classes, or their numbers")
    if not 0 <= int(values.min()) <= int(values.max()) < len(class_names):
        raise RequestError(
            f"labels run from {values.min()} to {values.max()}, and {len(class_names)} classes are named ({path}): "
            f"number them from 0 to {len(class_names) - 1}, in the order of --classes"
        )
    return values.astype(np.int64)


def match_public_shape(examples: SiteExamples, public_shape: tuple[int, ...]) -> SiteExamples:
    """The examples with as many channels as the public set's, which must be of the same size."""
    height, width, channels = public_shape
    if examples.images.shape[1:3] != (height, width):
        there = f"{examples.images.shape[2]}x{examples.images.shape[1]}"
        mend = f"add --image-size {width}" if height == width and examples.path.is_dir() else "bring them to that size"
        raise RequestError(f"images are {there} and the public set's {width}x{height} ({examples.path}): {mend}")
    if examples.images.shape[-1] == channels:
        return examples
    if channels == 1:
        remark = f"{len(examples.images)} colour images were made grey, as the public set is ({examples.path})"
        return replace(examples, images=to_grayscale(examples.images), warnings=(*examples.warnings, remark))
    return replace(examples, images=np.repeat(examples.images, channels, axis=-1))


def to_grayscale(images: ImageArray) -> ImageArray:
    """Colour images as grey ones, to the bit as Pillow makes them."""
    grey = [((image.astype(np.uint32) @ np.array(LUMA_WEIGHTS, dtype=np.uint32) + 0x8000) >> 16) for image in images]
    return np.array(grey, dtype=np.uint8)[..., None]


def duplicate_positions(images: ImageArray, others: ImageArray) -> list[int]:
    """The places of those images that are among the others as well, to the last pixel."""
    known = {image_digest(image) for image in others}
    return [place for place, image in enumerate(images) if image_digest(image) in known]


def image_digest(image: ImageArray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
