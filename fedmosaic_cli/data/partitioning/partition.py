"""Dealing a data set to clients: the public set, the scheme, and what each client is tested on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets import find_dataset_source
from fedmosaic_cli.data.partitioning.label_noise import add_label_noise, reverse_labels
from fedmosaic_cli.data.partitioning.public_set import public_pool_label, select_public_set
from fedmosaic_cli.data.partitioning.schemes import assign_examples, require_domain_ids, resolved_num_clients
from fedmosaic_cli.data.partitioning.splits import assign_tests, random_split, stratified_split
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.schemes import ClientAssignment

    IntArray = NDArray[np.int64]

DEFAULT_TEST_FRACTION = 0.25


def empty_indices() -> IntArray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Shard:
    """What one client holds, as sorted indices into the data set.

    `flipped`: its labels are y -> C-1-y. `noisy_labels` are its training labels where noise was added to them.
    `poisoned`: it turns the labels that it trains on around, to mislead others.
    """

    client: int
    train: IntArray
    test: IntArray
    validation: IntArray = field(default_factory=empty_indices)
    domain: str | None = None
    has_flipped_labels: bool = False
    noisy_labels: IntArray | None = None
    has_poisoned_labels: bool = False

    def splits(self) -> dict[str, IntArray]:
        """All its parts that hold anything, by the names they have in files."""
        everything = {"train": self.train, "test": self.test, "val": self.validation}
        return {name: part for name, part in everything.items() if len(part) or name != "val"}

    def split_labels(self, split: str, dataset: Dataset) -> IntArray:
        """The labels of a part as this client has them."""
        labels = dataset.labels[self.splits()[split]]
        if split == "train" and self.noisy_labels is not None:
            labels = self.noisy_labels
        elif self.has_flipped_labels:
            labels = reverse_labels(labels, dataset.num_classes)
        return reverse_labels(labels, dataset.num_classes) if split == "train" and self.has_poisoned_labels else labels


@dataclass(frozen=True)
class Partition:
    """Who holds what. Shards and the public set are pairwise disjoint; some examples may belong to nobody."""

    settings: DataSettings
    seed: int
    shards: tuple[Shard, ...]
    public: IntArray


def poison_clients(partition: Partition, clients: Collection[int]) -> Partition:
    """The same, but that these clients turn the labels around that they train on."""
    shards = tuple(replace(shard, has_poisoned_labels=shard.client in clients) for shard in partition.shards)
    return replace(partition, shards=shards)


def partition_dataset(dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """Deal `dataset` by resolved `settings`. The same seed gives the same partition, everywhere."""
    if dataset.num_classes < 2:
        raise RequestError(f"'{dataset.name}' has one class (data.dataset): there is nothing to learn to tell apart")
    protocols = {"official": official_shards, "pfllib": pfllib_shards, "fedbn": fedbn_shards}
    reserve, public = select_public_set(dataset, settings, seed)
    shards = protocols[settings.protocol](dataset, reserve, settings, seed)
    return Partition(settings, seed, tuple(corrupt_labels(shard, dataset, settings, seed) for shard in shards), public)


def official_shards(dataset: Dataset, public_pool: IntArray, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """The data set's own test part stays apart and is dealt by each client's mix of classes.

    Where a data set has none, a part of each client's share is held out, with its mix of classes.
    """
    dealt = assign_examples(
        dataset, dataset.train_indices, public_pool, settings, derive_rng(seed, "partition", "deal")
    )
    if dataset.test_mask is None:
        yield from shards_with_local_tests(dataset, dealt, settings, seed)
        return
    if settings.test_fraction is not None:
        raise RequestError(f"'{dataset.name}' has a test part of its own (data.test_fraction): leave it out")
    for client, ((index, domain), test) in enumerate(
        zip(dealt, official_test_indices(dataset, dealt, settings, seed), strict=True)
    ):
        train, validation = split_validation(dataset, index, settings, seed, client)
        if not len(test):
            raise too_few_examples_error(client, len(train), settings)
        yield Shard(client, train, test, validation, domain)


def official_test_indices(
    dataset: Dataset, assignment: ClientAssignment, settings: DataSettings, seed: int
) -> list[IntArray]:
    """The parts of the official test part, one a client."""
    rng, tests = derive_rng(seed, "partition", "test"), dataset.test_indices
    if settings.scheme == "natural":
        return [np.sort(part) for part, _ in assign_examples(dataset, tests, empty_indices(), settings, rng)]
    groups = dataset.labels
    if settings.scheme in ("domain", "hybrid"):
        groups = require_domain_ids(dataset) * dataset.num_classes + dataset.labels
    return assign_tests(groups, [index for index, _ in assignment], tests, rng)


def pfllib_shards(dataset: Dataset, public_pool: IntArray, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """Training and test part are thrown together and dealt; then each client's share is split, 75 to 25, anyhow."""
    dealt = assign_examples(
        dataset, np.arange(len(dataset)), public_pool, settings, derive_rng(seed, "partition", "deal")
    )
    yield from shards_with_local_tests(dataset, dealt, settings, seed)


