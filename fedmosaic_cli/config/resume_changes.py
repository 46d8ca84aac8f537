"""What a continuation may change of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedmosaic_cli.config.key_names import display_key, display_value
from fedmosaic_cli.config.run_config import flatten_keys

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig

# None of it changes what was played before. How clients are run decides about last bits: what was really chosen is
# recorded with the machine, and compared there.
RESUME_SAFE_KEYS = {
    "train.rounds",
    "train.workers",
    "train.images",
    "train.checkpoint_every",
    "train.execution",
    # Before it says anything, a run has met no client that diverged.
    "train.on_nan",
    # A limit that was never reached changed nothing.
    "privacy.max_epsilon",
}
# A run can go on with these changed, but then it is one that no single configuration describes.
OVERRIDABLE_KEYS = {
    "train.lr",
    "train.batch_size",
    "train.local_epochs",
    "train.local_steps",
    "train.clients_per_round",
}


@dataclass(frozen=True)
class ConfigDifference:
    """What would change, in words, and whether somebody who wants it may have it."""

    text: str
    is_overridable: bool


def config_differences(old: RunConfig, new: RunConfig) -> list[ConfigDifference]:
    """All that a continuation would change, the worst first; nothing where it ends as it would have."""
    before, after = flatten_keys(old.to_dict()), flatten_keys(new.to_dict())
    found = [
        ConfigDifference(
            f"{display_key(key)} was {display_value(key, before.get(key))!r} "
            f"and is now {display_value(key, after.get(key))!r}",
            is_overridable_key(key, old, new),
        )
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in RESUME_SAFE_KEYS
    ]
    rounds = f"train.rounds was {old.train.rounds} and is now {new.train.rounds}"
    if new.train.rounds < old.train.rounds:
        found.append(ConfigDifference(f"{rounds}, which is fewer", is_overridable=False))
    elif new.train.rounds != old.train.rounds and new.privacy.epsilon not in (None, "inf"):
        text = f"{rounds}, for which the noise of every round was chosen (privacy.epsilon)"
        found.append(ConfigDifference(text, is_overridable=False))
    elif new.train.rounds != old.train.rounds and new.method.depends_on_total_rounds:
        text = f"{rounds}, on which every round of {new.method.title} depends"
        found.append(ConfigDifference(text, is_overridable=True))
    if old.noise is not None or new.noise is not None:
        # Noise is drawn by the number of a round: over other labels it would tell what they differ in.
        found = [replace(difference, is_overridable=False) for difference in found]
    return sorted(found, key=lambda difference: difference.is_overridable)


def is_overridable_key(key: str, old: RunConfig, new: RunConfig) -> bool:
    """Hyper-parameters may change as long as the method is called the same."""
    return key in OVERRIDABLE_KEYS or (key.startswith("methods.") and old.method.variant == new.method.variant)
