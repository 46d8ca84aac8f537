"""How the private examples are dealt: one function a scheme, which gives (indices, domain name) a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.settings import DataSettings

    Index = NDArray[np.int64]
    Dealt = list[tuple[Index, str | None]]

DIRICHLET_TRIES = 200


def deal(dataset: Dataset, private: Index, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """The examples `private` in as many parts as there are clients."""
    scheme = {"iid": iid, "pathological": pathological, "dirichlet": dirichlet, "domain": domain, "hybrid": hybrid}
    return scheme[settings.scheme](dataset, private, settings, rng)


def iid(dataset: Dataset, private: Index, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """Everybody draws from the same urn."""
    return everywhere(np.array_split(rng.permutation(private), settings.clients))


def pathological(dataset: Dataset, private: Index, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """`classes_per_client` classes each; a class is shared evenly by its holders, and every class has one."""
    check_classes(dataset, settings)
    if settings.clients * settings.classes_per_client < dataset.num_classes:
        raise RequestError(
            f"{settings.clients} clients with {settings.classes_per_client} classes each cannot hold all "
            f"{dataset.num_classes} classes (data.classes_per_client): raise one of them"
        )
    return everywhere(deal_classes(dataset, private, settings.clients, settings.classes_per_client, rng))


def dirichlet(dataset: Dataset, private: Index, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """Each class is shared out by proportions from Dirichlet(alpha).

    A client that already holds its fair share gets nothing more, as in PFLlib; a draw that leaves a client with less
    than `min_size` is thrown away, a bounded number of times.
    """
    clients, minimum = settings.clients, settings.min_size
    by_class = [rng.permutation(private[dataset.labels[private] == c]) for c in range(dataset.num_classes)]
    for _ in range(DIRICHLET_TRIES if clients * minimum <= len(private) else 0):
        sizes = np.zeros(clients, dtype=np.int64)
        cuts = []
        for examples in by_class:
            has_room = sizes < len(private) / clients
            share = rng.dirichlet(np.full(clients, settings.alpha)) * has_room
            if not share.sum() > 0:  # a tiny alpha can leave all of a class with clients that have no room
                share = has_room.astype(float) if has_room.any() else np.ones(clients)
            cut = (np.cumsum(share / share.sum())[:-1] * len(examples)).astype(np.int64)
            sizes += np.diff(cut, prepend=0, append=len(examples))
            cuts.append(cut)
        if sizes.min() >= minimum:
            parts = [np.split(examples, cut) for examples, cut in zip(by_class, cuts, strict=True)]
            return everywhere(np.concatenate(part) for part in zip(*parts, strict=True))
    raise RequestError(
        f"no split of {len(private)} examples gives each of {clients} clients {minimum} "
        f"(data.alpha={settings.alpha:g}): raise alpha, or lower clients or min_size"
    )


def domain(dataset: Dataset, private: Index, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """A domain a client, or `clients_per_domain` clients that share it evenly."""
    dealt: Dealt = []
    for number, name in enumerate(dataset.domain_names):
        inside = rng.permutation(private[domains_of(dataset)[private] == number])
        dealt += [(part, name) for part in np.array_split(inside, settings.clients_per_domain or 1)]
    return dealt


def hybrid(dataset: Dataset, private: Index, settings: DataSettings, rng: np.random.Generator) -> Dealt:
    """Inside each domain, `clients_per_domain` clients with `classes_per_client` classes each."""
    check_classes(dataset, settings)
    dealt: Dealt = []
    for number, name in enumerate(dataset.domain_names):
        inside = private[domains_of(dataset)[private] == number]
        parts = deal_classes(dataset, inside, settings.clients_per_domain or 1, settings.classes_per_client, rng)
        dealt += [(part, name) for part in parts]
    return dealt


def deal_classes(dataset: Dataset, index: Index, clients: int, each: int, rng: np.random.Generator) -> list[Index]:
    """`each` classes for every client, those with the fewest holders first; a class is shared evenly by its holders."""
    holders: list[list[int]] = [[] for _ in range(dataset.num_classes)]
    for client in range(clients):
        order = sorted(rng.permutation(dataset.num_classes).tolist(), key=lambda c: len(holders[c]))
        for chosen in order[:each]:
            holders[chosen].append(client)
    parts: list[list[Index]] = [[] for _ in range(clients)]
    for label, clients_of_label in enumerate(holders):
        if clients_of_label:
            examples = rng.permutation(index[dataset.labels[index] == label])
            for client, part in zip(clients_of_label, np.array_split(examples, len(clients_of_label)), strict=True):
                parts[client].append(part)
    return [np.concatenate(part) for part in parts]


def check_classes(dataset: Dataset, settings: DataSettings) -> None:
    if settings.classes_per_client > dataset.num_classes:
        raise RequestError(
            f"{settings.classes_per_client} classes a client are more than '{dataset.name}' has "
            f"(data.classes_per_client): at most {dataset.num_classes}"
        )


def everywhere(parts: Iterable[Index]) -> Dealt:
    return [(part, None) for part in parts]


def domains_of(dataset: Dataset) -> Index:
    if dataset.domains is None:
        raise RequestError(f"data set '{dataset.name}' has no domains (data.scheme): choose another scheme")
    return dataset.domains
