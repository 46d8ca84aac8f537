"""What a run tells of the noise in its messages, planned and spent. Needs no torch."""

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
    """The block of a run before it starts; None where there is no noise. `sizes` are those of the training parts.

    Clients at `sites` draw their noise themselves.
    """
    if config.noise is None:
        return None
    high = expertise_noise_bound(getattr(config.method, "expertise", None), num_classes)
    block = planned_privacy_report(
        config.noise, config.num_exchanges, config.data.public_size or 0, num_classes, high, client_sizes
    )
    return with_system_noise(block) if is_remote else block


def privacy_summary_fields(
    config: RunConfig, shards: ShardSet, ledgers: Mapping[int, Any], is_remote: bool = False
) -> dict[str, Any]:
    """What the summary of a run says of its noise; nothing where there was none.

    `ledgers` are what the clients wrote down that sent anything.
    """
    if config.noise is None:
        return {}
    if config.num_exchanges and not ledgers:
        raise RunStateError("no client wrote down what it let go (privacy): start the run anew in another place")
    releases = {client: read_ledger(ledger) for client, ledger in ledgers.items()}
    block = spent_privacy_report(config.noise, releases, len(shards.manifest["class_names"]))
    return {
        "privacy": with_system_noise(block) if is_remote else block,
        "privacy_settings": config.to_dict()["privacy"],
    }
