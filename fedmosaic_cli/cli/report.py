"""`fedmosaic report`."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.app import printable_line
from fedmosaic_cli.cli.common_options import DebugOption, JsonOption, QuietOption
from fedmosaic_cli.cli.console import print_json, print_stderr, print_stdout, stdout_console
from fedmosaic_cli.cli.data_dir_options import progress_callback
from fedmosaic_cli.errors import RequestError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.report.collect import SkippedRun
    from fedmosaic_cli.report.comparison import ComparisonGroup
    from fedmosaic_cli.report.comparison_table import ComparisonTable
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
    """How results are printed."""

    latex = "latex"
    markdown = "markdown"
    csv = "csv"
    json = "json"
    terminal = "terminal"


def report(
    runs_dir: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", envvar="FEDMOSAIC_RUNS", help="Where run directories lie.")
    ] = Path("runs"),
    latex: Annotated[bool, typer.Option("--latex", help="LaTeX: compiles alone, or \\input it.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown (the default in a pipe).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV, a line a cell, in full precision.")] = False,
    table: Annotated[
        TableName | None,
        typer.Option(help="One of the paper's tables, or all four.", show_default="all settings side by side"),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper/--no-paper", help="Put the published numbers beside ours, with the difference.")
    ] = False,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Instead of tables: tests over clients, ranks over settings.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--out", help="Also write every table, the statistics and figures here.", show_default=False),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="With --out: draw figures.")] = True,
    html: Annotated[
        Path | None, typer.Option(help="Also write everything as one page to look at.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare methods over settings: mean (std) over seeds, in the colours of the paper.

    Blue are the baselines. A method is green if it is better than both,
    orange if worse than local training, red if worse than both.

    \b
    [bold]Examples[/bold]
    fedmosaic report
    fedmosaic report --table hybrid --paper
    fedmosaic report --latex > table.tex && pdflatex table.tex
    fedmosaic report --statistics
    fedmosaic report runs --out results --html results/index.html
    """
    form = choose_output_format(latex, markdown, as_csv, as_json)
    if statistics and (table or (paper and not output and not html)):
        what = "--table" if table else "--paper"
        raise RequestError(f"statistics are printed instead of tables (--statistics): leave out {what}")
    validate_output_paths(output, html)

    from fedmosaic_cli.report.collect import collect_runs
    from fedmosaic_cli.report.comparison import comparison_groups
    from fedmosaic_cli.report.output_files import build_all_tables

    with progress_callback(quiet) as watch:
        frame, skipped = collect_runs(runs_dir, watch)
    if frame.empty:
        raise RequestError(no_runs_message(runs_dir, skipped))
    print_skipped_runs(skipped)
    settings = comparison_groups(frame)
    if statistics:
        show_statistics(*compare_methods(settings), form)
    else:
        show_tables(select_tables(table, settings, paper, runs_dir), form)
    with progress_callback(quiet) as watch:
        if output:
            write_result_files(output, settings, build_all_tables(settings, paper), figures, watch)
        if html:
            write_html_page(html, settings, build_all_tables(settings, paper), skipped, watch)


def no_runs_message(runs_dir: Path, skipped: Sequence[SkippedRun]) -> str:
    """What to do where there is no finished run."""
    if not skipped:
        return f"no finished runs ({runs_dir}): make some with 'fedmosaic train --preset quickstart'"
    first = f"the first of {len(skipped)} skipped, {skipped[0].path}: {skipped[0].reason}"
    return f"no finished runs ({runs_dir}): finish what was begun with --resume, or see what is wrong with it; {first}"


def print_skipped_runs(skipped: Sequence[SkippedRun]) -> None:
    print_limited([f"skipped {run.path}: {run.reason}" for run in skipped], "--html lists all of them")


def print_limited(lines: Sequence[str], overflow_hint: str) -> None:
    """A line each; of very many the first, and where the others can be found."""
    for line in lines[:MAX_LISTED_LINES]:
        print_stderr(printable_line(line))
    if len(lines) > MAX_LISTED_LINES:
        print_stderr(f"... and {len(lines) - MAX_LISTED_LINES} more such lines; {overflow_hint}")


def choose_output_format(latex: bool, markdown: bool, as_csv: bool, as_json: bool) -> OutputFormat:
    """The one form that is asked for, or the one that suits where stdout goes."""
    wanted = {
        OutputFormat.latex: latex,
        OutputFormat.markdown: markdown,
        OutputFormat.csv: as_csv,
        OutputFormat.json: as_json,
    }
    asked = [form for form, on in wanted.items() if on]
    if len(asked) > 1:
        raise RequestError("more than one format is asked for (fedmosaic report): choose one, or write all with --out")
    return asked[0] if asked else OutputFormat.terminal if sys.stdout.isatty() else OutputFormat.markdown


def validate_output_paths(output: Path | None, html: Path | None) -> None:
    """Refuse places that cannot be written to, or where something else lies, before anything is read."""
    if output:
        validate_output_dir(output, "--out")
    if html:
        validate_output_dir(html.parent, "--html")
        if html.is_dir() or html == output:
            raise RequestError(f"this is a directory ({html}): name a file, e.g. --html {html / 'index.html'}")
        if html.exists() and not is_report_page(html):
            raise RequestError(f"this is no page of ours ({html}): remove it, or choose another --html")


def validate_output_dir(directory: Path, option: str) -> None:
    """Refuse a directory that is none, or that belongs to a run."""
    from fedmosaic_cli.storage.runs import CONFIG_FILE, SUMMARY_FILE

    above = (directory, *directory.absolute().parents)
    nearest = next(place for place in above if place.exists())
    if not nearest.is_dir():
        raise RequestError(f"not a directory ({nearest}): choose another {option}")
    if not os.access(nearest, os.W_OK):
        raise ResourceError(f"nothing may be written here ({nearest}): choose another {option}")
    run = next((place for place in above if (place / CONFIG_FILE).exists() or (place / SUMMARY_FILE).exists()), None)
    if run:
        raise RequestError(f"this belongs to a run ({run}): choose another {option}")


