"""`fedmosaic report`."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmosaic_cli.cli.app import one_line
from fedmosaic_cli.cli.common_options import DebugOption, JsonOption, QuietOption
from fedmosaic_cli.cli.console import out, remark, say, say_json
from fedmosaic_cli.cli.data_dir_options import watching
from fedmosaic_cli.errors import RequestError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fedmosaic_cli.data.data_dirs import Watch
    from fedmosaic_cli.report.collect import Skipped
    from fedmosaic_cli.report.comparison import Setting
    from fedmosaic_cli.report.comparison_table import Table
    from fedmosaic_cli.report.statistics import Comparison, Ranking

MOST_LINES = 20
HEAD_BYTES = 4096


class TableName(StrEnum):
    label_skew = "label-skew"
    feature_shift = "feature-shift"
    hybrid = "hybrid"
    compact = "compact"
    all = "all"


class Form(StrEnum):
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
    form = form_of(latex, markdown, as_csv, as_json)
    if statistics and (table or (paper and not output and not html)):
        what = "--table" if table else "--paper"
        raise RequestError(f"statistics are printed instead of tables (--statistics): leave out {what}")
    check_targets(output, html)

    from fedmosaic_cli.report.collect import collect
    from fedmosaic_cli.report.comparison import settings_of
    from fedmosaic_cli.report.output_files import every_table

    with watching(quiet) as watch:
        frame, skipped = collect(runs_dir, watch)
    if frame.empty:
        raise RequestError(nothing_to_report(runs_dir, skipped))
    tell_skipped(skipped)
    settings = settings_of(frame)
    if statistics:
        show_statistics(*compared(settings), form)
    else:
        show_tables(chosen_tables(table, settings, paper, runs_dir), form)
    with watching(quiet) as watch:
        if output:
            write_results(output, settings, every_table(settings, paper), figures, watch)
        if html:
            write_page(html, settings, every_table(settings, paper), skipped, watch)


def nothing_to_report(runs_dir: Path, skipped: Sequence[Skipped]) -> str:
    """What to do where there is no finished run."""
    if not skipped:
        return f"no finished runs ({runs_dir}): make some with 'fedmosaic train --preset quickstart'"
    first = f"the first of {len(skipped)} skipped, {skipped[0].path}: {skipped[0].reason}"
    return f"no finished runs ({runs_dir}): finish what was begun with --resume, or see what is wrong with it; {first}"


def tell_skipped(skipped: Sequence[Skipped]) -> None:
    tell([f"skipped {run.path}: {run.reason}" for run in skipped], "--html lists all of them")


def tell(lines: Sequence[str], where: str) -> None:
    """A line each; of very many the first, and where the others can be found."""
    for line in lines[:MOST_LINES]:
        remark(one_line(line))
    if len(lines) > MOST_LINES:
        remark(f"... and {len(lines) - MOST_LINES} more such lines; {where}")


def form_of(latex: bool, markdown: bool, as_csv: bool, as_json: bool) -> Form:
    """The one form that is asked for, or the one that suits where stdout goes."""
    wanted = {Form.latex: latex, Form.markdown: markdown, Form.csv: as_csv, Form.json: as_json}
    asked = [form for form, on in wanted.items() if on]
    if len(asked) > 1:
        raise RequestError("more than one format is asked for (fedmosaic report): choose one, or write all with --out")
    return asked[0] if asked else Form.terminal if sys.stdout.isatty() else Form.markdown


def check_targets(output: Path | None, html: Path | None) -> None:
    """Refuse places that cannot be written to, or where something else lies, before anything is read."""
    if output:
        check_place(output, "--out")
    if html:
        check_place(html.parent, "--html")
        if html.is_dir() or html == output:
            raise RequestError(f"this is a directory ({html}): name a file, e.g. --html {html / 'index.html'}")
        if html.exists() and not is_page(html):
            raise RequestError(f"this is no page of ours ({html}): remove it, or choose another --html")


def check_place(folder: Path, option: str) -> None:
    """Refuse a directory that is none, or that belongs to a run."""
    from fedmosaic_cli.storage.runs import CONFIG, SUMMARY

    above = (folder, *folder.absolute().parents)
    nearest = next(place for place in above if place.exists())
    if not nearest.is_dir():
        raise RequestError(f"not a directory ({nearest}): choose another {option}")
    if not os.access(nearest, os.W_OK):
        raise ResourceError(f"nothing may be written here ({nearest}): choose another {option}")
    run = next((place for place in above if (place / CONFIG).exists() or (place / SUMMARY).exists()), None)
    if run:
        raise RequestError(f"this belongs to a run ({run}): choose another {option}")


def is_page(path: Path) -> bool:
    """Whether a file is a report's page, or empty, so that nothing is lost with it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return not head or b"<title>fedmosaic report</title>" in head


