"""Captions and notes of comparison tables: what the numbers are and how they were measured."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmosaic_cli.config.key_names import stored_key
from fedmosaic_cli.config.run_config import may_have_batch_norm
from fedmosaic_cli.methods.registry import METHODS, known_methods, method_info
from fedmosaic_cli.report.collect import CAVEAT_DESCRIPTIONS
from fedmosaic_cli.report.comparison import CENTRALIZED_KEY, group_difference_notes, method_title
from fedmosaic_cli.report.comparison_table import MIN_CANDIDATES, format_percent
from fedmosaic_cli.report.missing_runs import rerun_options
from fedmosaic_cli.report.noise_notes import privacy_note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import MethodResult, TableColumn, TableRow

MAX_SUMMARIZED_COLUMNS = 4
"""The number of columns whose best methods are listed one by one."""
MAX_NAMED_METHODS = 3
PERSONALIZED_MODELS = (METHODS["local"].info.evaluates, "the client's personal model")
"""Beginnings of descriptions of evaluated models that need no note."""
GLOBAL_MODEL = "the single global model"
MEAN_AND_DEVIATION = "mean (standard deviation)"
"""What numbers are, in the form in which they are printed."""


def table_caption(
    title: str,
    columns: Sequence[TableColumn],
    rows: Sequence[TableRow],
    groups: Sequence[ComparisonGroup],
    with_published: bool,
) -> str:
    """Return the caption of a table. `title` names a table of the paper, "" for the overview."""
    subject = f"Average test accuracy over clients in percent (unweighted, final round){title and f' under {title}'}"
    published = " Square brackets: published result and difference to it." if with_published else ""
    has_best = any(cell.measured and cell.measured.is_best for row in rows for cell in row.cells)
    best = " Bold: best method of each setting, without the references." if has_best else ""
    symbols = {symbol for group in groups for symbol in "".join(group.runs.caveats)}
    caveats = [f" {symbol} {text}." for symbol, text in CAVEAT_DESCRIPTIONS.items() if symbol in symbols]
    return f"{subject}{seeds_text(columns)}.{best}{published}{''.join(caveats)}"


def seeds_text(columns: Sequence[TableColumn]) -> str:
    """Return the seeds of the columns: those of most columns, then the columns that differ."""
    groups = {column.group.label: column.group for column in columns if column.group}
    if not groups:
        return "; no runs yet"
    counts = Counter(group.seeds for group in groups.values())
    common = max(counts, key=lambda seeds: (counts[seeds], len(seeds)))
    others = [f"{label}: {format_seeds(group.seeds)}" for label, group in groups.items() if group.seeds != common]
    most = max(len(group.seeds) for group in groups.values())
    seeds = format_seeds(common) + (f" ({'; '.join(others)})" if others else "")
    return f", {MEAN_AND_DEVIATION} over {seeds}" if most > 1 else f", {seeds}"


def format_seeds(seeds: Sequence[int]) -> str:
    """Return `seed 0`, `seeds 0-2` or `seeds 0, 2`."""
    is_range = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    numbers = f"{seeds[0]}-{seeds[-1]}" if is_range else ", ".join(map(str, seeds))
    return f"seed{'' if len(seeds) == 1 else 's'} {numbers}"


def table_summary(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> str:
    """Say in one sentence which methods are best, and how far they are from Local; "" without methods."""
    methods = [row for row in rows if not row.is_reference]
    best = [
        best_in_column([(row.title, row.cells[number].measured) for row in methods]) for number in range(len(columns))
    ]
    if len(columns) == 1 and best[0]:
        return f"{best[0].introduction}: {best[0].titles}, {best[0].accuracy}."
    if len(columns) <= MAX_SUMMARIZED_COLUMNS:
        parts = [
            f"{found.titles} in {': '.join(filter(None, (column.heading, column.label)))} ({found.accuracy})"
            for column, found in zip(columns, best, strict=True)
            if found and found.num_methods >= MIN_CANDIDATES
        ]
        return f"Best methods: {'; '.join(parts)}." if parts else ""
    counts = Counter(title for found in best if found and found.num_methods >= MIN_CANDIDATES for title in found.names)
    parts = [f"{title} in {count}" for title, count in counts.most_common(MAX_SUMMARIZED_COLUMNS)]
    num_columns = sum(found is not None for found in best)
    return f"Best method by number of columns (of {num_columns}): {', '.join(parts)}." if parts else ""


class BestMethods(NamedTuple):
    """The best methods of a column, of `num_methods` with results; its only method if there is one."""

    names: tuple[str, ...]
    accuracy: str
    num_methods: int

    @property
    def titles(self) -> str:
        if len(self.names) > MAX_NAMED_METHODS:
            return f"{self.names[0]} and {len(self.names) - 1} others"
        return " and ".join(filter(None, (", ".join(self.names[:-1]), self.names[-1])))

    @property
    def introduction(self) -> str:
        return f"Best of {self.num_methods} methods" if self.num_methods >= MIN_CANDIDATES else "Result"


def best_in_column(results: Sequence[tuple[str, MethodResult | None]]) -> BestMethods | None:
    """Return the best of the methods of a column, given by title; None without results."""
    present = {title: result for title, result in results if result}
    best = {title: result for title, result in present.items() if result.is_best or len(present) == 1}
    if not best:
        return None
    first = next(iter(best.values()))
    return BestMethods(tuple(best), f"{format_percent(first.mean)} %{gain_text(first.gain)}", len(present))


def gain_text(gain: float | None) -> str:
    """Return the difference to Local in points, "" if it is unknown."""
    if gain is None:
        return ""
    points = format_percent(abs(gain))
    if float(points) == 0:
        return ", equal to Local"
    return f", +{points} points over Local" if gain > 0 else f", {points} points below Local"


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
        format_seeds(group.seeds),
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


def lacks_batch_norm(group: ComparisonGroup) -> bool:
    """Return whether no network of a group has batch normalisation, as far as known."""
    return not may_have_batch_norm(group.conditions["model"]) and not group.conditions.get("clients")


def evaluated_model_notes(groups: Sequence[ComparisonGroup]) -> list[str]:
    """Return a note on the evaluated models, with the methods that evaluate another one than the client's own."""
    keys = {key: None for group in groups for key in group.runs_by_method}
    titles_by_model: dict[str, list[str]] = {}
    for info in map(method_info, known_methods()):
        rows = [key for key in keys if key[0] == info.name]
        if rows and not info.evaluates.startswith(PERSONALIZED_MODELS):
            model = GLOBAL_MODEL if info.name == CENTRALIZED_KEY[0] else info.evaluates
            if info.name == "fedbn" and all(map(lacks_batch_norm, groups)):
                model = method_info("fedavg").evaluates
            titles_by_model.setdefault(model, []).append(method_title(rows[0]) if len(rows) == 1 else info.title)
    exceptions = "; ".join(f"{', '.join(titles)}: {model}" for model, titles in titles_by_model.items())
    return [f"We evaluate each client's personalized model ({exceptions})."] if exceptions else []
