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

    Index = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    Dealt = list[tuple[Index, str | None]]

DIRICHLET_TRIES = 200
PFLLIB_LEAST = 40


def deal(dataset: Dataset, pool: Index, reserve: Index, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """The examples `pool` without those in `reserve`, in as many parts as there are clients."""
    schemes = {
        "iid": iid,
        "pathological": pathological,
        "dirichlet": dirichlet,
        "domain": domain,
        "hybrid": hybrid,
        "natural": natural,
    }
    private = np.ones(len(dataset), dtype=bool)
    private[reserve] = False
    dealt = schemes[settings.scheme](dataset, pool, private, settings, rng)
    return [(part[private[part]], domain) for part, domain in dealt]


def iid(dataset: Dataset, pool: Index, private: Mask, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """Everybody draws from the same urn."""
    return everywhere(np.array_split(rng.permutation(pool), clients_of(settings)))


def pathological(
    dataset: Dataset, pool: Index, private: Mask, settings: DataSettings, rng: np.random.Generator
) -> Dealt:
    """`classes_per_client` classes each; a class is shared by its holders, and every class has one."""
    check_classes(dataset, settings)
    clients, each = clients_of(settings), settings.classes_per_client
    if clients * each < dataset.num_classes:
        raise RequestError(
            f"{clients} clients with {each} classes each cannot hold all "
            f"{dataset.num_classes} classes (data.classes_per_client): raise one of them"
        )
    if settings.protocol == "pfllib":
        holders = holders_in_order(dataset.num_classes, clients, each)
    else:
        holders = fewest_holders_first(dataset.num_classes, clients, each, rng)
    return everywhere(share_classes(dataset, pool, clients, holders, settings, rng))


def dirichlet(dataset: Dataset, pool: Index, private: Mask, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """Each class is shared out by proportions from Dirichlet(alpha).

    A client that already holds its fair share gets nothing more, as in PFLlib; a draw that leaves a client with less
    than `min_size` is thrown away, a bounded number of times.
    """
    clients, left = clients_of(settings), int(private[pool].sum())
    minimum = least_size(settings, left)
    by_class = [rng.permutation(pool[dataset.labels[pool] == c]) for c in range(dataset.num_classes)]
    # How many of the first examples of a class the clients may keep.
    kept = [np.concatenate([[0], np.cumsum(private[examples])]) for examples in by_class]
    for _ in range(DIRICHLET_TRIES if clients * minimum <= left else 0):
        sizes, private_sizes = np.zeros(clients, dtype=np.int64), np.zeros(clients, dtype=np.int64)
        cuts = []
        for examples, counts in zip(by_class, kept, strict=True):
            has_room = sizes < len(pool) / clients
            share = rng.dirichlet(np.full(clients, settings.alpha)) * has_room
            if not share.sum() > 0:  # a tiny alpha can leave all of a class with clients that have no room
                share = has_room.astype(float) if has_room.any() else np.ones(clients)
            cut = (np.cumsum(share / share.sum())[:-1] * len(examples)).astype(np.int64)
            sizes += np.diff(cut, prepend=0, append=len(examples))
            private_sizes += np.diff(counts[cut], prepend=0, append=counts[-1])
            cuts.append(cut)
        if private_sizes.min() >= minimum:
            parts = [np.split(examples, cut) for examples, cut in zip(by_class, cuts, strict=True)]
            return everywhere(np.concatenate(part) for part in zip(*parts, strict=True))
    raise RequestError(
        f"no split of {left} examples with alpha {settings.alpha:g} gives each of {clients} clients {minimum} "
        "(data.alpha): raise alpha, or lower clients or min_size"
    )


def least_size(settings: DataSettings, examples: int) -> int:
    """The fewest examples of a client under dirichlet: as asked for, or PFLlib's rule."""
    return pfllib_least(settings, examples) if settings.min_size is None else settings.min_size


def pfllib_least(settings: DataSettings, examples: int) -> int:
    return int(min(PFLLIB_LEAST, examples / clients_of(settings) / 2))


def domain(dataset: Dataset, pool: Index, private: Mask, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """A domain a client, or `clients_per_domain` clients that share it evenly."""
    dealt: Dealt = []
    for number, name in enumerate(dataset.domain_names):
        inside = rng.permutation(pool[domains_of(dataset)[pool] == number])
        dealt += [(part, name) for part in np.array_split(inside, settings.clients_per_domain or 1)]
    return dealt


def hybrid(dataset: Dataset, pool: Index, private: Mask, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """Inside each domain, `clients_per_domain` clients with `classes_per_client` classes each."""
    check_classes(dataset, settings)
    clients, each = settings.clients_per_domain or 1, settings.classes_per_client
    dealt: Dealt = []
    for number, name in enumerate(dataset.domain_names):
        inside = pool[domains_of(dataset)[pool] == number]
        holders = fewest_holders_first(dataset.num_classes, clients, each, rng)
        dealt += [(part, name) for part in share_classes(dataset, inside, clients, holders, settings, rng)]
    return dealt


def natural(dataset: Dataset, pool: Index, private: Mask, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """Everybody keeps what the data set says is theirs."""
    if dataset.holders is None:
        raise RequestError(f"'{dataset.name}' does not say who holds what (data.scheme): choose another scheme")
    there = int(dataset.holders.max(initial=-1)) + 1
    if there != clients_of(settings):
        raise RequestError(f"the data has {there} clients, not {settings.clients} (data.clients): leave it out")
    ordered = pool[np.argsort(dataset.holders[pool], kind="stable")]
    starts = np.searchsorted(dataset.holders[ordered], np.arange(1, clients_of(settings)))
    return everywhere(np.split(ordered, starts))


def fewest_holders_first(classes: int, clients: int, each: int, rng: np.random.Generator) -> list[list[int]]:
    """The holders of every class: client by client takes the classes that have the fewest."""
    holders: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        order = sorted(rng.permutation(classes).tolist(), key=lambda c: len(holders[c]))
        for chosen in order[:each]:
            holders[chosen].append(client)
    return holders


def holders_in_order(classes: int, clients: int, each: int) -> list[list[int]]:
    """The holders as PFLlib chooses them: each class takes the first clients that still lack one.

    So neighbours hold the same classes: of 15 clients with 2 of 10 classes each, 0 to 2 hold classes 0 and 1. Which
    examples of a class a holder gets is drawn, where PFLlib goes by the order of its files.
    """
    lacking = np.full(clients, each)
    holders = []
    for _ in range(classes):
        chosen = np.flatnonzero(lacking)[: ceil(clients / classes * each)]
        lacking[chosen] -= 1
        holders.append(chosen.tolist())
    if not all(holders):
        raise RequestError(
            f"PFLlib's rule leaves class {holders.index([])} to nobody with {clients} clients and {each} classes each "
            "(data.protocol): choose other numbers, or protocol official"
        )
    return holders


def share_classes(
    dataset: Dataset,
    index: Index,
    clients: int,
    holders: list[list[int]],
    settings: DataSettings,
    rng: np.random.Generator,
) -> list[Index]:
    """What each client gets when every class is shared by its holders."""
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label, clients_of_label in enumerate(holders):
        if clients_of_label:
            examples = rng.permutation(index[dataset.labels[index] == label])
            if settings.balanced:
                shares = np.array_split(examples, len(clients_of_label))
            else:
                least = pfllib_least(settings, len(index)) if settings.protocol == "pfllib" else 0
                shares = uneven_shares(examples, len(clients_of_label), least // dataset.num_classes, rng)
            for client, part in zip(clients_of_label, shares, strict=True):
                parts[client].append(part)
    return [np.concatenate([*part, np.empty(0, dtype=np.int64)]).astype(np.int64) for part in parts]


def uneven_shares(examples: Index, holders: int, floor: int, rng: np.random.Generator) -> list[Index]:
    """All but the last holder get between a tenth and the whole of an even share, as in PFLlib; the last the rest.

    Nobody gets less than `floor`, as far as there is enough.
    """
    even = len(examples) // holders
    least = min(max(even // 10, floor, 1), even)
    counts = rng.integers(least, max(even, least + 1), size=holders - 1)
    return np.split(examples, np.cumsum(counts))


def check_classes(dataset: Dataset, settings: DataSettings) -> None:
    if settings.classes_per_client > dataset.num_classes:
        raise RequestError(
            f"{settings.classes_per_client} classes a client are more than '{dataset.name}' has "
            f"(data.classes_per_client): at most {dataset.num_classes}"
        )


def everywhere(parts: Iterable[Index]) -> Dealt:
    return [(part, None) for part in parts]


def clients_of(settings: DataSettings) -> int:
    """The number of clients, which resolved settings have."""
    return settings.clients or 1


def domains_of(dataset: Dataset) -> Index:
    if dataset.domains is None:
        raise RequestError(f"data set '{dataset.name}' has no domains (data.scheme): choose another scheme")
    return dataset.domains
