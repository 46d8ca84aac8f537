"""What a table lacks, and the commands that make it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.noise_notes import preset_adds_noise
from fedmosaic_cli.report.rerun_commands import RunDestination, group_destination, missing_run_commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import TableCell, TableColumn, TableRow

DEFAULT_SEEDS = (0, 1, 2)
"""What a setting that nobody ran is asked for with, as in the paper: three seeds."""


def add_missing_run_commands(
    columns: Sequence[TableColumn], rows: tuple[TableRow, ...]
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """The rows with a command in every cell that lacks runs, and all of them in as few commands as can be."""
    missing = [
        {row.method_key: seeds for row in rows if (seeds := missing_seeds(column, columns, row, row.cells[number]))}
        for number, column in enumerate(columns)
    ]
    places = [column_destination(column, columns) for column in columns]
    filled = tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, command=missing_run_commands(where, {row.method_key: lack[row.method_key]})[0])
                if row.method_key in lack
                else cell
                for cell, where, lack in zip(row.cells, places, missing, strict=True)
            ),
        )
        for row in rows
    )
    # All domains of a setting lack the same: each setting is asked for once.
    once = {column_name(column): (where, lack) for column, where, lack in zip(columns, places, missing, strict=True)}
    return filled, tuple(text for where, lack in once.values() for text in missing_run_commands(where, lack))


def missing_seeds(
    column: TableColumn, columns: Sequence[TableColumn], row: TableRow, cell: TableCell
) -> tuple[int, ...]:
    """The seeds that a cell lacks runs of.

    What was run with hyper-parameters or noise of its own in one setting is nothing that others lack, and where nobody
    ran anything the paper's rows are enough.
    """
    if column.group is None:
        return DEFAULT_SEEDS if cell.published else ()
    runs = column.group.runs_by_method.get(row.method_key)
    if runs is None and (
        "=" in row.method_key[1] or has_noisy_runs(columns, row) or not is_runnable(column.group, row)
    ):
        return ()
    done = set() if runs is None else set(runs.seed)
    return tuple(seed for seed in column.group.seeds if seed not in done)


def is_runnable(group: ComparisonGroup, row: TableRow) -> bool:
    """Whether a row without noise can be had under a setting's preset.

    By methods that have the messages which are attacked or defended there, or none at all; where the preset has noise
    in them, by the latter alone.
    """
    method = METHODS[row.method_key[0]]
    if method.family == "baseline":
        return True
    attacked = bool({"attack", "defence"} & group.conditions.keys())
    return not preset_adds_noise(group.preset) and (method.shares_labels or not attacked)


def has_noisy_runs(columns: Sequence[TableColumn], row: TableRow) -> bool:
    """Whether a row is one of runs with noise in their messages."""
    found = [
        column.group.runs_by_method[row.method_key]
        for column in columns
        if column.group and row.method_key in column.group.runs_by_method
    ]
    return any(runs.noise.astype(bool).any() for runs in found)


def column_name(column: TableColumn) -> str:
    return column.group.label if column.group else column.preset


def column_destination(column: TableColumn, columns: Sequence[TableColumn]) -> RunDestination:
    """Where runs for a column belong; those of a preset that nobody ran, beside the others of the table."""
    if column.group:
        return group_destination(column.group)
    others = [group_destination(other.group).directory.parent for other in columns if other.group]
    return RunDestination(["--preset", column.preset], (others[0] if others else default_runs_dir()) / column.preset)
