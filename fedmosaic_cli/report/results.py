"""Everything that a report writes to a directory, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.report.latex import PREAMBLE, document, preamble, to_latex
from fedmosaic_cli.report.paper import FORMS, overview, paper_table
from fedmosaic_cli.report.sheets import sheet_to_markdown, sheets_of, sheets_to_csv
from fedmosaic_cli.report.tables import to_csv, to_markdown, to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.report.settings import Setting
    from fedmosaic_cli.report.statistics import Comparison, Ranking
    from fedmosaic_cli.report.table import Table


def every_table(settings: Sequence[Setting], paper: bool) -> list[Table]:
    """All settings side by side, and those of the paper's tables that there is something to put in."""
    tables = [paper_table(name, settings, paper) for name in FORMS]
    return [overview(settings, paper), *(table for table in tables if table)]


def result_files(
    tables: Sequence[Table], comparisons: Sequence[Comparison], ranking: Ranking | None
) -> dict[str, bytes]:
    """The files of the tables and of the statistics."""
    texts = {PREAMBLE: preamble(), "all.tex": document(tables)}
    for table in tables:
        texts |= {f"{table.name}.md": to_markdown(table), f"{table.name}.tex": to_latex(table)}
        texts |= {f"{table.name}.csv": to_csv([table]), f"{table.name}.svg": to_svg(table)}
    if sheets := sheets_of(comparisons, ranking):
        texts["statistics.md"] = "\n".join(map(sheet_to_markdown, sheets))
        texts["statistics.csv"] = sheets_to_csv(comparisons, ranking)
    return {name: text.encode() for name, text in texts.items()}
