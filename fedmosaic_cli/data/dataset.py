"""A data set in memory: images, labels and optionally domains, a test split and client ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


# The subset of a share belongs to the data set and must not depend on the user's seed.
SUBSAMPLE_SEED = 0


@dataclass(frozen=True)
class Dataset:
    """A data set in memory.

    Attributes:
        images: uint8 [examples, height, width, channels].
        labels: Indices into `class_names`.
        domain_ids: Indices into `domain_names`.
        test_mask: Marks the official test split, if there is one.
        client_ids: The client of each example, if the data is already partitioned.
        content_digest: Digest of the image files. It replaces the pixels in the fingerprint, because two versions of a
            decoder may differ in single pixels.
        warnings: Notes about unusual files.
        test_set_description: Origin of the test split. The text is part of shard digests and must not change.
    """

    name: str
    images: NDArray[np.uint8]
    labels: IntArray
    class_names: tuple[str, ...]
    domain_ids: IntArray | None = None
    domain_names: tuple[str, ...] = ()
    test_mask: NDArray[np.bool_] | None = None
    client_ids: IntArray | None = None
    content_digest: str = ""
    warnings: tuple[str, ...] = ()
    test_set_description: str = "the data set's own test part"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of an image as models see it: [channels, height, width]."""
        _, height, width, channels = self.images.shape
        return channels, height, width

    @property
    def train_indices(self) -> IntArray:
        """Indices outside the official test split."""
        return np.arange(len(self)) if self.test_mask is None else np.flatnonzero(~self.test_mask)

    @property
    def test_indices(self) -> IntArray:
        """Indices of the official test split; empty if there is none."""
        return np.empty(0, dtype=np.int64) if self.test_mask is None else np.flatnonzero(self.test_mask)

    def select_domains(self, domains: tuple[str, ...]) -> Dataset:
        """Return the examples of some domains, numbered in the given order."""
        if self.domain_ids is None or domains == self.domain_names:
            return self
        number = np.full(len(self.domain_names), -1)
        number[[self.domain_names.index(name) for name in domains]] = np.arange(len(domains))
        chosen = self._take(np.flatnonzero(number[self.domain_ids] >= 0))
        return replace(chosen, domain_ids=number[chosen.domain_ids], domain_names=domains)

    def subsample(self, fraction: float) -> Dataset:
        """Return a fixed subset, stratified by class, domain, test split and client, in the original order.

        The size is exact up to rounding, that of each stratum up to one example.
        """
        others = (self.domain_ids, self.test_mask, self.client_ids)
        keys = np.stack([self.labels, *(array for array in others if array is not None)])
        _, stratum, sizes = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
        shuffled = derive_rng(SUBSAMPLE_SEED, "sample").permutation(len(self))
        by_stratum = shuffled[np.argsort(stratum.ravel()[shuffled], kind="stable")]
        # Cumulative sizes are rounded, not single ones, so that the total is exact as well.
        ends = np.cumsum(sizes)
        counts = np.diff(np.rint(fraction * ends).astype(np.int64), prepend=0)
        taken = [
            by_stratum[end - size + np.arange(count) * size // count]
            for end, size, count in zip(ends, sizes, counts, strict=True)
            if count
        ]
        return self._take(np.sort(np.concatenate([*taken, np.empty(0, dtype=np.int64)])))

    def _take(self, indices: IntArray) -> Dataset:
        # Images without pixels are broadcast from one value; indexing would allocate all of them.
        without_pixels = self.images.strides[0] == 0
        return replace(
            self,
            images=self.images[: len(indices)] if without_pixels else self.images[indices],
            labels=self.labels[indices],
            domain_ids=None if self.domain_ids is None else self.domain_ids[indices],
            test_mask=None if self.test_mask is None else self.test_mask[indices],
            client_ids=None if self.client_ids is None else self.client_ids[indices],
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content: equal fingerprints mean the same examples in the same order."""
        names = (self.images.shape, self.class_names, self.domain_names, self.content_digest)
        digest = hashlib.sha256(repr(names).encode())
        images = None if self.content_digest else self.images
        for array in (images, self.labels, self.domain_ids, self.test_mask, self.client_ids):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).data)
        return digest.hexdigest()
