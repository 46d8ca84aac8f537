"""Filling in open data settings from the description of the data set or from the user's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.data.data_settings import MAX_CLIENTS
from fedmosaic_cli.data.datasets import find_dataset_source, load_dataset_without_pixels, locate_dataset
from fedmosaic_cli.data.datasets.dataset_source import UserDataInfo
from fedmosaic_cli.errors import RequestError, unknown_name_error

if TYPE_CHECKING:
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.datasets.dataset_source import DatasetSource

DEFAULT_NUM_CLIENTS = 15
DEFAULT_CLIENTS_PER_DOMAIN = {"domain": 1, "hybrid": 5}
DEFAULT_MIN_SIZE = 10
MAX_DEFAULT_PUBLIC_SIZE = 300


def resolve_data_settings(settings: DataSettings, data_dirs: DataDirs) -> DataSettings:
    """Return the settings with all defaults filled in. Reads files only for the user's own data.

    Raises:
        RequestError: If the settings contradict each other or the data set.
    """
    source = find_dataset_source(settings.dataset)
    if settings.scheme in DEFAULT_CLIENTS_PER_DOMAIN:
        variant = source.domains_variant if "dataset" in settings.model_fields_set else "digits-domains"
        settings = settings.model_copy(update={"dataset": variant or settings.dataset})
        source = find_dataset_source(settings.dataset)
    check_data_settings(settings, source)
    data_info = inspect_user_data(settings, source, data_dirs)
    filled: dict[str, object] = {}
    if settings.scheme in DEFAULT_CLIENTS_PER_DOMAIN:
        names = resolve_domains(settings, data_info.domains)
        per_domain = settings.clients_per_domain or DEFAULT_CLIENTS_PER_DOMAIN[settings.scheme]
        filled |= {"domains": names, "clients_per_domain": per_domain, "clients": sum_clients(per_domain, names)}
    else:
        if settings.domains:
            resolve_domains(settings, data_info.domains)
        filled["clients"] = resolve_num_clients(settings, data_info)
    if settings.public_size is None:
        size = source.default_public_size
        if size is None:
            size = min(MAX_DEFAULT_PUBLIC_SIZE, data_info.num_examples // 10)
        filled["public_size"] = round(settings.share * size)
    if settings.image_size is None:
        filled["image_size"] = source.default_image_size
    # PFLlib has its own rule, and with `examples_per_client` all clients have the same size.
    if settings.min_size is None and settings.protocol != "pfllib" and settings.examples_per_client is None:
        filled["min_size"] = DEFAULT_MIN_SIZE
    resolved = settings.model_copy(update=filled)
    size, pool_size = resolved.public_size or 0, resolved.public_from
    if pool_size is not None and pool_size < size:
        raise RequestError(
            f"a public set of {size} does not fit into a pool of {pool_size} (data.public_pool_size): "
            f"make it at least {size}, or leave it out"
        )
    clients = resolved.clients or 0
    wrong = [client for client in resolved.flip_labels if not 0 <= client < clients]
    if wrong:
        raise RequestError(
            f"no client {wrong[0]} to flip the labels of (data.flip_labels): clients are 0 to {clients - 1}"
        )
    return resolved


def known_image_shape(settings: DataSettings) -> tuple[int, int, int] | None:
    """Return the shape [channels, height, width] of images of resolved settings; None if it depends on files."""
    info = find_dataset_source(settings.dataset).info
    side = None if info is None else settings.image_size or info.image_size
    return None if info is None or side is None else (info.num_channels, side, side)


def find_image_shape(settings: DataSettings, data_dirs: DataDirs) -> tuple[int, int, int]:
    """Return the shape [channels, height, width] of images of resolved settings; reads the user's files if necessary.

    Raises:
        RequestError: If the files are not there or cannot be read.
    """
    shape = known_image_shape(settings)
    if shape is not None:
        return shape
    key = (settings.dataset, data_dirs.data_dir.absolute(), settings.domains, settings.image_size)
    if key not in data_dirs.image_shape_cache:
        data_dirs.image_shape_cache[key] = load_dataset_without_pixels(settings, data_dirs).input_shape
    return data_dirs.image_shape_cache[key]


def check_data_settings(settings: DataSettings, source: DatasetSource) -> None:
    """Raise `RequestError` for settings that the data set or the protocol does not support."""
    if settings.image_size is not None and not source.is_resizable:
        raise RequestError(f"images of '{settings.dataset}' have one size (data.image_size): leave it out")
    if settings.protocol == "fedbn" and (source.fedbn_fractions is None or settings.scheme != "domain"):
        raise RequestError(
            f"protocol fedbn is for office10 and domainnet with scheme domain, not for '{settings.dataset}' with "
            f"{settings.scheme} (data.protocol): choose official"
        )
    for key in ("examples_per_client", "test_examples_per_client"):
        if settings.protocol == "fedbn" and getattr(settings, key) is not None:
            raise RequestError(
                f"protocol fedbn determines the number of examples (data.{key}): leave it out, or choose official"
            )
    if settings.protocol == "pfllib" and settings.scheme == "natural":
        raise RequestError("scheme natural keeps each client's own test part (data.protocol): choose official")


def inspect_user_data(settings: DataSettings, source: DatasetSource, data_dirs: DataDirs) -> UserDataInfo:
    """Return what is known about the data; reads the user's files only if necessary."""
    needs_files = (
        settings.public_size is None
        or (settings.scheme == "natural" and settings.clients is None)
        or (settings.scheme in DEFAULT_CLIENTS_PER_DOMAIN and not settings.domains)
    )
    if source.inspect is None or not needs_files:
        return UserDataInfo(0, settings.domains if source.inspect else source.domains, settings.clients)
    return source.inspect(locate_dataset(settings.dataset, data_dirs))


