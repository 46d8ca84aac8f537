"""The public set U: drawn before anything is dealt, disjoint from every client, labels left behind."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.partitioning.schemes import resolved_num_clients
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset

    IntArray = NDArray[np.int64]


def select_public_set(dataset: Dataset, settings: DataSettings, seed: int) -> tuple[IntArray, IntArray]:
    """What no client gets, and the public set; sorted indices both, and the same ones unless there is a reserve.

    The public set is balanced over classes and domains, or its classes are skewed by `public_alpha`. With `public_from`
    so many examples are kept back, balanced, and it comes from them: each class gives the first of one fixed order. So
    whatever its size and skew, clients lose the same, and a balanced one is the same as without a reserve. All of it
    comes from the training part, whatever becomes of the test part.
    """
    require_public_pool_fits(dataset, settings)
    groups = indices_by_group(dataset, dataset.train_indices)
    available = np.array([len(group) for group in groups])
    rng = derive_rng(seed, "partition", "public")
    if settings.public_from is None:
        reserved = wanted = public_group_counts(dataset, available, settings, rng)
    else:
        reserved = balanced_counts(available, settings.public_from, rng)
        wanted = public_group_counts_from_pool(dataset, available, reserved, settings, seed)
    ordered = [rng.permutation(group) for group in groups]
    return take_first(ordered, reserved), take_first(ordered, wanted)


def public_pool_size(settings: DataSettings) -> int:
    """How many examples no client gets."""
    return (settings.public_size or 0) if settings.public_from is None else settings.public_from


def public_pool_label(settings: DataSettings) -> tuple[str, str]:
    """What they are, and the setting that says how many."""
    return ("public set", "public_size") if settings.public_from is None else ("reserve", "public_from")


def require_public_pool_fits(dataset: Dataset, settings: DataSettings) -> None:
    """Refuse to keep back what clients cannot do without."""
    clients, there, size = resolved_num_clients(settings), len(dataset.train_indices), public_pool_size(settings)
    if not there:
        raise RequestError(f"'{dataset.name}' has test examples and none to train on (data.dataset): add some")
    room = max_public_pool_size(dataset, settings)
    if room < 0:
        raise RequestError(
            f"{clients} clients are too many (data.clients): '{dataset.name}' has {there} training examples, "
            "and each needs one to train and one to test on"
        )
    if size > room:
        what, key = public_pool_label(settings)
        raise RequestError(
            f"a {what} of {size} does not fit (data.{key}): '{dataset.name}' has {there} training "
            f"examples and {clients} clients need some too; ask for at most {room}"
        )


def max_public_pool_size(dataset: Dataset, settings: DataSettings) -> int:
    """How many training examples clients can do without."""
    # Whoever has no official test part to be examined on needs a second example for that.
    return len(dataset.train_indices) - (2 if dataset.test_mask is None else 1) * resolved_num_clients(settings)


def take_first(groups: list[IntArray], counts: IntArray) -> IntArray:
    """The first examples of each group, sorted."""
    drawn = [group[:count] for group, count in zip(groups, counts, strict=True)]
    return np.sort(np.concatenate([*drawn, np.empty(0, dtype=np.int64)])).astype(np.int64)


def indices_by_group(dataset: Dataset, candidates: IntArray) -> list[IntArray]:
    """The candidates of each class, or of each class in each domain."""
    keys = dataset.labels[candidates]
    if dataset.domain_ids is not None:
        keys = keys + dataset.domain_ids[candidates] * dataset.num_classes
    count = max(len(dataset.domain_names), 1) * dataset.num_classes
    return [candidates[keys == key] for key in range(count)]


def balanced_counts(available: IntArray, size: int, rng: np.random.Generator) -> IntArray:
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


def public_group_counts(
    dataset: Dataset, available: IntArray, settings: DataSettings, rng: np.random.Generator
) -> IntArray:
    """How many the public set takes from each group, where all there is may be taken."""
    size = settings.public_size or 0
    if settings.public_alpha is None:
        return balanced_counts(available, size, rng)
    return skewed_group_counts(dataset.num_classes, available, size, settings.public_alpha, rng)


def skewed_group_counts(
    num_classes: int, available: IntArray, size: int, alpha: float, rng: np.random.Generator
) -> IntArray:
    """The same with class shares from Dirichlet(alpha); inside a class, domains give as equally as they can."""
    by_domain = available.reshape(-1, num_classes)
    return spread_over_domains(by_domain, dirichlet_class_counts(by_domain.sum(axis=0), size, alpha, rng), rng)


def dirichlet_class_counts(available: IntArray, size: int, alpha: float, rng: np.random.Generator) -> IntArray:
    """How many to take from each class, with shares from Dirichlet(alpha).

    What a class cannot give is taken from the classes that are furthest below their share.
    """
    ideal = size * rng.dirichlet(np.full(len(available), alpha))
    wanted: IntArray = np.minimum(np.floor(ideal).astype(np.int64), available)
    while (missing := size - int(wanted.sum())) > 0:
        with_room = np.flatnonzero(wanted < available)
        most_owed = with_room[np.argsort(wanted[with_room] - ideal[with_room], kind="stable")]
        wanted[most_owed[:missing]] += 1
    return wanted


def spread_over_domains(available_by_domain: IntArray, class_counts: IntArray, rng: np.random.Generator) -> IntArray:
    """How many to take from each group, so that each class gives as many as wanted."""
    counts = [
        balanced_counts(there, int(count), rng)
        for there, count in zip(available_by_domain.T, class_counts, strict=True)
    ]
    return np.stack(counts, axis=1).reshape(-1)


def public_group_counts_from_pool(
    dataset: Dataset, available: IntArray, pool_counts: IntArray, settings: DataSettings, seed: int
) -> IntArray:
    """How many the public set takes from each group of a reserve: of each class as many as without one."""
    size, alpha, rng = settings.public_size or 0, settings.public_alpha, derive_rng(seed, "partition", "public")
    if alpha is None:
        return balanced_counts(pool_counts, size, rng)
    by_domain = pool_counts.reshape(-1, dataset.num_classes)
    wanted = dirichlet_class_counts(sum_over_domains(available, dataset), size, alpha, rng)
    lacking = wanted - by_domain.sum(axis=0)
    if lacking.max() <= 0:
        return spread_over_domains(by_domain, wanted, rng)
    label, room = int(lacking.argmax()), max_public_pool_size(dataset, settings)
    least = min_public_pool_size(dataset, available, wanted, seed)
    advice = f"make it at least {least}"
    if least > room:
        advice = f"it must be at least {least}, of which {room} fit, so lower public_size or raise public_alpha"
    raise RequestError(
        f"a public set of {size} with public_alpha {alpha:g} takes {wanted[label]} examples of class "
        f"'{dataset.class_names[label]}', and a reserve of {settings.public_from} has {by_domain.sum(axis=0)[label]} "
        f"(data.public_from): {advice}"
    )


def min_public_pool_size(dataset: Dataset, available: IntArray, class_counts: IntArray, seed: int) -> int:
    """The size of the smallest reserve that holds so many examples of each class."""

    def holds_all(size: int) -> bool:
        reserved = balanced_counts(available, size, derive_rng(seed, "partition", "public"))
        return bool((sum_over_domains(reserved, dataset) >= class_counts).all())

    return bisect_left(range(int(available.sum())), True, key=holds_all)


def sum_over_domains(counts: IntArray, dataset: Dataset) -> IntArray:
    """What groups have, added up over domains."""
    total: IntArray = counts.reshape(-1, dataset.num_classes).sum(axis=0)
    return total
