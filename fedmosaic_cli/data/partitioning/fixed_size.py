"""Low-data partitions: every client gets exactly `examples_per_client` training examples.

Under scheme dirichlet each client draws a class distribution q from Dirichlet(alpha), then the class counts of its
training and test examples from multinomial distributions with q. Under the other schemes each client keeps a part of
its share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.partitioning.public_set import balanced_counts, proportional_counts, public_pool_label
from fedmosaic_cli.data.partitioning.schemes import MAX_DIRICHLET_DRAWS, resolved_num_clients
from fedmosaic_cli.data.partitioning.splits import uses_official_tests
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.schemes import ClientAssignment

    IntArray = NDArray[np.int64]

# The schemes that give each client a number of classes.
CLASS_SCHEMES = ("pathological", "hybrid")


class ClassPools:
    """Examples of each class in random order, of which every one is taken once."""

    def __init__(self, dataset: Dataset, indices: IntArray, priority: IntArray) -> None:
        ordered = by_priority(indices, priority)
        self._by_class = [ordered[dataset.labels[ordered] == label] for label in range(dataset.num_classes)]
        self._taken = np.zeros(dataset.num_classes, dtype=np.int64)

    def remaining(self) -> IntArray:
        """Return the number of examples of each class that are left."""
        return np.array([len(examples) for examples in self._by_class]) - self._taken

    def take(self, counts: IntArray) -> IntArray:
        """Return the next examples of each class, sorted."""
        stops = self._taken + counts
        parts = [self._by_class[c][self._taken[c] : stops[c]] for c in np.flatnonzero(counts)]
        self._taken = stops
        return np.sort(np.concatenate([*parts, np.empty(0, dtype=np.int64)])).astype(np.int64)


def draw_dirichlet_clients(
    dataset: Dataset, candidates: IntArray, public_pool: IntArray, settings: DataSettings, seed: int
) -> tuple[list[IntArray], list[IntArray] | None]:
    """Draw the examples of each client by its own class distribution.

    A draw for which a class has too few examples left is repeated, a bounded number of times. Apart from that, the
    class distribution of a client depends on the seed only, not on the numbers of examples and clients.

    Returns:
        The training examples of each client, and its test examples. The latter are None if the official test split is
        distributed to all clients, because `test_examples_per_client` is not set.
    """
    num_train, num_tests = settings.examples_per_client or 0, num_tests_per_client(dataset, settings)
    priority = derive_rng(seed, "partition", "examples").permutation(len(dataset))
    pools = ClassPools(dataset, np.setdiff1d(candidates, public_pool), priority)
    test_pools = (
        ClassPools(dataset, dataset.test_indices, priority) if uses_official_tests(dataset, settings) else pools
    )
    present = pools.remaining() > 0
    trains, tests = [], []
    for client in range(resolved_num_clients(settings)):
        for attempt in range(MAX_DIRICHLET_DRAWS):
            rng = derive_rng(seed, "partition", "deal", client, attempt)
            shares = dirichlet_shares(present, settings.alpha, rng)
            train_counts, test_counts = rng.multinomial(num_train, shares), rng.multinomial(num_tests, shares)
            missing = train_counts + (test_counts if pools is test_pools else 0) - pools.remaining()
            missing_tests = test_counts - test_pools.remaining()
            if max(missing.max(), missing_tests.max()) <= 0:
                break
        else:
            is_test = missing.max() <= 0
            raise exhausted_class_error(dataset, client, missing_tests if is_test else missing, is_test, settings)
        trains.append(pools.take(train_counts))
        tests.append(test_pools.take(test_counts))
    return trains, tests if num_tests else None


def num_tests_per_client(dataset: Dataset, settings: DataSettings) -> int:
    """Return the number of test examples of each client, or 0 if it follows from the data.

    Under dirichlet without an official test split, it is by default the number of training examples.
    """
    if settings.test_examples_per_client is None and settings.scheme == "dirichlet":
        return 0 if uses_official_tests(dataset, settings) else settings.examples_per_client or 0
    return settings.test_examples_per_client or 0


def dirichlet_shares(present: NDArray[np.bool_], alpha: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a class distribution from Dirichlet(alpha) over the classes that are present."""
    shares = np.zeros(len(present))
    drawn = rng.dirichlet(np.full(int(present.sum()), alpha))
    # A huge alpha overflows to a sum of 0.
    shares[present] = drawn if drawn.sum() > 0 else 1 / len(drawn)
    return shares


