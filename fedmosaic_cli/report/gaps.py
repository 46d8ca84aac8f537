"""What a table lacks, and the commands that make it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.config.conditions import default_runs_dir
from fedmosaic_cli.report.commands import commands_for, conditions_in, folder_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedmosaic_cli.report.table import Cell, Column, Row

USUAL_SEEDS = (0, 1, 2)
"""What a setting that nobody ran is asked for with, as in the paper: three seeds."""


def with_commands(columns: Sequence[Column], rows: tuple[Row, ...]) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows with a command in every cell that lacks runs, and all of them in as few commands as can be."""
    missing = [
        {row.key: seeds for row in rows if (seeds := lacking(column, row, row.cells[number]))}
        for number, column in enumerate(columns)
    ]
    options = [options_of(column, columns) for column in columns]
    filled = tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, command=commands_for(*option, {row.key: lack[row.key]})[0]) if row.key in lack else cell
                for cell, option, lack in zip(row.cells, options, missing, strict=True)
            ),
        )
        for row in rows
    )
    # All domains of a setting lack the same: each setting is asked for once.
    once = {name_of(column): (option, lack) for column, option, lack in zip(columns, options, missing, strict=True)}
    return filled, tuple(text for option, lack in once.values() for text in commands_for(*option, lack))


def lacking(column: Column, row: Row, cell: Cell) -> tuple[int, ...]:
    """The seeds that a cell lacks runs of.

    What was run with hyper-parameters of its own is nothing that others lack, and where nobody ran anything the
    paper's rows are enough.
    """
    if "=" in row.key[1] or not (column.setting or cell.published):
        return ()
    if column.setting is None:
        return USUAL_SEEDS
    runs = column.setting.methods.get(row.key)
    done = set() if runs is None else set(runs.seed)
    return tuple(seed for seed in column.setting.seeds if seed not in done)


def name_of(column: Column) -> str:
    return column.setting.label if column.setting else column.preset


def options_of(column: Column, columns: Sequence[Column]) -> tuple[list[str], Path]:
    """Under which conditions more runs for a column are made, and where they go."""
    if column.setting:
        return conditions_in(column.setting), folder_for(column.setting)
    others = [folder_for(other.setting).parent for other in columns if other.setting]
    return ["--preset", column.preset], (others[0] if others else default_runs_dir()) / column.preset
