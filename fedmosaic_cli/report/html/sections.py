"""Content of the overview section and of the run section of the page."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.comparison import (
    CENTRALIZED_KEY,
    LOCAL_KEY,
    ORACLE_KEY,
    has_client_trust,
    method_title,
)
from fedmosaic_cli.report.comparison_table import format_percent, method_results
from fedmosaic_cli.report.run_costs import kilobytes_per_client_and_round, seconds_per_round
from fedmosaic_cli.report.statistics import compare_methods_with_local
from fedmosaic_cli.storage.files import read_regular_file
from fedmosaic_cli.storage.runs import CONFIG_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup, MethodKey
    from fedmosaic_cli.report.comparison_table import MethodResult
    from fedmosaic_cli.report.statistics import MethodComparison

MAX_CONFIG_BYTES = 200_000
MAX_TOTAL_CONFIG_CHARS = 10_000_000


@dataclass(frozen=True)
class OverviewRow:
    """A method in a group, with its gain over Local if both were run on the same shards and seed.

    `kilobytes` are sent and received per client and round, None if raw data moves; `seconds` are per round, None if
    the times are not recorded.
    """

    key: MethodKey
    title: str
    result: MethodResult
    gain: MethodComparison | None
    is_local: bool
    has_sentence: bool
    kilobytes: float | None
    seconds: float | None


@dataclass(frozen=True)
class GroupSummary:
    """The results of a comparison group; `best_titles` is empty unless it has two methods beside the baselines."""

    label: str
    facts: str
    baselines: list[tuple[str, MethodResult | None]]
    rows: list[OverviewRow]
    num_others: int
    best_titles: list[str]
    best_accuracy: str
    is_best_below_local: bool


@dataclass(frozen=True)
class RunCard:
    """A finished run. `config_index` is its position in the embedded configurations, or None with a `config_note`.

    `method_number` is the position of the method in its group; None for all but the first run of the method.
    """

    method_number: int | None
    title: str
    seed: int
    accuracy: float
    caveats: str
    device: str
    digest: str
    path: Path
    omitted_curves: str
    command: str
    config_index: int | None
    config_note: str

    @property
    def evaluate_command(self) -> str:
        return shlex.join(["fedmosaic", "evaluate", str(self.path)])

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG_FILE


class ConfigTexts:
    """Distinct configurations, up to a total size."""

    def __init__(self, max_chars: int = MAX_TOTAL_CONFIG_CHARS) -> None:
        self._index_by_text: dict[str, int] = {}
        self._remaining_chars = max_chars

    def index_of(self, text: str) -> int | None:
        """The index of a text, which is added if it is new; None if it exceeds the total size."""
        if text not in self._index_by_text:
            if len(text) > self._remaining_chars:
                return None
            self._remaining_chars -= len(text)
            self._index_by_text[text] = len(self._index_by_text)
        return self._index_by_text[text]

    def as_list(self) -> list[str]:
        return list(self._index_by_text)


def pluralize(count: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_quantity(value: float) -> str:
    """A non-negative quantity with three significant digits, without an exponent if it is not tiny."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def report_facts(groups: Sequence[ComparisonGroup], skipped: Sequence[SkippedRun]) -> str:
    """The numbers of runs, settings, methods and seeds."""
    counts = {
        "run": sum(len(group.runs) for group in groups),
        "setting": len(groups),
        "method": len({key for group in groups for key in group.runs_by_method}),
        "seed": len({seed for group in groups for seed in group.seeds}),
    }
    facts = [pluralize(count, noun) for noun, count in counts.items()]
    return " · ".join([*facts, f"{pluralize(len(skipped), 'run')} skipped"] if skipped else facts)


