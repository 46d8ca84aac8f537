"""`fedmosaic report`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.app import printable_line
from fedmosaic_cli.cli.common_options import DebugOption, JsonOption, QuietOption
from fedmosaic_cli.cli.console import print_json, print_stderr, print_stdout, stdout_console
from fedmosaic_cli.cli.data_dir_options import progress_callback
from fedmosaic_cli.cli.figure_options import (
    ClientsOption,
    FormatOption,
    SerifOption,
    StyleOption,
    WidthOption,
    parse_figure_options,
)
from fedmosaic_cli.cli.report_options import (
    AverageOption,
    MethodsOption,
    NamesOption,
    OrderOption,
    PlainOption,
    PlusMinusOption,
    RankOption,
    SettingsOption,
    TableWidthOption,
    TransposeOption,
    parse_report_selection,
    table_layout,
)
from fedmosaic_cli.errors import RequestError, ResourceError
from fedmosaic_cli.report.plots.figure_options import DEFAULT_OPTIONS, FigureOptions, FigureStyle
from fedmosaic_cli.report.selection_order import SelectionOrder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
    from fedmosaic_cli.report.formats.table_grid import TableLayout
    from fedmosaic_cli.report.statistics import MethodComparison, MethodRanking

MAX_LISTED_LINES = 20
PAGE_HEAD_BYTES = 4096


class TableName(StrEnum):
    label_skew = "label-skew"
    feature_shift = "feature-shift"
    hybrid = "hybrid"
    compact = "compact"
    all = "all"


class OutputFormat(StrEnum):
    latex = "latex"
    markdown = "markdown"
    csv = "csv"
    json = "json"
    terminal = "terminal"


def report(
    runs_dir: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", envvar="FEDMOSAIC_RUNS", help="Directory that contains runs.")
    ] = Path("runs"),
    latex: Annotated[bool, typer.Option("--latex", help="LaTeX that compiles alone or can be \\input.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown (default in a pipe).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with one line per cell, in full precision.")] = False,
    table: Annotated[
        TableName | None,
        typer.Option(help="One of the paper's tables, or all four.", show_default="one table of all settings"),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper/--no-paper", help="Show the published results and the difference to them.")
    ] = False,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Print tests over clients and ranks over settings instead of tables.")
    ] = False,
    methods: MethodsOption = None,
    settings: SettingsOption = None,
    names: NamesOption = None,
    order: OrderOption = SelectionOrder.given,
    average: AverageOption = False,
    rank: RankOption = False,
    transpose: TransposeOption = False,
    plain: PlainOption = False,
    plus_minus: PlusMinusOption = False,
    table_width: TableWidthOption = None,
    long: Annotated[
        Path | None,
        typer.Option(
            metavar="<file>",
            help="Also write one line per run, round, client and metric as CSV, e.g. for seaborn.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", help="Also write all tables, statistics and figures here.", show_default=False),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="With --out: draw figures.")] = True,
    html: Annotated[
        Path | None, typer.Option(help="Also write everything as one HTML page.", show_default=False)
    ] = None,
    style: StyleOption = FigureStyle.explained,
    width: WidthOption = None,
    serif: SerifOption = False,
    figure_formats: FormatOption = None,
    clients: ClientsOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare methods across settings: mean (std) over seeds, in the colours of the paper.

    The best method of each setting is bold. The references, Centralized and Local
    training, are blue. A method is green if it is better than both, orange if
    worse than local training, red if worse than both.

    \b
    [bold]Examples[/bold]
    fedmosaic report
    fedmosaic report --table hybrid --paper
    fedmosaic report --methods local,fedavg,ditto,fedmosaic --settings quickstart
    fedmosaic report --names names.yaml --average --rank --pm
    fedmosaic report --latex --plain > table.tex && pdflatex table.tex
    fedmosaic report --long results.csv
    fedmosaic report --statistics
    fedmosaic report runs --out results --html results/index.html
    fedmosaic report --out results --style paper --width column --serif
    """
    output_format = choose_output_format(latex, markdown, as_csv, as_json)
    if statistics and (table or (paper and not output and not html)):
        option = "--table" if table else "--paper"
        raise RequestError(f"statistics are printed instead of tables (--statistics): omit {option}")
    validate_output_paths(output, html)
    layout = table_layout(average, rank, transpose, plain, plus_minus, table_width)
    if statistics and (average or rank or transpose or plus_minus or table_width):
        raise RequestError(
            "--average, --rank, --transpose, --pm and --table-width lay out tables of accuracies: omit --statistics"
        )
    selection = parse_report_selection(methods, settings, names, order)
    if long:
        validate_long_path(long, html)
    figure_options = parse_figure_options(style, width, serif, figure_formats, clients, bool(output) and figures)

    from fedmosaic_cli.report.collect import collect_runs
    from fedmosaic_cli.report.comparison import comparison_groups
    from fedmosaic_cli.report.output_files import build_all_tables

    with progress_callback(quiet) as on_progress:
        frame, skipped = collect_runs(runs_dir, on_progress)
    if frame.empty and not skipped:
        raise RequestError(f"no finished runs ({runs_dir}): create one with 'fedmosaic train --preset quickstart'")
    if frame.empty:
        first = f"the first of {len(skipped)} skipped, {skipped[0].path}: {skipped[0].reason}"
        raise RequestError(f"no finished runs ({runs_dir}): repeat their commands to finish or repair them; {first}")
    print_skipped_runs(skipped)
    groups = selection.apply(comparison_groups(frame))
    if statistics:
        show_statistics(groups, output_format, plain)
    else:
        show_tables(build_tables(table, groups, paper, runs_dir), output_format, layout)
    figure_paths: list[Path] = []
    with progress_callback(quiet) as on_progress:
        if long:
            write_long_csv(long, groups, on_progress)
        if output:
            figure_paths = write_result_files(
                output,
                groups,
                build_all_tables(groups, paper),
                figures,
                on_progress,
                layout=layout,
                figure_options=figure_options,
            )
        if html:
            if average or rank or plus_minus:
                print_stderr("--average, --rank and --pm do not affect the page (--html)")
            write_html_page(html, groups, build_all_tables(groups, paper), skipped, on_progress, figure_paths)


