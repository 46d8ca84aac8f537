"""CIFAR-10: 60,000 colour images, as the batches that torchvision downloads or as image files.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.cifar_batches import IMAGE_SIZE, load_cifar_batches
from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.data.io.download import Download
from fedmosaic_cli.data.io.image_folders import dataset_from_files, list_images
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset

BATCHES_DIR = "cifar-10-batches-py"
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLIT_DIRS = ("train", "test")


def find_cifar10(data_dir: Path) -> Path | None:
    """Return the directory of the batches, or one with `train` and `test` directories."""
    for path in (data_dir / BATCHES_DIR, data_dir / "cifar10" / BATCHES_DIR):
        if all((path / name).is_file() for name in (*TRAIN_FILES, TEST_FILE)):
            return path
    folders = (data_dir / "cifar10", data_dir)
    return next((path for path in folders if all((path / split / CLASSES[0]).is_dir() for split in SPLIT_DIRS)), None)


def load_cifar10(path: Path, options: LoadOptions) -> Dataset:
    """Load 50,000 training and 10,000 test images of 32x32 pixels."""
    if path.name != BATCHES_DIR:
        files = list_images(path)
        unknown = {file.label for file in files} - set(CLASSES)
        if unknown:
            raise RequestError(f"'{min(unknown)}' is not a class of CIFAR-10 ({path}): use --dataset folder")
        return dataset_from_files("cifar10", path, files, replace(options, image_size=IMAGE_SIZE), CLASSES)
    return load_cifar_batches("cifar10", [path / name for name in TRAIN_FILES], path / TEST_FILE, CLASSES)


SOURCE = DatasetSource(
    description="60,000 photographs, 32x32",
    find=find_cifar10,
    load=load_cifar10,
    setup_hint=f"'fedmosaic fetch cifar10' downloads it, or put {BATCHES_DIR} or cifar10/{{train,test}}/<class>/ into "
    "the data directory",
    default_public_size=3000,
    info=DatasetInfo(num_classes=10, num_channels=3, image_size=IMAGE_SIZE, num_train=50_000, num_test=10_000),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "",
            170_498_071,
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            extracted_directories=(BATCHES_DIR,),
        ),
    ),
)
