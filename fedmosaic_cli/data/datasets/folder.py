"""The user's own images: `<root>/[<domain>/][train|test/]<class>/*.jpg`, where the root is the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.dataset_source import DatasetSource, LoadOptions, UserDataInfo
from fedmosaic_cli.data.io.image_folders import dataset_from_files, list_images

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset


def find_folder(data_dir: Path) -> Path | None:
    return data_dir if data_dir.is_dir() else None


def load_folder(path: Path, options: LoadOptions) -> Dataset:
    """All images, or those of the wanted domains."""
    files = [file for file in list_images(path) if not options.domains or file.domain in options.domains]
    return dataset_from_files("folder", path, files, options, domain_names=options.domains)


def inspect_folder(path: Path) -> UserDataInfo:
    files = list_images(path)
    return UserDataInfo(len(files), tuple(sorted({file.domain for file in files} - {""})))


SOURCE = DatasetSource(
    description="your images: <data-dir>/[<domain>/][train|test/]<class>/*.jpg",
    find=find_folder,
    load=load_folder,
    setup_hint="name the directory of your images with --data-dir",
    inspect=inspect_folder,
    is_resizable=True,
)