def validate_long_path(path: Path, html: Path | None) -> None:
    """Refuse a path that cannot be written as a file, or that belongs to something else."""
    from fedmosaic_cli.report.long_format import LONG_FIELDS

    validate_output_dir(path.parent, "--long")
    if path.is_dir() or path == html:
        raise RequestError(f"this is a directory or the page ({path}): name another file, e.g. --long results.csv")
    if path.exists():
        with path.open("rb") as file:
            head = file.read(PAGE_HEAD_BYTES)
        if head and not head.startswith(",".join(LONG_FIELDS).encode()):
            raise RequestError(f"not a table of --long ({path}): remove it, or choose another --long")


def write_long_csv(path: Path, groups: Sequence[ComparisonGroup], on_progress: ProgressCallback) -> None:
    """Write one line per run, round, client and metric."""
    from fedmosaic_cli.report.long_format import write_long_format

    skipped = write_long_format(path, groups, on_progress)
    print_limited([f"omitted from {path}: {run.path}: {run.reason}" for run in skipped], "--html lists all runs")
    print_stderr(f"written: {path}")


def print_skipped_runs(skipped: Sequence[SkippedRun]) -> None:
    print_limited([f"skipped {run.path}: {run.reason}" for run in skipped], "--html lists all of them")


def print_limited(lines: Sequence[str], overflow_hint: str) -> None:
    """Print the first lines to stderr, and where to find the others."""
    for line in lines[:MAX_LISTED_LINES]:
        print_stderr(printable_line(line))
    if len(lines) > MAX_LISTED_LINES:
        print_stderr(f"... and {len(lines) - MAX_LISTED_LINES} more such lines; {overflow_hint}")


