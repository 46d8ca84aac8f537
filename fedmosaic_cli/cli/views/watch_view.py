"""How runs look that are watched: a line each, or one with its curves and clients."""

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
# What a line takes beside the name of its run, and a curve beside its marks.
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
    """The runs as they are shown, in at most so many lines."""
    return (
        render_run_details(progress_list[0], console, height)
        if runs.is_single_run
        else render_run_list(progress_list, runs, console, height)
    )


def render_run_list(
    progress_list: list[RunProgress], runs: WatchedRuns, console: Console, height: int | None
) -> RenderableType:
    """A line a run; where there is no room for all, those that run come first."""
    reasons = [progress for progress in progress_list if progress.reason]
    told = reasons if height is None else reasons[:MAX_REASONS]
    # The heading, the counts, a line that may be half seen, and two for each reason, which may be wrapped.
    room = len(progress_list) if height is None else max(3, height - 4 - 2 * len(told))
    table = progress_table("run", "state", "round", "acc %", "lambda", "eta")
    width = max(MIN_WIDTH, console.width - NUMBERS_WIDTH)
    for progress in progress_list[:room]:
        name = shorten_name(printable_line(str(progress.path.relative_to(runs.path))), width)
        table.add_row(name, state_text(progress.status), *progress_cells(progress))
    lines = [
        Text(f"{progress.status}: {printable_line(progress.reason)}", style=STATE_STYLES.get(progress.status, ""))
        for progress in told
    ]
    counts = Counter(progress.status for progress in progress_list)
    words = [f"{counts[state]} {state}" for state in RunStatus if counts[state]]
    hidden = [f"{len(progress_list) - room} of them not shown here"] if len(progress_list) > room else []
    return Group(table, *lines, Text(", ".join(words + hidden), style="dim"))


def progress_cells(progress: RunProgress) -> list[str]:
    """The numbers of a line: round, accuracy, lambda, and the time to go."""
    accuracy = "-" if progress.mean_accuracy is None else f"{100 * progress.mean_accuracy:.2f}"
    trust = "-" if progress.mean_trust is None else f"{progress.mean_trust:.3f}"
    return [f"{progress.round}/{progress.num_rounds or '?'}", accuracy, trust, clock_text(progress.remaining_seconds)]


def render_run_details(progress: RunProgress, console: Console, height: int | None) -> RenderableType:
    """State and times of a run, its curves, and its clients in the last round."""
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
    # The heading, which may be wrapped, and two more lines for a long path and a long reason.
    room = len(progress.client_rows) if height is None else max(3, height - len(lines) - 6)
    table = client_metrics_table(progress.client_rows[:room])
    hidden = len(progress.client_rows) - room
    more = [Text(f"and {hidden} more clients", style="dim")] if hidden > 0 else []
    return Group(*lines, *([table] if progress.client_rows else []), *more)


def sparkline_lines(progress: RunProgress, console: Console) -> list[Text]:
    """Accuracy and lambda over the rounds, each with its first and last value."""
    marks = BLOCK_SYMBOLS if console.encoding.lower().startswith("utf") else ASCII_SYMBOLS
    width = max(MIN_WIDTH, min(MAX_SPARKLINE_WIDTH, console.width - CURVE_TEXT_WIDTH))
    accuracies = [100 * accuracy for _, accuracy, _ in progress.history]
    trusts = [trust for _, _, trust in progress.history if trust is not None]
    lines = []
    for name, values, form in (("accuracy", accuracies, ".2f"), ("lambda", trusts, ".3f")):
        if values:
            ends = f"{values[0]:{form}} -> {values[-1]:{form}}{' %' if name == 'accuracy' else ''}"
            lines.append(Text(f"{name:<9} {sparkline(values, width, marks)}  {ends}", no_wrap=True))
    return lines


def client_metrics_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line a client; what no client has is left out."""
    names = [name for name in CLIENT_COLUMNS if any(is_finite_number(row.get(name)) for row in rows)]
    table = progress_table("client", *(CLIENT_COLUMNS[name] for name in names))
    for row in rows:
        table.add_row(str(row["client"]), *(metric_cell(name, row.get(name)) for name in names))
    return table


def metric_cell(name: str, value: object) -> str:
    """A number of a client as it is shown."""
    if not is_finite_number(value):
        return "-"
    return f"{100 * value:.2f}" if name == "accuracy" else f"{value:.3f}"


def progress_table(first: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "state" else "right")
    return table


def state_text(state: RunStatus) -> Text:
    return Text(state.value, style=STATE_STYLES.get(state, ""))


def sparkline(values: Sequence[float], width: int, symbols: str) -> str:
    """A mark a value, or a mean of several where there are too many; the lowest and the highest span the scale."""
    columns = min(width, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    steps = [int((mean - low) / span * (len(symbols) - 1) + 0.5) if span > 0 else 0 for mean in means]
    return "".join(symbols[step] for step in steps)


def shorten_name(name: str, width: int) -> str:
    """A name of at most so many letters; its end tells runs apart."""
    return name if len(name) <= width else f"...{name[3 - width :]}"


def clock_text(seconds: float | None) -> str:
    """A time as h:mm:ss or m:ss."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def progress_to_json(progress: RunProgress, with_details: bool) -> dict[str, Any]:
    """A run as JSON; with `details` its history, and its clients as they stand in the log."""
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
