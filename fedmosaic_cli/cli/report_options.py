"""Options of `fedmosaic report` and `fedmosaic reproduce` that choose, name and lay out what tables show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedmosaic_cli.report.formats.table_grid import TableLayout

NamesOption = Annotated[
    Path | None,
    typer.Option(
        "--names", metavar="FILE", help="YAML file of display names, e.g. quickstart: Digits.", show_default=False
    ),
]
AverageOption = Annotated[bool, typer.Option("--average", help="Add the mean over settings.")]
RankOption = Annotated[bool, typer.Option("--rank", help="Add the mean rank over settings.")]
TransposeOption = Annotated[bool, typer.Option("--transpose", help="One row per setting, one column per method.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="Without notes, digests and commands below tables.")]
PlusMinusOption = Annotated[bool, typer.Option("--pm", help="Write mean ± std instead of mean (std).")]


def table_layout(average: bool, rank: bool, transpose: bool, plain: bool, plus_minus: bool) -> TableLayout:
    from fedmosaic_cli.report.formats.table_grid import TableLayout

    return TableLayout(average, rank, transpose, plain, plus_minus)
