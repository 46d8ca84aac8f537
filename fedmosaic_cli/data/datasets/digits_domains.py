"""The digits as five different cameras would have taken them: feature shift without a download.

Every image belongs to one domain only. Were it shown in all five, a client's test images would stand in another
client's training set in a different coat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets.dataset_source import Facts, Source, Wanted
from fedmosaic_cli.data.datasets.digits import embedded, load_digits
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset

    Images = NDArray[np.float64]

# The data set is one and the same for everybody; only how it is dealt depends on the user's seed.
SEED = 0


def plain(images: Images) -> Images:
    return images


def faint(images: Images) -> Images:
    """A third of the contrast, around mid-grey."""
    return 0.5 + (images - 0.5) / 3


def blurred(images: Images) -> Images:
    """The mean over each pixel's 3x3 neighbourhood."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [
        padded[:, row : row + images.shape[1], column : column + images.shape[2]] for row, column in np.ndindex(3, 3)
    ]
    return np.asarray(np.mean(windows, axis=0))


def shifted(images: Images) -> Images:
    """One pixel down and to the right, around the edges."""
    return np.roll(images, (1, 1), axis=(1, 2))


def noisy(images: Images) -> Images:
    """Gaussian noise of a quarter of the range."""
    return images + generator(SEED, "digits-domains", "noise").normal(scale=0.25, size=images.shape)


DOMAINS: dict[str, Callable[[Images], Images]] = {
    "plain": plain,
    "faint": faint,
    "blurred": blurred,
    "shifted": shifted,
    "noisy": noisy,
}


def load(path: Path, wanted: Wanted) -> Dataset:
    """The 1,797 digits, a fifth of each class in each of the five domains."""
    digits = load_digits()
    domains = deal_evenly(digits.labels, len(DOMAINS))
    images = digits.images / 255
    for number, change in enumerate(DOMAINS.values()):
        images[domains == number] = change(images[domains == number])
    return replace(
        digits,
        name="digits-domains",
        images=np.rint(images.clip(0, 1) * 255).astype(np.uint8),
        domains=domains,
        domain_names=tuple(DOMAINS),
    )


def deal_evenly(labels: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """A part for each example, every class spread over all parts as evenly as can be."""
    shuffled = generator(SEED, "digits-domains", "deal").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    dealt = np.empty(len(labels), dtype=np.int64)
    dealt[by_class] = np.arange(len(labels)) % parts
    return dealt


SOURCE = Source(
    about="the same digits, each seen in one of five synthetic domains",
    find=embedded,
    load=load,
    how_to_get="it is embedded",
    public_size=300,
    domains=tuple(DOMAINS),
    facts=Facts(classes=10, channels=1, side=8, train=1797),
)
