"""The planned and the spent privacy budget of a run. Does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.labels.privacy.noise import expertise_noise_bound
from fedmosaic_cli.labels.privacy.privacy_report import (
    planned_privacy_report,
    read_ledger,
    spent_privacy_report,
    with_system_noise,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.storage.shards import ShardSet


def planned_privacy_section(
    config: RunConfig, num_classes: int, client_sizes: Sequence[int] | None, is_remote: bool = False
) -> dict[str, Any] | None:
    """Return the planned privacy budget of a run, or None without noise.

    Args:
        client_sizes: The number of training examples per client, if known.
        is_remote: Whether clients are at remote sites, which use the system's random numbers.
    """
    if config.noise is None:
        return None
    bound = expertise_noise_bound(getattr(config.method, "expertise", None), num_classes)
    section = planned_privacy_report(
        config.noise, config.num_exchanges, config.data.public_size or 0, num_classes, bound, client_sizes
    )
    return with_system_noise(section) if is_remote else section


def planned_ledgers(config: RunConfig, num_classes: int, client_sizes: Mapping[int, int]) -> dict[int, Any]:
    """Return the ledger of each client that takes part in all exchanges; {} without noise or exchange."""
    noise, last = config.noise, config.train.rounds
    if noise is None:
        return {}
    bound = expertise_noise_bound(getattr(config.method, "expertise", None), num_classes)
    first = last - config.num_exchanges + 1
    return {
        client: [
            release.to_dict()
            for number in range(first, last + 1)
            for release in noise.round_releases(number, size, config.data.public_size or 0, bound, number == first)
        ]
        for client, size in client_sizes.items()
        if config.num_exchanges
    }


def privacy_summary_fields(
    config: RunConfig, shards: ShardSet, ledgers: Mapping[int, Any], is_remote: bool = False
) -> dict[str, Any]:
    """Return the entries of summary.json about noise; `ledgers` are those of the clients that uploaded."""
    if config.noise is None:
        return {}
    if config.num_exchanges and not ledgers:
        raise RunStateError("no client has a privacy ledger (privacy): start the run again in another --run-dir")
    releases = {client: read_ledger(ledger) for client, ledger in ledgers.items()}
    section = spent_privacy_report(config.noise, releases, len(shards.manifest["class_names"]))
    return {
        "privacy": with_system_noise(section) if is_remote else section,
        "privacy_settings": config.to_dict()["privacy"],
    }
