"""Differentially private mechanisms for labels and expertise.

The amount of noise depends on the configuration only, never on the values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.seeds import RandomSource

CHANGED_BITS_PER_LABEL = 2
"""Another label changes two bits of a one-hot row."""
# With 1/2 a bit carries no information, and its bias cannot be corrected.
MAX_FLIP_PROBABILITY = math.nextafter(0.5, 0.0)


def flip_probability(epsilon: float, changed_bits: int) -> float:
    """q = 1 / (1 + exp(epsilon / k)) if at most k bits can differ: below 1/2, and 0 for an infinite epsilon."""
    small = math.exp(-epsilon / changed_bits)
    return min(small / (1.0 + small), MAX_FLIP_PROBABILITY)


def keep_probability(label_epsilon: float, num_classes: int) -> float:
    """e^epsilon / (e^epsilon + C - 1): the probability of keeping a label."""
    return 1.0 / (1.0 + (num_classes - 1) * math.exp(-label_epsilon))


def other_label_probability(label_epsilon: float, num_classes: int) -> float:
    """1 / (e^epsilon + C - 1): the probability of each other label."""
    small = math.exp(-label_epsilon)
    return small / (1.0 + (num_classes - 1) * small)


def randomized_response(
    labels: NDArray[Any], label_epsilon: float, num_classes: int, rng: RandomSource
) -> NDArray[np.int64]:
    """k-ary randomised response: each label is kept or replaced by one of the others with equal probability.

    With an infinite epsilon the labels are unchanged and nothing is drawn.
    """
    exact = np.array(labels, dtype=np.int64)
    if math.isinf(label_epsilon) or num_classes == 1:
        return exact
    kept = rng.random(exact.shape) < keep_probability(label_epsilon, num_classes)
    others = (exact + rng.integers(1, num_classes, exact.shape)) % num_classes
    return np.where(kept, exact, others)


def flip_one_hot_bits(
    labels: NDArray[Any], label_epsilon: float, num_classes: int, rng: RandomSource
) -> NDArray[np.uint8]:
    """One-hot labels [examples, classes] in which every bit is flipped with equal probability.

    A row may contain no 1 or several. With an infinite epsilon nothing is drawn.
    """
    bits: NDArray[np.uint8] = (np.asarray(labels)[:, None] == np.arange(num_classes)).astype(np.uint8)
    if math.isinf(label_epsilon):
        return bits
    flips = (rng.random(bits.shape) < flip_probability(label_epsilon, CHANGED_BITS_PER_LABEL)).astype(np.uint8)
    return np.bitwise_xor(bits, flips)


def add_clipped_gaussian_noise(
    values: NDArray[Any], sigma: float, max_value: float, rng: RandomSource
) -> NDArray[np.float64]:
    """Values clipped to [0, max_value], plus independent Gaussian noise, clipped again; unchanged without noise.

    NaN counts as 0 before the noise is added. Otherwise it would stay NaN and reveal that the client diverged.
    """
    exact = np.array(values, dtype=np.float64)
    if sigma == 0:
        return exact
    clipped = np.clip(np.where(np.isnan(exact), 0.0, exact), 0.0, max_value)
    noisy: NDArray[np.float64] = clipped + rng.normal(0.0, sigma, exact.shape)
    return noisy.clip(0.0, max_value)


def noisy_histogram(counts: NDArray[Any], sigma: float, rng: RandomSource) -> NDArray[np.float64]:
    """The fraction of each class, plus Gaussian noise, clipped to [0, 1] and normalised; exact without noise.

    If all noisy fractions are 0 they stay 0.
    """
    exact = np.asarray(counts, dtype=np.float64)
    shares: NDArray[np.float64] = exact / max(exact.sum(), 1.0)
    if sigma == 0:
        return shares
    noisy: NDArray[np.float64] = np.clip(shares + rng.normal(0.0, sigma, shares.shape), 0.0, 1.0)
    total = noisy.sum()
    return noisy / total if total else noisy