def exhausted_class_error(
    dataset: Dataset, client: int, missing: IntArray, is_test: bool, settings: DataSettings
) -> RequestError:
    """Return the error that names the class of which most examples are missing."""
    label = int(missing.argmax())
    kind, key, others = "training", "examples_per_client", f"data.clients or data.{public_pool_label(settings)[1]}"
    if is_test:
        kind, key, others = "test", "test_examples_per_client", "data.clients"
    elif not uses_official_tests(dataset, settings):
        kind, others = "training and test", f"data.test_examples_per_client, {others}"
    return RequestError(
        f"class '{dataset.class_names[label]}' lacks {missing[label]} {kind} examples for client {client} in the last "
        f"of {MAX_DIRICHLET_DRAWS} draws with alpha {settings.alpha:g} (data.{key}): "
        f"lower it, {others}, or raise data.alpha"
    )


def select_train_examples(
    dataset: Dataset, assignment: ClientAssignment, settings: DataSettings, seed: int
) -> list[IntArray]:
    """Select the training examples of each client from its share.

    Under the schemes with classes per client they are split evenly over these classes, or in the uneven proportions of
    the share if `balanced` is false. Under the other schemes they are drawn uniformly at random.
    """
    num_train = settings.examples_per_client or 0
    priority = derive_rng(seed, "partition", "examples").permutation(len(dataset))
    selected = []
    for client, (share, _) in enumerate(assignment):
        require_large_share(client, len(share), dataset, settings)
        ordered = by_priority(share, priority)
        if settings.scheme in CLASS_SCHEMES:
            available = np.bincount(dataset.labels[share], minlength=dataset.num_classes)
            if settings.balanced:
                rng = derive_rng(seed, "partition", "examples", client)
                counts = balanced_counts(available, num_train, rng)
            else:
                counts = proportional_counts(available, num_train, available / available.sum())
            selected.append(first_of_each_class(dataset.labels, ordered, counts))
        else:
            selected.append(np.sort(ordered[:num_train]))
    return selected


def require_large_share(client: int, size: int, dataset: Dataset, settings: DataSettings) -> None:
    """Raise `RequestError` if a share is too small for the training examples and, if they come from it, the tests."""
    num_train, num_tests = settings.examples_per_client or 0, 0
    if not uses_official_tests(dataset, settings):
        num_tests = settings.test_examples_per_client or 1
    if size < num_train + num_tests:
        tests = f" and {num_tests} to test on" if num_tests else ""
        raise RequestError(
            f"client {client} has {size} examples, too few for {num_train} to train on{tests} "
            f"(data.examples_per_client): {smaller_size_advice(settings)}"
        )


def smaller_size_advice(settings: DataSettings) -> str:
    return "lower it" if settings.scheme == "natural" else "lower it, or use fewer clients"


def limit_tests(
    dataset: Dataset, client: int, train: IntArray, test: IntArray, settings: DataSettings, seed: int
) -> IntArray:
    """Return `test_examples_per_client` of a client's test examples.

    They keep the class proportions of all of them. A client with selected classes and a fixed number of training
    examples is tested on the class proportions of its training set instead.
    """
    size = settings.test_examples_per_client
    if size is None or len(test) == size:
        return test
    if len(test) < size:
        raise RequestError(
            f"client {client} has {len(test)} test examples, fewer than {size} (data.test_examples_per_client): "
            f"{smaller_size_advice(settings)}"
        )
    available = np.bincount(dataset.labels[test], minlength=dataset.num_classes)
    wanted = available
    if settings.examples_per_client is not None and settings.scheme in CLASS_SCHEMES:
        wanted = np.bincount(dataset.labels[train], minlength=dataset.num_classes)
    counts = proportional_counts(available, size, wanted / wanted.sum())
    shuffled = derive_rng(seed, "partition", "test-examples", client).permutation(test)
    return first_of_each_class(dataset.labels, shuffled, counts)


def by_priority(indices: IntArray, priority: IntArray) -> IntArray:
    """Sort indices by a random number of each example, so that an example that is missing changes no others' order."""
    return indices[np.argsort(priority[indices])]


def first_of_each_class(labels: IntArray, ordered: IntArray, counts: IntArray) -> IntArray:
    """Return the first `counts[c]` examples of each class c, sorted."""
    parts = [ordered[labels[ordered] == label][: counts[label]] for label in np.flatnonzero(counts)]
    return np.sort(np.concatenate(parts)).astype(np.int64)