def is_report_page(path: Path) -> bool:
    """Whether a file is a report's page, or empty, so that nothing is lost with it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(PAGE_HEAD_BYTES)
    return not head or b"<title>fedmosaic report</title>" in head


def select_tables(
    name: TableName | None, groups: Sequence[ComparisonGroup], with_published: bool, runs_dir: Path
) -> list[ComparisonTable]:
    """The table that is asked for; of all four, those that there is something to put in."""
    from fedmosaic_cli.report.paper_tables import PAPER_TABLES, overview_table, paper_table

    if name is None:
        return [overview_table(groups, with_published)]
    names = list(PAPER_TABLES) if name is TableName.all else [name.value]
    made = {each: paper_table(each, groups, with_published) for each in names}
    tables = [table for table in made.values() if table]
    if not tables:
        stand_in = PAPER_TABLES[names[0]].quickstart_preset
        raise RequestError(
            f"no runs for the table '{name.value}' ({runs_dir}): make some with 'fedmosaic baseline all --preset "
            f"{stand_in}', or see the published numbers with --paper"
        )
    for each, table in made.items():
        if table is None:
            print_stderr(f"left out, no runs for it: the table '{each}'")
    return tables


def show_tables(tables: Sequence[ComparisonTable], output_format: OutputFormat) -> None:
    from fedmosaic_cli.report.formats.latex import standalone_latex, table_to_latex
    from fedmosaic_cli.report.formats.text_formats import (
        table_to_markdown,
        table_to_terminal,
        tables_to_csv,
        tables_to_json,
    )

    if output_format is OutputFormat.json:
        print_json(tables_to_json(tables))
    elif output_format is OutputFormat.csv:
        print_stdout(tables_to_csv(tables))
    elif output_format is OutputFormat.latex:
        print_stdout(standalone_latex(list(map(table_to_latex, tables))))
    elif output_format is OutputFormat.markdown:
        print_stdout("\n".join(map(table_to_markdown, tables)))
    else:
        console = stdout_console()
        for table in tables:
            console.print(table_to_terminal(table, console.width))


def compare_methods(groups: Sequence[ComparisonGroup]) -> tuple[list[MethodComparison], MethodRanking | None]:
    from fedmosaic_cli.report.statistics import compare_methods_with_local, rank_methods

    return [line for setting in groups for line in compare_methods_with_local(setting)], rank_methods(groups)


def write_result_files(
    output: Path,
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    figures: bool,
    on_progress: ProgressCallback,
    figure_kinds: Collection[str] | None = None,
) -> None:
    """Tables, the statistics and figures, all or those of some kinds, as files."""
    from fedmosaic_cli.report.output_files import FIGURES_DIR, figure_files, result_files
    from fedmosaic_cli.storage.files import make_directories, write_files_atomic

    comparisons, ranking = compare_methods(groups)
    files = result_files(groups, tables, comparisons, ranking)
    if figures:
        drawn, remarks = figure_files(groups, ranking, on_progress, figure_kinds)
        files |= drawn
        print_limited(remarks, "--html tells of every run")
        make_directories(output / FIGURES_DIR)
    make_directories(output)
    write_files_atomic({output / name: content for name, content in files.items()})
    print_stderr(f"written: {output}")


def write_html_page(
    target: Path,
    groups: Sequence[ComparisonGroup],
    tables: Sequence[ComparisonTable],
    skipped: Sequence[SkippedRun],
    on_progress: ProgressCallback,
) -> None:
    """Everything as one file to look at."""
    from fedmosaic_cli.report.html.page import build_page
    from fedmosaic_cli.report.output_files import add_rank_diagram
    from fedmosaic_cli.report.stats_tables import build_statistics_tables
    from fedmosaic_cli.storage.files import make_directories, write_atomic

    comparisons, ranking = compare_methods(groups)
    sheets = add_rank_diagram(build_statistics_tables(comparisons, ranking), ranking)
    content = build_page(
        groups,
        tables,
        skipped,
        sheets,
        on_progress=lambda done, planned: on_progress("reading logs", done, planned),
    )
    make_directories(target.parent)
    write_atomic(target.resolve(), content)  # behind a link, if it is one
    print_stderr(f"written: {target}")


def show_statistics(
    comparisons: list[MethodComparison], ranking: MethodRanking | None, output_format: OutputFormat
) -> None:
    from fedmosaic_cli.report.formats.latex import standalone_latex
    from fedmosaic_cli.report.stats_tables import (
        build_statistics_tables,
        statistics_to_csv,
        statistics_to_json,
        text_table_to_latex,
        text_table_to_markdown,
        text_table_to_terminal,
    )

    sheets = build_statistics_tables(comparisons, ranking)
    if not sheets:
        raise RequestError(
            "nothing to compare with (--statistics): run Local too, e.g. 'fedmosaic baseline local --preset quickstart'"
        )
    if output_format is OutputFormat.json:
        print_json(statistics_to_json(comparisons, ranking))
    elif output_format is OutputFormat.csv:
        print_stdout(statistics_to_csv(comparisons, ranking))
    elif output_format is OutputFormat.terminal:
        for sheet in sheets:
            stdout_console().print(text_table_to_terminal(sheet))
    elif output_format is OutputFormat.latex:
        print_stdout(standalone_latex(list(map(text_table_to_latex, sheets))))
    else:
        print_stdout("\n".join(map(text_table_to_markdown, sheets)))
