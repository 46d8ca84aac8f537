"""Everything that a report writes to a directory, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.report.diagnosis_tables import diagnosed, diagnoses_to_csv, diagnosis_sheets, gates_to_csv
from fedmosaic_cli.report.formats.latex import PREAMBLE, document, preamble, to_latex
from fedmosaic_cli.report.formats.text_formats import to_csv, to_markdown, to_svg
from fedmosaic_cli.report.paper_tables import FORMS, overview, paper_table
from fedmosaic_cli.report.stats_tables import sheet_to_latex, sheet_to_markdown, sheets_of, sheets_to_csv

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.data.data_dirs import Watch
    from fedmosaic_cli.report.comparison import Setting
    from fedmosaic_cli.report.comparison_table import Table
    from fedmosaic_cli.report.statistics import Comparison, Ranking
    from fedmosaic_cli.report.stats_tables import Sheet


FIGURES = "figures"


def every_table(settings: Sequence[Setting], paper: bool) -> list[Table]:
    """All settings side by side, and those of the paper's tables that there is something to put in."""
    tables = [paper_table(name, settings, paper) for name in FORMS]
    return [overview(settings, paper), *(table for table in tables if table)]


def result_files(
    settings: Sequence[Setting], tables: Sequence[Table], comparisons: Sequence[Comparison], ranking: Ranking | None
) -> dict[str, bytes]:
    """The files of the tables, of the statistics, and of what came of co-training."""
    texts: dict[str, str] = {}
    for table in tables:
        texts |= {f"{table.name}.md": to_markdown(table), f"{table.name}.tex": to_latex(table)}
        texts |= {f"{table.name}.csv": to_csv([table]), f"{table.name}.svg": to_svg(table)}
    if sheets := sheets_of(comparisons, ranking):
        texts["statistics.md"] = "\n".join(map(sheet_to_markdown, sheets))
        texts["statistics.tex"] = "\n".join(map(sheet_to_latex, sheets))
        texts["statistics.csv"] = sheets_to_csv(comparisons, ranking)
    texts |= diagnosis_files(settings)
    texts |= {"all.tex": document([name for name in texts if name.endswith(".tex")]), PREAMBLE: preamble()}
    return {name: text.encode() for name, text in texts.items()}


def diagnosis_files(settings: Sequence[Setting]) -> dict[str, str]:
    """What came of co-training, run by run; nothing where there are no such runs."""
    lines = [line for setting in settings for line in diagnosed(setting)]
    if not lines:
        return {}
    sheets = diagnosis_sheets(settings)
    texts = {
        "diagnosis.md": "\n".join(map(sheet_to_markdown, sheets)),
        "diagnosis.tex": "\n".join(map(sheet_to_latex, sheets)),
        "diagnosis.csv": diagnoses_to_csv(lines),
    }
    gates = gates_to_csv(lines)
    return {**texts, "diagnosis-gates.csv": gates} if gates else texts


def figure_files(
    settings: Sequence[Setting], ranking: Ranking | None, watch: Watch, kinds: Collection[str] | None = None
) -> tuple[dict[str, bytes], list[str]]:
    """The figures as PNG and PDF, and a sentence for each that is missing and each run that is left out of them."""
    from fedmosaic_cli.report.plots.figure_set import figures

    album = figures(settings, ranking, kinds)
    files: dict[str, bytes] = {}
    total = len(album)
    for number, (name, draw) in enumerate(album):
        watch("drawing figures", number, total)
        files |= {f"{FIGURES}/{name}.{ending}": content for ending, content in draw().items()}
    watch("drawing figures", total, total)
    remarks = [f"left out of figures {run.path}: {run.reason}" for run in album.skipped]
    return files, [*remarks, *(f"no figure {missing.name}: {missing.reason}" for missing in album.missing)]


def illustrated(sheets: Sequence[Sheet], ranking: Ranking | None) -> list[Sheet]:
    """The sheets, the one of ranks with its diagram, whose title and note are those of the sheet."""
    if ranking is None:
        return list(sheets)
    from fedmosaic_cli.report.plots.inline_svg import inline_svg
    from fedmosaic_cli.report.plots.plot_style import house_style
    from fedmosaic_cli.report.plots.rank_diagram import critical_difference

    *others, ranks = sheets
    with house_style():
        figure = critical_difference(ranking, title="")
        figure.supxlabel("")
        note = f"{ranks.note} In the diagram a bar joins methods that lie within that difference (CD) of each other."
        return [*others, replace(ranks, picture=inline_svg(figure), note=note)]