def resolve_domains(settings: DataSettings, known_domains: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested domains, or all; every requested one must exist."""
    if not known_domains and settings.scheme in DEFAULT_CLIENTS_PER_DOMAIN:
        advice = {"folder": "arrange images as <domain>/<class>/*.jpg", "npz": "add an array 'domain'"}
        raise RequestError(
            f"data set '{settings.dataset}' has no domains, which scheme '{settings.scheme}' needs (data.dataset): "
            f"{advice.get(settings.dataset, 'choose digits-domains')}"
        )
    if not known_domains:
        raise RequestError(f"data set '{settings.dataset}' has no domains (data.domains): leave it out")
    for name in settings.domains:
        if name not in known_domains:
            raise unknown_name_error("domain", name, known_domains, "data.domains")
    if len(set(settings.domains)) < len(settings.domains):
        raise RequestError(f"a domain is listed twice in {list(settings.domains)} (data.domains): list each once")
    return settings.domains or known_domains


def sum_clients(per_domain: int | tuple[int, ...], domains: tuple[str, ...]) -> int:
    """Return the number of clients in all domains."""
    if isinstance(per_domain, tuple) and len(per_domain) != len(domains):
        raise RequestError(
            f"{len(per_domain)} numbers of clients for {len(domains)} domains (data.clients_per_domain): "
            f"give one number, or one each for {', '.join(domains)}"
        )
    total = sum(per_domain) if isinstance(per_domain, tuple) else per_domain * len(domains)
    if total > MAX_CLIENTS:
        raise RequestError(
            f"{total} clients in {len(domains)} domains are too many (data.clients_per_domain): at most {MAX_CLIENTS}"
        )
    return total


def resolve_num_clients(settings: DataSettings, data_info: UserDataInfo) -> int:
    """Return the number of clients; scheme natural takes it from the data."""
    if settings.scheme != "natural":
        return settings.clients or DEFAULT_NUM_CLIENTS
    if data_info.num_clients is None:
        raise RequestError(
            f"'{settings.dataset}' does not assign examples to clients, which scheme natural needs (data.scheme): "
            "use pfllib, or an npz file with an array 'client'"
        )
    if settings.clients not in (None, data_info.num_clients):
        raise RequestError(
            f"the data has {data_info.num_clients} clients, not {settings.clients} (data.clients): leave it out"
        )
    return data_info.num_clients
