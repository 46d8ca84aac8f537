"""The user's own images: `<data-dir>/[<domain>/][train|test/]<class>/*.jpg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.dataset_source import DatasetSource, LoadOptions, UserDataInfo
from fedmosaic_cli.data.io.image_folders import dataset_from_files, list_images

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset


def load_folder(path: Path, options: LoadOptions) -> Dataset:
    """Load all images, or those of the requested domains."""
    files = [file for file in list_images(path) if not options.domains or file.domain in options.domains]
    return dataset_from_files("folder", path, files, options, domain_names=options.domains)


def inspect_folder(path: Path) -> UserDataInfo:
    files = list_images(path)
    return UserDataInfo(len(files), tuple(sorted({file.domain for file in files} - {""})))


SOURCE = DatasetSource(
    description="your images: <data-dir>/[<domain>/][train|test/]<class>/*.jpg",
    find=lambda data_dir: data_dir if data_dir.is_dir() else None,
    load=load_folder,
    setup_hint="name the directory of your images with --data-dir",
    inspect=inspect_folder,
    is_resizable=True,
)