def shards_with_local_tests(
    dataset: Dataset, assignment: ClientAssignment, settings: DataSettings, seed: int
) -> Iterator[Shard]:
    """Each client tests on a part of its own share."""
    fraction = effective_test_fraction(settings)
    for client, (index, domain) in enumerate(assignment):
        rng = derive_rng(seed, "partition", "test", client)
        if settings.protocol == "pfllib":
            train, test = random_split(index, fraction, rng)
        else:
            train, test = stratified_split(dataset.labels, index, fraction, rng)
        if not len(train) or not len(test):
            raise too_few_examples_error(client, len(index), settings)
        train, validation = split_validation(dataset, train, settings, seed, client)
        yield Shard(client, train, test, validation, domain)


def fedbn_shards(dataset: Dataset, public_pool: IntArray, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """As many training images in every domain as a share of the smallest one's list; the whole test list.

    The first of the list that are not kept back for the public set are for training, the last for validation.
    """
    if dataset.test_mask is None:
        raise RequestError(f"'{dataset.name}' has no lists (data.protocol): choose official")
    shares = find_dataset_source(settings.dataset).fedbn_fractions or (1.0, 0.0)
    domains = require_domain_ids(dataset)
    lists = [np.flatnonzero(~dataset.test_mask & (domains == number)) for number in range(len(dataset.domain_names))]
    train_size, validation_size = (int(share * min(map(len, lists))) for share in shares)
    each = settings.clients_per_domain or 1
    for number, (name, listed) in enumerate(zip(dataset.domain_names, lists, strict=True)):
        private = np.setdiff1d(listed, public_pool)
        if len(private) < train_size:
            what, key = public_pool_label(settings)
            raise RequestError(
                f"the {what} leaves {len(private)} of {len(listed)} listed images to domain '{name}', which needs "
                f"{train_size} (data.{key}): make it smaller"
            )
        train, rest = private[:train_size], private[train_size:]
        validation = rest[max(len(rest) - validation_size, 0) :]
        test = np.flatnonzero(dataset.test_mask & (domains == number))
        parts = [np.array_split(part, each) for part in (train, test, validation)]
        for place, (its_train, its_test, its_validation) in enumerate(zip(*parts, strict=True)):
            client = number * each + place
            if not len(its_train) or not len(its_test):
                raise too_few_examples_error(client, len(its_train) + len(its_test), settings)
            yield Shard(client, its_train, its_test, its_validation, name)


def effective_test_fraction(settings: DataSettings) -> float:
    """The share that is held out for testing where there is no test part to be dealt."""
    return DEFAULT_TEST_FRACTION if settings.test_fraction is None else settings.test_fraction


def split_validation(
    dataset: Dataset, train: IntArray, settings: DataSettings, seed: int, client: int
) -> tuple[IntArray, IntArray]:
    """The training share without, and with only, what is for validation."""
    if not settings.val_fraction:
        if not len(train):
            raise too_few_examples_error(client, 0, settings)
        return np.sort(train), empty_indices()
    rest, validation = stratified_split(
        dataset.labels, train, settings.val_fraction, derive_rng(seed, "partition", "val", client)
    )
    if not len(rest) or not len(validation):
        raise too_few_examples_error(client, len(train), settings)
    return rest, validation


def corrupt_labels(shard: Shard, dataset: Dataset, settings: DataSettings, seed: int) -> Shard:
    """The shard with the labels that its client is to have."""
    if shard.client not in settings.flip_labels and not settings.label_noise:
        return shard
    shard = replace(shard, has_flipped_labels=shard.client in settings.flip_labels)
    if not settings.label_noise:
        return shard
    rng = derive_rng(seed, "partition", "noise", shard.client)
    labels = add_label_noise(
        shard.split_labels("train", dataset), dataset.num_classes, settings.label_noise, settings.label_noise_kind, rng
    )
    return replace(shard, noisy_labels=labels)


def too_few_examples_error(client: int, size: int, settings: DataSettings) -> RequestError:
    return RequestError(
        f"client {client} would hold {size} examples, too few to train and to test on "
        f"(data.clients={resolved_num_clients(settings)}): deal to fewer clients"
    )
