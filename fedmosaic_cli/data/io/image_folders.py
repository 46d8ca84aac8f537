"""Directories of images: `<root>/[<domain>/][train|test/]<class>/*.jpg`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.io.image_cache import DecodedImages, decoded_image_shape, load_images
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fedmosaic_cli.data.datasets.dataset_source import LoadOptions

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
SPLIT_NAMES = {"train", "test"}
# Other common names of splits, which must not be taken for domains.
AMBIGUOUS_SPLIT_NAMES = {"training", "testing", "val", "valid", "validation", "eval", "dev"}


class ImageFile(NamedTuple):
    """An image and what its path says about it. `split` is train, test or empty."""

    relative_path: str
    label: str
    domain: str
    split: str
    size_bytes: int
    mtime_ns: int


def list_images(root: Path) -> list[ImageFile]:
    """Return all images below `root`, ordered by domain, split (train first), class and name."""
    top = list_subdirectories(root, "")
    if not top:
        raise RequestError(f"no directories of images found ({root}): put images into one directory per class")
    empty = [name for name in top if not has_images(root, name)]
    if len(empty) < len(top):
        if empty:
            raise RequestError(f"no images in '{empty[0]}', which is next to classes ({root}): remove it or fill it")
        return list_class_images(root, top, "", "")
    if has_splits(root, top):
        return list_split_images(root, top, "", "")
    files = []
    for domain in top:
        inner = list_subdirectories(root, domain)
        if not inner:
            raise RequestError(f"neither a domain nor a class ({root / domain}): it contains no directory with images")
        if not any(has_images(root, f"{domain}/{name}") for name in inner) and has_splits(root / domain, inner):
            files += list_split_images(root, inner, domain, f"{domain}/")
        else:
            files += list_class_images(root, [f"{domain}/{name}" for name in inner], domain, "")
    if len({bool(file.split) for file in files}) > 1:
        raise RequestError(f"some domains have train and test splits and others have none ({root}): use one layout")
    return files


def has_splits(folder: Path, names: list[str]) -> bool:
    """Return whether these directories are a training and a test split; ambiguous names are an error."""
    splits = {name for name in names if name.lower() in SPLIT_NAMES}
    unclear = [name for name in names if name not in splits and (splits or name.lower() in AMBIGUOUS_SPLIT_NAMES)]
    if unclear:
        raise RequestError(f"'{unclear[0]}' is not train or test ({folder}): rename it to one of them, or move it away")
    return bool(splits)


def list_split_images(root: Path, names: list[str], domain: str, prefix: str) -> list[ImageFile]:
    """Return the images of a `train` and a `test` directory; a training directory alone is not a split."""
    by_split = {name.lower(): name for name in names}
    files = []
    for split in ("train", "test"):
        if split in by_split:
            folder = f"{prefix}{by_split[split]}"
            classes = [f"{folder}/{name}" for name in list_subdirectories(root, folder)]
            files += list_class_images(root, classes, domain, split if "test" in by_split else "")
    return files


def list_class_images(root: Path, class_directories: list[str], domain: str, split: str) -> list[ImageFile]:
    """Return the images of directories that are one class each."""
    files = []
    for directory in class_directories:
        with os.scandir(root / directory) as entries:
            images = sorted((entry for entry in entries if is_image_file(entry)), key=lambda entry: entry.name)
        label = directory.rsplit("/", maxsplit=1)[-1]
        for entry in images:
            stat = entry.stat()
            files.append(ImageFile(f"{directory}/{entry.name}", label, domain, split, stat.st_size, stat.st_mtime_ns))
    return files


def is_image_file(entry: os.DirEntry[str]) -> bool:
    # A broken link counts, so that reading it fails instead of skipping it.
    return entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.name.startswith(".") and not entry.is_dir()


def has_images(root: Path, name: str) -> bool:
    with os.scandir(root / name) as entries:
        return any(is_image_file(entry) for entry in entries)


def list_subdirectories(root: Path, name: str) -> list[str]:
    """Return the visible directories inside `root/name`, sorted."""
    try:
        with os.scandir(root / name) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise RequestError(f"cannot list: {error.strerror} ({root / name}): check the path") from None
    for directory in names:
        if not directory.isprintable():
            raise RequestError(f"the name of a directory is not printable: {directory!r} ({root / name}): rename it")
    return names


def dataset_from_files(
    name: str,
    root: Path,
    files: Sequence[ImageFile],
    options: LoadOptions,
    class_names: Iterable[str] = (),
    domain_names: Iterable[str] = (),
) -> Dataset:
    """Load image files as a data set. By default class and domain names are those that occur, sorted."""
    classes = tuple(class_names) or tuple(sorted({file.label for file in files}))
    domains = tuple(domain_names) or tuple(sorted({file.domain for file in files} - {""}))
    if options.load_pixels:
        decoded = load_images(root, files, options.image_size, options.data_dirs)
    else:  # black images of the right shape that take no memory
        shape = (len(files), *decoded_image_shape(root, files, options.image_size))
        decoded = DecodedImages(np.broadcast_to(np.uint8(0), shape), np.arange(len(files)), "unseen", warnings=())
    kept = [files[position] for position in decoded.kept_positions]
    class_ids = {name: number for number, name in enumerate(classes)}
    domain_ids = {name: number for number, name in enumerate(domains)}
    return Dataset(
        name=name,
        images=decoded.images,
        labels=np.array([class_ids[file.label] for file in kept], dtype=np.int64),
        class_names=classes,
        domain_ids=np.array([domain_ids[file.domain] for file in kept], dtype=np.int64) if domains else None,
        domain_names=domains,
        test_mask=np.array([file.split == "test" for file in kept]) if any(file.split for file in kept) else None,
        content_digest=decoded.content_digest,
        warnings=decoded.warnings,
    )
