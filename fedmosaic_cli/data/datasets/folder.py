"""The user's own images: `<root>/[<domain>/][train|test/]<class>/*.jpg`, where the root is the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.dataset_source import Look, Source, Wanted
from fedmosaic_cli.data.io.image_folders import to_dataset, walk

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset


def find(data_dir: Path) -> Path | None:
    return data_dir if data_dir.is_dir() else None


def load(path: Path, wanted: Wanted) -> Dataset:
    """All images, or those of the wanted domains."""
    files = [file for file in walk(path) if not wanted.domains or file.domain in wanted.domains]
    return to_dataset("folder", path, files, wanted, domain_names=wanted.domains)


def look(path: Path) -> Look:
    files = walk(path)
    return Look(len(files), tuple(sorted({file.domain for file in files} - {""})))


SOURCE = Source(
    about="your images: <data-dir>/[<domain>/][train|test/]<class>/*.jpg",
    find=find,
    load=load,
    how_to_get="name the directory of your images with --data-dir",
    look=look,
    resizable=True,
)
