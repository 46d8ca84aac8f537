"""Captions and notes of comparison tables: what the numbers are and how they were measured."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.key_names import stored_key
from fedmosaic_cli.methods.registry import METHODS, known_methods, method_info
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import group_difference_notes, method_title
from fedmosaic_cli.report.missing_runs import rerun_options
from fedmosaic_cli.report.noise_notes import privacy_note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.report.comparison import ComparisonGroup

DEFAULT_EVALUATED_MODEL = METHODS["local"].info.evaluates
METRIC_DESCRIPTION = (
    "mean over clients, each counting the same and examined on its own test part, model of the last round"
)


def table_caption(title: str, groups: Sequence[ComparisonGroup], with_published: bool) -> str:
    """Return the caption of a table. `title` names a table of the paper, "" for the overview."""
    seeds = sorted({seed for group in groups for seed in group.seeds})
    if not seeds:
        runs = "nothing was run yet"
    elif len(seeds) == 1:
        runs = f"seed {seeds[0]}"
    else:
        runs = f"mean (sample standard deviation) over seeds {', '.join(map(str, seeds))}"
    symbols = {symbol for group in groups for symbol in "".join(group.runs.caveats)}
    caveats = [f" {symbol} {text}." for symbol, text in CAVEAT_DESCRIPTIONS.items() if symbol in symbols]
    published = " In brackets: what the paper printed, and ours minus that." if with_published else ""
    subject = f"Test accuracy (%){f' under {title}' if title else ''}"
    return f"{subject}: {METRIC_DESCRIPTION}; {runs}.{published}{''.join(caveats)}"


def table_notes(groups: Sequence[ComparisonGroup]) -> tuple[str, ...]:
    """Return notes on the protocol of each group, groups of the same name, and the evaluated models."""
    return (*map(protocol_note, groups), *group_difference_notes(groups), *evaluated_model_notes(groups))


def privacy_notes(groups: Sequence[ComparisonGroup]) -> tuple[tuple[str, ...], ...]:
    """Return the lines of the privacy note of each row with noise."""
    notes = [
        privacy_note(f"{method_title(key)} in {group.label}", runs)
        for group in groups
        for key, runs in group.runs_by_method.items()
    ]
    return tuple(filter(None, notes))


def protocol_note(group: ComparisonGroup) -> str:
    """Describe a group in one sentence: data, shards, rounds, model, seeds, device, attack, defence, changes."""
    conditions, runs = group.conditions, group.runs
    digests = list(dict.fromkeys(digest[:6] for digest in runs.groupby("seed").digest.first() if digest))
    client_counts = {len(accuracies) for accuracies in runs.per_client if accuracies is not None}
    devices = sorted({device for device in runs.device if device})
    attack = dict(conditions.get("attack") or {})
    attack_text = ""
    if attack:
        num_attackers, kind = len(attack.pop("clients", ())), attack.pop("kind", None)
        details = f", {format_options(attack)}" if attack else ""
        attack_text = f"{format_count(num_attackers, 'attacker')} ({kind}{details}), counted in the mean"
    values = [value.partition("=") for option, value in pairwise(rerun_options(group)) if option == "--set"]
    changes = [f"{stored_key(key)}={value}" for key, _, value in values if not key.startswith(("attack.", "defence."))]
    parts = [
        f"{conditions['dataset']}, {conditions['scheme']}",
        format_count(client_counts.pop(), "client") if len(client_counts) == 1 else "",
        format_count(conditions["rounds"], "round") + (f" of {group.model}" if group.model else ""),
        f"seed{'s' * (len(group.seeds) > 1)} {', '.join(map(str, group.seeds))}",
        f"shards {' '.join(digests)}" if digests else "shards unknown",
        f"on {' and '.join(devices)}" if devices else "",
        attack_text,
        f"defence {format_options(conditions['defence'])}" if conditions.get("defence") else "",
        f"with {' and '.join(changes)}" if changes else "",
    ]
    return f"{group.label}: {', '.join(filter(None, parts))}."


def format_options(options: Mapping[str, Any]) -> str:
    return " and ".join(name if value is True else f"{name} {value}" for name, value in options.items())


def format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def evaluated_model_notes(groups: Sequence[ComparisonGroup]) -> list[str]:
    """Return a note on the methods that do not evaluate the client's own model."""
    names = {method for group in groups for method, _ in group.runs_by_method}
    titles_by_model: dict[str, list[str]] = {}
    for info in (method_info(name) for name in known_methods() if name in names):
        if info.evaluates != DEFAULT_EVALUATED_MODEL:
            titles_by_model.setdefault(info.evaluates, []).append(info.title)
    if not titles_by_model:
        return []
    exceptions = "; ".join(f"{', '.join(titles)}: {model}" for model, titles in titles_by_model.items())
    return [f"Examined is {DEFAULT_EVALUATED_MODEL}, but for {exceptions}."]
