"""Synthetic domains: every image of a data set is assigned to one domain and transformed.

Every image belongs to one domain only. If all domains contained it, a client's test images would be in other clients'
training sets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset

    ImageArray = NDArray[np.uint8]
    DomainTransforms = Mapping[str, Callable[[ImageArray], ImageArray]]

# The domains belong to the data set; only the partition depends on the user's seed.
DOMAINS_SEED = 0


def with_domains(dataset: Dataset, name: str, transforms: DomainTransforms) -> Dataset:
    """Return the data set with an equal part of each class and split in every domain.

    Args:
        dataset: The data set without domains.
        name: Name of the result. It also names the random stream of the assignment.
        transforms: Maps the images [examples, height, width, channels] of each domain; shapes do not change.
    """
    strata = dataset.labels
    if dataset.test_mask is not None:
        strata = strata + dataset.num_classes * dataset.test_mask
    shuffled = derive_rng(DOMAINS_SEED, name, "deal").permutation(len(dataset))
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    domain_ids = np.empty(len(dataset), dtype=np.int64)
    domain_ids[by_stratum] = np.arange(len(dataset)) % len(transforms)
    images = dataset.images.copy()
    for domain, transform in enumerate(transforms.values()):
        images[domain_ids == domain] = transform(images[domain_ids == domain])
    return replace(dataset, name=name, images=images, domain_ids=domain_ids, domain_names=tuple(transforms))
