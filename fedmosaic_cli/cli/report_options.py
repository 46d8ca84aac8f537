"""Options of `fedmosaic report` and `fedmosaic reproduce` that choose, name and lay out what tables show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmosaic_cli.report.selection_order import SelectionOrder

if TYPE_CHECKING:
    from fedmosaic_cli.report.formats.table_grid import TableLayout
    from fedmosaic_cli.report.selection import ReportSelection

SELECTION_PANEL, LAYOUT_PANEL = "Choice and names", "Layout of tables"


def selection_option(name: str, text: str, metavar: str, default: str | bool = False) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=default, rich_help_panel=SELECTION_PANEL)


def layout_option(name: str, text: str) -> Any:
    return typer.Option(name, help=text, rich_help_panel=LAYOUT_PANEL)


MethodsOption = Annotated[
    str | None,
    selection_option("--methods", "Only these methods, variants or rows, in this order.", "<names>", "all with runs"),
]
SettingsOption = Annotated[
    str | None, selection_option("--settings", "Only these settings, in this order.", "<names>", "all")
]
NamesOption = Annotated[
    Path | None, selection_option("--names", "YAML file of display names, e.g. quickstart: Digits.", "<file>")
]
OrderOption = Annotated[
    SelectionOrder,
    typer.Option(
        "--order",
        help="As given, as in the table, or methods by mean accuracy.",
        rich_help_panel=SELECTION_PANEL,
    ),
]
AverageOption = Annotated[bool, layout_option("--average", "Add the mean over settings.")]
RankOption = Annotated[bool, layout_option("--rank", "Add the mean rank over settings.")]
TransposeOption = Annotated[bool, layout_option("--transpose", "One row per setting, one column per method.")]
PlainOption = Annotated[bool, layout_option("--plain", "Only table and caption: no notes, digests and commands.")]
PlusMinusOption = Annotated[bool, layout_option("--pm", "Write mean ± std instead of mean (std).")]
TableWidthOption = Annotated[
    float | None,
    typer.Option(
        "--table-width",
        metavar="<points>",
        min=200,
        max=2000,
        help="LaTeX: split tables wider than this, e.g. 487 for both columns of ICML papers.",
        show_default="385",
    ),
]


def table_layout(
    average: bool, rank: bool, transpose: bool, plain: bool, plus_minus: bool, table_width: float | None = None
) -> TableLayout:
    """Return the layout that the options describe."""
    from fedmosaic_cli.report.formats.table_grid import TEXT_WIDTH_POINTS, TableLayout

    return TableLayout(average, rank, transpose, plain, plus_minus, table_width or TEXT_WIDTH_POINTS)


def parse_report_selection(
    methods: str | None, settings: str | None, names: Path | None, order: SelectionOrder
) -> ReportSelection:
    """Parse the options that select and name settings and methods."""
    from fedmosaic_cli.report import selection

    return selection.ReportSelection(
        methods=() if methods is None else selection.parse_selection(methods, selection.METHODS_OPTION),
        settings=() if settings is None else selection.parse_selection(settings, selection.SETTINGS_OPTION),
        names={} if names is None else selection.read_display_names(names),
        order=order,
    )
