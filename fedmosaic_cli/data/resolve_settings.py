"""Filling in what a request leaves open: from the data set's description, or from a glance at the user's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.data.data_settings import MOST_CLIENTS
from fedmosaic_cli.data.datasets import find_source, locate
from fedmosaic_cli.data.datasets.dataset_source import Look
from fedmosaic_cli.errors import RequestError, unknown

if TYPE_CHECKING:
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.datasets.dataset_source import Source

CLIENTS = 15
CLIENTS_A_DOMAIN = {"domain": 1, "hybrid": 5}
MIN_SIZE = 10
LARGEST_DEFAULT_PUBLIC = 300


def resolve(settings: DataSettings, place: Place) -> DataSettings:
    """The settings with nothing left open. Looks at files only where the data is the user's own."""
    if settings.scheme in CLIENTS_A_DOMAIN and "dataset" not in settings.model_fields_set:
        settings = settings.model_copy(update={"dataset": "digits-domains"})
    source = find_source(settings.dataset)
    check(settings, source)
    look = glance(settings, source, place)
    filled: dict[str, object] = {}
    if settings.scheme in CLIENTS_A_DOMAIN:
        names = check_domains(settings, look.domains)
        per_domain = settings.clients_per_domain or CLIENTS_A_DOMAIN[settings.scheme]
        filled |= {"domains": names, "clients_per_domain": per_domain, "clients": per_domain * len(names)}
        if per_domain * len(names) > MOST_CLIENTS:
            raise RequestError(
                f"{per_domain} clients in each of {len(names)} domains are too many (data.clients_per_domain): "
                f"at most {MOST_CLIENTS} in all"
            )
    else:
        if settings.domains:
            check_domains(settings, look.domains)
        filled["clients"] = count_clients(settings, look)
    if settings.public_size is None:
        usual = min(LARGEST_DEFAULT_PUBLIC, look.examples // 10) if source.public_size is None else source.public_size
        filled["public_size"] = round(settings.share * usual)
    if settings.image_size is None:
        filled["image_size"] = source.image_size
    if settings.min_size is None and settings.protocol != "pfllib":  # which has a rule of its own
        filled["min_size"] = MIN_SIZE
    resolved = settings.model_copy(update=filled)
    check_reserve(resolved)
    clients = resolved.clients or 0
    wrong = [client for client in resolved.flip_labels if not 0 <= client < clients]
    if wrong:
        raise RequestError(
            f"no client {wrong[0]} to flip the labels of (data.flip_labels): clients are 0 to {clients - 1}"
        )
    return resolved


def check(settings: DataSettings, source: Source) -> None:
    """Refuse combinations that cannot be."""
    if settings.image_size is not None and not source.resizable:
        raise RequestError(f"images of '{settings.dataset}' have one size (data.image_size): leave it out")
    if settings.protocol == "fedbn" and (source.fedbn is None or settings.scheme != "domain"):
        raise RequestError(
            f"protocol fedbn is for office10 and domainnet with scheme domain, not for '{settings.dataset}' with "
            f"{settings.scheme} (data.protocol): choose official"
        )
    if settings.protocol == "pfllib" and settings.scheme == "natural":
        raise RequestError("scheme natural keeps each client's own test part (data.protocol): choose official")


def check_reserve(settings: DataSettings) -> None:
    """Refuse a reserve that the public set does not fit into."""
    size, reserve = settings.public_size or 0, settings.public_from
    if reserve is not None and reserve < size:
        raise RequestError(
            f"a public set of {size} does not come from a reserve of {reserve} (data.public_from): "
            f"make it at least {size}, or leave it out"
        )


def glance(settings: DataSettings, source: Source, place: Place) -> Look:
    """What the description tells, or, where that is not enough, the files."""
    need = (
        settings.public_size is None
        or (settings.scheme == "natural" and settings.clients is None)
        or (settings.scheme in CLIENTS_A_DOMAIN and not settings.domains)
    )
    if source.look is None or not need:
        return Look(0, settings.domains if source.look else source.domains, settings.clients)
    return source.look(locate(settings.dataset, place))


def check_domains(settings: DataSettings, there: tuple[str, ...]) -> tuple[str, ...]:
    """The wanted domains, all of them known."""
    if not there and settings.scheme in CLIENTS_A_DOMAIN:
        advice = {"folder": "arrange images as <domain>/<class>/*.jpg", "npz": "add an array 'domain'"}
        raise RequestError(
            f"data set '{settings.dataset}' has no domains, which scheme '{settings.scheme}' needs (data.dataset): "
            f"{advice.get(settings.dataset, 'choose digits-domains')}"
        )
    if not there:
        raise RequestError(f"data set '{settings.dataset}' has no domains (data.domains): leave it out")
    for name in settings.domains:
        if name not in there:
            raise unknown("domain", name, there, "data.domains")
    if len(set(settings.domains)) < len(settings.domains):
        raise RequestError(f"a domain stands twice in {list(settings.domains)} (data.domains): name each once")
    return settings.domains or there


def count_clients(settings: DataSettings, look: Look) -> int:
    """As many as asked for; under scheme natural as many as the data has."""
    if settings.scheme != "natural":
        return settings.clients or CLIENTS
    if look.clients is None:
        raise RequestError(
            f"'{settings.dataset}' does not say who holds what, which scheme natural needs (data.scheme): "
            "use pfllib, or an npz file with an array 'client'"
        )
    if settings.clients not in (None, look.clients):
        raise RequestError(f"the data has {look.clients} clients, not {settings.clients} (data.clients): leave it out")
    return look.clients
