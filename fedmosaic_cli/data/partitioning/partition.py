"""Dealing a data set to clients: the public set, the scheme, and what each client is tested on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets import find_source
from fedmosaic_cli.data.partitioning.label_noise import noisy, turned
from fedmosaic_cli.data.partitioning.public_set import called, draw_public
from fedmosaic_cli.data.partitioning.schemes import clients_of, deal, domains_of
from fedmosaic_cli.data.partitioning.splits import deal_tests, split, split_anyhow
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.schemes import Dealt

    Index = NDArray[np.int64]

TEST_FRACTION = 0.25


def nothing() -> Index:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Shard:
    """What one client holds, as sorted indices into the data set.

    `flipped`: its labels are y -> C-1-y. `noisy_labels` are its training labels where noise was added to them.
    `poisoned`: it turns the labels that it trains on around, to mislead others.
    """

    client: int
    train: Index
    test: Index
    validation: Index = field(default_factory=nothing)
    domain: str | None = None
    flipped: bool = False
    noisy_labels: Index | None = None
    poisoned: bool = False

    def parts(self) -> dict[str, Index]:
        """All its parts that hold anything, by the names they have in files."""
        everything = {"train": self.train, "test": self.test, "val": self.validation}
        return {name: part for name, part in everything.items() if len(part) or name != "val"}

    def labels(self, part: str, dataset: Dataset) -> Index:
        """The labels of a part as this client has them."""
        labels = dataset.labels[self.parts()[part]]
        if part == "train" and self.noisy_labels is not None:
            labels = self.noisy_labels
        elif self.flipped:
            labels = turned(labels, dataset.num_classes)
        return turned(labels, dataset.num_classes) if part == "train" and self.poisoned else labels


@dataclass(frozen=True)
class Partition:
    """Who holds what. Shards and the public set are pairwise disjoint; some examples may belong to nobody."""

    settings: DataSettings
    seed: int
    shards: tuple[Shard, ...]
    public: Index


def poisoned(dealt: Partition, clients: Collection[int]) -> Partition:
    """The same, but that these clients turn the labels around that they train on."""
    shards = tuple(replace(shard, poisoned=shard.client in clients) for shard in dealt.shards)
    return replace(dealt, shards=shards)


def partition(dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """Deal `dataset` by resolved `settings`. The same seed gives the same partition, everywhere."""
    if dataset.num_classes < 2:
        raise RequestError(f"'{dataset.name}' has one class (data.dataset): there is nothing to learn to tell apart")
    protocols = {"official": official, "pfllib": pfllib, "fedbn": fedbn}
    reserve, public = draw_public(dataset, settings, seed)
    shards = protocols[settings.protocol](dataset, reserve, settings, seed)
    return Partition(settings, seed, tuple(corrupted(shard, dataset, settings, seed) for shard in shards), public)


def official(dataset: Dataset, reserve: Index, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """The data set's own test part stays apart and is dealt by each client's mix of classes.

    Where a data set has none, a part of each client's share is held out, with its mix of classes.
    """
    dealt = deal(dataset, dataset.training_part, reserve, settings, generator(seed, "partition", "deal"))
    if dataset.test is None:
        yield from split_shares(dataset, dealt, settings, seed)
        return
    if settings.test_fraction is not None:
        raise RequestError(f"'{dataset.name}' has a test part of its own (data.test_fraction): leave it out")
    for client, ((index, domain), test) in enumerate(zip(dealt, tests_of(dataset, dealt, settings, seed), strict=True)):
        train, validation = set_aside(dataset, index, settings, seed, client)
        if not len(test):
            raise too_few(client, len(train), settings)
        yield Shard(client, train, test, validation, domain)


def tests_of(dataset: Dataset, dealt: Dealt, settings: DataSettings, seed: int) -> list[Index]:
    """The parts of the official test part, one a client."""
    rng, tests = generator(seed, "partition", "test"), dataset.test_part
    if settings.scheme == "natural":
        return [np.sort(part) for part, _ in deal(dataset, tests, nothing(), settings, rng)]
    groups = dataset.labels
    if settings.scheme in ("domain", "hybrid"):
        groups = domains_of(dataset) * dataset.num_classes + dataset.labels
    return deal_tests(groups, [index for index, _ in dealt], tests, rng)


def pfllib(dataset: Dataset, reserve: Index, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """Training and test part are thrown together and dealt; then each client's share is split, 75 to 25, anyhow."""
    dealt = deal(dataset, np.arange(len(dataset)), reserve, settings, generator(seed, "partition", "deal"))
    yield from split_shares(dataset, dealt, settings, seed)


