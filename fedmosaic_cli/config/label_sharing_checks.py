"""What is asked for about messages: attacks and defences that can be, and that go with the noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from fedmosaic_cli.config.layers import ConfigLayers
    from fedmosaic_cli.config.run_config import RunConfig

MAX_EXPERTISE_BITS_WITH_NOISE = 8


def check_label_sharing(config: RunConfig, layers: ConfigLayers) -> None:
    """Refuse attacks and defences that cannot be, or that do not go with the noise in messages."""
    check_attack_settings(config, layers)
    check_min_clients(config, layers)
    if config.privacy.is_enabled:
        check_defence_with_noise(config)
        check_noise_side_channels(config, layers)


def check_attack_settings(config: RunConfig, layers: ConfigLayers) -> None:
    attack, clients = config.attack, config.data.clients or 1
    strangers = [client for client in attack.clients if not 0 <= client < clients]
    if strangers:
        raise RequestError(
            f"no client {strangers[0]} (attack.clients, {layers.origin('attack.clients')}): "
            f"they are numbered from 0 to {clients - 1}"
        )
    if attack.from_round > config.train.rounds:
        raise RequestError(
            f"attack.from_round is {attack.from_round} ({layers.origin('attack.from_round')}): "
            f"it must be at most {config.train.rounds}, the number of rounds"
        )


def check_min_clients(config: RunConfig, layers: ConfigLayers) -> None:
    needed, there = config.defence.min_clients, config.train.clients_per_round or config.data.clients or 1
    if needed is not None and needed > there:
        raise RequestError(
            f"defence.min_clients is {needed} ({layers.origin('defence.min_clients')}): "
            f"it must be at most {there}, the number of clients in a round"
        )


def check_defence_with_noise(config: RunConfig) -> None:
    """A row of flipped bits is no label, and the heaviest of noisy votes are not the loudest."""
    labels, defence = config.privacy.labels, config.defence
    if defence.vote == "trimmed" or (labels == "xor" and defence.depends_on_labels):
        raise RequestError(
            f"votes behind {labels} noise cannot be weighed like that (defence): a noisy vote counts by what it says "
            "on average; use krr without trimmed votes, or leave out the defence"
        )


def check_noise_side_channels(config: RunConfig, layers: ConfigLayers) -> None:
    """Silence that depends on a client's data, and numbers so fine that their last bits tell what they were."""
    if config.train.on_nan == "skip":
        raise RequestError(
            f"train.on_nan is skip ({layers.origin('train.on_nan')}): behind noise it must be stop, as a client's "
            "silence would tell of its data"
        )
    bits = getattr(config.method, "expertise_bits", MAX_EXPERTISE_BITS_WITH_NOISE)
    key = f"methods.{config.method.name}.expertise_bits"
    if bits == "float32" or bits > MAX_EXPERTISE_BITS_WITH_NOISE:
        raise RequestError(
            f"{key} is {bits} ({layers.origin(key)}): behind "
            f"noise it must be at most {MAX_EXPERTISE_BITS_WITH_NOISE}, as the last bits of a number could tell what it was"
        )
