"""Runs with noise in their messages: the words that tell them apart, and the blocks that tell what they gave away."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.storage.privacy_section import PrivacyBlock, privacy_lines, rounded_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

MOST_WITH_A_MEANING = 10.0
# A limit decides whether there is a run, not what it is.
NO_DIFFERENCE = {"max_epsilon"}


@cache
def adds_noise(setting: str) -> bool:
    """Whether messages have noise under a preset if nobody says otherwise."""
    if setting not in preset_names():
        return False
    layers = Layers()
    layers.add_all(load_preset(setting).layers)
    return bool(layers.values.get("privacy", {}).get("labels", "off") != "off")


def noise_key(summary: Mapping[str, Any]) -> str:
    """What must be the same for runs to share a row, as JSON; nothing where there is no noise."""
    settings = summary.get("privacy_settings") or {}
    kept = {key: value for key, value in settings.items() if key not in NO_DIFFERENCE}
    return json.dumps(kept, sort_keys=True) if kept else ""


def noise_words(runs: pd.DataFrame, others: Sequence[str]) -> list[str]:
    """What is said beside a method's name of the noise in its runs; `others` are the keys of its other rows.

    Above what means anything there is no word that sounds as if it did.
    """
    key = str(runs.noise.iloc[0])
    if not key:
        return []
    blocks = [PrivacyBlock.model_validate(block) for block in runs.block]
    total = max(block.total for block in blocks)
    kind = "DP" if total <= MOST_WITH_A_MEANING else "noise"
    settings, rest = json.loads(key), [json.loads(other) for other in others if other and other != key]
    apart = [name for name in sorted(settings) if any(other.get(name) != settings[name] for other in rest)]
    # What the first words tell already is not said again.
    words = [f"{name} {settings[name]}" for name in apart if name not in ("labels", "epsilon") and settings[name]]
    condition = "conditional " if any(block.unit != "client" for block in blocks) else ""
    return [f"{kind} {blocks[0].labels.mechanism}", f"{condition}total epsilon {rounded_up(total)}", *words]


def noise_options(runs: pd.DataFrame) -> tuple[str, ...]:
    """The options that ask for the same noise."""
    key = str(runs.noise.iloc[0])
    settings = json.loads(key) if key else {}
    told = {name: value for name, value in settings.items() if value is not None}
    # Whether there is any noise comes first: without it, nothing else may be said of it.
    return tuple(
        word
        for name in sorted(told, key=lambda name: name != "labels")
        for word in ("--set", f"privacy.{name}={told[name] if isinstance(told[name], str) else json.dumps(told[name])}")
    )


def noise_block(title: str, runs: pd.DataFrame) -> tuple[str, ...]:
    """The lines of the run that gave away most, under a title; nothing where there is no noise."""
    blocks = [block for block in runs.block if block]
    if not blocks:
        return ()
    worst = max(blocks, key=lambda block: float(block["total_epsilon"]))
    return (f"{title}:", *privacy_lines(worst))
