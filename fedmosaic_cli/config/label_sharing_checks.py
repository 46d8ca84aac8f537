"""Checks of attacks, defences and privacy noise against the rest of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from fedmosaic_cli.config.layers import ConfigLayers
    from fedmosaic_cli.config.run_config import RunConfig

MAX_EXPERTISE_BITS_WITH_NOISE = 8


def check_label_sharing(config: RunConfig, layers: ConfigLayers) -> None:
    """Refuse attacks and defences that are impossible or incompatible with privacy noise."""
    attack, num_clients = config.attack, config.data.clients or 1
    unknown = [client for client in attack.clients if not 0 <= client < num_clients]
    if unknown:
        raise RequestError(
            f"unknown client {unknown[0]} (attack.clients, {layers.origin('attack.clients')}): "
            f"clients are numbered from 0 to {num_clients - 1}"
        )
    if attack.from_round > config.train.rounds:
        raise RequestError(
            f"attack.from_round is {attack.from_round} ({layers.origin('attack.from_round')}): "
            f"it must be at most {config.train.rounds}, the number of rounds"
        )
    min_clients, num_participants = config.defence.min_clients, config.train.clients_per_round or num_clients
    if min_clients is not None and min_clients > num_participants:
        raise RequestError(
            f"defence.min_clients is {min_clients} ({layers.origin('defence.min_clients')}): "
            f"it must be at most {num_participants}, the number of clients per round"
        )
    if config.privacy.is_enabled:
        check_noise(config, layers)


def check_noise(config: RunConfig, layers: ConfigLayers) -> None:
    """Refuse what breaks the privacy guarantee, or what noise makes meaningless."""
    labels, defence = config.privacy.labels, config.defence
    # A row of flipped bits is not a label, and the largest noisy votes are not those of the most confident clients.
    if defence.vote == "trimmed" or (labels == "xor" and defence.depends_on_labels):
        raise RequestError(
            f"this defence cannot weight votes with {labels} noise (defence): noisy votes are only correct on average; "
            "use krr without trimmed votes, or leave out the defence"
        )
    if labels == "xor" and getattr(config.method, "robust", False):
        key = f"methods.{config.method.info.name}.robust"
        raise RequestError(
            f"{key} is true ({layers.origin(key)}): it cannot compare votes with xor noise, whose rows are not labels; "
            "use krr, or leave it out"
        )
    expertise, origin = config.privacy.expertise, layers.origin("privacy.expertise")
    sends_expertise = getattr(config.method, "claims_privacy", True)
    # A preset sets it for all methods.
    if expertise in ("gaussian", "histogram") and not sends_expertise and not origin.startswith("preset "):
        raise RequestError(
            f"privacy.expertise is {expertise} ({origin}): {config.method.info.title} "
            "sends randomised labels without confidence; use none"
        )
    if config.train.on_nan == "skip":
        raise RequestError(
            f"train.on_nan is skip ({layers.origin('train.on_nan')}): with noise it must be stop, because a missing "
            "upload reveals something about the client's data"
        )
    bits = getattr(config.method, "expertise_bits", MAX_EXPERTISE_BITS_WITH_NOISE)
    key = f"methods.{config.method.info.name}.expertise_bits"
    if bits == "float32" or bits > MAX_EXPERTISE_BITS_WITH_NOISE:
        raise RequestError(
            f"{key} is {bits} ({layers.origin(key)}): with noise it must be at most {MAX_EXPERTISE_BITS_WITH_NOISE}, "
            "because the last bits of a number can reveal its value without noise"
        )
