"""The digits as five different cameras would have taken them: feature shift without a download.

Every image belongs to one domain only. Were it shown in all five, a client's test images would stand in another
client's training set in a different coat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets.dataset_source import DatasetInfo, DatasetSource, LoadOptions
from fedmosaic_cli.data.datasets.digits import find_embedded, load_digits
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset

    FloatImageArray = NDArray[np.float64]

# The data set is one and the same for everybody; only how it is dealt depends on the user's seed.
DOMAINS_SEED = 0


def keep_unchanged(images: FloatImageArray) -> FloatImageArray:
    return images


def reduce_contrast(images: FloatImageArray) -> FloatImageArray:
    """A third of the contrast, around mid-grey."""
    return 0.5 + (images - 0.5) / 3


def blur(images: FloatImageArray) -> FloatImageArray:
    """The mean over each pixel's 3x3 neighbourhood."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [
        padded[:, row : row + images.shape[1], column : column + images.shape[2]] for row, column in np.ndindex(3, 3)
    ]
    return np.asarray(np.mean(windows, axis=0))


def shift(images: FloatImageArray) -> FloatImageArray:
    """One pixel down and to the right, around the edges."""
    return np.roll(images, (1, 1), axis=(1, 2))


def add_gaussian_noise(images: FloatImageArray) -> FloatImageArray:
    """Gaussian noise of a quarter of the range."""
    return images + derive_rng(DOMAINS_SEED, "digits-domains", "noise").normal(scale=0.25, size=images.shape)


DOMAIN_TRANSFORMS: dict[str, Callable[[FloatImageArray], FloatImageArray]] = {
    "plain": keep_unchanged,
    "faint": reduce_contrast,
    "blurred": blur,
    "shifted": shift,
    "noisy": add_gaussian_noise,
}


def load_digits_domains(path: Path, options: LoadOptions) -> Dataset:
    """The 1,797 digits, a fifth of each class in each of the five domains."""
    digits = load_digits()
    domains = assign_domains(digits.labels, len(DOMAIN_TRANSFORMS))
    images = digits.images / 255
    for number, change in enumerate(DOMAIN_TRANSFORMS.values()):
        images[domains == number] = change(images[domains == number])
    return replace(
        digits,
        name="digits-domains",
        images=np.rint(images.clip(0, 1) * 255).astype(np.uint8),
        domain_ids=domains,
        domain_names=tuple(DOMAIN_TRANSFORMS),
    )


def assign_domains(labels: NDArray[np.int64], num_domains: int) -> NDArray[np.int64]:
    """A part for each example, every class spread over all parts as evenly as can be."""
    shuffled = derive_rng(DOMAINS_SEED, "digits-domains", "deal").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    dealt = np.empty(len(labels), dtype=np.int64)
    dealt[by_class] = np.arange(len(labels)) % num_domains
    return dealt


SOURCE = DatasetSource(
    description="the same digits, each seen in one of five synthetic domains",
    find=find_embedded,
    load=load_digits_domains,
    setup_hint="it is embedded",
    default_public_size=300,
    domains=tuple(DOMAIN_TRANSFORMS),
    info=DatasetInfo(num_classes=10, num_channels=1, image_size=8, num_train=1797),
)
