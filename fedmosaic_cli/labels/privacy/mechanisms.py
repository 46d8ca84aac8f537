"""Noise for what leaves a client: labels that may be others, bits that may be flipped, values that are off by chance.

How much noise there is may depend on the configuration alone, never on the values that it hides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.seeds import RandomSource

CHANGED_BITS_PER_LABEL = 2
"""One label instead of another changes two bits of a row that has a one for its class."""
# A bit that is flipped every other time tells nothing at all, and nobody could undo its bias.
MAX_FLIP_PROBABILITY = math.nextafter(0.5, 0.0)


def flip_probability(epsilon: float, changed_bits: int) -> float:
    """q = 1 / (1 + exp(epsilon / bits)): how often to flip each bit, where at most `bits` of them can differ.

    Below 1/2 for every budget, the smaller the larger the budget is, and 0 for an infinite one.
    """
    small = math.exp(-epsilon / changed_bits)
    return min(small / (1.0 + small), MAX_FLIP_PROBABILITY)


def keep_probability(label_epsilon: float, num_classes: int) -> float:
    """e^epsilon / (e^epsilon + C - 1): how often a label with this budget is told as it is."""
    return 1.0 / (1.0 + (num_classes - 1) * math.exp(-label_epsilon))


def other_label_probability(label_epsilon: float, num_classes: int) -> float:
    """1 / (e^epsilon + C - 1): how often it is told as one certain other label."""
    small = math.exp(-label_epsilon)
    return small / (1.0 + (num_classes - 1) * small)


def randomized_response(
    labels: NDArray[Any], label_epsilon: float, num_classes: int, rng: RandomSource
) -> NDArray[np.int64]:
    """Labels by k-ary randomised response: each is kept, or becomes any of the others with the same chance.

    With an infinite budget these are the labels themselves, and nothing is drawn.
    """
    told = np.array(labels, dtype=np.int64)
    if math.isinf(label_epsilon) or num_classes == 1:
        return told
    kept = rng.random(told.shape) < keep_probability(label_epsilon, num_classes)
    others = (told + rng.integers(1, num_classes, told.shape)) % num_classes
    return np.where(kept, told, others)


def flip_one_hot_bits(
    labels: NDArray[Any], label_epsilon: float, num_classes: int, rng: RandomSource
) -> NDArray[np.uint8]:
    """[examples, classes]: a one for each label's class, and then every bit flipped with the same chance.

    A row may hold no one or several. With an infinite budget nothing is drawn.
    """
    bits: NDArray[np.uint8] = (np.asarray(labels)[:, None] == np.arange(num_classes)).astype(np.uint8)
    if math.isinf(label_epsilon):
        return bits
    flips = (rng.random(bits.shape) < flip_probability(label_epsilon, CHANGED_BITS_PER_LABEL)).astype(np.uint8)
    return np.bitwise_xor(bits, flips)


def add_clipped_gaussian_noise(
    values: NDArray[Any], sigma: float, max_value: float, rng: RandomSource
) -> NDArray[np.float64]:
    """Values cut to [0, high], each with Gaussian noise of its own, and cut again; without noise as they are."""
    exact = np.array(values, dtype=np.float64)
    if sigma == 0:
        return exact
    noisy: NDArray[np.float64] = np.clip(exact, 0.0, max_value) + rng.normal(0.0, sigma, exact.shape)
    return noisy.clip(0.0, max_value)


def noisy_histogram(counts: NDArray[Any], sigma: float, rng: RandomSource) -> NDArray[np.float64]:
    """The share of each class, with Gaussian noise, cut to [0, 1] and brought to a sum of 1; without noise exact.

    Where noise leaves nothing of any class, all shares are 0.
    """
    exact = np.asarray(counts, dtype=np.float64)
    shares: NDArray[np.float64] = exact / max(exact.sum(), 1.0)
    if sigma == 0:
        return shares
    noisy: NDArray[np.float64] = np.clip(shares + rng.normal(0.0, sigma, shares.shape), 0.0, 1.0)
    total = noisy.sum()
    return noisy / total if total else noisy
