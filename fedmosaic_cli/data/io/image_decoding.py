"""Decoding image files into rows of a uint8 array. Runs in worker processes, so it imports little.

Grey, palette and CMYK images become RGB; transparency is composed over white; 16-bit grey keeps its upper 8 bits; EXIF
rotations are applied; animations contribute their first frame. Files that cannot be decoded completely or contain
floats are left out and reported.
"""

from __future__ import annotations

import hashlib
import io
import os
import signal
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Part of every cache key: increase it when the decoding changes.
DECODER_VERSION = 1
ROTATED_FORMATS = ("TIFF", "MPO")
ROTATED_ORIENTATIONS = range(2, 9)


@dataclass(frozen=True)
class DecodeTask:
    """Consecutive files and the first of their rows in the array file."""

    array_path: str
    first_row: int
    paths: list[str]
    image_size: int | None


@dataclass
class DecodeResult:
    """Digests of the files, counts of conversions, and the reasons of failed rows."""

    digests: bytes = b""
    conversion_counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    all_grey: bool = True


class UnreadableFileError(ValueError):
    """Raised if the system refuses to read a file, which says nothing about the image."""


class UnsupportedImageModeError(ValueError):
    """Raised for an image without a defined conversion to bytes."""


class ImageSizeMismatchError(ValueError):
    """Raised if images differ in size and no size is configured."""


def run_decode_task(task: DecodeTask) -> DecodeResult:
    """Decode the files of a task into their rows."""
    array: NDArray[np.uint8] = np.load(task.array_path, mmap_mode="r+")
    result, digests = DecodeResult(), []
    for row, path in enumerate(task.paths, start=task.first_row):
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - a Path object costs as much as the read
                content = file.read()
        except OSError as error:
            raise UnreadableFileError(f"{error.strerror} ({path})") from None
        digests.append(hashlib.blake2b(content, digest_size=16).digest())
        try:
            pixels = decode_image(content, task.image_size, result)
        except MemoryError:
            raise
        except Exception as error:  # hostile files make Pillow raise any exception
            result.failures[row] = failure_reason(error)
            continue
        if pixels.shape != array.shape[1:]:
            sizes = [f"{image.shape[1]}x{image.shape[0]}" for image in (pixels, array[0])]
            raise ImageSizeMismatchError(f"{path} is {sizes[0]}, another one {sizes[1]}")
        array[row] = pixels
    result.digests = b"".join(digests)
    return result


def decode_image(content: bytes, image_size: int | None, result: DecodeResult) -> NDArray[np.uint8]:
    """Decode one image to uint8 [height, width, 3]."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image: Image.Image = Image.open(io.BytesIO(content))
    if getattr(image, "n_frames", 1) > 1:
        result.conversion_counts["animated"] += 1
    may_be_rotated = "exif" in image.info or image.format in ROTATED_FORMATS
    if may_be_rotated and image.getexif().get(ExifTags.Base.Orientation) in ROTATED_ORIENTATIONS:
        result.conversion_counts["rotated"] += 1
        image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" and "transparency" not in image.info:
        result.all_grey = False
    else:
        image = convert_to_rgb(image, result)
    if image_size is not None and image.size != (image_size, image_size):
        image = image.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(image)


def failure_reason(error: Exception) -> str:
    """Return a reproducible reason why an image cannot be decoded."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, UnsupportedImageModeError):
        return str(error)
    return "truncated" if isinstance(error, OSError) else f"damaged: {type(error).__name__}"


def convert_to_rgb(image: Image.Image, result: DecodeResult) -> Image.Image:
    if image.mode.startswith("I"):
        result.conversion_counts["16-bit"] += 1
        values = np.asarray(image).clip(0, 65_535)
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise UnsupportedImageModeError("floats have no defined white")
    if image.mode in ("1", "L"):
        result.conversion_counts["grey"] += 1
        return image.convert("RGB")
    result.all_grey = False
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        result.conversion_counts["transparent"] += 1
        background = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")
    result.conversion_counts[{"P": "palette", "CMYK": "CMYK", "YCCK": "CMYK"}.get(image.mode, image.mode)] += 1
    return image.convert("RGB")


def exit_with_parent(parent_pid: int) -> None:
    """Exit when the parent process ends, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
