"""Whose membership an audit asks about: a client's training examples, and as many that nobody trained on. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.audit.membership_attacks import matched
from fedmosaic_cli.data.partitioning.label_noise import turned
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard

    Index = NDArray[np.int64]

# With fewer of each, hardly any attack could be told from guessing.
LEAST = 200


@dataclass(frozen=True)
class Candidates:
    """`members` and `others` are indices into the data set; the two at one position are of one kind.

    Kind is class, and domain where there are some. `labels` are those that the client has for its members. The others
    get the same, pairwise: so both sides agree in every mix of labels, wrong ones included.
    """

    client: int
    domain: str | None
    members: Index
    others: Index
    labels: Index
    kinds: Index

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def index(self) -> Index:
        """All of them, members first."""
        return np.concatenate([self.members, self.others])

    @property
    def all_labels(self) -> Index:
        return np.tile(self.labels, 2)


def all_candidates(dataset: Dataset, dealt: Partition, seed: int) -> list[Candidates]:
    """The candidates of every client, however few."""
    kinds, unseen = kinds_of(dataset, dealt), never_trained_on(dataset, dealt)
    return [candidates_of(shard, dataset, dealt, kinds, unseen, seed) for shard in dealt.shards]


def candidates_of(
    shard: Shard, dataset: Dataset, dealt: Partition, kinds: Index, unseen: Index, seed: int
) -> Candidates:
    if dealt.settings.scheme == "natural":
        # Clients are persons or places of their own: what others hold differs from a client's examples in more.
        unseen = np.intersect1d(unseen, np.concatenate([shard.test, shard.validation]))
    rng = generator(seed, "audit", "match", shard.client)
    ours, theirs = matched(kinds[shard.train], kinds[unseen], rng)
    labels = shard.labels("train", dataset)[ours]
    return Candidates(shard.client, shard.domain, shard.train[ours], unseen[theirs], labels, kinds[shard.train[ours]])


def never_trained_on(dataset: Dataset, dealt: Partition) -> Index:
    """What no client trains on: test and validation parts of all, and what was dealt to nobody; not the public set."""
    free = dataset.labels >= 0
    free[dealt.public] = False
    for shard in dealt.shards:
        free[shard.train] = False
    return np.flatnonzero(free)


def kinds_of(dataset: Dataset, dealt: Partition) -> Index:
    """True class and domain of every example, as one number."""
    truth, domains = dataset.labels.copy(), dataset.domains
    names = sorted({shard.domain for shard in dealt.shards if shard.domain is not None})
    if domains is None:
        domains = np.zeros_like(truth)
        for shard in dealt.shards if names else ():
            for part in shard.parts().values():
                domains[part] = names.index(str(shard.domain))
    for shard in dealt.shards:
        # Exported shards carry the labels that their clients have.
        if shard.client in dealt.settings.flip_labels and not shard.flipped:
            for part in shard.parts().values():
                truth[part] = turned(dataset.labels[part], dataset.num_classes)
    if dealt.settings.label_noise and any(shard.noisy_labels is None for shard in dealt.shards):
        raise RequestError(
            "these shards carry noisy labels and not the true ones (data.label_noise): audit runs on shards without "
            "--export"
        )
    return domains * dataset.num_classes + truth
