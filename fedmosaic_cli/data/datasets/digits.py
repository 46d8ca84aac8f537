"""The handwritten digits of scikit-learn (UCI ML, E. Alpaydin and C. Kaynak), also in five synthetic domains."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource
from fedmosaic_cli.data.datasets.synthetic_domains import DOMAINS_SEED, with_domains
from fedmosaic_cli.errors import ResourceError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.data.datasets.synthetic_domains import ImageArray

    FloatImageArray = NDArray[np.float64]

MAX_PIXEL_VALUE = 16
IMAGE_SIZE = 8
DOMAINS_NAME = "digits-domains"


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
    return images + derive_rng(DOMAINS_SEED, DOMAINS_NAME, "noise").normal(scale=0.25, size=images.shape)


def in_unit_range(transform: Callable[[FloatImageArray], FloatImageArray]) -> Callable[[ImageArray], ImageArray]:
    """Apply a transform of values in [0, 1] to bytes."""
    return lambda images: np.rint(transform(images / 255).clip(0, 1) * 255).astype(np.uint8)


DOMAIN_TRANSFORMS: dict[str, Callable[[ImageArray], ImageArray]] = {
    "plain": lambda images: images,
    "faint": in_unit_range(reduce_contrast),
    "blurred": in_unit_range(blur),
    "shifted": in_unit_range(shift),
    "noisy": in_unit_range(add_gaussian_noise),
}


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
    load=lambda path, options: with_domains(load_digits(), DOMAINS_NAME, DOMAIN_TRANSFORMS),
    domains=tuple(DOMAIN_TRANSFORMS),
)
