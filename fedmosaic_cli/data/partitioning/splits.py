"""What each client is tested on, and what it sets aside: parts of its own share, or of an official test set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Index = NDArray[np.int64]


def split(labels: Index, index: Index, fraction: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """A held-out part of `fraction` of the examples `index`, with their mix of classes; the rest comes first.

    The examples are lined up by class and the part is taken at even distances, so each class gives its share.
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


def split_anyhow(index: Index, fraction: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """The same without regard to classes, as PFLlib does it (by scikit-learn, which rounds the test part up)."""
    shuffled = rng.permutation(index)
    count = min(int(np.ceil(len(index) * fraction)), len(index) - 1)
    return np.sort(shuffled[max(count, 0) :]), np.sort(shuffled[: max(count, 0)])


def deal_tests(groups: Index, shares: list[Index], tests: Index, rng: np.random.Generator) -> list[Index]:
    """A part of the examples `tests` for every client, with the mix of groups that its training share has.

    `groups` says to which group (class, or class in a domain) any example belongs. A group's test examples go to the
    clients in proportion to their training examples of it, and all of them do; those of a group that nobody trains on
    go to nobody.
    """
    count = int(groups.max(initial=-1)) + 1
    held = np.stack([np.bincount(groups[share], minlength=count) for share in shares])
    parts: list[list[int]] = [[] for _ in shares]
    for group in range(count):
        examples = rng.permutation(tests[groups[tests] == group])
        if not held[:, group].any():
            continue
        quota = np.cumsum(held[:, group] / held[:, group].sum()) * len(examples)
        # One draw for all: every client gets its quota rounded up or down, and nothing is left over.
        cuts = np.floor(quota + rng.random()).astype(np.int64).clip(0, len(examples))
        cuts[quota >= quota[-1]] = len(examples)
        for client in np.flatnonzero(np.diff(cuts, prepend=0)):
            parts[client].extend(examples[cuts[client - 1] if client else 0 : cuts[client]].tolist())
    lend_one_where_none_is(groups, held, parts)
    return [np.sort(as_index(part)) for part in parts]


def lend_one_where_none_is(groups: Index, held: NDArray[np.int64], parts: list[list[int]]) -> None:
    """A client that rounding left without a test example gets one of its groups, from whoever has most of them."""
    empty = [client for client, part in enumerate(parts) if not part]
    if len(empty) == len(parts):
        raise RequestError("no test example is of a class that anybody trains on (data.dataset): check their names")
    if not empty:
        return
    owned = np.stack([np.bincount(groups[part], minlength=held.shape[1]) for part in map(as_index, parts)])
    sizes = owned.sum(axis=1)
    for client in empty:
        for group in np.argsort(-held[client], kind="stable")[: np.count_nonzero(held[client])]:
            spare = np.where(sizes > 1, owned[:, group], 0)
            lender = int(np.argmax(spare))
            if spare[lender]:
                example = next(e for e in parts[lender] if groups[e] == group)
                parts[lender].remove(example)
                parts[client].append(example)
                owned[lender, group] -= 1
                sizes[lender] -= 1
                break
        else:
            raise RequestError(
                f"no test example is left for client {client} with {held[client].sum()} training examples "
                "(data.clients): deal to fewer clients"
            )


def as_index(part: list[int]) -> Index:
    return np.array(part, dtype=np.int64)
