"""The public set U: drawn before anything is dealt, disjoint from every client, labels left behind."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.partitioning.schemes import clients_of
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset

    Index = NDArray[np.int64]


def draw_public(dataset: Dataset, settings: DataSettings, seed: int) -> tuple[Index, Index]:
    """What no client gets, and the public set; sorted indices both, and the same ones unless there is a reserve.

    The public set is balanced over classes and domains, or its classes are skewed by `public_alpha`. With `public_from`
    so many examples are kept back, balanced, and it comes from them: each class gives the first of one fixed order. So
    whatever its size and skew, clients lose the same, and a balanced one is the same as without a reserve. All of it
    comes from the training part, whatever becomes of the test part.
    """
    check_room(dataset, settings)
    groups = grouped(dataset, dataset.training_part)
    available = np.array([len(group) for group in groups])
    rng = generator(seed, "partition", "public")
    if settings.public_from is None:
        reserved = wanted = fill(dataset, available, settings, rng)
    else:
        reserved = fill_evenly(available, settings.public_from, rng)
        wanted = fill_within(dataset, available, reserved, settings, seed)
    ordered = [rng.permutation(group) for group in groups]
    return first_of(ordered, reserved), first_of(ordered, wanted)


def kept_back(settings: DataSettings) -> int:
    """How many examples no client gets."""
    return (settings.public_size or 0) if settings.public_from is None else settings.public_from


def called(settings: DataSettings) -> tuple[str, str]:
    """What they are, and the setting that says how many."""
    return ("public set", "public_size") if settings.public_from is None else ("reserve", "public_from")


def check_room(dataset: Dataset, settings: DataSettings) -> None:
    """Refuse to keep back what clients cannot do without."""
    clients, there, size = clients_of(settings), len(dataset.training_part), kept_back(settings)
    if not there:
        raise RequestError(f"'{dataset.name}' has test examples and none to train on (data.dataset): add some")
    room = room_beside(dataset, settings)
    if room < 0:
        raise RequestError(
            f"{clients} clients are too many (data.clients): '{dataset.name}' has {there} training examples, "
            "and each needs one to train and one to test on"
        )
    if size > room:
        what, key = called(settings)
        raise RequestError(
            f"a {what} of {size} does not fit (data.{key}): '{dataset.name}' has {there} training "
            f"examples and {clients} clients need some too; ask for at most {room}"
        )


def room_beside(dataset: Dataset, settings: DataSettings) -> int:
    """How many training examples clients can do without."""
    # Whoever has no official test part to be examined on needs a second example for that.
    return len(dataset.training_part) - (2 if dataset.test is None else 1) * clients_of(settings)


def first_of(groups: list[Index], counts: Index) -> Index:
    """The first examples of each group, sorted."""
    drawn = [group[:count] for group, count in zip(groups, counts, strict=True)]
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


def fill(dataset: Dataset, available: Index, settings: DataSettings, rng: np.random.Generator) -> Index:
    """How many the public set takes from each group, where all there is may be taken."""
    size = settings.public_size or 0
    if settings.public_alpha is None:
        return fill_evenly(available, size, rng)
    return fill_skewed(dataset.num_classes, available, size, settings.public_alpha, rng)


def fill_skewed(classes: int, available: Index, size: int, alpha: float, rng: np.random.Generator) -> Index:
    """The same with class shares from Dirichlet(alpha); inside a class, domains give as equally as they can."""
    by_domain = available.reshape(-1, classes)
    return spread(by_domain, skewed(by_domain.sum(axis=0), size, alpha, rng), rng)


def skewed(room: Index, size: int, alpha: float, rng: np.random.Generator) -> Index:
    """How many to take from each class, with shares from Dirichlet(alpha).

    What a class cannot give is taken from the classes that are furthest below their share.
    """
    ideal = size * rng.dirichlet(np.full(len(room), alpha))
    wanted: Index = np.minimum(np.floor(ideal).astype(np.int64), room)
    while (missing := size - int(wanted.sum())) > 0:
        with_room = np.flatnonzero(wanted < room)
        most_owed = with_room[np.argsort(wanted[with_room] - ideal[with_room], kind="stable")]
        wanted[most_owed[:missing]] += 1
    return wanted


def spread(by_domain: Index, wanted: Index, rng: np.random.Generator) -> Index:
    """How many to take from each group, so that each class gives as many as wanted."""
    counts = [fill_evenly(there, int(count), rng) for there, count in zip(by_domain.T, wanted, strict=True)]
    return np.stack(counts, axis=1).reshape(-1)


def fill_within(dataset: Dataset, available: Index, reserved: Index, settings: DataSettings, seed: int) -> Index:
    """How many the public set takes from each group of a reserve: of each class as many as without one."""
    size, alpha, rng = settings.public_size or 0, settings.public_alpha, generator(seed, "partition", "public")
    if alpha is None:
        return fill_evenly(reserved, size, rng)
    by_domain = reserved.reshape(-1, dataset.num_classes)
    wanted = skewed(by_class(available, dataset), size, alpha, rng)
    lacking = wanted - by_domain.sum(axis=0)
    if lacking.max() <= 0:
        return spread(by_domain, wanted, rng)
    label, room = int(lacking.argmax()), room_beside(dataset, settings)
    least = smallest_reserve(dataset, available, wanted, seed)
    advice = f"make it at least {least}"
    if least > room:
        advice = f"it must be at least {least}, of which {room} fit, so lower public_size or raise public_alpha"
    raise RequestError(
        f"a public set of {size} with public_alpha {alpha:g} takes {wanted[label]} examples of class "
        f"'{dataset.class_names[label]}', and a reserve of {settings.public_from} has {by_domain.sum(axis=0)[label]} "
        f"(data.public_from): {advice}"
    )


def smallest_reserve(dataset: Dataset, available: Index, wanted: Index, seed: int) -> int:
    """The size of the smallest reserve that holds so many examples of each class."""

    def holds_all(size: int) -> bool:
        reserved = fill_evenly(available, size, generator(seed, "partition", "public"))
        return bool((by_class(reserved, dataset) >= wanted).all())

    return bisect_left(range(int(available.sum())), True, key=holds_all)


def by_class(counts: Index, dataset: Dataset) -> Index:
    """What groups have, added up over domains."""
    total: Index = counts.reshape(-1, dataset.num_classes).sum(axis=0)
    return total
