"""Directories of images: `<root>/[<domain>/][train|test/]<class>/*.jpg` and the like."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.io.image_cache import Pictures, image_shape, load_images
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fedmosaic_cli.data.datasets.dataset_source import Wanted

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
PARTS = {"train", "test"}
# What people call parts as well: taken for domains, they would be merged.
LOOKALIKES = {"training", "testing", "val", "valid", "validation", "eval", "dev"}


class ImageFile(NamedTuple):
    """An image below a root, and what its path says of it. `part` is train, test or empty."""

    name: str
    label: str
    domain: str
    part: str
    size: int
    modified: int


def walk(root: Path) -> list[ImageFile]:
    """All images below `root`, in a fixed order: by domain, training part first, by class, by name."""
    top = directories(root, "")
    if not top:
        raise RequestError(f"no directories of images here ({root}): put images into a directory a class")
    bare = [name for name in top if not has_images(root, name)]
    if len(bare) < len(top):
        if bare:
            raise RequestError(f"no images in '{bare[0]}', which stands beside classes ({root}): remove it or fill it")
        return in_classes(root, top, "", "")
    if holds_parts(root, top):
        return in_parts(root, top, "", "")
    files = []
    for domain in top:
        inner = directories(root, domain)
        if not inner:
            raise RequestError(f"neither a domain nor a class ({root / domain}): it holds no directory with images")
        if not any(has_images(root, f"{domain}/{name}") for name in inner) and holds_parts(root / domain, inner):
            files += in_parts(root, inner, domain, f"{domain}/")
        else:
            files += in_classes(root, [f"{domain}/{name}" for name in inner], domain, "")
    mixed = {bool(file.part) for file in files}
    if len(mixed) > 1:
        raise RequestError(f"some domains have train and test parts and others have none ({root}): make them alike")
    return files


def holds_parts(folder: Path, names: list[str]) -> bool:
    """Whether these directories are a training and a test part. Names that might mean that are not guessed at."""
    parts = {name for name in names if name.lower() in PARTS}
    unclear = [name for name in names if name not in parts and (parts or name.lower() in LOOKALIKES)]
    if unclear:
        raise RequestError(f"'{unclear[0]}' is not train or test ({folder}): rename it to one of them, or move it away")
    return bool(parts)


def in_parts(root: Path, names: list[str], domain: str, prefix: str) -> list[ImageFile]:
    """The images of a `train` and a `test` directory."""
    found = {name.lower(): name for name in names}
    # A training part alone is no split.
    label = {"train": "train" if "test" in found else "", "test": "test"}
    files = []
    for part in ("train", "test"):
        if part in found:
            folder = f"{prefix}{found[part]}"
            files += in_classes(root, [f"{folder}/{name}" for name in directories(root, folder)], domain, label[part])
    return files


def in_classes(root: Path, names: list[str], domain: str, part: str) -> list[ImageFile]:
    """The images of directories that are a class each."""
    files = []
    for directory in names:
        with os.scandir(root / directory) as entries:
            found = sorted((entry for entry in entries if is_image(entry)), key=lambda entry: entry.name)
        label = directory.rsplit("/", maxsplit=1)[-1]
        for entry in found:
            facts = entry.stat()
            files.append(ImageFile(f"{directory}/{entry.name}", label, domain, part, facts.st_size, facts.st_mtime_ns))
    return files


def is_image(entry: os.DirEntry[str]) -> bool:
    # A link that leads nowhere is one too: it shall be missed, not passed over.
    return entry.name.lower().endswith(ENDINGS) and not entry.name.startswith(".") and not entry.is_dir()


def has_images(root: Path, name: str) -> bool:
    with os.scandir(root / name) as entries:
        return any(is_image(entry) for entry in entries)


def directories(root: Path, name: str) -> list[str]:
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


def unseen(root: Path, files: Sequence[ImageFile], wanted: Wanted) -> Pictures:
    """Black images of the right shape, which take no room."""
    shape = (len(files), *image_shape(root, files, wanted.image_size))
    return Pictures(np.broadcast_to(np.uint8(0), shape), np.arange(len(files)), content="unseen", remarks=())


def to_dataset(
    name: str,
    root: Path,
    files: Sequence[ImageFile],
    wanted: Wanted,
    class_names: Iterable[str] = (),
    domain_names: Iterable[str] = (),
) -> Dataset:
    """The images of `files` as a data set. Names that are not given are those that occur, sorted."""
    classes = tuple(class_names) or tuple(sorted({file.label for file in files}))
    domains = tuple(domain_names) or tuple(sorted({file.domain for file in files} - {""}))
    if wanted.pixels:
        pictures = load_images(root, files, wanted.image_size, wanted.place)
    else:
        pictures = unseen(root, files, wanted)
    kept = [files[position] for position in pictures.kept]
    class_number = {name: number for number, name in enumerate(classes)}
    domain_number = {name: number for number, name in enumerate(domains)}
    return Dataset(
        name=name,
        images=pictures.images,
        labels=np.array([class_number[file.label] for file in kept], dtype=np.int64),
        class_names=classes,
        domains=np.array([domain_number[file.domain] for file in kept], dtype=np.int64) if domains else None,
        domain_names=domains,
        test=np.array([file.part == "test" for file in kept]) if any(file.part for file in kept) else None,
        content=pictures.content,
        remarks=pictures.remarks,
    )
