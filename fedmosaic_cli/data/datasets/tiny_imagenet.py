"""Tiny-ImageNet: 110,000 labelled photographs of 200 classes of ImageNet, 64x64, as image files.

Le, Yang: Tiny ImageNet Visual Recognition Challenge, Stanford CS 231N, 2015. Classes are named by their WordNet ids.
The labelled validation split is the test split here, as usual: the published test images have no labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.data.io.download import Download
from fedmosaic_cli.data.io.image_folders import dataset_from_files, list_class_images, list_subdirectories
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.io.image_folders import ImageFile

IMAGES_DIR = "tiny-imagenet-200"
ANNOTATIONS_FILE = "val/val_annotations.txt"
IMAGE_SIZE = 64


def find_tiny_imagenet(data_dir: Path) -> Path | None:
    """Return the directory with `train` and the labels of `val`."""
    folders = (data_dir / IMAGES_DIR, data_dir / "tiny-imagenet" / IMAGES_DIR)
    return next((path for path in folders if (path / "train").is_dir() and (path / ANNOTATIONS_FILE).is_file()), None)


def load_tiny_imagenet(path: Path, options: LoadOptions) -> Dataset:
    """Load 100,000 training images and, as test split, 10,000 validation images.

    Raises:
        RequestError: Directories, images or labels are missing.
    """
    classes = list_subdirectories(path, "train")
    files = [*list_training_images(path, classes), *list_validation_images(path, classes)]
    return dataset_from_files("tiny-imagenet", path, files, replace(options, image_size=IMAGE_SIZE), classes)


def list_training_images(root: Path, classes: list[str]) -> list[ImageFile]:
    """Return the images in `train/<class>/images`."""
    files = []
    for name in classes:
        folder = f"train/{name}/images"
        if not (root / folder).is_dir():
            raise RequestError(f"no directory 'images' ({root / 'train' / name}): extract the archive again")
        files += [file._replace(label=name) for file in list_class_images(root, [folder], "", "train")]
    return files


def list_validation_images(root: Path, classes: list[str]) -> list[ImageFile]:
    """Return the images in `val/images` with the labels of the annotations, in the order of their names."""
    if not (root / "val/images").is_dir():
        raise RequestError(f"no directory 'images' ({root / 'val'}): extract the archive again")
    labels = read_annotations(root / ANNOTATIONS_FILE, set(classes))
    files = {
        file.relative_path.rpartition("/")[2]: file for file in list_class_images(root, ["val/images"], "", "test")
    }
    for names, others, problem in ((labels, files, "an image"), (files, labels, "a label")):
        missing = sorted(set(names) - set(others))
        if missing:
            raise RequestError(
                f"{missing[0]} and {len(missing) - 1} others lack {problem} ({root / 'val'}): extract the archive again"
            )
    return [file._replace(label=labels[name]) for name, file in files.items()]


def read_annotations(path: Path, classes: set[str]) -> dict[str, str]:
    """Return the class of each image: the second column of a table separated by tabs; the others are a bounding box."""
    labels = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        name, label, *_ = [*line.split("\t"), "", ""]
        if not name or label not in classes:
            raise RequestError(f"'{label}' is not a class in train ({path}, line {number}): extract the archive again")
        labels[name] = label
    return labels


SOURCE = DatasetSource(
    description="110,000 photographs of 200 classes, 64x64",
    find=find_tiny_imagenet,
    load=load_tiny_imagenet,
    setup_hint=f"'fedmosaic fetch tiny-imagenet' downloads it (248 MB), or put {IMAGES_DIR} into the data directory",
    default_public_size=3000,
    info=DatasetInfo(num_classes=200, num_channels=3, image_size=IMAGE_SIZE, num_train=100_000, num_test=10_000),
    downloads=(
        # Stanford publishes no checksum. Size and SHA-256 are those that several independent projects on GitHub check
        # or record, and so is the MD5 90528d7ca1a48142e341f4ef8d21d0de (avalanche: tiny_imagenet.py).
        Download(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "",
            248_100_043,
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            extracted_directories=(f"{IMAGES_DIR}/train", f"{IMAGES_DIR}/val"),
        ),
    ),
)
