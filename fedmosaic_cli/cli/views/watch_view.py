"""The view of `fedmosaic watch`: one line per run, or a single run with its curves and clients."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedmosaic_cli.cli.app import printable_line
from fedmosaic_cli.report.run_progress import is_finite_number
from fedmosaic_cli.report.run_status import RunStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from fedmosaic_cli.report.run_progress import RunProgress, WatchedRuns

BLOCK_SYMBOLS, ASCII_SYMBOLS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
MAX_SPARKLINE_WIDTH = 60
# The width of a line without the name of its run, and of a curve without its symbols.
NUMBERS_WIDTH, CURVE_TEXT_WIDTH = 44, 34
MIN_WIDTH = 12
MAX_REASONS = 3
STATE_STYLES = {
    RunStatus.RUNNING: "bold green",
    RunStatus.FINISHED: "blue",
    RunStatus.FAILED: "bold red",
    RunStatus.DAMAGED: "red",
    RunStatus.NEWER: "yellow",
    RunStatus.FOREIGN: "yellow",
    RunStatus.STOPPED: "yellow",
}
CLIENT_COLUMNS = {
    "accuracy": "accuracy %",
    "lambda": "lambda",
    "loss_private": "private loss",
    "loss_public": "public loss",
    "agreement": "agreement",
}


def render_watched_runs(
    progress_list: list[RunProgress], runs: WatchedRuns, console: Console, height: int | None
) -> RenderableType:
    """Render the runs in at most `height` lines, None for no limit."""
    if runs.is_single_run:
        return render_run_details(progress_list[0], console, height)
    reasons = [progress for progress in progress_list if progress.reason]
    shown_reasons = reasons if height is None else reasons[:MAX_REASONS]
    # The heading, the counts, an empty line, and two lines per reason, because a reason may wrap.
    max_runs = len(progress_list) if height is None else max(3, height - 4 - 2 * len(shown_reasons))
    table = progress_table("run", "state", "round", "acc %", "lambda", "eta")
    width = max(MIN_WIDTH, console.width - NUMBERS_WIDTH)
    for progress in progress_list[:max_runs]:
        table.add_row(
            shorten_name(printable_line(str(progress.path.relative_to(runs.path))), width),
            state_text(progress.status),
            f"{progress.round}/{progress.num_rounds or '?'}",
            metric_cell("accuracy", progress.mean_accuracy),
            metric_cell("lambda", progress.mean_trust),
            clock_text(progress.remaining_seconds),
        )
    lines = [
        Text(f"{progress.status}: {printable_line(progress.reason)}", style=STATE_STYLES.get(progress.status, ""))
        for progress in shown_reasons
    ]
    counts = Counter(progress.status for progress in progress_list)
    words = [f"{counts[status]} {status}" for status in RunStatus if counts[status]]
    hidden = [f"{len(progress_list) - max_runs} of them not shown here"] if len(progress_list) > max_runs else []
    return Group(table, *lines, Text(", ".join(words + hidden), style="dim"))


def render_run_details(progress: RunProgress, console: Console, height: int | None) -> RenderableType:
    """Render state, times and curves of a run, and its clients in the last round."""
    times = f"elapsed {clock_text(progress.elapsed_seconds)}"
    if progress.remaining_seconds is not None:
        times += f"  eta {clock_text(progress.remaining_seconds)}"
    lines = [
        Text.assemble(printable_line(str(progress.path)), "  ", state_text(progress.status)),
        Text(f"round {progress.round} of {progress.num_rounds or '?'}  {times}"),
        *sparkline_lines(progress, console),
    ]
    if progress.reason:
        lines.append(Text(printable_line(progress.reason), style=STATE_STYLES.get(progress.status, "")))
    rows = progress.client_rows
    # The heading may wrap, and so may a long path and a long reason.
    max_clients = len(rows) if height is None else max(3, height - len(lines) - 6)
    names = [name for name in CLIENT_COLUMNS if any(is_finite_number(row.get(name)) for row in rows[:max_clients])]
    table = progress_table("client", *(CLIENT_COLUMNS[name] for name in names))
    for row in rows[:max_clients]:
        table.add_row(str(row["client"]), *(metric_cell(name, row.get(name)) for name in names))
    hidden = len(rows) - max_clients
    more = [Text(f"and {hidden} more clients", style="dim")] if hidden > 0 else []
    return Group(*lines, *([table] if rows else []), *more)


def sparkline_lines(progress: RunProgress, console: Console) -> list[Text]:
    """Render accuracy and lambda over the rounds, with the first and the last value."""
    symbols = BLOCK_SYMBOLS if console.encoding.lower().startswith("utf") else ASCII_SYMBOLS
    width = max(MIN_WIDTH, min(MAX_SPARKLINE_WIDTH, console.width - CURVE_TEXT_WIDTH))
    accuracies = [100 * accuracy for _, accuracy, _ in progress.history if accuracy is not None]
    trusts = [trust for _, _, trust in progress.history if trust is not None]
    lines = []
    for name, values, number_format, unit in (("accuracy", accuracies, ".2f", " %"), ("lambda", trusts, ".3f", "")):
        if values:
            ends = f"{values[0]:{number_format}} -> {values[-1]:{number_format}}{unit}"
            lines.append(Text(f"{name:<9} {sparkline(values, width, symbols)}  {ends}", no_wrap=True))
    return lines


def metric_cell(name: str, value: object) -> str:
    if not is_finite_number(value):
        return "-"
    return f"{100 * value:.2f}" if name == "accuracy" else f"{value:.3f}"


def progress_table(first: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "state" else "right")
    return table


def state_text(status: RunStatus) -> Text:
    return Text(status.value, style=STATE_STYLES.get(status, ""))


def sparkline(values: Sequence[float], width: int, symbols: str) -> str:
    """Return one symbol per value, or per mean of several values. The scale spans minimum to maximum."""
    columns = min(width, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    steps = [int((mean - low) / span * (len(symbols) - 1) + 0.5) if span > 0 else 0 for mean in means]
    return "".join(symbols[step] for step in steps)


def shorten_name(name: str, width: int) -> str:
    """Keep the end of a name, which distinguishes runs."""
    return name if len(name) <= width else f"...{name[3 - width :]}"


def clock_text(seconds: float | None) -> str:
    """Return a duration as h:mm:ss or m:ss, "-" for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def progress_to_json(progress: RunProgress, with_details: bool) -> dict[str, Any]:
    """Return the progress as JSON, with details also the history and the last log row of each client."""
    content: dict[str, Any] = {
        "path": str(progress.path),
        "state": progress.status.value,
        "reason": progress.reason or None,
        "round": progress.round,
        "rounds": progress.num_rounds,
        "accuracy": progress.mean_accuracy,
        "lambda": progress.mean_trust,
        "elapsed_seconds": progress.elapsed_seconds,
        "eta_seconds": progress.remaining_seconds,
    }
    if with_details:
        names = ("round", "accuracy", "lambda")
        content["history"] = [dict(zip(names, point, strict=True)) for point in progress.history]
        content["clients"] = list(progress.client_rows)
    return content
