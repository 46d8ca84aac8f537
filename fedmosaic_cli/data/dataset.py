"""A data set in memory: one array of images, their labels and, where there are any, their domains."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """`images` is uint8 [examples, height, width, channels]; `labels` and `domains` index the names beside them."""

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    domains: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """[channels, height, width], as networks see an image."""
        _, height, width, channels = self.images.shape
        return channels, height, width

    def class_counts(self, index: NDArray[np.int64]) -> list[int]:
        """How many of the examples `index` each class has."""
        counts: list[int] = np.bincount(self.labels[index], minlength=self.num_classes).tolist()
        return counts

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the contents: two machines with the same fingerprint hold the same examples in the same order."""
        digest = hashlib.sha256(repr((self.images.shape, self.class_names, self.domain_names)).encode())
        for array in (self.images, self.labels, self.domains):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
