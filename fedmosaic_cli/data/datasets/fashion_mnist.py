"""Fashion-MNIST: 70,000 grey images of clothes in four idx files, also split into four synthetic domains.

Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, 2017.
Searched in the directories of torchvision and of Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.data.datasets.synthetic_domains import with_domains
from fedmosaic_cli.data.io.download import Download
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.data.datasets.synthetic_domains import ImageArray

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")
TORCHVISION_DIR = "FashionMNIST/raw"
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
# Images and labels of the training and the test split.
IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
IDX_UNSIGNED_BYTE = 8
# A real file has 47 MB; a hostile one may expand without end.
MAX_IDX_BYTES = 1 << 28
DOMAINS_NAME = "fashion-mnist-domains"


def find_fashion_mnist(data_dir: Path) -> Path | None:
    """Return the first directory with all four files."""
    for folder in (data_dir / TORCHVISION_DIR, data_dir / "fashion-mnist", data_dir, DEBIAN_DIR):
        if all(find_idx_file(folder, name) for pair in IDX_FILES for name in pair):
            return folder
    return None


def find_idx_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file, compressed or not."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def load_fashion_mnist(path: Path, options: LoadOptions) -> Dataset:
    """Load 60,000 training and 10,000 test images of 28x28 pixels."""
    parts = [[read_idx(find_idx_file(path, name) or path / name) for name in pair] for pair in IDX_FILES]
    for (images, labels), (name, _) in zip(parts, IDX_FILES, strict=True):
        if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max(initial=0) >= len(CLASSES):
            raise RequestError(
                f"images {images.shape} and labels {labels.shape} do not match ({path / name}): download them again"
            )
    return Dataset(
        name="fashion-mnist",
        images=np.concatenate([images for images, _ in parts])[..., None],
        labels=np.concatenate([labels for _, labels in parts]).astype(np.int64),
        class_names=CLASSES,
        test_mask=np.repeat([False, True], [len(labels) for _, labels in parts]),
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read the bytes of an idx file: two zeros, the type, the number of dimensions, the shape, the values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_IDX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise RequestError(f"cannot read: {error} ({path}): download the file again") from None
    if len(content) < 4 or content[:3] != bytes([0, 0, IDX_UNSIGNED_BYTE]):
        raise RequestError(f"not an idx file of bytes ({path}): download the file again")
    start = 4 + 4 * content[3]
    shape = tuple(np.frombuffer(content[4:start], ">i4").tolist()) if start <= len(content) else ()
    if not shape or prod(shape) != len(content) - start:
        raise RequestError(f"{len(content)} bytes do not match the header ({path}): download the file again")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def invert(images: ImageArray) -> ImageArray:
    """Exchange black and white."""
    return 255 - images


def rotate(images: ImageArray) -> ImageArray:
    """Rotate by 90 degrees, counter-clockwise."""
    return np.rot90(images, axes=(1, 2))


def edges(images: ImageArray) -> ImageArray:
    """Return the magnitude of the gradient, by central differences, scaled to 0 to 255.

    The image is continued beyond its border by the values of the border.
    """
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge").astype(np.float32)
    vertical = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    horizontal = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    # Squares are exact and a square root is rounded alike on every machine, which `hypot` is not.
    magnitude: ImageArray = np.rint(np.sqrt((vertical**2 + horizontal**2) / 2)).astype(np.uint8)
    return magnitude


DOMAIN_TRANSFORMS: dict[str, Callable[[ImageArray], ImageArray]] = {
    "plain": lambda images: images,
    "inverted": invert,
    "rotated": rotate,
    "edges": edges,
}


def load_fashion_mnist_domains(path: Path, options: LoadOptions) -> Dataset:
    """Load the images with a quarter of each class and split in each of four domains."""
    dataset = load_fashion_mnist(path, options)
    _, height, width, _ = dataset.images.shape
    if height != width:
        raise RequestError(f"images of {width}x{height} cannot be rotated ({path}): download them again")
    return with_domains(dataset, DOMAINS_NAME, DOMAIN_TRANSFORMS)


MIRROR_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# Name, bytes, SHA-256.
ARCHIVES = (
    ("train-images-idx3-ubyte.gz", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    ("train-labels-idx1-ubyte.gz", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    ("t10k-images-idx3-ubyte.gz", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    ("t10k-labels-idx1-ubyte.gz", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
SOURCE = DatasetSource(
    description="70,000 images of clothes, 28x28",
    find=find_fashion_mnist,
    load=load_fashion_mnist,
    setup_hint=f"'fedmosaic fetch fashion-mnist' downloads it, or put its four idx files into {TORCHVISION_DIR} below "
    "the data directory, or install Debian's dataset-fashion-mnist",
    default_public_size=2250,
    domains_variant=DOMAINS_NAME,
    info=DatasetInfo(num_classes=10, num_channels=1, image_size=28, num_train=60_000, num_test=10_000),
    downloads=tuple(Download(f"{MIRROR_URL}/{name}", TORCHVISION_DIR, size, sha256) for name, size, sha256 in ARCHIVES),
)
DOMAINS_SOURCE = replace(
    SOURCE,
    description="the same images, each in one of four synthetic domains",
    load=load_fashion_mnist_domains,
    domains=tuple(DOMAIN_TRANSFORMS),
    domains_variant=None,
)
