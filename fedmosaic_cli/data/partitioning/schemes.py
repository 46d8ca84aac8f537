"""How examples are dealt: one function a scheme, which gives (indices, domain name) a client.

All of the pool is dealt, and then each client gives up what was kept back of its share: the public set, or the reserve
that it comes from. So with one seed the splits for two public sets differ by these examples alone, and the effect of
one can be told from that of the other.
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
    """The examples `pool` without those in `reserve`, in as many parts as there are clients."""
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
    dealt = schemes[settings.scheme](dataset, candidates, private, settings, rng)
    return [(part[private[part]], domain) for part, domain in dealt]


def assign_iid(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Everybody draws from the same urn."""
    return without_domain_name(np.array_split(rng.permutation(candidates), resolved_num_clients(settings)))


def assign_pathological(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """`classes_per_client` classes each; a class is shared by its holders, and every class has one."""
    require_enough_classes(dataset, settings)
    clients, each = resolved_num_clients(settings), settings.classes_per_client
    if clients * each < dataset.num_classes:
        raise RequestError(
            f"{clients} clients with {each} classes each cannot hold all "
            f"{dataset.num_classes} classes (data.classes_per_client): raise one of them"
        )
    if settings.protocol == "pfllib":
        holders = pfllib_clients_per_class(dataset.num_classes, clients, each)
    else:
        holders = balanced_clients_per_class(dataset.num_classes, clients, each, rng)
    return without_domain_name(split_classes(dataset, candidates, clients, holders, settings, rng))


def assign_dirichlet(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Each class is shared out by proportions from Dirichlet(alpha).

    A client that already holds its fair share gets nothing more, as in PFLlib; a draw that leaves a client with less
    than `min_size` is thrown away, a bounded number of times.
    """
    clients, left = resolved_num_clients(settings), int(is_private[candidates].sum())
    minimum = min_client_size(settings, left)
    by_class = [rng.permutation(candidates[dataset.labels[candidates] == c]) for c in range(dataset.num_classes)]
    # How many of the first examples of a class the clients may keep.
    kept = [np.concatenate([[0], np.cumsum(is_private[examples])]) for examples in by_class]
    for _ in range(MAX_DIRICHLET_DRAWS if clients * minimum <= left else 0):
        sizes, private_sizes = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
        cuts = []
        for examples, counts in zip(by_class, kept, strict=True):
            has_room = sizes < len(candidates) / clients
            share = rng.dirichlet(np.full(clients, settings.alpha)) * has_room
            if not share.sum() > 0:  # a tiny alpha can leave all of a class with clients that have no room
                share = has_room.astype(float) if has_room.any() else np.ones(clients)
            cut = (np.cumsum(share / share.sum())[:-1] * len(examples)).astype(np.int64)
            sizes += np.diff(cut, prepend=0, append=len(examples))
            private_sizes += np.diff(counts[cut], prepend=0, append=counts[-1])
            cuts.append(cut)
        if private_sizes.min() >= minimum:
            parts = [np.split(examples, cut) for examples, cut in zip(by_class, cuts, strict=True)]
            return without_domain_name(np.concatenate(part) for part in zip(*parts, strict=True))
    raise RequestError(
        f"no split of {left} examples with alpha {settings.alpha:g} gives each of {clients} clients {minimum} "
        "(data.alpha): raise alpha, or lower clients or min_size"
    )


def min_client_size(settings: DataSettings, num_examples: int) -> int:
    """The fewest examples of a client under dirichlet: as asked for, or PFLlib's rule."""
    return pfllib_min_client_size(settings, num_examples) if settings.min_size is None else settings.min_size


def pfllib_min_client_size(settings: DataSettings, num_examples: int) -> int:
    return int(min(PFLLIB_MIN_SIZE, num_examples / resolved_num_clients(settings) / 2))


def assign_by_domain(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """A domain a client, or `clients_per_domain` clients that share it evenly."""
    dealt: ClientAssignment = []
    for number, name in enumerate(dataset.domain_names):
        inside = rng.permutation(candidates[require_domain_ids(dataset)[candidates] == number])
        dealt += [(part, name) for part in np.array_split(inside, settings.clients_per_domain or 1)]
    return dealt


def assign_hybrid(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Inside each domain, `clients_per_domain` clients with `classes_per_client` classes each."""
    require_enough_classes(dataset, settings)
    clients, each = settings.clients_per_domain or 1, settings.classes_per_client
    dealt: ClientAssignment = []
    for number, name in enumerate(dataset.domain_names):
        inside = candidates[require_domain_ids(dataset)[candidates] == number]
        holders = balanced_clients_per_class(dataset.num_classes, clients, each, rng)
        dealt += [(part, name) for part in split_classes(dataset, inside, clients, holders, settings, rng)]
    return dealt


def assign_natural(
    dataset: Dataset, candidates: IntArray, is_private: Mask, settings: DataSettings, rng: np.random.Generator
) -> ClientAssignment:
    """Everybody keeps what the data set says is theirs."""
    if dataset.client_ids is None:
        raise RequestError(f"'{dataset.name}' does not say who holds what (data.scheme): choose another scheme")
    there = int(dataset.client_ids.max(initial=-1)) + 1
    if there != resolved_num_clients(settings):
        raise RequestError(f"the data has {there} clients, not {settings.clients} (data.clients): leave it out")
    ordered = candidates[np.argsort(dataset.client_ids[candidates], kind="stable")]
    starts = np.searchsorted(dataset.client_ids[ordered], np.arange(1, resolved_num_clients(settings)))
    return without_domain_name(np.split(ordered, starts))


def balanced_clients_per_class(
    num_classes: int, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """The holders of every class: client by client takes the classes that have the fewest."""
    holders: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(num_clients):
        order = sorted(rng.permutation(num_classes).tolist(), key=lambda c: len(holders[c]))
        for chosen in order[:classes_per_client]:
            holders[chosen].append(client)
    return holders


def pfllib_clients_per_class(num_classes: int, num_clients: int, classes_per_client: int) -> list[list[int]]:
    """The holders as PFLlib chooses them: each class takes the first clients that still lack one.

    So neighbours hold the same classes: of 15 clients with 2 of 10 classes each, 0 to 2 hold classes 0 and 1. Which
    examples of a class a holder gets is drawn, where PFLlib goes by the order of its files.
    """
    lacking = np.full(num_clients, classes_per_client)
    holders = []
    for _ in range(num_classes):
        chosen = np.flatnonzero(lacking)[: ceil(num_clients / num_classes * classes_per_client)]
        lacking[chosen] -= 1
        holders.append(chosen.tolist())
    if not all(holders):
        raise RequestError(
            f"PFLlib's rule leaves class {holders.index([])} to nobody with {num_clients} clients and {classes_per_client} classes each "
            "(data.protocol): choose other numbers, or protocol official"
        )
    return holders


def split_classes(
    dataset: Dataset,
    indices: IntArray,
    num_clients: int,
    clients_per_class: list[list[int]],
    settings: DataSettings,
    rng: np.random.Generator,
) -> list[IntArray]:
    """What each client gets when every class is shared by its holders."""
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
    """All but the last holder get between a tenth and the whole of an even share, as in PFLlib; the last the rest.

    Nobody gets less than `floor`, as far as there is enough.
    """
    even = len(examples) // num_clients
    least = min(max(even // 10, min_size, 1), even)
    counts = rng.integers(least, max(even, least + 1), size=num_clients - 1)
    return np.split(examples, np.cumsum(counts))


def require_enough_classes(dataset: Dataset, settings: DataSettings) -> None:
    if settings.classes_per_client > dataset.num_classes:
        raise RequestError(
            f"{settings.classes_per_client} classes a client are more than '{dataset.name}' has "
            f"(data.classes_per_client): at most {dataset.num_classes}"
        )


def without_domain_name(parts: Iterable[IntArray]) -> ClientAssignment:
    return [(part, None) for part in parts]


def resolved_num_clients(settings: DataSettings) -> int:
    """The number of clients, which resolved settings have."""
    return settings.clients or 1


def require_domain_ids(dataset: Dataset) -> IntArray:
    if dataset.domain_ids is None:
        raise RequestError(f"data set '{dataset.name}' has no domains (data.scheme): choose another scheme")
    return dataset.domain_ids
