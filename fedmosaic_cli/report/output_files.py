"""Everything that a report writes to a directory, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.report.diagnosis_tables import (
    build_diagnosis_tables,
    diagnosed_runs,
    diagnoses_to_csv,
    gate_decisions_to_csv,
)
from fedmosaic_cli.report.formats.latex import PREAMBLE_FILE, latex_document, latex_preamble, table_to_latex
from fedmosaic_cli.report.formats.text_formats import table_to_markdown, table_to_svg, tables_to_csv
from fedmosaic_cli.report.paper_tables import PAPER_TABLES, overview_table, paper_table
from fedmosaic_cli.report.stats_tables import (
    build_statistics_tables,
    statistics_to_csv,
    text_table_to_latex,
    text_table_to_markdown,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.statistics import MethodComparison, MethodRanking
    from fedmosaic_cli.report.stats_tables import TextTable


FIGURES_DIR = "figures"


def build_all_tables(groups: Sequence[ComparisonGroup], with_published: bool) -> list[ComparisonTable]:
    """All settings side by side, and those of the paper's tables that there is something to put in."""
    tables = [paper_table(name, groups, with_published) for name in PAPER_TABLES]
    return [overview_table(groups, with_published), *(table for table in tables if table)]


def result_files(
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    comparisons: Sequence[MethodComparison],
    ranking: MethodRanking | None,
) -> dict[str, bytes]:
    """The files of the tables, of the statistics, and of what came of co-training."""
    texts: dict[str, str] = {}
    for table in tables:
        texts |= {f"{table.name}.md": table_to_markdown(table), f"{table.name}.tex": table_to_latex(table)}
        texts |= {f"{table.name}.csv": tables_to_csv([table]), f"{table.name}.svg": table_to_svg(table)}
    if sheets := build_statistics_tables(comparisons, ranking):
        texts["statistics.md"] = "\n".join(map(text_table_to_markdown, sheets))
        texts["statistics.tex"] = "\n".join(map(text_table_to_latex, sheets))
        texts["statistics.csv"] = statistics_to_csv(comparisons, ranking)
    texts |= diagnosis_files(groups)
    texts |= {
        "all.tex": latex_document([name for name in texts if name.endswith(".tex")]),
        PREAMBLE_FILE: latex_preamble(),
    }
    return {name: text.encode() for name, text in texts.items()}


def diagnosis_files(groups: Sequence[ComparisonGroup]) -> dict[str, str]:
    """What came of co-training, run by run; nothing where there are no such runs."""
    lines = [line for setting in groups for line in diagnosed_runs(setting)]
    if not lines:
        return {}
    sheets = build_diagnosis_tables(groups)
    texts = {
        "diagnosis.md": "\n".join(map(text_table_to_markdown, sheets)),
        "diagnosis.tex": "\n".join(map(text_table_to_latex, sheets)),
        "diagnosis.csv": diagnoses_to_csv(lines),
    }
    gates = gate_decisions_to_csv(lines)
    return {**texts, "diagnosis-gates.csv": gates} if gates else texts


def figure_files(
    groups: Sequence[ComparisonGroup],
    ranking: MethodRanking | None,
    on_progress: ProgressCallback,
    kinds: Collection[str] | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """The figures as PNG and PDF, and a sentence for each that is missing and each run that is left out of them."""
    from fedmosaic_cli.report.plots.figure_set import FigureSet

    album = FigureSet(groups, ranking, kinds)
    files: dict[str, bytes] = {}
    total = len(album)
    for number, (name, draw) in enumerate(album):
        on_progress("drawing figures", number, total)
        files |= {f"{FIGURES_DIR}/{name}.{ending}": content for ending, content in draw().items()}
    on_progress("drawing figures", total, total)
    remarks = [f"left out of figures {run.path}: {run.reason}" for run in album.skipped]
    return files, [*remarks, *(f"no figure {missing.name}: {missing.reason}" for missing in album.missing)]


def add_rank_diagram(tables: Sequence[TextTable], ranking: MethodRanking | None) -> list[TextTable]:
    """The sheets, the one of ranks with its diagram, whose title and note are those of the sheet."""
    if ranking is None:
        return list(tables)
    from fedmosaic_cli.report.plots.canvas import render_inline_svg
    from fedmosaic_cli.report.plots.plot_style import use_plot_style
    from fedmosaic_cli.report.plots.rank_diagram import critical_difference_figure

    *others, ranks = tables
    with use_plot_style():
        figure = critical_difference_figure(ranking, title="")
        figure.supxlabel("")
        note = f"{ranks.note} In the diagram a bar joins methods that lie within that difference (CD) of each other."
        return [*others, replace(ranks, svg=render_inline_svg(figure), note=note)]
