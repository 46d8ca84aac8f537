"""A data set in memory: one array of images, their labels and, where there are any, domains, test part and holders."""

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


# Which examples a share consists of is a matter of the data set: it must not depend on the user's seed.
SUBSAMPLE_SEED = 0


@dataclass(frozen=True)
class Dataset:
    """`images` is uint8 [examples, height, width, channels]; `labels` and `domains` index the names beside them.

    `test` marks the data set's own test part, where it has one; `holders` says which client has an example, where the
    data comes dealt already. `content` stands for images that were decoded from files: the same files are the same
    data, even where two versions of a decoder disagree in a pixel. `remarks` tell what was odd about the files, and
    `test_origin` what the test part is.
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
        """[channels, height, width], as networks see an image."""
        _, height, width, channels = self.images.shape
        return channels, height, width

    @property
    def train_indices(self) -> IntArray:
        """Everything but the data set's own test part."""
        return np.arange(len(self)) if self.test_mask is None else np.flatnonzero(~self.test_mask)

    @property
    def test_indices(self) -> IntArray:
        """The data set's own test part, nothing where it has none."""
        return np.empty(0, dtype=np.int64) if self.test_mask is None else np.flatnonzero(self.test_mask)

    def select_domains(self, domains: tuple[str, ...]) -> Dataset:
        """The examples of some domains, which are numbered in the order given."""
        if self.domain_ids is None or domains == self.domain_names:
            return self
        number = np.full(len(self.domain_names), -1)
        number[[self.domain_names.index(name) for name in domains]] = np.arange(len(domains))
        chosen = self._take(np.flatnonzero(number[self.domain_ids] >= 0))
        return replace(chosen, domain_ids=number[chosen.domain_ids], domain_names=domains)

    def subsample(self, fraction: float) -> Dataset:
        """`share` times as many examples, rounded; of each class in a domain, part and holder, its share, or one off.

        The same ones for everybody, in the order that they have here.
        """
        others = (self.domain_ids, self.test_mask, self.client_ids)
        kinds = np.stack([self.labels, *(array for array in others if array is not None)])
        _, kind, sizes = np.unique(kinds, axis=1, return_inverse=True, return_counts=True)
        shuffled = derive_rng(SUBSAMPLE_SEED, "sample").permutation(len(self))
        lined_up = shuffled[np.argsort(kind.ravel()[shuffled], kind="stable")]
        # Rounded where a kind ends, not kind by kind: so the whole has its number as well.
        ends = np.cumsum(sizes)
        counts = np.diff(np.rint(fraction * ends).astype(np.int64), prepend=0)
        starts = ends - sizes
        taken = [
            lined_up[start + np.arange(count) * size // count]
            for start, size, count in zip(starts, sizes, counts, strict=True)
            if count
        ]
        return self._take(np.sort(np.concatenate([*taken, np.empty(0, dtype=np.int64)])))

    def _take(self, indices: IntArray) -> Dataset:
        """The examples at these places."""
        # Images that were only counted are one black pixel, read again and again: copied out they would fill memory.
        only_counted = self.images.strides[0] == 0
        return replace(
            self,
            images=self.images[: len(indices)] if only_counted else self.images[indices],
            labels=self.labels[indices],
            domain_ids=None if self.domain_ids is None else self.domain_ids[indices],
            test_mask=None if self.test_mask is None else self.test_mask[indices],
            client_ids=None if self.client_ids is None else self.client_ids[indices],
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the contents: two machines with the same fingerprint hold the same examples in the same order."""
        names = (self.images.shape, self.class_names, self.domain_names, self.content_digest)
        digest = hashlib.sha256(repr(names).encode())
        for array in (
            None if self.content_digest else self.images,
            self.labels,
            self.domain_ids,
            self.test_mask,
            self.client_ids,
        ):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).data)
        return digest.hexdigest()
