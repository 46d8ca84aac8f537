"""`fedmosaic report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmosaic_cli.cli.console import out, remark, say, say_json
from fedmosaic_cli.cli.options import DebugOption, JsonOption
from fedmosaic_cli.errors import RequestError


def report(
    runs_dir: Annotated[
        Path, typer.Argument(metavar="RUNS_DIR", envvar="FEDMOSAIC_RUNS", help="Where run directories lie.")
    ] = Path("runs"),
    latex: Annotated[bool, typer.Option("--latex", help="LaTeX: compiles alone, or \\input it.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown (the default in a pipe).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV, a line a cell, in full precision.")] = False,
    output: Annotated[
        Path | None, typer.Option("--out", help="Also write table.md, .tex, .csv and .svg here.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare methods over settings: mean (std) over seeds, in the colours of the paper.

    Blue are the baselines. A method is green if it is better than both,
    orange if worse than local training, red if worse than both.

    \b
    [bold]Examples[/bold]
    fedmosaic report
    fedmosaic report --latex > table.tex && pdflatex table.tex
    fedmosaic report runs --out tables
    """
    if latex + markdown + as_csv + as_json > 1:
        raise RequestError("more than one format is asked for (fedmosaic report): choose one, or write all with --out")

    from fedmosaic_cli.files import make_directories, write_together
    from fedmosaic_cli.report.collect import collect, tabulate
    from fedmosaic_cli.report.tables import to_csv, to_json, to_latex, to_markdown, to_svg, to_terminal

    frame, skipped = collect(runs_dir)
    for run in skipped:
        remark(f"skipped {run.path}: {run.reason}")
    if frame.empty:
        raise RequestError(f"no finished runs ({runs_dir}): make some with 'fedmosaic train --preset quickstart'")
    table = tabulate(frame)
    if output:
        make_directories(output)
        texts = {"md": to_markdown(table), "tex": to_latex(table), "csv": to_csv(table), "svg": to_svg(table)}
        write_together({output / f"table.{ending}": text.encode() for ending, text in texts.items()})
    if as_json:
        say_json(to_json(table))
    elif latex:
        say(to_latex(table))
    elif as_csv:
        say(to_csv(table))
    elif markdown or not sys.stdout.isatty():
        say(to_markdown(table))
    else:
        out().print(to_terminal(table))
