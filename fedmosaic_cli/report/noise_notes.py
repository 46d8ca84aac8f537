"""Labels and notes for runs that add privacy noise to their messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.storage.privacy_summary import PrivacySection, format_rounded_up, privacy_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

MAX_MEANINGFUL_EPSILON = 10.0
# The limit decides whether a run starts; it does not change the run.
IGNORED_PRIVACY_KEYS = {"max_epsilon"}


def noise_key(summary: Mapping[str, Any]) -> str:
    """Return the noise settings that runs of one table row share, as JSON; "" without noise."""
    settings = summary.get("privacy_settings") or {}
    compared = {key: value for key, value in settings.items() if key not in IGNORED_PRIVACY_KEYS}
    return json.dumps(compared, sort_keys=True) if compared else ""


def noise_label_parts(runs: pd.DataFrame, all_keys: Sequence[str]) -> list[str]:
    """Describe the noise of a table row beside the method's name: "DP" only if it is rated and meaningful.

    Settings that differ between the noise keys of the method's rows (`all_keys`) are part of the label.
    """
    key = str(runs.noise.iloc[0])
    if not key:
        return []
    sections = [PrivacySection.model_validate(section) for section in runs.privacy]
    total = max(section.total for section in sections)
    kind, bound = "DP" if total <= MAX_MEANINGFUL_EPSILON else "noise", "total"
    if not all(section.is_rated for section in sections):
        kind, bound = "randomised labels", "worst-case"
    condition = "conditional " if any(section.unit != "client" for section in sections) else ""
    settings, others = json.loads(key), [json.loads(other) for other in all_keys if other and other != key]
    differing = [name for name in sorted(settings) if any(other.get(name) != settings[name] for other in others)]
    # The first two parts already state the mechanism and epsilon.
    details = [f"{name} {settings[name]}" for name in differing if name not in ("labels", "epsilon") and settings[name]]
    mechanism = sections[0].labels.mechanism
    return [f"{kind} {mechanism}", f"{condition}{bound} epsilon {format_rounded_up(total)}", *details]


def noise_options(runs: pd.DataFrame) -> tuple[str, ...]:
    """Return the command-line options that request the same noise."""
    settings = json.loads(str(runs.noise.iloc[0]) or "{}")
    # `labels` switches noise on and must precede the other options.
    return tuple(
        word
        for name, value in sorted(settings.items(), key=lambda item: item[0] != "labels")
        if value is not None
        for word in ("--set", f"privacy.{name}={value if isinstance(value, str) else json.dumps(value)}")
    )


def privacy_note(title: str, runs: pd.DataFrame) -> tuple[str, ...]:
    """Return the title and the privacy lines of the run with the largest total epsilon; () without noise."""
    sections = [section for section in runs.privacy if section]
    if not sections:
        return ()
    worst = max(sections, key=lambda section: float(section["total_epsilon"]))
    return (f"{title}:", *privacy_lines(worst))
