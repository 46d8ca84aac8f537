"""Directories of images: `<root>/[<domain>/][train|test/]<class>/*.jpg` and the like."""

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
# What people call parts as well: taken for domains, they would be merged.
AMBIGUOUS_SPLIT_NAMES = {"training", "testing", "val", "valid", "validation", "eval", "dev"}


class ImageFile(NamedTuple):
    """An image below a root, and what its path says of it. `part` is train, test or empty."""

    relative_path: str
    label: str
    domain: str
    split: str
    size_bytes: int
    mtime_ns: int


def list_images(root: Path) -> list[ImageFile]:
    """All images below `root`, in a fixed order: by domain, training part first, by class, by name."""
    top = list_subdirectories(root, "")
    if not top:
        raise RequestError(f"no directories of images here ({root}): put images into a directory a class")
    bare = [name for name in top if not has_images(root, name)]
    if len(bare) < len(top):
        if bare:
            raise RequestError(f"no images in '{bare[0]}', which stands beside classes ({root}): remove it or fill it")
        return list_class_images(root, top, "", "")
    if has_splits(root, top):
        return list_split_images(root, top, "", "")
    files = []
    for domain in top:
        inner = list_subdirectories(root, domain)
        if not inner:
            raise RequestError(f"neither a domain nor a class ({root / domain}): it holds no directory with images")
        if not any(has_images(root, f"{domain}/{name}") for name in inner) and has_splits(root / domain, inner):
            files += list_split_images(root, inner, domain, f"{domain}/")
        else:
            files += list_class_images(root, [f"{domain}/{name}" for name in inner], domain, "")
    mixed = {bool(file.split) for file in files}
    if len(mixed) > 1:
        raise RequestError(f"some domains have train and test parts and others have none ({root}): make them alike")
    return files


def has_splits(folder: Path, names: list[str]) -> bool:
    """Whether these directories are a training and a test part. Names that might mean that are not guessed at."""
    parts = {name for name in names if name.lower() in SPLIT_NAMES}
    unclear = [name for name in names if name not in parts and (parts or name.lower() in AMBIGUOUS_SPLIT_NAMES)]
    if unclear:
        raise RequestError(f"'{unclear[0]}' is not train or test ({folder}): rename it to one of them, or move it away")
    return bool(parts)


def list_split_images(root: Path, names: list[str], domain: str, prefix: str) -> list[ImageFile]:
    """The images of a `train` and a `test` directory."""
    found = {name.lower(): name for name in names}
    # A training part alone is no split.
    label = {"train": "train" if "test" in found else "", "test": "test"}
    files = []
    for part in ("train", "test"):
        if part in found:
            folder = f"{prefix}{found[part]}"
            files += list_class_images(
                root, [f"{folder}/{name}" for name in list_subdirectories(root, folder)], domain, label[part]
            )
    return files


def list_class_images(root: Path, class_directories: list[str], domain: str, split: str) -> list[ImageFile]:
    """The images of directories that are a class each."""
    files = []
    for directory in class_directories:
        with os.scandir(root / directory) as entries:
            found = sorted((entry for entry in entries if is_image_file(entry)), key=lambda entry: entry.name)
        label = directory.rsplit("/", maxsplit=1)[-1]
        for entry in found:
            facts = entry.stat()
            files.append(ImageFile(f"{directory}/{entry.name}", label, domain, split, facts.st_size, facts.st_mtime_ns))
    return files


def is_image_file(entry: os.DirEntry[str]) -> bool:
    # A link that leads nowhere is one too: it shall be missed, not passed over.
    return entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.name.startswith(".") and not entry.is_dir()


def has_images(root: Path, name: str) -> bool:
    with os.scandir(root / name) as entries:
        return any(is_image_file(entry) for entry in entries)


def list_subdirectories(root: Path, name: str) -> list[str]:
    """The visible directories inside `root/name`, sorted."""
    try:
        with os.scandir(root / name) as entries:
            found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise RequestError(f"cannot list: {error.strerror} ({root / name}): check the path") from None
    for directory in found:
        if not directory.isprintable():
            raise RequestError(f"a directory's name is not text: {directory!r} ({root / name}): rename it")
    return found


def blank_images(root: Path, files: Sequence[ImageFile], options: LoadOptions) -> DecodedImages:
    """Black images of the right shape, which take no room."""
    shape = (len(files), *decoded_image_shape(root, files, options.image_size))
    return DecodedImages(
        np.broadcast_to(np.uint8(0), shape), np.arange(len(files)), content_digest="unseen", warnings=()
    )


def dataset_from_files(
    name: str,
    root: Path,
    files: Sequence[ImageFile],
    options: LoadOptions,
    class_names: Iterable[str] = (),
    domain_names: Iterable[str] = (),
) -> Dataset:
    """The images of `files` as a data set. Names that are not given are those that occur, sorted."""
    classes = tuple(class_names) or tuple(sorted({file.label for file in files}))
    domains = tuple(domain_names) or tuple(sorted({file.domain for file in files} - {""}))
    if options.load_pixels:
        pictures = load_images(root, files, options.image_size, options.data_dirs)
    else:
        pictures = blank_images(root, files, options)
    kept = [files[position] for position in pictures.kept_positions]
    class_number = {name: number for number, name in enumerate(classes)}
    domain_number = {name: number for number, name in enumerate(domains)}
    return Dataset(
        name=name,
        images=pictures.images,
        labels=np.array([class_number[file.label] for file in kept], dtype=np.int64),
        class_names=classes,
        domain_ids=np.array([domain_number[file.domain] for file in kept], dtype=np.int64) if domains else None,
        domain_names=domains,
        test_mask=np.array([file.split == "test" for file in kept]) if any(file.split for file in kept) else None,
        content_digest=pictures.content_digest,
        warnings=pictures.warnings,
    )
