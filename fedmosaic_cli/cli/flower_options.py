"""The options of `--engine flower`, for clients at sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.common_options import TrainEngine
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower_options import FlowerOptions

if TYPE_CHECKING:
    from fedmosaic_cli.cli.train_options import TrainOptions

FLOWER_OPTION_NAMES = ("superlink", "federation", "simulate_sites", "quorum", "round_timeout", "join_timeout")


def is_federated(options: TrainOptions) -> bool:
    return options.engine is TrainEngine.flower


def parse_flower_options(options: TrainOptions) -> FlowerOptions | None:
    """Return the checked options of `--engine flower`, or None for clients in this process.

    Raises:
        RequestError: An option is invalid, or needs `--engine flower`.
    """
    if not is_federated(options):
        for name in FLOWER_OPTION_NAMES:
            if getattr(options, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise RequestError(f"{option} is for clients at sites (fedmosaic): add --engine flower")
        if options.insecure or options.allow_unauthenticated_network:
            raise RequestError(
                "--insecure and --allow-unauthenticated-network are for clients at sites (fedmosaic): "
                "add --engine flower"
            )
        return None
    flower_options = FlowerOptions(
        options.superlink,
        options.federation or Path("federation"),
        options.simulate_sites,
        options.quorum,
        options.round_timeout,
        options.join_timeout,
        options.insecure,
        options.allow_unauthenticated_network,
        options.device.value,
    )
    flower_options.check()
    if options.simulate_sites is None:
        if not options.dry_run:
            flower_options.superlink_address()
    elif options.superlink or options.federation or options.allow_unauthenticated_network:
        raise RequestError(
            "--simulate-sites starts its own SuperLink (fedmosaic): remove --superlink, --federation and "
            "--allow-unauthenticated-network"
        )
    return flower_options
