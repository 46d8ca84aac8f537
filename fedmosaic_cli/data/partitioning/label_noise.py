"""Labels that lie: a client that sees all labels turned around, and noise in everybody's training labels.

Test labels of a turned-around client are turned as well (its task is a different one); noise never touches test labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import LabelNoiseKind

    IntArray = NDArray[np.int64]


def reverse_labels(labels: IntArray, num_classes: int) -> IntArray:
    """y -> C-1-y, the paper's misleading client."""
    return num_classes - 1 - labels


def add_label_noise(
    labels: IntArray, num_classes: int, fraction: float, kind: LabelNoiseKind, rng: np.random.Generator
) -> IntArray:
    """The labels with exactly `ratio` of them wrong: each another class at random, or each the next class."""
    wrong = rng.permutation(len(labels))[: round(fraction * len(labels))]
    if kind == "symmetric":
        step = (
            rng.integers(1, num_classes, size=len(wrong)) if num_classes > 1 else np.zeros(len(wrong), dtype=np.int64)
        )
    else:
        step = np.ones(len(wrong), dtype=np.int64)
    result = labels.copy()
    result[wrong] = (labels[wrong] + step) % num_classes
    return result