def chosen_tables(name: TableName | None, settings: Sequence[Setting], paper: bool, runs_dir: Path) -> list[Table]:
    """The table that is asked for; of all four, those that there is something to put in."""
    from fedmosaic_cli.report.paper_tables import FORMS, overview, paper_table

    if name is None:
        return [overview(settings, paper)]
    names = list(FORMS) if name is TableName.all else [name.value]
    made = {each: paper_table(each, settings, paper) for each in names}
    tables = [table for table in made.values() if table]
    if not tables:
        stand_in = FORMS[names[0]].stand_in
        raise RequestError(
            f"no runs for the table '{name.value}' ({runs_dir}): make some with 'fedmosaic baseline all --preset "
            f"{stand_in}', or see the published numbers with --paper"
        )
    for each, table in made.items():
        if table is None:
            remark(f"left out, no runs for it: the table '{each}'")
    return tables


def show_tables(tables: Sequence[Table], form: Form) -> None:
    from fedmosaic_cli.report.formats.latex import alone, to_latex
    from fedmosaic_cli.report.formats.text_formats import to_csv, to_json, to_markdown, to_terminal

    if form is Form.json:
        say_json(to_json(tables))
    elif form is Form.csv:
        say(to_csv(tables))
    elif form is Form.latex:
        say(alone(list(map(to_latex, tables))))
    elif form is Form.markdown:
        say("\n".join(map(to_markdown, tables)))
    else:
        console = out()
        for table in tables:
            console.print(to_terminal(table, console.width))


def compared(settings: Sequence[Setting]) -> tuple[list[Comparison], Ranking | None]:
    from fedmosaic_cli.report.statistics import compare_with_local, rank

    return [line for setting in settings for line in compare_with_local(setting)], rank(settings)


def write_results(
    output: Path,
    settings: Sequence[Setting],
    tables: Sequence[Table],
    figures: bool,
    watch: Watch,
    kinds: Collection[str] | None = None,
) -> None:
    """Tables, the statistics and figures, all or those of some kinds, as files."""
    from fedmosaic_cli.report.output_files import FIGURES, figure_files, result_files
    from fedmosaic_cli.storage.files import make_directories, write_together

    comparisons, ranking = compared(settings)
    files = result_files(settings, tables, comparisons, ranking)
    if figures:
        drawn, remarks = figure_files(settings, ranking, watch, kinds)
        files |= drawn
        tell(remarks, "--html tells of every run")
        make_directories(output / FIGURES)
    make_directories(output)
    write_together({output / name: content for name, content in files.items()})
    remark(f"written: {output}")


def write_page(
    target: Path, settings: Sequence[Setting], tables: Sequence[Table], skipped: Sequence[Skipped], watch: Watch
) -> None:
    """Everything as one file to look at."""
    from fedmosaic_cli.report.html.page import page
    from fedmosaic_cli.report.output_files import illustrated
    from fedmosaic_cli.report.stats_tables import sheets_of
    from fedmosaic_cli.storage.files import make_directories, write

    comparisons, ranking = compared(settings)
    sheets = illustrated(sheets_of(comparisons, ranking), ranking)
    content = page(
        settings,
        tables,
        skipped,
        sheets,
        tell=lambda done, planned: watch("reading logs", done, planned),
    )
    make_directories(target.parent)
    write(target.resolve(), content)  # behind a link, if it is one
    remark(f"written: {target}")


def show_statistics(comparisons: list[Comparison], ranking: Ranking | None, form: Form) -> None:
    from fedmosaic_cli.report.formats.latex import alone
    from fedmosaic_cli.report.stats_tables import (
        sheet_to_latex,
        sheet_to_markdown,
        sheet_to_terminal,
        sheets_of,
        sheets_to_csv,
        to_entries,
    )

    sheets = sheets_of(comparisons, ranking)
    if not sheets:
        raise RequestError(
            "nothing to compare with (--statistics): run Local too, e.g. 'fedmosaic baseline local --preset quickstart'"
        )
    if form is Form.json:
        say_json(to_entries(comparisons, ranking))
    elif form is Form.csv:
        say(sheets_to_csv(comparisons, ranking))
    elif form is Form.terminal:
        for sheet in sheets:
            out().print(sheet_to_terminal(sheet))
    elif form is Form.latex:
        say(alone(list(map(sheet_to_latex, sheets))))
    else:
        say("\n".join(map(sheet_to_markdown, sheets)))
