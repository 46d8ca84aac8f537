"""Whose membership an audit asks about: a client's training examples, and as many that nobody trained on. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.audit.membership_attacks import match_by_stratum
from fedmosaic_cli.data.partitioning.label_noise import reverse_labels
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard

    IndexArray = NDArray[np.int64]

# With fewer of each, hardly any attack could be told from guessing.
MIN_CANDIDATES = 200


@dataclass(frozen=True)
class MembershipCandidates:
    """`members` and `others` are indices into the data set; the two at one position are of one kind.

    Kind is class, and domain where there are some. `labels` are those that the client has for its members. The others
    get the same, pairwise: so both sides agree in every mix of labels, wrong ones included.
    """

    client_id: int
    domain: str | None
    members: IndexArray
    non_members: IndexArray
    labels: IndexArray
    strata: IndexArray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def all_indices(self) -> IndexArray:
        """All of them, members first."""
        return np.concatenate([self.members, self.non_members])

    @property
    def all_labels(self) -> IndexArray:
        return np.tile(self.labels, 2)


def candidates_per_client(dataset: Dataset, partition: Partition, seed: int) -> list[MembershipCandidates]:
    """The candidates of every client, however few."""
    kinds, unseen = example_strata(dataset, partition), non_training_indices(dataset, partition)
    return [match_client_candidates(shard, dataset, partition, kinds, unseen, seed) for shard in partition.shards]


def match_client_candidates(
    shard: Shard, dataset: Dataset, partition: Partition, strata: IndexArray, non_member_pool: IndexArray, seed: int
) -> MembershipCandidates:
    if partition.settings.scheme == "natural":
        # Clients are persons or places of their own: what others hold differs from a client's examples in more.
        non_member_pool = np.intersect1d(non_member_pool, np.concatenate([shard.test, shard.validation]))
    rng = derive_rng(seed, "audit", "match", shard.client)
    ours, theirs = match_by_stratum(strata[shard.train], strata[non_member_pool], rng)
    labels = shard.split_labels("train", dataset)[ours]
    return MembershipCandidates(
        shard.client, shard.domain, shard.train[ours], non_member_pool[theirs], labels, strata[shard.train[ours]]
    )


def non_training_indices(dataset: Dataset, partition: Partition) -> IndexArray:
    """What no client trains on: test and validation parts of all, and what was dealt to nobody; not the public set."""
    free = dataset.labels >= 0
    free[partition.public] = False
    for shard in partition.shards:
        free[shard.train] = False
    return np.flatnonzero(free)


def example_strata(dataset: Dataset, partition: Partition) -> IndexArray:
    """True class and domain of every example, as one number."""
    truth, domains = dataset.labels.copy(), dataset.domain_ids
    names = sorted({shard.domain for shard in partition.shards if shard.domain is not None})
    if domains is None:
        domains = np.zeros_like(truth)
        for shard in partition.shards if names else ():
            for part in shard.splits().values():
                domains[part] = names.index(str(shard.domain))
    for shard in partition.shards:
        # Exported shards carry the labels that their clients have.
        if shard.client in partition.settings.flip_labels and not shard.has_flipped_labels:
            for part in shard.splits().values():
                truth[part] = reverse_labels(dataset.labels[part], dataset.num_classes)
    if partition.settings.label_noise and any(shard.noisy_labels is None for shard in partition.shards):
        raise RequestError(
            "these shards carry noisy labels and not the true ones (data.label_noise): audit runs on shards without "
            "--export"
        )
    return domains * dataset.num_classes + truth