def choose_output_format(latex: bool, markdown: bool, as_csv: bool, as_json: bool) -> OutputFormat:
    """Return the requested format, or the default: terminal, and Markdown in a pipe."""
    formats = (OutputFormat.latex, OutputFormat.markdown, OutputFormat.csv, OutputFormat.json)
    requested = [name for name, flag in zip(formats, (latex, markdown, as_csv, as_json), strict=True) if flag]
    if len(requested) > 1:
        raise RequestError("more than one format requested (fedmosaic report): choose one, or write all with --out")
    return requested[0] if requested else OutputFormat.terminal if sys.stdout.isatty() else OutputFormat.markdown


def validate_output_paths(output: Path | None, html: Path | None) -> None:
    """Refuse paths that are not writable or that belong to something else, before any work is done."""
    if output:
        validate_output_dir(output, "--out")
    if html:
        validate_output_dir(html.parent, "--html")
        if html.is_dir() or html == output:
            raise RequestError(f"this is a directory ({html}): name a file, e.g. --html {html / 'index.html'}")
        if html.exists() and not is_report_page(html):
            raise RequestError(f"not a page of fedmosaic ({html}): remove it, or choose another --html")


def validate_output_dir(directory: Path, option: str) -> None:
    """Refuse a path that is not a writable directory, or that is inside a run."""
    from fedmosaic_cli.storage.runs import CONFIG_FILE, SUMMARY_FILE

    ancestors = (directory, *directory.absolute().parents)
    nearest = next(path for path in ancestors if path.exists())
    if not nearest.is_dir():
        raise RequestError(f"not a directory ({nearest}): choose another {option}")
    if not os.access(nearest, os.W_OK):
        raise ResourceError(f"the directory is not writable ({nearest}): choose another {option}")
    for path in ancestors:
        if (path / CONFIG_FILE).exists() or (path / SUMMARY_FILE).exists():
            raise RequestError(f"the path belongs to a run ({path}): choose another {option}")


