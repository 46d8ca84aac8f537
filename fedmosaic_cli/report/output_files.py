"""The files that a report writes to its output directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.report import certificate_tables, diagnosis_tables, stats_tables
from fedmosaic_cli.report.formats.latex import PREAMBLE_FILE, latex_document, latex_preamble, tables_to_latex
from fedmosaic_cli.report.formats.table_grid import DEFAULT_LAYOUT
from fedmosaic_cli.report.formats.text_formats import table_to_markdown, table_to_svg, tables_to_csv
from fedmosaic_cli.report.paper_tables import overview_table, select_tables
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS
from fedmosaic_cli.report.regimes import find_regime_maps, regime_maps_to_csv
from fedmosaic_cli.report.stats_tables import TextTable
from fedmosaic_cli.safe_text import escape_control_characters

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.formats.table_grid import TableLayout
    from fedmosaic_cli.report.plots.figure_options import FigureOptions
    from fedmosaic_cli.report.statistics import MethodComparison, MethodRanking

FIGURES_DIR = "figures"


def build_all_tables(groups: Sequence[ComparisonGroup], with_published: bool) -> list[ComparisonTable]:
    """Build the overview table and the paper's tables that have columns."""
    return [overview_table(groups, with_published), *select_tables("all", groups, with_published)[0]]


def result_files(
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    comparisons: Sequence[MethodComparison],
    ranking: MethodRanking | None,
    layout: TableLayout = DEFAULT_LAYOUT,
) -> dict[str, bytes]:
    """Return the files of the tables, the statistics, the co-training diagnosis and the map of regimes by name."""
    texts: dict[str, str] = {}
    for table, latex in zip(tables, tables_to_latex(tables, layout), strict=True):
        texts |= {f"{table.name}.md": table_to_markdown(table, layout), f"{table.name}.tex": latex}
        texts |= {f"{table.name}.csv": tables_to_csv([table]), f"{table.name}.svg": table_to_svg(table, layout)}
    if text_tables := stats_tables.build_statistics_tables(comparisons, ranking):
        texts |= text_table_files("statistics", text_tables, stats_tables.statistics_to_csv(comparisons, ranking))
    if runs := [run for group in groups for run in diagnosis_tables.diagnosed_runs(group)]:
        text_tables = diagnosis_tables.build_diagnosis_tables(groups)
        texts |= text_table_files("diagnosis", text_tables, diagnosis_tables.diagnoses_to_csv(runs))
        if gates := diagnosis_tables.gate_decisions_to_csv(runs):
            texts["diagnosis-gates.csv"] = gates
    if certified := [run for group in groups for run in certificate_tables.certified_runs(group)]:
        text_tables = certificate_tables.build_certificate_tables(groups)
        texts |= text_table_files("certificates", text_tables, certificate_tables.certificates_to_csv(certified))
    if regime_maps := find_regime_maps(groups)[0]:
        texts["regimes.csv"] = regime_maps_to_csv(regime_maps)
    texts["all.tex"] = latex_document([name for name in texts if name.endswith(".tex")])
    texts[PREAMBLE_FILE] = latex_preamble()
    return {name: escape_control_characters(text).encode() for name, text in texts.items()}


def text_table_files(stem: str, tables: Sequence[TextTable], csv_text: str) -> dict[str, str]:
    return {
        f"{stem}.md": "\n".join(map(stats_tables.text_table_to_markdown, tables)),
        f"{stem}.tex": "\n".join(map(stats_tables.text_table_to_latex, tables)),
        f"{stem}.csv": csv_text,
    }


def figure_files(
    groups: Sequence[ComparisonGroup],
    ranking: MethodRanking | None,
    on_progress: ProgressCallback,
    kinds: Collection[str] | None = None,
    options: FigureOptions = DEFAULT_OPTIONS,
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of the figures, and a message for each missing figure and each skipped run."""
    from fedmosaic_cli.report.plots.figure_captions import caption_files
    from fedmosaic_cli.report.plots.figure_set import FigureSet

    figure_set = FigureSet(groups, ranking, kinds, options)
    files: dict[str, bytes] = {}
    total = len(figure_set)
    for number, (name, draw) in enumerate(figure_set):
        on_progress("drawing figures", number, total)
        files |= {f"{FIGURES_DIR}/{name}.{suffix}": content for suffix, content in draw().items()}
    on_progress("drawing figures", total, total)
    if options.is_paper:
        captions = caption_files(figure_set.captions, options)
        files |= {f"{FIGURES_DIR}/{name}": text.encode() for name, text in captions.items()}
    messages = [f"left out of figures {run.path}: {run.reason}" for run in figure_set.skipped]
    return files, [*messages, *(f"no figure {missing.name}: {missing.reason}" for missing in figure_set.missing)]


def regime_map_diagrams(groups: Sequence[ComparisonGroup]) -> list[TextTable]:
    """Return the maps of regimes as diagrams without rows, for the page."""
    regime_maps, notes = find_regime_maps(groups)
    if not regime_maps:
        return []
    from fedmosaic_cli.report.plots.canvas import render_inline_svg
    from fedmosaic_cli.report.plots.figure_options import PAGE_OPTIONS
    from fedmosaic_cli.report.plots.plot_style import use_plot_style
    from fedmosaic_cli.report.plots.regime_map import NOTE, TITLE, regime_map_figure

    left_out = "".join(f" {note[:1].upper()}{note[1:]}." for note in notes)
    with use_plot_style(PAGE_OPTIONS):
        return [
            TextTable(
                f"{TITLE}: {regime_map.label}",
                *((), ()),
                note=NOTE + left_out,
                svg=render_inline_svg(regime_map_figure(regime_map, PAGE_OPTIONS)),
            )
            for regime_map in regime_maps
        ]


def add_rank_diagram(tables: Sequence[TextTable], ranking: MethodRanking | None) -> list[TextTable]:
    """Add the critical-difference diagram to the table of ranks, which is the last one."""
    if ranking is None:
        return list(tables)
    from fedmosaic_cli.report.plots.canvas import render_inline_svg
    from fedmosaic_cli.report.plots.figure_options import PAGE_OPTIONS
    from fedmosaic_cli.report.plots.plot_style import use_plot_style
    from fedmosaic_cli.report.plots.rank_diagram import critical_difference_figure

    *others, ranks = tables
    with use_plot_style(PAGE_OPTIONS):
        figure = critical_difference_figure(ranking, PAGE_OPTIONS)
        note = f"{ranks.note} In the diagram a bar joins methods that lie within that difference (CD) of each other."
        return [*others, replace(ranks, svg=render_inline_svg(figure), note=note)]
