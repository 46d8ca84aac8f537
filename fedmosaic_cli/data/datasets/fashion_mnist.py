"""Fashion-MNIST: 70,000 grey images of clothes in four idx files, also split into four synthetic domains.

Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms, 2017.
Searched in the directories of torchvision and of Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.data.datasets.idx_layout import IdxLayout
from fedmosaic_cli.data.datasets.synthetic_domains import with_domains
from fedmosaic_cli.data.io.download import Download
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.datasets.synthetic_domains import ImageArray

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")
TORCHVISION_DIR = "FashionMNIST/raw"
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
LAYOUT = IdxLayout("fashion-mnist", (TORCHVISION_DIR, "fashion-mnist", "."), CLASSES)
DOMAINS_NAME = "fashion-mnist-domains"


def find_fashion_mnist(data_dir: Path) -> Path | None:
    """Return the first directory with all four files."""
    return LAYOUT.find(data_dir, DEBIAN_DIR)


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
    dataset = LAYOUT.load(path, options)
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
    load=LAYOUT.load,
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
