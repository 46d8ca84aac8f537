"""The public set U: drawn before anything is dealt, disjoint from every client, labels left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.schemes import clients_of
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.settings import DataSettings

    Index = NDArray[np.int64]


def draw_public(dataset: Dataset, settings: DataSettings, rng: np.random.Generator) -> Index:
    """Sorted indices of the public set: balanced over classes and domains, or with classes skewed by `public_alpha`.

    It comes from the training part, whatever becomes of the test part.
    """
    size, clients = settings.public_size or 0, clients_of(settings)
    candidates = dataset.training_part
    if not len(candidates):
        raise RequestError(f"'{dataset.name}' has test examples and none to train on (data.dataset): add some")
    # Whoever has no official test part to be examined on needs a second example for that.
    room = len(candidates) - (2 if dataset.test is None else 1) * clients
    if room < 0:
        raise RequestError(
            f"{clients} clients are too many (data.clients): '{dataset.name}' has {len(candidates)} training examples, "
            "and each needs one to train and one to test on"
        )
    if size > room:
        raise RequestError(
            f"a public set of {size} does not fit (data.public_size): '{dataset.name}' has {len(candidates)} training "
            f"examples and {clients} clients need some too; ask for at most {room}"
        )
    groups = grouped(dataset, candidates)
    available = np.array([len(group) for group in groups])
    if settings.public_alpha is None:
        wanted = fill_evenly(available, size, rng)
    else:
        wanted = fill_skewed(dataset.num_classes, available, size, settings.public_alpha, rng)
    drawn = [rng.permutation(group)[:count] for group, count in zip(groups, wanted, strict=True)]
    return np.sort(np.concatenate([*drawn, np.empty(0, dtype=np.int64)])).astype(np.int64)


def grouped(dataset: Dataset, candidates: Index) -> list[Index]:
    """The candidates of each class, or of each class in each domain."""
    keys = dataset.labels[candidates]
    if dataset.domains is not None:
        keys = keys + dataset.domains[candidates] * dataset.num_classes
    count = max(len(dataset.domain_names), 1) * dataset.num_classes
    return [candidates[keys == key] for key in range(count)]


def fill_evenly(available: Index, size: int, rng: np.random.Generator) -> Index:
    """How many to take from each group: as equal as can be, no more than there are, `size` in all."""
    order = rng.permutation(len(available))
    taken = np.zeros_like(available)
    while (missing := size - int(taken.sum())) > 0:
        # Groups with room are level: they were given the same so far. A rest too small for all goes to the first.
        with_room = order[taken[order] < available[order]]
        if missing < len(with_room):
            taken[with_room[:missing]] += 1
        else:
            taken[with_room] = np.minimum(taken[with_room] + missing // len(with_room), available[with_room])
    return taken


def fill_skewed(classes: int, available: Index, size: int, alpha: float, rng: np.random.Generator) -> Index:
    """The same with class shares from Dirichlet(alpha); inside a class, domains give as equally as they can.

    What a class cannot give is taken from the classes that are furthest below their share.
    """
    by_domain = available.reshape(-1, classes)
    room = by_domain.sum(axis=0)
    ideal = size * rng.dirichlet(np.full(classes, alpha))
    wanted = np.minimum(np.floor(ideal).astype(np.int64), room)
    while (missing := size - int(wanted.sum())) > 0:
        with_room = np.flatnonzero(wanted < room)
        most_owed = with_room[np.argsort(wanted[with_room] - ideal[with_room], kind="stable")]
        wanted[most_owed[:missing]] += 1
    taken = np.stack([fill_evenly(by_domain[:, c], int(wanted[c]), rng) for c in range(classes)], axis=1)
    return taken.reshape(-1)
