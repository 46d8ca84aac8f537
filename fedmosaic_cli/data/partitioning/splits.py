"""What each client is tested on, and what it sets aside: parts of its own share, or of an official test set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


def stratified_split(
    labels: IntArray, indices: IntArray, fraction: float, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """A held-out part of `fraction` of the examples `index`, with their mix of classes; the rest comes first.

    The examples are lined up by class and the part is taken at even distances, so each class gives its share.
    """
    shuffled = rng.permutation(indices)
    lined_up = shuffled[np.argsort(labels[shuffled], kind="stable")]
    count = round(len(indices) * fraction)
    count = min(max(count, 1), len(indices) - 1)
    if count < 1:
        return np.sort(lined_up), np.empty(0, dtype=np.int64)
    marks = ((np.arange(count) + rng.random()) * len(indices) / count).astype(np.int64)
    chosen = np.zeros(len(indices), dtype=bool)
    chosen[marks] = True
    return np.sort(lined_up[~chosen]), np.sort(lined_up[chosen])


def random_split(indices: IntArray, fraction: float, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """The same without regard to classes, as PFLlib does it (by scikit-learn, which rounds the test part up)."""
    shuffled = rng.permutation(indices)
    count = min(int(np.ceil(len(indices) * fraction)), len(indices) - 1)
    return np.sort(shuffled[max(count, 0) :]), np.sort(shuffled[: max(count, 0)])


def assign_tests(
    groups: IntArray, train_indices: list[IntArray], test_indices: IntArray, rng: np.random.Generator
) -> list[IntArray]:
    """A part of the examples `tests` for every client, with the mix of groups that its training share has.

    `groups` says to which group (class, or class in a domain) any example belongs. A group's test examples go to the
    clients in proportion to their training examples of it, and all of them do; those of a group that nobody trains on
    go to nobody.
    """
    count = int(groups.max(initial=-1)) + 1
    held = np.stack([np.bincount(groups[share], minlength=count) for share in train_indices])
    parts: list[list[int]] = [[] for _ in train_indices]
    for group in range(count):
        examples = rng.permutation(test_indices[groups[test_indices] == group])
        if not held[:, group].any():
            continue
        quota = np.cumsum(held[:, group] / held[:, group].sum()) * len(examples)
        # One draw for all: every client gets its quota rounded up or down, and nothing is left over.
        cuts = np.floor(quota + rng.random()).astype(np.int64).clip(0, len(examples))
        cuts[quota >= quota[-1]] = len(examples)
        for client in np.flatnonzero(np.diff(cuts, prepend=0)):
            parts[client].extend(examples[cuts[client - 1] if client else 0 : cuts[client]].tolist())
    ensure_nonempty_tests(groups, held, parts)
    return [np.sort(to_index_array(part)) for part in parts]


def ensure_nonempty_tests(groups: IntArray, train_counts: NDArray[np.int64], test_parts: list[list[int]]) -> None:
    """A client that rounding left without a test example gets one of its groups, from whoever has most of them."""
    empty = [client for client, part in enumerate(test_parts) if not part]
    if len(empty) == len(test_parts):
        raise RequestError("no test example is of a class that anybody trains on (data.dataset): check their names")
    if not empty:
        return
    owned = np.stack(
        [np.bincount(groups[part], minlength=train_counts.shape[1]) for part in map(to_index_array, test_parts)]
    )
    sizes = owned.sum(axis=1)
    for client in empty:
        for group in np.argsort(-train_counts[client], kind="stable")[: np.count_nonzero(train_counts[client])]:
            spare = np.where(sizes > 1, owned[:, group], 0)
            lender = int(np.argmax(spare))
            if spare[lender]:
                example = next(e for e in test_parts[lender] if groups[e] == group)
                test_parts[lender].remove(example)
                test_parts[client].append(example)
                owned[lender, group] -= 1
                sizes[lender] -= 1
                break
        else:
            raise RequestError(
                f"no test example is left for client {client} with {train_counts[client].sum()} training examples "
                "(data.clients): deal to fewer clients"
            )


def to_index_array(part: list[int]) -> IntArray:
    return np.array(part, dtype=np.int64)