def split_shares(dataset: Dataset, dealt: Dealt, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """Each client tests on a part of its own share."""
    fraction = test_fraction(settings)
    for client, (index, domain) in enumerate(dealt):
        rng = generator(seed, "partition", "test", client)
        if settings.protocol == "pfllib":
            train, test = split_anyhow(index, fraction, rng)
        else:
            train, test = split(dataset.labels, index, fraction, rng)
        if not len(train) or not len(test):
            raise too_few(client, len(index), settings)
        train, validation = set_aside(dataset, train, settings, seed, client)
        yield Shard(client, train, test, validation, domain)


def fedbn(dataset: Dataset, reserve: Index, settings: DataSettings, seed: int) -> Iterator[Shard]:
    """As many training images in every domain as a share of the smallest one's list; the whole test list.

    The first of the list that are not kept back for the public set are for training, the last for validation.
    """
    if dataset.test is None:
        raise RequestError(f"'{dataset.name}' has no lists (data.protocol): choose official")
    shares = find_source(settings.dataset).fedbn or (1.0, 0.0)
    domains = domains_of(dataset)
    lists = [np.flatnonzero(~dataset.test & (domains == number)) for number in range(len(dataset.domain_names))]
    train_size, validation_size = (int(share * min(map(len, lists))) for share in shares)
    each = settings.clients_per_domain or 1
    for number, (name, listed) in enumerate(zip(dataset.domain_names, lists, strict=True)):
        private = np.setdiff1d(listed, reserve)
        if len(private) < train_size:
            what, key = called(settings)
            raise RequestError(
                f"the {what} leaves {len(private)} of {len(listed)} listed images to domain '{name}', which needs "
                f"{train_size} (data.{key}): make it smaller"
            )
        train, rest = private[:train_size], private[train_size:]
        validation = rest[max(len(rest) - validation_size, 0) :]
        test = np.flatnonzero(dataset.test & (domains == number))
        parts = [np.array_split(part, each) for part in (train, test, validation)]
        for place, (its_train, its_test, its_validation) in enumerate(zip(*parts, strict=True)):
            client = number * each + place
            if not len(its_train) or not len(its_test):
                raise too_few(client, len(its_train) + len(its_test), settings)
            yield Shard(client, its_train, its_test, its_validation, name)


def test_fraction(settings: DataSettings) -> float:
    """The share that is held out for testing where there is no test part to be dealt."""
    return TEST_FRACTION if settings.test_fraction is None else settings.test_fraction


def set_aside(dataset: Dataset, train: Index, settings: DataSettings, seed: int, client: int) -> tuple[Index, Index]:
    """The training share without, and with only, what is for validation."""
    if not settings.val_fraction:
        if not len(train):
            raise too_few(client, 0, settings)
        return np.sort(train), nothing()
    rest, validation = split(dataset.labels, train, settings.val_fraction, generator(seed, "partition", "val", client))
    if not len(rest) or not len(validation):
        raise too_few(client, len(train), settings)
    return rest, validation


def corrupted(shard: Shard, dataset: Dataset, settings: DataSettings, seed: int) -> Shard:
    """The shard with the labels that its client is to have."""
    if shard.client not in settings.flip_labels and not settings.label_noise:
        return shard
    shard = replace(shard, flipped=shard.client in settings.flip_labels)
    if not settings.label_noise:
        return shard
    rng = generator(seed, "partition", "noise", shard.client)
    labels = noisy(
        shard.labels("train", dataset), dataset.num_classes, settings.label_noise, settings.label_noise_kind, rng
    )
    return replace(shard, noisy_labels=labels)


def too_few(client: int, size: int, settings: DataSettings) -> RequestError:
    return RequestError(
        f"client {client} would hold {size} examples, too few to train and to test on "
        f"(data.clients={clients_of(settings)}): deal to fewer clients"
    )
