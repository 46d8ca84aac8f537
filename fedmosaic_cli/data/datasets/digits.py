"""The handwritten digits of scikit-learn (UCI ML, E. Alpaydin and C. Kaynak), also split into five synthetic domains.

Every image belongs to one domain only. If all domains contained it, a client's test images would be in other clients'
training sets.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.errors import ResourceError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    FloatImageArray = NDArray[np.float64]

MAX_PIXEL_VALUE = 16
IMAGE_SIZE = 8
# The domains belong to the data set; only the partition depends on the user's seed.
DOMAINS_SEED = 0


def load_digits() -> Dataset:
    """Load 1,797 grey images of 8x8 pixels in 10 classes."""
    # Reading scikit-learn's file is faster than importing the library.
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ResourceError("the digits need scikit-learn (sklearn): install it again")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    pixels = np.rint(table[:, :-1] * (255 / MAX_PIXEL_VALUE)).astype(np.uint8)
    return Dataset(
        name="digits",
        images=pixels.reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 1),
        labels=np.ascontiguousarray(table[:, -1]),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def reduce_contrast(images: FloatImageArray) -> FloatImageArray:
    """Reduce the contrast to a third, around mid-grey."""
    return 0.5 + (images - 0.5) / 3


def blur(images: FloatImageArray) -> FloatImageArray:
    """Replace each pixel by the mean of its 3x3 neighbourhood."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [
        padded[:, row : row + images.shape[1], column : column + images.shape[2]] for row, column in np.ndindex(3, 3)
    ]
    return np.asarray(np.mean(windows, axis=0))


def shift(images: FloatImageArray) -> FloatImageArray:
    """Shift one pixel down and to the right, with wrap-around."""
    return np.roll(images, (1, 1), axis=(1, 2))


def add_gaussian_noise(images: FloatImageArray) -> FloatImageArray:
    """Add Gaussian noise with a standard deviation of a quarter of the range."""
    return images + derive_rng(DOMAINS_SEED, "digits-domains", "noise").normal(scale=0.25, size=images.shape)


DOMAIN_TRANSFORMS: dict[str, Callable[[FloatImageArray], FloatImageArray]] = {
    "plain": lambda images: images,
    "faint": reduce_contrast,
    "blurred": blur,
    "shifted": shift,
    "noisy": add_gaussian_noise,
}


def load_digits_domains(path: Path, options: LoadOptions) -> Dataset:
    """Load the digits with a fifth of each class in each of five domains."""
    digits = load_digits()
    shuffled = derive_rng(DOMAINS_SEED, "digits-domains", "deal").permutation(len(digits))
    by_class = shuffled[np.argsort(digits.labels[shuffled], kind="stable")]
    domain_ids = np.empty(len(digits), dtype=np.int64)
    domain_ids[by_class] = np.arange(len(digits)) % len(DOMAIN_TRANSFORMS)
    images = digits.images / 255
    for domain, transform in enumerate(DOMAIN_TRANSFORMS.values()):
        images[domain_ids == domain] = transform(images[domain_ids == domain])
    return replace(
        digits,
        name="digits-domains",
        images=np.rint(images.clip(0, 1) * 255).astype(np.uint8),
        domain_ids=domain_ids,
        domain_names=tuple(DOMAIN_TRANSFORMS),
    )


SOURCE = DatasetSource(
    description="1,797 handwritten digits, 8x8",
    find=lambda data_dir: Path("embedded"),
    load=lambda path, options: load_digits(),
    setup_hint="it is embedded",
    default_public_size=300,
    info=DatasetInfo(num_classes=10, num_channels=1, image_size=IMAGE_SIZE, num_train=1797),
)
DOMAINS_SOURCE = replace(
    SOURCE,
    description="the same digits, each seen in one of five synthetic domains",
    load=load_digits_domains,
    domains=tuple(DOMAIN_TRANSFORMS),
)
