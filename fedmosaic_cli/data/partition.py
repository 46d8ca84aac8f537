"""Dealing a data set to clients: the public set first, then the scheme, then each client's own test part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.public import draw_public
from fedmosaic_cli.data.schemes import deal
from fedmosaic_cli.data.sources import find_source
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.settings import DataSettings

    Index = NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """What one client holds, as sorted indices into the data set. `flipped`: its labels are y -> C-1-y."""

    client: int
    train: Index
    test: Index
    domain: str | None = None
    flipped: bool = False


@dataclass(frozen=True)
class Partition:
    """Who holds what. Shards and the public set are pairwise disjoint."""

    settings: DataSettings
    seed: int
    shards: tuple[Shard, ...]
    public: Index


def resolve(settings: DataSettings) -> DataSettings:
    """The settings with the values that depend on the data set and the scheme filled in."""
    needs_domains = settings.scheme in ("domain", "hybrid")
    if needs_domains and "dataset" not in settings.model_fields_set:
        settings = settings.model_copy(update={"dataset": "digits-domains"})
    source = find_source(settings.dataset)
    if needs_domains and not source.domains:
        raise RequestError(
            f"data set '{settings.dataset}' has no domains, which scheme '{settings.scheme}' needs (data.dataset): "
            "choose digits-domains"
        )
    filled: dict[str, object] = {}
    if settings.public_size is None:
        filled["public_size"] = source.public_size
    if needs_domains:
        per_domain = settings.clients_per_domain or (5 if settings.scheme == "hybrid" else 1)
        filled |= {"clients_per_domain": per_domain, "clients": per_domain * len(source.domains)}
    resolved = settings.model_copy(update=filled)
    wrong = [client for client in resolved.flip_labels if not 0 <= client < resolved.clients]
    if wrong:
        raise RequestError(
            f"no client {wrong[0]} to flip the labels of (data.flip_labels): clients are 0 to {resolved.clients - 1}"
        )
    return resolved


def partition(dataset: Dataset, settings: DataSettings, seed: int) -> Partition:
    """Deal `dataset` by resolved `settings`. The same seed gives the same partition, everywhere."""
    public = draw_public(dataset, settings, generator(seed, "partition", "public"))
    private = np.setdiff1d(np.arange(len(dataset)), public)
    shards = []
    for client, (index, domain) in enumerate(deal(dataset, private, settings, generator(seed, "partition", "deal"))):
        rng = generator(seed, "partition", "test", client)
        train, test = split(dataset.labels, index, settings.test_fraction, rng)
        if not len(train) or not len(test):
            raise RequestError(
                f"client {client} would hold {len(index)} examples, too few for a training and a test part "
                f"(data.clients={settings.clients}): deal to fewer clients"
            )
        shards.append(Shard(client, train, test, domain, flipped=client in settings.flip_labels))
    return Partition(settings, seed, tuple(shards), public)


def split(labels: Index, index: Index, fraction: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """A test part of `fraction` of the examples `index`, with their mix of classes; the rest is for training.

    The examples are lined up by class and the test part is taken at even distances, so each class gives its share.
    """
    shuffled = rng.permutation(index)
    lined_up = shuffled[np.argsort(labels[shuffled], kind="stable")]
    count = round(len(index) * fraction)
    count = min(max(count, 1), len(index) - 1)
    if count < 1:
        return np.sort(lined_up), np.empty(0, dtype=np.int64)
    marks = ((np.arange(count) + rng.random()) * len(index) / count).astype(np.int64)
    chosen = np.zeros(len(index), dtype=bool)
    chosen[marks] = True
    return np.sort(lined_up[~chosen]), np.sort(lined_up[chosen])
