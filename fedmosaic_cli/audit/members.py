"""Candidates of a membership audit: training examples of a client, and equally many unused examples. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.partitioning.partition import reverse_labels
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition

    IndexArray = NDArray[np.int64]

# With fewer per side, hardly any attack differs from guessing.
MIN_CANDIDATES = 200


@dataclass(frozen=True)
class MembershipCandidates:
    """Members and non-members of one client, as indices into the data set, matched in pairs by stratum.

    A stratum is a class, or a class of one domain. `labels` are the client's labels of its members. Non-members get the
    labels of their pair, so both sides have the same labels, including wrong ones.
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
        """Members, then non-members."""
        return np.concatenate([self.members, self.non_members])

    @property
    def all_labels(self) -> IndexArray:
        return np.tile(self.labels, 2)


def candidates_per_client(dataset: Dataset, partition: Partition, seed: int) -> list[MembershipCandidates]:
    """Match the candidates of every client, also if there are fewer than `MIN_CANDIDATES`."""
    strata = example_strata(dataset, partition)
    is_unused = dataset.labels >= 0
    is_unused[partition.public] = False
    for shard in partition.shards:
        is_unused[shard.train] = False
    unused, all_candidates = np.flatnonzero(is_unused), []
    for shard in partition.shards:
        pool = unused
        if partition.settings.scheme == "natural":
            # Natural clients differ in more than their classes, so the non-members come from the same client.
            pool = np.intersect1d(unused, np.concatenate([shard.test, shard.validation]))
        rng = derive_rng(seed, "audit", "match", shard.client)
        matched, matched_pool = match_by_stratum(strata[shard.train], strata[pool], rng)
        members, labels = shard.train[matched], shard.split_labels("train", dataset)[matched]
        all_candidates.append(
            MembershipCandidates(shard.client, shard.domain, members, pool[matched_pool], labels, strata[members])
        )
    return all_candidates


def match_by_stratum(
    member_strata: IndexArray, non_member_strata: IndexArray, rng: np.random.Generator
) -> tuple[IndexArray, IndexArray]:
    """Return positions of members and non-members in pairs of the same stratum, as many as possible.

    The side with more examples of a stratum is subsampled with `rng`.
    """
    members, non_members = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for stratum in np.intersect1d(member_strata, non_member_strata):
        ours, theirs = (
            rng.permutation(np.flatnonzero(strata == stratum)) for strata in (member_strata, non_member_strata)
        )
        count = min(len(ours), len(theirs))
        members.append(np.sort(ours[:count]))
        non_members.append(np.sort(theirs[:count]))
    return np.concatenate(members), np.concatenate(non_members)


def example_strata(dataset: Dataset, partition: Partition) -> IndexArray:
    """Return true class and domain of every example as one number."""
    true_labels, domains = dataset.labels.copy(), dataset.domain_ids
    names = sorted({shard.domain for shard in partition.shards if shard.domain is not None})
    if domains is None:
        domains = np.zeros_like(true_labels)
        for shard in partition.shards if names else ():
            for part in shard.splits().values():
                domains[part] = names.index(str(shard.domain))
    for shard in partition.shards:
        # The data of exported shards contains the labels of their clients.
        if shard.client in partition.settings.flip_labels and not shard.has_flipped_labels:
            for part in shard.splits().values():
                true_labels[part] = reverse_labels(dataset.labels[part], dataset.num_classes)
    if partition.settings.label_noise and any(shard.noisy_labels is None for shard in partition.shards):
        raise RequestError(
            "these shards contain noisy labels without the true ones (data.label_noise): audit runs on shards without "
            "--export"
        )
    return domains * dataset.num_classes + true_labels
