"""Runs with noise in their messages: the words that tell them apart, and the blocks that tell what they gave away."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset, preset_names
from fedmosaic_cli.storage.privacy_summary import PrivacySection, format_rounded_up, privacy_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

MAX_MEANINGFUL_EPSILON = 10.0
# A limit decides whether there is a run, not what it is.
IGNORED_PRIVACY_KEYS = {"max_epsilon"}


@cache
def preset_adds_noise(preset: str) -> bool:
    """Whether messages have noise under a preset if nobody says otherwise."""
    if preset not in preset_names():
        return False
    layers = ConfigLayers()
    layers.add_all(load_preset(preset).layers)
    return bool(layers.values.get("privacy", {}).get("labels", "off") != "off")


def noise_key(summary: Mapping[str, Any]) -> str:
    """What must be the same for runs to share a row, as JSON; nothing where there is no noise."""
    settings = summary.get("privacy_settings") or {}
    kept = {key: value for key, value in settings.items() if key not in IGNORED_PRIVACY_KEYS}
    return json.dumps(kept, sort_keys=True) if kept else ""


def noise_label_parts(runs: pd.DataFrame, other_keys: Sequence[str]) -> list[str]:
    """What is said beside a method's name of the noise in its runs; `others` are the keys of its other rows.

    Above what means anything there is no word that sounds as if it did.
    """
    key = str(runs.noise.iloc[0])
    if not key:
        return []
    blocks = [PrivacySection.model_validate(block) for block in runs.block]
    total = max(block.total for block in blocks)
    kind = "DP" if total <= MAX_MEANINGFUL_EPSILON else "noise"
    settings, rest = json.loads(key), [json.loads(other) for other in other_keys if other and other != key]
    apart = [name for name in sorted(settings) if any(other.get(name) != settings[name] for other in rest)]
    # What the first words tell already is not said again.
    words = [f"{name} {settings[name]}" for name in apart if name not in ("labels", "epsilon") and settings[name]]
    condition = "conditional " if any(block.unit != "client" for block in blocks) else ""
    return [f"{kind} {blocks[0].labels.mechanism}", f"{condition}total epsilon {format_rounded_up(total)}", *words]


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


def privacy_note(title: str, runs: pd.DataFrame) -> tuple[str, ...]:
    """The lines of the run that gave away most, under a title; nothing where there is no noise."""
    blocks = [block for block in runs.block if block]
    if not blocks:
        return ()
    worst = max(blocks, key=lambda block: float(block["total_epsilon"]))
    return (f"{title}:", *privacy_lines(worst))
