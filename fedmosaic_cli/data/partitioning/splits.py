"""Train, validation and test splits of clients: held out from their share, or taken from an official test split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset

    IntArray = NDArray[np.int64]


def uses_official_tests(dataset: Dataset, settings: DataSettings) -> bool:
    """Whether clients are tested on the official test split. Protocol pfllib merges it with the training split."""
    return dataset.test_mask is not None and settings.protocol != "pfllib"


def stratified_split(
    labels: IntArray, indices: IntArray, fraction: float, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Hold out a fraction of the examples with their class distribution.

    The examples are sorted by class and held out at even distances, so each class contributes its share.

    Returns:
        The remaining and the held-out indices.
    """
    shuffled = rng.permutation(indices)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    count = min(max(round(len(indices) * fraction), 1), len(indices) - 1)
    if count < 1:
        return np.sort(by_class), np.empty(0, dtype=np.int64)
    positions = ((np.arange(count) + rng.random()) * len(indices) / count).astype(np.int64)
    held_out = np.zeros(len(indices), dtype=bool)
    held_out[positions] = True
    return np.sort(by_class[~held_out]), np.sort(by_class[held_out])


def random_split(indices: IntArray, fraction: float, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Hold out a random fraction as PFLlib does (with scikit-learn, which rounds the test size up)."""
    shuffled = rng.permutation(indices)
    count = min(int(np.ceil(len(indices) * fraction)), len(indices) - 1)
    return np.sort(shuffled[max(count, 0) :]), np.sort(shuffled[: max(count, 0)])


def assign_tests(
    groups: IntArray, train_indices: list[IntArray], test_indices: IntArray, rng: np.random.Generator
) -> list[IntArray]:
    """Distribute test examples so that every client's tests have the group distribution of its training share.

    All test examples of a group are used, in proportion to the clients' training examples; groups that no client trains
    on are left out.

    Args:
        groups: The group (class, or class within a domain) of every example.
        train_indices: The training share of each client.
        test_indices: The test examples to distribute.
        rng: Source of randomness.
    """
    num_groups = int(groups.max(initial=-1)) + 1
    train_counts = np.stack([np.bincount(groups[share], minlength=num_groups) for share in train_indices])
    parts: list[list[int]] = [[] for _ in train_indices]
    for group in range(num_groups):
        examples = rng.permutation(test_indices[groups[test_indices] == group])
        if not train_counts[:, group].any():
            continue
        quota = np.cumsum(train_counts[:, group] / train_counts[:, group].sum()) * len(examples)
        # One draw for all clients: each quota is rounded up or down and no example is left over.
        cuts = np.floor(quota + rng.random()).astype(np.int64).clip(0, len(examples))
        cuts[quota >= quota[-1]] = len(examples)
        for client in np.flatnonzero(np.diff(cuts, prepend=0)):
            parts[client].extend(examples[cuts[client - 1] if client else 0 : cuts[client]].tolist())
    ensure_nonempty_tests(groups, train_counts, parts)
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def ensure_nonempty_tests(groups: IntArray, train_counts: NDArray[np.int64], test_parts: list[list[int]]) -> None:
    """Move one test example to every client without any, from the client with most examples of one of its groups."""
    empty = [client for client, part in enumerate(test_parts) if not part]
    if len(empty) == len(test_parts):
        raise RequestError(
            "no test example is of a class that a client trains on (data.dataset): check the class names"
        )
    if not empty:
        return
    num_groups = train_counts.shape[1]
    owned = np.stack([np.bincount(groups[np.array(p, dtype=np.int64)], minlength=num_groups) for p in test_parts])
    sizes = owned.sum(axis=1)
    for client in empty:
        for group in np.argsort(-train_counts[client], kind="stable")[: np.count_nonzero(train_counts[client])]:
            spare = np.where(sizes > 1, owned[:, group], 0)
            donor = int(np.argmax(spare))
            if spare[donor]:
                example = next(e for e in test_parts[donor] if groups[e] == group)
                test_parts[donor].remove(example)
                test_parts[client].append(example)
                owned[donor, group] -= 1
                sizes[donor] -= 1
                break
        else:
            raise RequestError(
                f"no test example is left for client {client} with {train_counts[client].sum()} training examples "
                "(data.clients): use fewer clients"
            )
