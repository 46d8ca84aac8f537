"""What a table lacks, and the commands that make it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.config.rerun_args import default_runs_dir
from fedmosaic_cli.methods import METHODS
from fedmosaic_cli.report.noise_notes import adds_noise
from fedmosaic_cli.report.rerun_commands import Where, commands_for, where_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.comparison import Setting
    from fedmosaic_cli.report.comparison_table import Cell, Column, Row

USUAL_SEEDS = (0, 1, 2)
"""What a setting that nobody ran is asked for with, as in the paper: three seeds."""


def with_commands(columns: Sequence[Column], rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows with a command in every cell that lacks runs, and all of them in as few commands as can be."""
    missing = [
        {row.key: seeds for row in rows if (seeds := lacking(column, columns, row, row.cells[number]))}
        for number, column in enumerate(columns)
    ]
    places = [where_to(column, columns) for column in columns]
    filled = tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, command=commands_for(where, {row.key: lack[row.key]})[0]) if row.key in lack else cell
                for cell, where, lack in zip(row.cells, places, missing, strict=True)
            ),
        )
        for row in rows
    )
    # All domains of a setting lack the same: each setting is asked for once.
    once = {name_of(column): (where, lack) for column, where, lack in zip(columns, places, missing, strict=True)}
    return filled, tuple(text for where, lack in once.values() for text in commands_for(where, lack))


def lacking(column: Column, columns: Sequence[Column], row: Row, cell: Cell) -> tuple[int, ...]:
    """The seeds that a cell lacks runs of.

    What was run with hyper-parameters or noise of its own in one setting is nothing that others lack, and where nobody
    ran anything the paper's rows are enough.
    """
    if column.setting is None:
        return USUAL_SEEDS if cell.published else ()
    runs = column.setting.methods.get(row.key)
    if runs is None and ("=" in row.key[1] or has_noise(columns, row) or not can_be_played(column.setting, row)):
        return ()
    done = set() if runs is None else set(runs.seed)
    return tuple(seed for seed in column.setting.seeds if seed not in done)


def can_be_played(setting: Setting, row: Row) -> bool:
    """Whether a row without noise can be had under a setting's preset.

    By methods that have the messages which are attacked or defended there, or none at all; where the preset has noise
    in them, by the latter alone.
    """
    method = METHODS[row.key[0]]
    if method.family == "baseline":
        return True
    attacked = bool({"attack", "defence"} & setting.terms.keys())
    return not adds_noise(setting.preset) and (method.shares_labels or not attacked)


def has_noise(columns: Sequence[Column], row: Row) -> bool:
    """Whether a row is one of runs with noise in their messages."""
    found = [
        column.setting.methods[row.key] for column in columns if column.setting and row.key in column.setting.methods
    ]
    return any(runs.noise.astype(bool).any() for runs in found)


def name_of(column: Column) -> str:
    return column.setting.label if column.setting else column.preset


def where_to(column: Column, columns: Sequence[Column]) -> Where:
    """Where runs for a column belong; those of a preset that nobody ran, beside the others of the table."""
    if column.setting:
        return where_of(column.setting)
    others = [where_of(other.setting).folder.parent for other in columns if other.setting]
    return Where(["--preset", column.preset], (others[0] if others else default_runs_dir()) / column.preset)
