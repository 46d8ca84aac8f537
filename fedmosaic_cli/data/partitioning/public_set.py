"""The public set U: unlabelled and disjoint from all clients.

It comes from a pool that no client gets: the public set itself, or a larger pool of `public_from` examples.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.partitioning.schemes import num_clients_by_domain, resolved_num_clients
from fedmosaic_cli.data.partitioning.splits import uses_official_tests
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset

    IntArray = NDArray[np.int64]


def select_public_set(dataset: Dataset, settings: DataSettings, seed: int) -> tuple[IntArray, IntArray]:
    """Draw the public set from the training split.

    It is balanced over classes and domains, or its classes are skewed by `public_alpha`. With `public_from` a balanced
    pool of that size is set aside, and each class contributes its first examples in a fixed order. Clients then hold
    the same examples whatever the size and skew of the public set, and a balanced set is the same as without a pool.

    Returns:
        Sorted indices of the pool and of the public set.
    """
    groups = indices_by_group(dataset, dataset.train_indices)
    available = available_counts(dataset, groups, settings, seed)
    require_public_pool_fits(dataset, available, settings)
    rng = derive_rng(seed, "partition", "public")
    if settings.public_from is None:
        size, alpha = settings.public_size or 0, settings.public_alpha
        if alpha is None:
            public_counts = balanced_counts(available, size, rng)
        else:
            public_counts = skewed_group_counts(dataset.num_classes, available, size, alpha, rng)
        pool_counts = public_counts
    else:
        pool_counts = balanced_counts(available, settings.public_from, rng)
        public_counts = public_group_counts_from_pool(dataset, available, pool_counts, settings, seed)
    ordered = [rng.permutation(group) for group in groups]
    return take_first(ordered, pool_counts), take_first(ordered, public_counts)


def public_pool_size(settings: DataSettings) -> int:
    """Return the number of examples that no client gets."""
    return (settings.public_size or 0) if settings.public_from is None else settings.public_from


def public_pool_label(settings: DataSettings) -> tuple[str, str]:
    """Return a name for the pool and the setting of its size, for messages."""
    return ("public set", "public_size") if settings.public_from is None else ("public pool", "public_pool_size")


def available_counts(dataset: Dataset, groups: list[IntArray], settings: DataSettings, seed: int) -> IntArray:
    """Return how many examples of each group the pool may take.

    With `examples_per_client` every domain keeps what its clients need: that many training examples and, if they do not
    come from an official test split, `test_examples_per_client` (or as many as training examples) to test on.
    """
    available = np.array([len(group) for group in groups])
    size = settings.examples_per_client
    if size is None or dataset.domain_ids is None or settings.scheme not in ("domain", "hybrid"):
        return available
    per_client = size + (0 if uses_official_tests(dataset, settings) else settings.test_examples_per_client or size)
    indices = np.arange(len(dataset)) if settings.protocol == "pfllib" else dataset.train_indices
    domain_sizes = np.bincount(dataset.domain_ids[indices], minlength=len(dataset.domain_names))
    for number, (_, clients) in enumerate(num_clients_by_domain(dataset, settings)):
        in_domain = slice(number * dataset.num_classes, (number + 1) * dataset.num_classes)
        limit = max(int(domain_sizes[number]) - clients * per_client, 0)
        if limit < available[in_domain].sum():
            rng = derive_rng(seed, "partition", "public", "available", number)
            available[in_domain] = balanced_counts(available[in_domain], limit, rng)
    return available


def require_public_pool_fits(dataset: Dataset, available: IntArray, settings: DataSettings) -> None:
    """Raise `RequestError` if the pool leaves too few examples for the clients."""
    clients, num_train, size = resolved_num_clients(settings), len(dataset.train_indices), public_pool_size(settings)
    if not num_train:
        raise RequestError(f"'{dataset.name}' has test examples and none to train on (data.dataset): add some")
    max_size = max_public_pool_size(dataset, available, settings)
    if max_size < 0 and settings.examples_per_client is not None:
        raise RequestError(
            f"{clients} clients with {settings.examples_per_client} training examples each are too many "
            f"(data.examples_per_client): '{dataset.name}' has {num_client_candidates(dataset, settings)} examples and "
            f"{min_client_examples(dataset, settings)} per client are needed; lower it or data.clients"
        )
    if max_size < 0:
        raise RequestError(
            f"{clients} clients are too many (data.clients): '{dataset.name}' has {num_train} training examples, "
            "and each client needs one to train and one to test on"
        )
    if size > max_size:
        label, key = public_pool_label(settings)
        need = "some" if settings.examples_per_client is None else f"{settings.examples_per_client} each"
        raise RequestError(
            f"a {label} of {size} does not fit (data.{key}): '{dataset.name}' has {num_train} training "
            f"examples and {clients} clients need {need} too; ask for at most {max_size}"
        )


def max_public_pool_size(dataset: Dataset, available: IntArray, settings: DataSettings) -> int:
    """Return the size of the largest pool that leaves each client the examples that it needs at least."""
    per_client, clients = min_client_examples(dataset, settings), resolved_num_clients(settings)
    return min(num_client_candidates(dataset, settings) - per_client * clients, int(available.sum()))


def num_client_candidates(dataset: Dataset, settings: DataSettings) -> int:
    """Return the number of examples that clients may get, apart from an official test split."""
    is_merged = settings.protocol == "pfllib" and settings.examples_per_client is not None
    return len(dataset) if is_merged else len(dataset.train_indices)


def min_client_examples(dataset: Dataset, settings: DataSettings) -> int:
    """Return how many of these examples each client needs at least, to train and, if they are held out, to test on."""
    size = settings.examples_per_client
    if size is None:
        return 2 if dataset.test_mask is None else 1
    if uses_official_tests(dataset, settings):
        return size
    return size + (settings.test_examples_per_client or (size if settings.scheme == "dirichlet" else 1))


def take_first(groups: list[IntArray], counts: IntArray) -> IntArray:
    """Return the first examples of each group, sorted."""
    drawn = [group[:count] for group, count in zip(groups, counts, strict=True)]
    return np.sort(np.concatenate([*drawn, np.empty(0, dtype=np.int64)])).astype(np.int64)


def indices_by_group(dataset: Dataset, candidates: IntArray) -> list[IntArray]:
    """Return the candidates of each class, or of each class within each domain."""
    keys = dataset.labels[candidates]
    if dataset.domain_ids is not None:
        keys = keys + dataset.domain_ids[candidates] * dataset.num_classes
    num_groups = max(len(dataset.domain_names), 1) * dataset.num_classes
    return [candidates[keys == key] for key in range(num_groups)]


def balanced_counts(available: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """Return how many examples to take from each group: `size` in total and as equal as possible."""
    order = rng.permutation(len(available))
    taken = np.zeros_like(available)
    while (missing := size - int(taken.sum())) > 0:
        # Groups that are not exhausted have the same count. A remainder too small for all goes to the first ones.
        open_groups = order[taken[order] < available[order]]
        if missing < len(open_groups):
            taken[open_groups[:missing]] += 1
        else:
            taken[open_groups] = np.minimum(taken[open_groups] + missing // len(open_groups), available[open_groups])
    return taken


def skewed_group_counts(
    num_classes: int, available: IntArray, size: int, alpha: float, rng: np.random.Generator
) -> IntArray:
    """Return counts with class shares from Dirichlet(alpha), as equal as possible over the domains of a class."""
    by_domain = available.reshape(-1, num_classes)
    return spread_over_domains(by_domain, dirichlet_class_counts(by_domain.sum(axis=0), size, alpha, rng), rng)


def dirichlet_class_counts(available: IntArray, size: int, alpha: float, rng: np.random.Generator) -> IntArray:
    """Return how many examples to take from each class, with shares from Dirichlet(alpha)."""
    return proportional_counts(available, size, rng.dirichlet(np.full(len(available), alpha)))


def proportional_counts(available: IntArray, size: int, shares: NDArray[np.float64]) -> IntArray:
    """Return how many examples to take from each class: `size` in total and as near to the shares as possible.

    What an exhausted class lacks is taken from the classes that are furthest below their share.
    """
    ideal = size * shares
    wanted: IntArray = np.minimum(np.floor(ideal).astype(np.int64), available)
    while (missing := size - int(wanted.sum())) > 0:
        open_classes = np.flatnonzero(wanted < available)
        by_deficit = open_classes[np.argsort(wanted[open_classes] - ideal[open_classes], kind="stable")]
        wanted[by_deficit[:missing]] += 1
    return wanted


def spread_over_domains(available_by_domain: IntArray, class_counts: IntArray, rng: np.random.Generator) -> IntArray:
    """Distribute the count of each class over the domains."""
    pairs = zip(available_by_domain.T, class_counts, strict=True)
    return np.stack([balanced_counts(each, int(count), rng) for each, count in pairs], axis=1).reshape(-1)


def public_group_counts_from_pool(
    dataset: Dataset, available: IntArray, pool_counts: IntArray, settings: DataSettings, seed: int
) -> IntArray:
    """Return how many examples to take from each group of the pool: per class as many as without a pool."""
    size, alpha, rng = settings.public_size or 0, settings.public_alpha, derive_rng(seed, "partition", "public")
    if alpha is None:
        return balanced_counts(pool_counts, size, rng)
    by_domain = pool_counts.reshape(-1, dataset.num_classes)
    wanted = dirichlet_class_counts(sum_over_domains(available, dataset), size, alpha, rng)
    lacking = wanted - by_domain.sum(axis=0)
    if lacking.max() <= 0:
        return spread_over_domains(by_domain, wanted, rng)
    label, max_size = int(lacking.argmax()), max_public_pool_size(dataset, available, settings)
    least = min_public_pool_size(dataset, available, wanted, seed)
    advice = f"make it at least {least}"
    if least > max_size:
        advice = f"it must be at least {least}, of which {max_size} fit, so lower public_size or raise public_alpha"
    raise RequestError(
        f"a public set of {size} with public_alpha {alpha:g} takes {wanted[label]} examples of class "
        f"'{dataset.class_names[label]}', and a pool of {settings.public_from} has {by_domain.sum(axis=0)[label]} "
        f"(data.public_pool_size): {advice}"
    )


def min_public_pool_size(dataset: Dataset, available: IntArray, class_counts: IntArray, seed: int) -> int:
    """Return the size of the smallest pool that contains `class_counts` examples of each class."""

    def is_sufficient(size: int) -> bool:
        pool_counts = balanced_counts(available, size, derive_rng(seed, "partition", "public"))
        return bool((sum_over_domains(pool_counts, dataset) >= class_counts).all())

    return bisect_left(range(int(available.sum())), True, key=is_sufficient)


def sum_over_domains(counts: IntArray, dataset: Dataset) -> IntArray:
    total: IntArray = counts.reshape(-1, dataset.num_classes).sum(axis=0)
    return total
