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

from fedmosaic_cli.data.datasets.npz import as_images, column, read
from fedmosaic_cli.data.io.image_cache import load_images
from fedmosaic_cli.data.io.image_folders import directories, in_classes
from fedmosaic_cli.errors import RequestError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.io.image_folders import ImageFile

    Images = NDArray[np.uint8]
    Index = NDArray[np.int64]

ARRAYS = ("images", "labels")
EVERY_SITE = "every site has to name the same --classes"
# How much of red, green and blue makes grey, in 65536ths: as Pillow has it (ITU-R 601).
LUMA = (19_595, 38_470, 7_471)


@dataclass(frozen=True)
class OwnExamples:
    """Images with labels that index the classes named; `names` tell where each lies, `remarks` what was odd."""

    path: Path
    images: Images
    labels: Index
    names: Sequence[str]
    remarks: tuple[str, ...] = ()


def own_images(path: Path, side: int | None, place: Place) -> tuple[Images, tuple[str, ...]]:
    """The images below a directory, in the order of their paths, or those of an npz file; and what was odd."""
    if path.is_file():
        check_no_side(path, side)
        return as_images(read(path, ["images"], ARRAYS, ("images",))["images"], path, "images"), ()
    files = list(images_below(path))
    if not files:
        raise RequestError(f"no images here ({path}): name a directory that holds some, in directories or not")
    pictures = load_images(path, files, side, place)
    return pictures.images, pictures.remarks


def images_below(root: Path) -> Iterator[ImageFile]:
    """All images in a directory and in those inside it, whatever these are called; each directory counts once."""
    seen: set[str] = set()
    waiting = ["."]
    while waiting:
        folder = waiting.pop()
        real = os.path.realpath(root / folder)
        if real not in seen:
            seen.add(real)
            waiting += [f"{folder}/{name}" for name in reversed(directories(root, folder))]
            yield from in_classes(root, [folder], "", "")


def own_examples(path: Path, class_names: Sequence[str], side: int | None, place: Place) -> OwnExamples:
    """Images in a directory a class, or the arrays `images` and `labels` of an npz file."""
    if path.is_file():
        check_no_side(path, side)
        return from_arrays(path, class_names)
    folders = directories(path, "")
    for name in folders:
        if name not in class_names:
            raise unknown("class", name, class_names, str(path), EVERY_SITE)
    files = in_classes(path, folders, "", "")
    if not files:
        raise RequestError(f"no images here ({path}): put them into a directory a class")
    pictures = load_images(path, files, side, place)
    kept = [files[position] for position in pictures.kept]
    labels = np.array([class_names.index(file.label) for file in kept], dtype=np.int64)
    return OwnExamples(path, pictures.images, labels, [file.name for file in kept], pictures.remarks)


def check_no_side(path: Path, side: int | None) -> None:
    if side is not None:
        raise RequestError(f"images of an npz file stay as they are ({path}): leave --image-size out")


def from_arrays(path: Path, class_names: Sequence[str]) -> OwnExamples:
    """The examples of an npz file; labels are names of classes, or their numbers in the order named."""
    arrays = read(path, ARRAYS, ARRAYS, ARRAYS)
    images = as_images(arrays["images"], path, "images")
    labels = as_classes(column(arrays, "labels", len(images), path), class_names, path)
    return OwnExamples(path, images, labels, [f"image {number}" for number in range(len(images))])


def as_classes(values: NDArray[Any], class_names: Sequence[str], path: Path) -> Index:
    """Classes as numbers in the order named."""
    if values.dtype.kind == "U":
        found, places = np.unique(values, return_inverse=True)
        for name in found.tolist():
            if name not in class_names:
                raise unknown("class", name, class_names, str(path), EVERY_SITE)
        numbers: Index = np.array([class_names.index(name) for name in found.tolist()], dtype=np.int64)
        return numbers[places.reshape(-1)]
    if values.dtype.kind not in "iu":
        raise RequestError(f"labels is {values.dtype} ({path}): it must be names of classes, or their numbers")
    if not 0 <= int(values.min()) <= int(values.max()) < len(class_names):
        raise RequestError(
            f"labels run from {values.min()} to {values.max()}, and {len(class_names)} classes are named ({path}): "
            f"number them from 0 to {len(class_names) - 1}, in the order of --classes"
        )
    return values.astype(np.int64)


def like_public(own: OwnExamples, shape: tuple[int, ...]) -> OwnExamples:
    """The examples with as many channels as the public set's, which must be of the same size."""
    height, width, channels = shape
    if own.images.shape[1:3] != (height, width):
        there = f"{own.images.shape[2]}x{own.images.shape[1]}"
        mend = f"add --image-size {width}" if height == width and own.path.is_dir() else "bring them to that size"
        raise RequestError(f"images are {there} and the public set's {width}x{height} ({own.path}): {mend}")
    if own.images.shape[-1] == channels:
        return own
    if channels == 1:
        remark = f"{len(own.images)} colour images were made grey, as the public set is ({own.path})"
        return replace(own, images=to_grey(own.images), remarks=(*own.remarks, remark))
    return replace(own, images=np.repeat(own.images, channels, axis=-1))


def to_grey(images: Images) -> Images:
    """Colour images as grey ones, to the bit as Pillow makes them."""
    grey = [((image.astype(np.uint32) @ np.array(LUMA, dtype=np.uint32) + 0x8000) >> 16) for image in images]
    return np.array(grey, dtype=np.uint8)[..., None]


def shared(images: Images, others: Images) -> list[int]:
    """The places of those images that are among the others as well, to the last pixel."""
    known = {fingerprint(image) for image in others}
    return [place for place, image in enumerate(images) if fingerprint(image) in known]


def fingerprint(image: Images) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