def is_report_page(path: Path) -> bool:
    """Return whether a file is the page of a report, or empty, so that it can be overwritten."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(PAGE_HEAD_BYTES)
    return not head or b"<title>fedmosaic report</title>" in head


def build_tables(
    name: TableName | None, groups: Sequence[ComparisonGroup], with_published: bool, runs_dir: Path
) -> list[ComparisonTable]:
    """Build the requested tables. Of all four, those with runs."""
    from fedmosaic_cli.report.paper_tables import PAPER_TABLES, select_tables

    tables, omitted = select_tables(name, groups, with_published)
    if not tables:
        raise RequestError(
            f"no runs for the table '{name}' ({runs_dir}): create some with 'fedmosaic baseline all --preset "
            f"{PAPER_TABLES[omitted[0]].quickstart_preset}', or show the published results with --paper"
        )
    for table_name in omitted:
        print_stderr(f"omitted, no runs: the table '{table_name}'")
    return tables


def show_tables(
    tables: Sequence[ComparisonTable], output_format: OutputFormat, layout: TableLayout | None = None
) -> None:
    from fedmosaic_cli.report.formats import text_formats
    from fedmosaic_cli.report.formats.latex import standalone_latex, tables_to_latex
    from fedmosaic_cli.report.formats.table_grid import DEFAULT_LAYOUT

    layout = layout or DEFAULT_LAYOUT

    if output_format is OutputFormat.json:
        print_json(text_formats.tables_to_json(tables))
    elif output_format is OutputFormat.csv:
        print_stdout(text_formats.tables_to_csv(tables))
    elif output_format is OutputFormat.latex:
        print_stdout(standalone_latex(tables_to_latex(tables, layout)))
    elif output_format is OutputFormat.markdown:
        print_stdout(text_formats.tables_to_markdown(tables, layout))
    else:
        seen_notes: set[str] = set()
        for table in tables:
            console = stdout_console()
            console.print(text_formats.table_to_terminal(table, console.width, layout, seen_notes))
            if table.commands and not layout.plain:
                print_stdout(text_formats.missing_results_text(table))
                for command in table.commands:  # not wrapped, so that they can be copied
                    print_stdout(command)


def show_statistics(groups: Sequence[ComparisonGroup], output_format: OutputFormat, plain: bool = False) -> None:
    from fedmosaic_cli.report import stats_tables
    from fedmosaic_cli.report.formats.latex import standalone_latex

    comparisons, ranking = compare_methods(groups)
    tables = stats_tables.build_statistics_tables(comparisons, ranking)
    if plain:
        tables = [replace(table, note="") for table in tables]
    if not tables:
        example = "fedmosaic baseline local --preset quickstart"
        raise RequestError(f"no runs of Local to compare with (--statistics): run it, e.g. '{example}'")
    if output_format is OutputFormat.json:
        print_json(stats_tables.statistics_to_json(comparisons, ranking))
    elif output_format is OutputFormat.csv:
        print_stdout(stats_tables.statistics_to_csv(comparisons, ranking))
    elif output_format is OutputFormat.latex:
        print_stdout(standalone_latex(list(map(stats_tables.text_table_to_latex, tables))))
    elif output_format is OutputFormat.markdown:
        print_stdout("\n".join(map(stats_tables.text_table_to_markdown, tables)))
    else:
        for table in tables:
            stdout_console().print(stats_tables.text_table_to_terminal(table))


def compare_methods(groups: Sequence[ComparisonGroup]) -> tuple[list[MethodComparison], MethodRanking | None]:
    from fedmosaic_cli.report.statistics import compare_methods_with_local, rank_methods

    return [line for group in groups for line in compare_methods_with_local(group)], rank_methods(groups)


def write_result_files(
    output: Path,
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    figures: bool,
    on_progress: ProgressCallback,
    figure_kinds: Collection[str] | None = None,
    layout: TableLayout | None = None,
    figure_options: FigureOptions = DEFAULT_OPTIONS,
) -> list[Path]:
    """Write tables, statistics and figures (of the given kinds, default all). Return the paths of the figures."""
    from fedmosaic_cli.report.formats.table_grid import DEFAULT_LAYOUT
    from fedmosaic_cli.report.output_files import FIGURES_DIR, figure_files, result_files
    from fedmosaic_cli.storage.files import make_directories, write_files_atomic

    comparisons, ranking = compare_methods(groups)
    files = result_files(groups, tables, comparisons, ranking, layout or DEFAULT_LAYOUT)
    drawn: dict[str, bytes] = {}
    if figures:
        drawn, messages = figure_files(groups, ranking, on_progress, figure_kinds, figure_options)
        files |= drawn
        print_limited(messages, "--html lists all runs")
        make_directories(output / FIGURES_DIR)
    make_directories(output)
    write_files_atomic({output / name: content for name, content in files.items()})
    print_stderr(f"written: {output}")
    return [output / name for name in drawn]


def write_html_page(
    target: Path,
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    skipped: Sequence[SkippedRun],
    on_progress: ProgressCallback,
    figure_paths: Sequence[Path] = (),
) -> None:
    """Write tables, statistics, diagnosis and curves as one HTML file, with links to figures."""
    from fedmosaic_cli.report.html.page import build_page
    from fedmosaic_cli.report.output_files import add_rank_diagram, regime_map_diagrams
    from fedmosaic_cli.report.stats_tables import build_statistics_tables
    from fedmosaic_cli.storage.files import make_directories, write_atomic

    def on_logs_read(done: int, planned: int) -> None:
        on_progress("reading logs", done, planned)

    comparisons, ranking = compare_methods(groups)
    statistics_tables = add_rank_diagram(build_statistics_tables(comparisons, ranking), ranking)
    diagrams = regime_map_diagrams(groups)
    links = [Path(os.path.relpath(path, target.parent)).as_posix() for path in figure_paths]
    content = build_page(
        groups, tables, skipped, statistics_tables, diagrams, on_progress=on_logs_read, figure_paths=links
    )
    make_directories(target.parent)
    write_atomic(target.resolve(), content)  # resolve, to write to the target of a symbolic link
    print_stderr(f"written: {target}")
