"""Partitioning a data set: the public set, the clients' shares by scheme, and their test splits by protocol."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets import find_dataset_source
from fedmosaic_cli.data.partitioning.fixed_size import draw_dirichlet_clients, limit_tests, select_train_examples
from fedmosaic_cli.data.partitioning.public_set import public_pool_label, select_public_set
from fedmosaic_cli.data.partitioning.schemes import (
    assign_examples,
    num_clients_by_domain,
    require_domain_ids,
    resolved_num_clients,
)
from fedmosaic_cli.data.partitioning.splits import assign_tests, random_split, stratified_split, uses_official_tests
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings, LabelNoiseKind
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.schemes import ClientAssignment

    IntArray = NDArray[np.int64]

DEFAULT_TEST_FRACTION = 0.25


def empty_indices() -> IntArray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Shard:
    """The examples of one client, as sorted indices into the data set.

    Attributes:
        client: Number of the client.
        train: Training examples.
        test: Test examples.
        validation: Validation examples; may be empty.
        domain: Name of the client's domain, if the scheme has domains.
        has_flipped_labels: Whether all labels are mapped to C-1-y.
        noisy_labels: The training labels, if noise was added.
        has_poisoned_labels: Whether the client flips its training labels to mislead others.
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
        """Return the splits by their names in files; an empty validation split is left out."""
        validation = {"val": self.validation} if len(self.validation) else {}
        return {"train": self.train, "test": self.test, **validation}

    def split_labels(self, split: str, dataset: Dataset) -> IntArray:
        """Return the labels of a split as this client sees them."""
        labels = dataset.labels[self.splits()[split]]
        if split == "train" and self.noisy_labels is not None:
            labels = self.noisy_labels
        elif self.has_flipped_labels:
            labels = reverse_labels(labels, dataset.num_classes)
        return reverse_labels(labels, dataset.num_classes) if split == "train" and self.has_poisoned_labels else labels


@dataclass(frozen=True)
class Partition:
    """Shards and the public set, pairwise disjoint; some examples may be in none of them."""

    settings: DataSettings
    seed: int
    shards: tuple[Shard, ...]
    public: IntArray


def poison_clients(partition: Partition, clients: Collection[int]) -> Partition:
    """Return the partition with flipped training labels for these clients."""
    shards = tuple(replace(shard, has_poisoned_labels=shard.client in clients) for shard in partition.shards)
    return replace(partition, shards=shards)


