"""What a run tells of the noise in its messages, planned and spent. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.labels.privacy.noise import expertise_bound
from fedmosaic_cli.labels.privacy.privacy_report import at_sites, planned_block, read_ledger, spent_block

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.storage.shards import Shards


def planned_privacy(
    config: RunConfig, num_classes: int, sizes: Sequence[int] | None, sites: bool = False
) -> dict[str, Any] | None:
    """The block of a run before it starts; None where there is no noise. `sizes` are those of the training parts.

    Clients at `sites` draw their noise themselves.
    """
    if config.noise is None:
        return None
    high = expertise_bound(getattr(config.method, "expertise", None), num_classes)
    block = planned_block(config.noise, config.exchanges, config.data.public_size or 0, num_classes, high, sizes)
    return at_sites(block) if sites else block


def told_of_noise(config: RunConfig, shards: Shards, ledgers: Mapping[int, Any], sites: bool = False) -> dict[str, Any]:
    """What the summary of a run says of its noise; nothing where there was none.

    `ledgers` are what the clients wrote down that sent anything.
    """
    if config.noise is None:
        return {}
    if config.exchanges and not ledgers:
        raise RunStateError("no client wrote down what it let go (privacy): start the run anew in another place")
    releases = {client: read_ledger(ledger) for client, ledger in ledgers.items()}
    block = spent_block(config.noise, releases, len(shards.manifest["class_names"]))
    return {
        "privacy": at_sites(block) if sites else block,
        "privacy_settings": config.to_dict()["privacy"],
    }
