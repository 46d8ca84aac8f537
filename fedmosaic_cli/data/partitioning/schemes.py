"""Partition schemes: one function each, which returns (indices, domain name) per client.

All candidates are assigned first, and then the public pool is removed from each share. With one seed, partitions for
two public sets therefore differ only by these examples, which separates the effect of the public set from that of the
partition.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset

    IntArray = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    ClientAssignment = list[tuple[IntArray, str | None]]

MAX_DIRICHLET_DRAWS = 200
PFLLIB_MIN_SIZE = 40


def assign_examples(
    dataset: Dataset, candidates: IntArray, public_pool: IntArray, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Assign the candidates outside the public pool to clients."""
    schemes = {
        "iid": assign_iid,
        "pathological": assign_pathological,
        "dirichlet": assign_dirichlet,
        "domain": assign_by_domain,
        "hybrid": assign_hybrid,
        "natural": assign_natural,
    }
    private = np.ones(len(dataset), dtype=bool)
    private[public_pool] = False
    assignment = schemes[settings.scheme](dataset, candidates, private, settings, rng)
    return [(indices[private[indices]], domain) for indices, domain in assignment]


def assign_iid(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Assign examples uniformly at random."""
    return without_domain_name(np.array_split(rng.permutation(candidates), resolved_num_clients(settings)))


def assign_pathological(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Give each client `classes_per_client` classes; every class is shared among its clients."""
    require_enough_classes(dataset, settings)
    clients, each = resolved_num_clients(settings), settings.classes_per_client
    if clients * each < dataset.num_classes:
        raise RequestError(
            f"{clients} clients with {each} classes each cannot hold all "
            f"{dataset.num_classes} classes (data.classes_per_client): raise one of them"
        )
    if settings.protocol == "pfllib":
        per_class = pfllib_clients_per_class(dataset.num_classes, clients, each)
    else:
        per_class = balanced_clients_per_class(dataset.num_classes, clients, each, rng)
    return without_domain_name(split_classes(dataset, candidates, clients, per_class, settings, rng))


def assign_dirichlet(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Split each class by proportions from Dirichlet(alpha).

    A client that already has an even share gets nothing more, as in PFLlib. A draw that leaves a client with less than
    `min_size` is rejected, a bounded number of times.
    """
    clients, num_private = resolved_num_clients(settings), int(is_private[candidates].sum())
    minimum = min_client_size(settings, num_private)
    by_class = [rng.permutation(candidates[dataset.labels[candidates] == c]) for c in range(dataset.num_classes)]
    # Cumulative number of private examples of each class.
    private_counts = [np.concatenate([[0], np.cumsum(is_private[examples])]) for examples in by_class]
    for _ in range(MAX_DIRICHLET_DRAWS if clients * minimum <= num_private else 0):
        sizes, private_sizes = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
        cuts = []
        for examples, counts in zip(by_class, private_counts, strict=True):
            has_room = sizes < len(candidates) / clients
            share = rng.dirichlet(np.full(clients, settings.alpha)) * has_room
            if not share.sum() > 0:  # a tiny alpha may select only clients that have enough
                share = has_room.astype(float) if has_room.any() else np.ones(clients)
            cut = (np.cumsum(share / share.sum())[:-1] * len(examples)).astype(np.int64)
            sizes += np.diff(cut, prepend=0, append=len(examples))
            private_sizes += np.diff(counts[cut], prepend=0, append=counts[-1])
            cuts.append(cut)
        if private_sizes.min() >= minimum:
            parts = [np.split(examples, cut) for examples, cut in zip(by_class, cuts, strict=True)]
            return without_domain_name(np.concatenate(part) for part in zip(*parts, strict=True))
    raise RequestError(
        f"no split of {num_private} examples with alpha {settings.alpha:g} gives each of {clients} clients {minimum} "
        "(data.alpha): raise alpha, or lower clients or min_size"
    )


def min_client_size(settings: DataSettings, num_examples: int) -> int:
    """Return the minimum size of a client under dirichlet: as configured, or PFLlib's rule."""
    return pfllib_min_client_size(settings, num_examples) if settings.min_size is None else settings.min_size


def pfllib_min_client_size(settings: DataSettings, num_examples: int) -> int:
    return int(min(PFLLIB_MIN_SIZE, num_examples / resolved_num_clients(settings) / 2))


def assign_by_domain(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Split each domain evenly among its clients."""
    assignment: ClientAssignment = []
    for number, (name, clients) in enumerate(num_clients_by_domain(dataset, settings)):
        in_domain = rng.permutation(candidates[require_domain_ids(dataset)[candidates] == number])
        assignment += [(part, name) for part in np.array_split(in_domain, clients)]
    return assignment


def assign_hybrid(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Give the clients of each domain `classes_per_client` classes each."""
    require_enough_classes(dataset, settings)
    assignment: ClientAssignment = []
    for number, (name, clients) in enumerate(num_clients_by_domain(dataset, settings)):
        in_domain = candidates[require_domain_ids(dataset)[candidates] == number]
        per_class = balanced_clients_per_class(dataset.num_classes, clients, settings.classes_per_client, rng)
        assignment += [(part, name) for part in split_classes(dataset, in_domain, clients, per_class, settings, rng)]
    return assignment


def num_clients_by_domain(dataset: Dataset, settings: DataSettings) -> list[tuple[str, int]]:
    """Return the name and the number of clients of each domain."""
    counts = settings.clients_per_domain or 1
    per_domain = counts if isinstance(counts, tuple) else (counts,) * len(dataset.domain_names)
    return list(zip(dataset.domain_names, per_domain, strict=True))


def assign_natural(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Use the client ids of the data set."""
    if dataset.client_ids is None:
        raise RequestError(f"'{dataset.name}' does not assign examples to clients (data.scheme): choose another scheme")
    num_clients = int(dataset.client_ids.max(initial=-1)) + 1
    if num_clients != resolved_num_clients(settings):
        raise RequestError(f"the data has {num_clients} clients, not {settings.clients} (data.clients): leave it out")
    ordered = candidates[np.argsort(dataset.client_ids[candidates], kind="stable")]
    starts = np.searchsorted(dataset.client_ids[ordered], np.arange(1, num_clients))
    return without_domain_name(np.split(ordered, starts))


def balanced_clients_per_class(
    num_classes: int, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """Return the clients of every class; each client in turn takes the classes with the fewest clients."""
    per_class: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(num_clients):
        order = sorted(rng.permutation(num_classes).tolist(), key=lambda c: len(per_class[c]))
        for chosen in order[:classes_per_client]:
            per_class[chosen].append(client)
    return per_class


def pfllib_clients_per_class(num_classes: int, num_clients: int, classes_per_client: int) -> list[list[int]]:
    """Return the clients of every class by PFLlib's rule: each class takes the first clients that still lack one.

    Neighbouring clients share classes: of 15 clients with 2 of 10 classes each, clients 0 to 2 have classes 0 and 1.
    The examples of a class are shuffled here, while PFLlib uses the order of its files.
    """
    missing = np.full(num_clients, classes_per_client)
    per_class = []
    for _ in range(num_classes):
        chosen = np.flatnonzero(missing)[: ceil(num_clients / num_classes * classes_per_client)]
        missing[chosen] -= 1
        per_class.append(chosen.tolist())
    if not all(per_class):
        raise RequestError(
            f"PFLlib's rule assigns class {per_class.index([])} to no client with {num_clients} clients and "
            f"{classes_per_client} classes each (data.protocol): choose other numbers, or protocol official"
        )
    return per_class


def split_classes(
    dataset: Dataset,
    indices: IntArray,
    num_clients: int,
    clients_per_class: list[list[int]],
    settings: DataSettings,
    rng: np.random.Generator,
) -> list[IntArray]:
    """Split every class among its clients and return the indices per client."""
    parts: list[list[IntArray]] = [[] for _ in range(num_clients)]
    for label, clients_of_label in enumerate(clients_per_class):
        if clients_of_label:
            examples = rng.permutation(indices[dataset.labels[indices] == label])
            if settings.balanced:
                shares = np.array_split(examples, len(clients_of_label))
            else:
                least = pfllib_min_client_size(settings, len(indices)) if settings.protocol == "pfllib" else 0
                shares = uneven_split(examples, len(clients_of_label), least // dataset.num_classes, rng)
            for client, part in zip(clients_of_label, shares, strict=True):
                parts[client].append(part)
    return [np.concatenate([*part, np.empty(0, dtype=np.int64)]).astype(np.int64) for part in parts]


def uneven_split(examples: IntArray, num_clients: int, min_size: int, rng: np.random.Generator) -> list[IntArray]:
    """Split unevenly as PFLlib does: all but the last get a tenth to all of an even share, the last one the rest.

    Every part has at least `min_size` examples if there are enough.
    """
    even = len(examples) // num_clients
    least = min(max(even // 10, min_size, 1), even)
    counts = rng.integers(least, max(even, least + 1), size=num_clients - 1)
    return np.split(examples, np.cumsum(counts))


def require_enough_classes(dataset: Dataset, settings: DataSettings) -> None:
    if settings.classes_per_client > dataset.num_classes:
        raise RequestError(
            f"{settings.classes_per_client} classes per client are more than '{dataset.name}' has "
            f"(data.classes_per_client): at most {dataset.num_classes}"
        )


def without_domain_name(parts: Iterable[IntArray]) -> ClientAssignment:
    return [(part, None) for part in parts]


def resolved_num_clients(settings: DataSettings) -> int:
    """Return the number of clients, which is set in resolved settings."""
    return settings.clients or 1


def require_domain_ids(dataset: Dataset) -> IntArray:
    if dataset.domain_ids is None:
        raise RequestError(f"data set '{dataset.name}' has no domains (data.scheme): choose another scheme")
    return dataset.domain_ids
