"""What a reader must know of a table: what its numbers are, and under which protocol they came about."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import group_difference_notes, method_title
from fedmosaic_cli.report.noise_notes import privacy_note
from fedmosaic_cli.report.rerun_commands import rerun_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.report.comparison import ComparisonGroup

DEFAULT_EVALUATED_MODEL = METHODS["local"].evaluated
METRIC_DESCRIPTION = (
    "mean over clients, each counting the same and examined on its own test part, model of the last round"
)


def table_caption(title: str, groups: Sequence[ComparisonGroup], with_published: bool) -> str:
    """What the numbers are. `title` tells which of the paper's tables this is, if it is one."""
    seeds = {setting.seeds for setting in groups}
    every = sorted({seed for each in seeds for seed in each})
    if not every:
        over = "nothing was run yet"
    elif len(every) == 1:
        over = f"seed {every[0]}"
    else:
        over = f"mean (sample standard deviation) over seeds {', '.join(map(str, every))}"
    marks = "".join(mark for setting in groups for mark in set("".join(setting.runs.caveats)))
    caveats = [f" {mark} {words}." for mark, words in CAVEAT_DESCRIPTIONS.items() if mark in marks]
    beside = " In brackets: what the paper printed, and ours minus that." if with_published else ""
    return f"Test accuracy (%){f' under {title}' if title else ''}: {METRIC_DESCRIPTION}; {over}.{beside}{''.join(caveats)}"


def table_notes(groups: Sequence[ComparisonGroup]) -> tuple[str, ...]:
    """The protocol of each setting, why some of one name are apart, and whose model was examined."""
    return (*map(protocol_note, groups), *group_difference_notes(groups), *evaluated_model_notes(groups))


def privacy_notes(groups: Sequence[ComparisonGroup]) -> tuple[tuple[str, ...], ...]:
    """What the runs with noise in their messages gave away: lines for each row that has any."""
    blocks = [
        privacy_note(f"{method_title(key)} in {setting.label}", runs)
        for setting in groups
        for key, runs in setting.runs_by_method.items()
    ]
    return tuple(filter(None, blocks))


def protocol_note(group: ComparisonGroup) -> str:
    """A setting in a sentence: data, shards, rounds, model, seeds, device."""
    terms, runs = group.conditions, group.runs
    digests = runs.groupby("seed").digest.first()
    marks = list(dict.fromkeys(digest[:6] for digest in digests if digest))
    clients = {len(marks) for marks in runs.per_client if marks is not None}
    devices = sorted({device for device in runs.device if device})
    parts = [
        f"{terms['dataset']}, {terms['scheme']}",
        format_count(clients.pop(), "client") if len(clients) == 1 else "",
        format_count(terms["rounds"], "round") + (f" of {group.model}" if group.model else ""),
        f"seed{'s' * (len(group.seeds) > 1)} {', '.join(map(str, group.seeds))}",
        f"shards {' '.join(marks)}" if marks else "shards unknown",
        f"on {' and '.join(devices)}" if devices else "",
        attack_description(group),
        f"defence {format_options(group.conditions['defence'])}" if group.conditions.get("defence") else "",
        f"with {' and '.join(changed)}" if (changed := changed_options(group)) else "",
    ]
    return f"{group.label}: {', '.join(filter(None, parts))}."


def attack_description(group: ComparisonGroup) -> str:
    """Who attacks, if anybody does, and that they are in the mean."""
    attack = group.conditions.get("attack")
    if not attack:
        return ""
    who, others = attack.get("clients", ()), {k: v for k, v in attack.items() if k not in ("kind", "clients")}
    details = f", {format_options(others)}" if others else ""
    return f"{format_count(len(who), 'attacker')} ({attack.get('kind')}{details}), counted in the mean"


def format_options(options: Mapping[str, Any]) -> str:
    """Settings in a few words: what is switched on, and what has a value."""
    return " and ".join(name if value is True else f"{name} {value}" for name, value in options.items())


def changed_options(group: ComparisonGroup) -> list[str]:
    """What is other than in the preset, or than usual where there is none; attacks and defences are told apart."""
    words = rerun_options(group)
    changed = [following for word, following in pairwise(words) if word == "--set"]
    return [change for change in changed if not change.startswith(("attack.", "defence."))]


def format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def evaluated_model_notes(groups: Sequence[ComparisonGroup]) -> list[str]:
    """Which model is examined, where it is not simply the client's own."""
    names = {method for setting in groups for method, _ in setting.runs_by_method}
    by_model: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        if name in names and method.evaluated != DEFAULT_EVALUATED_MODEL:
            by_model.setdefault(method.evaluated, []).append(method.title)
    if not by_model:
        return []
    words = "; ".join(f"{', '.join(titles)}: {model}" for model, titles in by_model.items())
    return [f"Examined is {DEFAULT_EVALUATED_MODEL}, but for {words}."]
