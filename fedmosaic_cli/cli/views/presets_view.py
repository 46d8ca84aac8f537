"""The list of presets on the terminal, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from fedmosaic_cli.cli.console import print_command, print_text, stdout_console
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import DATASETS
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.sweeps.studies import STUDIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fedmosaic_cli.config.presets import Preset
    from fedmosaic_cli.sweeps.studies import Study

# Descriptions are shown where a line has room for them.
MIN_COLUMNS_FOR_DESCRIPTIONS = 110
QUICKSTART_GROUP, LOW_DATA_GROUP, OTHER_GROUP = "Quickstart", "Few examples per client", "Other studies"


@dataclass(frozen=True)
class PresetFacts:
    """What the list shows of a preset.

    Attributes:
        group: Heading in the list.
        duration: Of one run on two CPU cores: seconds, minutes, hours, or GPU if a CPU is too slow; "" if unknown.
        rounds: None for the default number of rounds.
        clients: None if it follows from the number of domains.
        dataset_found: Whether the data set is in the data directory.
        tables: The tables of the paper to which runs of the preset belong.
    """

    name: str
    description: str
    group: str
    duration: str
    rounds: int | None
    clients: int | None
    dataset: str
    dataset_found: bool
    tables: list[str]


def preset_facts(preset: Preset, data_dir: Path) -> PresetFacts:
    """Collect the facts about a preset, and look for its data set."""
    dataset = preset.value("data", "dataset") or DataSettings().dataset
    tables = [study.table for study in STUDIES.values() if study.table and preset.name in study_presets(study)]
    return PresetFacts(
        name=preset.name,
        description=preset.description,
        group=group_name(preset.name, tables),
        duration=preset.duration,
        rounds=preset.value("train", "rounds"),
        clients=preset.value("data", "clients"),
        dataset=dataset,
        dataset_found=is_dataset_found(dataset, data_dir),
        tables=list(dict.fromkeys(tables)),
    )


def show_presets(facts: Sequence[PresetFacts]) -> None:
    """Print one line per preset, in groups, the quickstart first."""
    console = stdout_console()
    has_descriptions = console.width >= MIN_COLUMNS_FOR_DESCRIPTIONS
    table = Table(box=None, pad_edge=False, show_header=False, collapse_padding=True)
    for _ in range(3):
        table.add_column(no_wrap=True)
    if has_descriptions:
        table.add_column()
    for group in group_names():
        members = [each for each in facts if each.group == group]
        if not members:
            continue
        table.add_row(*([""] if table.row_count else [Text("preset", "bold"), "a run takes", "data set"]))
        table.add_row(Text(group, "bold"))
        for each in members:
            state = each.dataset if each.dataset_found else f"{each.dataset} (missing)"
            description = [each.description] if has_descriptions else []
            table.add_row(f"  {each.name}", duration_text(each), state, *description)
    console.print(table)
    print_text("")
    print_text(
        "Times are for one run on two CPU cores; GPU: too long for a CPU. 'fedmosaic fetch' downloads missing data "
        "sets."
    )
    print_command("fedmosaic presets show NAME", "more about a preset:")


def duration_text(facts: PresetFacts) -> str:
    """Return the duration, or what determines it."""
    return facts.duration or ", ".join(
        f"{number} {unit}" for number, unit in ((facts.rounds, "rounds"), (facts.clients, "clients")) if number
    )


def group_name(name: str, tables: Sequence[str]) -> str:
    """Return the group of a preset."""
    if name.startswith("quickstart"):
        return QUICKSTART_GROUP
    if name.startswith("lowdata"):
        return LOW_DATA_GROUP
    return table_group(tables[0]) if tables else OTHER_GROUP


def group_names() -> Iterator[str]:
    """Yield the groups in the order of the list."""
    paper_groups = [table_group(study.table) for study in STUDIES.values() if study.table]
    yield from dict.fromkeys([QUICKSTART_GROUP, LOW_DATA_GROUP, *paper_groups, OTHER_GROUP])


def table_group(table: str) -> str:
    return f"Paper, table {table}"


def study_presets(study: Study) -> set[str]:
    """Return the presets of a study at all scales."""
    return {scenario.preset for scenarios in study.scenarios.values() for scenario in scenarios}


def is_dataset_found(name: str, data_dir: Path) -> bool:
    """Whether a data set is on this machine; False if it cannot be told."""
    source = DATASETS.get(name)
    try:
        return source is not None and source.find(data_dir) is not None
    except RequestError:
        return False
