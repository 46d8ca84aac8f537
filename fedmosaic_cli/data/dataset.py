"""A data set in memory: one array of images, their labels and, where there are any, domains, test part and holders."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]


# Which examples a share consists of is a matter of the data set: it must not depend on the user's seed.
SAMPLE_SEED = 0


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
    labels: Index
    class_names: tuple[str, ...]
    domains: Index | None = None
    domain_names: tuple[str, ...] = ()
    test: NDArray[np.bool_] | None = None
    holders: Index | None = None
    content: str = ""
    remarks: tuple[str, ...] = ()
    test_origin: str = "the data set's own test part"

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
    def training_part(self) -> Index:
        """Everything but the data set's own test part."""
        return np.arange(len(self)) if self.test is None else np.flatnonzero(~self.test)

    @property
    def test_part(self) -> Index:
        """The data set's own test part, nothing where it has none."""
        return np.empty(0, dtype=np.int64) if self.test is None else np.flatnonzero(self.test)

    def only(self, domains: tuple[str, ...]) -> Dataset:
        """The examples of some domains, which are numbered in the order given."""
        if self.domains is None or domains == self.domain_names:
            return self
        number = np.full(len(self.domain_names), -1)
        number[[self.domain_names.index(name) for name in domains]] = np.arange(len(domains))
        chosen = self._at(np.flatnonzero(number[self.domains] >= 0))
        return replace(chosen, domains=number[chosen.domains], domain_names=domains)

    def sample(self, share: float) -> Dataset:
        """`share` times as many examples, rounded; of each class in a domain, part and holder, its share, or one off.

        The same ones for everybody, in the order that they have here.
        """
        others = (self.domains, self.test, self.holders)
        kinds = np.stack([self.labels, *(array for array in others if array is not None)])
        _, kind, sizes = np.unique(kinds, axis=1, return_inverse=True, return_counts=True)
        shuffled = generator(SAMPLE_SEED, "sample").permutation(len(self))
        lined_up = shuffled[np.argsort(kind.ravel()[shuffled], kind="stable")]
        # Rounded where a kind ends, not kind by kind: so the whole has its number as well.
        ends = np.cumsum(sizes)
        counts = np.diff(np.rint(share * ends).astype(np.int64), prepend=0)
        starts = ends - sizes
        taken = [
            lined_up[start + np.arange(count) * size // count]
            for start, size, count in zip(starts, sizes, counts, strict=True)
            if count
        ]
        return self._at(np.sort(np.concatenate([*taken, np.empty(0, dtype=np.int64)])))

    def _at(self, index: Index) -> Dataset:
        """The examples at these places."""
        # Images that were only counted are one black pixel, read again and again: copied out they would fill memory.
        only_counted = self.images.strides[0] == 0
        return replace(
            self,
            images=self.images[: len(index)] if only_counted else self.images[index],
            labels=self.labels[index],
            domains=None if self.domains is None else self.domains[index],
            test=None if self.test is None else self.test[index],
            holders=None if self.holders is None else self.holders[index],
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the contents: two machines with the same fingerprint hold the same examples in the same order."""
        names = (self.images.shape, self.class_names, self.domain_names, self.content)
        digest = hashlib.sha256(repr(names).encode())
        for array in (None if self.content else self.images, self.labels, self.domains, self.test, self.holders):
            digest.update(b"-" if array is None else np.ascontiguousarray(array).data)
        return digest.hexdigest()