def partition_dataset(dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """Partition a data set by resolved settings. The same seed gives the same partition on every machine.

    Raises:
        RequestError: If the data set does not allow such a partition.
    """
    if dataset.num_classes < 2:
        raise RequestError(f"'{dataset.name}' has one class (data.dataset): at least two are needed")
    protocols = {"official": official_shards, "pfllib": pfllib_shards, "fedbn": fedbn_shards}
    public_pool, public = select_public_set(dataset, settings, seed)
    shards = (
        limit_shard_tests(shard, dataset, settings, seed)
        for shard in protocols[settings.protocol](dataset, public_pool, settings, seed)
    )
    return Partition(settings, seed, tuple(corrupt_labels(shard, dataset, settings, seed) for shard in shards), public)


def official_shards(dataset: Dataset, public_pool: IntArray, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """Distribute the official test split by each client's class distribution.

    Without an official test split, a part of each client's share is held out.
    """
    if settings.examples_per_client is not None:
        yield from fixed_size_shards(dataset, dataset.train_indices, public_pool, settings, seed)
        return
    rng = derive_rng(seed, "partition", "deal")
    assignment = assign_examples(dataset, dataset.train_indices, public_pool, settings, rng)
    if dataset.test_mask is None:
        yield from shards_with_local_tests(dataset, assignment, settings, seed)
        return
    if settings.test_fraction is not None:
        raise RequestError(f"'{dataset.name}' has an official test split (data.test_fraction): leave it out")
    tests = official_test_indices(dataset, assignment, settings, seed)
    yield from shards_with_tests(dataset, assignment, tests, settings, seed)


def shards_with_tests(
    dataset: Dataset, assignment: ClientAssignment, tests: list[IntArray], settings: DataSettings, seed: int
) -> Iterator[Shard]:
    """Combine the clients' training shares with their test examples."""
    for client, ((indices, domain), test) in enumerate(zip(assignment, tests, strict=True)):
        train, validation = split_validation(dataset, indices, settings, seed, client)
        if not len(test):
            raise too_few_examples_error(client, len(train), settings)
        yield Shard(client, train, test, validation, domain)


def fixed_size_shards(
    dataset: Dataset, candidates: IntArray, public_pool: IntArray, settings: DataSettings, seed: int
) -> Iterator[Shard]:
    """Give each client exactly `examples_per_client` training examples, its validation examples included.

    Without an official test split the test examples come from the same candidates.
    """
    tests: list[IntArray] | None
    if settings.scheme == "dirichlet":
        trains, tests = draw_dirichlet_clients(dataset, candidates, public_pool, settings, seed)
        assignment: ClientAssignment = [(train, None) for train in trains]
    else:
        shares = assign_examples(dataset, candidates, public_pool, settings, derive_rng(seed, "partition", "deal"))
        trains = select_train_examples(dataset, shares, settings, seed)
        assignment = [(train, domain) for train, (_, domain) in zip(trains, shares, strict=True)]
        tests = [np.setdiff1d(share, train) for train, (share, _) in zip(trains, shares, strict=True)]
        tests = None if uses_official_tests(dataset, settings) else tests
    if tests is None:
        tests = official_test_indices(dataset, assignment, settings, seed)
    yield from shards_with_tests(dataset, assignment, tests, settings, seed)


def limit_shard_tests(shard: Shard, dataset: Dataset, settings: DataSettings, seed: int) -> Shard:
    """Return the shard with `test_examples_per_client` test examples, if that is set."""
    train = np.concatenate([shard.train, shard.validation])
    return replace(shard, test=limit_tests(dataset, shard.client, train, shard.test, settings, seed))


def official_test_indices(
    dataset: Dataset, assignment: ClientAssignment, settings: DataSettings, seed: int
) -> list[IntArray]:
    """Return each client's part of the official test split."""
    rng, tests = derive_rng(seed, "partition", "test"), dataset.test_indices
    if settings.scheme == "natural":
        return [np.sort(indices) for indices, _ in assign_examples(dataset, tests, empty_indices(), settings, rng)]
    groups = dataset.labels
    if settings.scheme in ("domain", "hybrid"):
        groups = require_domain_ids(dataset) * dataset.num_classes + dataset.labels
    return assign_tests(groups, [indices for indices, _ in assignment], tests, rng)


def pfllib_shards(dataset: Dataset, public_pool: IntArray, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """Merge training and test split, assign everything and split each share randomly, by default 75 to 25."""
    candidates = np.arange(len(dataset))
    if settings.examples_per_client is not None:
        yield from fixed_size_shards(dataset, candidates, public_pool, settings, seed)
        return
    rng = derive_rng(seed, "partition", "deal")
    assignment = assign_examples(dataset, candidates, public_pool, settings, rng)
    yield from shards_with_local_tests(dataset, assignment, settings, seed)


def shards_with_local_tests(
    dataset: Dataset, assignment: ClientAssignment, settings: DataSettings, seed: int
) -> Iterator[Shard]:
    """Hold out a part of each client's share for testing."""
    fraction = effective_test_fraction(settings)
    for client, (indices, domain) in enumerate(assignment):
        rng = derive_rng(seed, "partition", "test", client)
        if settings.protocol == "pfllib":
            train, test = random_split(indices, fraction, rng)
        else:
            train, test = stratified_split(dataset.labels, indices, fraction, rng)
        if not len(train) or not len(test):
            raise too_few_examples_error(client, len(indices), settings)
        train, validation = split_validation(dataset, train, settings, seed, client)
        yield Shard(client, train, test, validation, domain)


def fedbn_shards(dataset: Dataset, public_pool: IntArray, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """Train on equally many images in every domain, a fraction of the smallest training list; test on whole lists.

    Of each list without the public pool, the first images are for training and the last ones for validation.
    """
    if dataset.test_mask is None:
        raise RequestError(f"'{dataset.name}' has no lists (data.protocol): choose official")
    fractions = find_dataset_source(settings.dataset).fedbn_fractions or (1.0, 0.0)
    domains = require_domain_ids(dataset)
    lists = [np.flatnonzero(~dataset.test_mask & (domains == number)) for number in range(len(dataset.domain_names))]
    train_size, validation_size = (int(fraction * min(map(len, lists))) for fraction in fractions)
    first_client = 0
    for number, (name, num_clients) in enumerate(num_clients_by_domain(dataset, settings)):
        listed = lists[number]
        private = np.setdiff1d(listed, public_pool)
        if len(private) < train_size:
            label, key = public_pool_label(settings)
            raise RequestError(
                f"the {label} leaves {len(private)} of {len(listed)} listed images to domain '{name}', which needs "
                f"{train_size} (data.{key}): make it smaller"
            )
        train, rest = private[:train_size], private[train_size:]
        validation = rest[max(len(rest) - validation_size, 0) :]
        test = np.flatnonzero(dataset.test_mask & (domains == number))
        parts = [np.array_split(split, num_clients) for split in (train, test, validation)]
        for client, (train, test, validation) in enumerate(zip(*parts, strict=True), start=first_client):
            if not len(train) or not len(test):
                raise too_few_examples_error(client, len(train) + len(test), settings)
            yield Shard(client, train, test, validation, name)
        first_client += num_clients


def effective_test_fraction(settings: DataSettings) -> float:
    """Return the fraction that is held out for testing without an official test split."""
    return DEFAULT_TEST_FRACTION if settings.test_fraction is None else settings.test_fraction


def split_validation(
    dataset: Dataset, train: IntArray, settings: DataSettings, seed: int, client: int
) -> tuple[IntArray, IntArray]:
    """Return the training and the validation part of a client's share."""
    if not settings.val_fraction:
        if not len(train):
            raise too_few_examples_error(client, 0, settings)
        return np.sort(train), empty_indices()
    rng = derive_rng(seed, "partition", "val", client)
    rest, validation = stratified_split(dataset.labels, train, settings.val_fraction, rng)
    if not len(rest) or not len(validation):
        raise too_few_examples_error(client, len(train), settings)
    return rest, validation


def corrupt_labels(shard: Shard, dataset: Dataset, settings: DataSettings, seed: int) -> Shard:
    """Return the shard with flipped and noisy labels as configured.

    A client with flipped labels has flipped test labels too, because its task differs. Noise never affects test labels.
    """
    shard = replace(shard, has_flipped_labels=shard.client in settings.flip_labels)
    if not settings.label_noise:
        return shard
    rng = derive_rng(seed, "partition", "noise", shard.client)
    labels = add_label_noise(
        shard.split_labels("train", dataset), dataset.num_classes, settings.label_noise, settings.label_noise_kind, rng
    )
    return replace(shard, noisy_labels=labels)


def reverse_labels(labels: IntArray, num_classes: int) -> IntArray:
    """Map y to C-1-y, as the paper's misleading client does."""
    return num_classes - 1 - labels


def add_label_noise(
    labels: IntArray, num_classes: int, fraction: float, kind: LabelNoiseKind, rng: np.random.Generator
) -> IntArray:
    """Replace exactly a fraction of the labels: by any other class (symmetric) or by the next class (asymmetric)."""
    wrong = rng.permutation(len(labels))[: round(fraction * len(labels))]
    offset: IntArray | int = 1
    if kind == "symmetric":
        offset = rng.integers(1, num_classes, size=len(wrong)) if num_classes > 1 else 0
    result = labels.copy()
    result[wrong] = (labels[wrong] + offset) % num_classes
    return result


def too_few_examples_error(client: int, size: int, settings: DataSettings) -> RequestError:
    return RequestError(
        f"client {client} would get {size} examples, too few to train and to test on "
        f"(data.clients={resolved_num_clients(settings)}): use fewer clients"
    )