def summarize_group(group: ComparisonGroup) -> GroupSummary:
    other_keys = [key for key in group.runs_by_method if key not in (LOCAL_KEY, CENTRALIZED_KEY, ORACLE_KEY)]
    results = method_results(group.runs_by_method, other_keys, group.baseline_runs)
    titles = {key: method_title(key) for key in group.runs_by_method}  # its keys have the display names
    gains = {comparison.method: comparison for comparison in compare_methods_with_local(group)}
    rows = [
        OverviewRow(
            key=key,
            title=method_title(key),
            result=result,
            gain=gains.get(method_title(key)),
            is_local=key == LOCAL_KEY,
            has_sentence=key in other_keys and (has_client_trust(key) or len(other_keys) == 1),
            kilobytes=kilobytes_per_client_and_round(group.runs_by_method[key], group.conditions["rounds"]),
            seconds=seconds_per_round(group.runs_by_method[key]),
        )
        for key, result in results.items()
    ]
    best = {method_title(key): format_percent(results[key].mean) for key in other_keys if results[key].is_best}
    best_accuracy = next(iter(best.values()), "")
    local = results.get(LOCAL_KEY)
    return GroupSummary(
        label=group.label,
        facts=group_facts(group),
        baselines=[
            (titles.get(key, method_title(key)), results.get(key))
            for key in (LOCAL_KEY, CENTRALIZED_KEY)
            if key in results or key not in group.baseline_runs  # not those that the report omits
        ],
        rows=rows,
        num_others=len(other_keys),
        best_titles=list(best) if len(other_keys) > 1 else [],
        best_accuracy=best_accuracy,
        is_best_below_local=bool(best and local and float(best_accuracy) < float(format_percent(local.mean))),
    )


def group_facts(group: ComparisonGroup) -> str:
    """Dataset, scheme, model, and numbers of clients, methods and seeds."""
    num_clients = {len(accuracies) for accuracies in group.runs.per_client if accuracies is not None}
    facts = [
        group.dataset,
        group.scheme,
        group.model,
        pluralize(num_clients.pop(), "client") if len(num_clients) == 1 else "",
        pluralize(len(group.runs_by_method), "method"),
        pluralize(len(group.seeds), "seed"),
    ]
    return " · ".join(filter(None, facts))


def run_cards(group: ComparisonGroup, omitted_curves: Mapping[Path, str], config_texts: ConfigTexts) -> list[RunCard]:
    """The runs of a group by method and seed; adds their configurations to `config_texts`."""
    cards = []
    for method_number, (key, runs) in enumerate(group.runs_by_method.items()):
        for number, run in enumerate(runs.to_dict("records")):
            files = RunDirectory(run["path"])
            config_index, config_note = read_config(files, config_texts)
            cards.append(
                RunCard(
                    method_number=method_number if number == 0 else None,
                    title=method_title(key),
                    seed=int(run["seed"]),
                    accuracy=float(run["accuracy"]),
                    caveats=run["caveats"],
                    device=run["device"],
                    digest=run["digest"],
                    path=run["path"],
                    omitted_curves=omitted_curves.get(run["path"], ""),
                    command=recorded_command(files),
                    config_index=config_index,
                    config_note=config_note,
                )
            )
    return cards


def recorded_command(files: RunDirectory) -> str:
    """The command that created a run; empty if it is not recorded."""
    try:
        arguments = files.read_environment().get("arguments")
    except (RequestError, OSError):
        return ""
    if not isinstance(arguments, list) or not arguments or not all(isinstance(word, str) for word in arguments):
        return ""
    return shlex.join(["fedmosaic", *arguments])


def read_config(files: RunDirectory, config_texts: ConfigTexts) -> tuple[int | None, str]:
    """The index of the configuration of a run, or None and the reason why it is not shown."""
    try:
        files.verify_files(CONFIG_FILE)
        index = config_texts.index_of(read_regular_file(files.config_path, MAX_CONFIG_BYTES).decode(errors="replace"))
    except RequestError as error:
        return None, f"The configuration is not shown: {error}"
    except OSError as error:
        return None, f"The configuration cannot be read: {error.strerror}"
    if index is None:
        return None, f"The configuration is left out to limit the size of the page; see {files.config_path}."
    return index, ""
