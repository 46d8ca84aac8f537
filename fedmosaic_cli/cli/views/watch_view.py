"""How runs look that are watched: a line each, or one with its curves and clients."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedmosaic_cli.cli.app import one_line
from fedmosaic_cli.report.round_history import is_number
from fedmosaic_cli.report.run_status import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from fedmosaic_cli.report.run_progress import Progress, WatchedRuns

BLOCKS, LETTERS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
MOST_MARKS = 60
# What a line takes beside the name of its run, and a curve beside its marks.
ROOM_FOR_NUMBERS, ROOM_FOR_WORDS = 44, 34
LEAST_ROOM = 12
MOST_REASONS = 3
STYLES = {
    State.RUNNING: "bold green",
    State.FINISHED: "blue",
    State.FAILED: "bold red",
    State.DAMAGED: "red",
    State.NEWER: "yellow",
    State.FOREIGN: "yellow",
    State.STOPPED: "yellow",
}
CLIENT_COLUMNS = {
    "accuracy": "accuracy %",
    "lambda": "lambda",
    "loss_private": "private loss",
    "loss_public": "public loss",
    "agreement": "agreement",
}


def view(found: list[Progress], runs: WatchedRuns, console: Console, height: int | None) -> RenderableType:
    """The runs as they are shown, in at most so many lines."""
    return one_run(found[0], console, height) if runs.single else all_runs(found, runs, console, height)


def all_runs(found: list[Progress], runs: WatchedRuns, console: Console, height: int | None) -> RenderableType:
    """A line a run; where there is no room for all, those that run come first."""
    reasons = [progress for progress in found if progress.reason]
    told = reasons if height is None else reasons[:MOST_REASONS]
    # The heading, the counts, a line that may be half seen, and two for each reason, which may be wrapped.
    room = len(found) if height is None else max(3, height - 4 - 2 * len(told))
    table = numbers_table("run", "state", "round", "acc %", "lambda", "eta")
    width = max(LEAST_ROOM, console.width - ROOM_FOR_NUMBERS)
    for progress in found[:room]:
        name = shorten(one_line(str(progress.path.relative_to(runs.path))), width)
        table.add_row(name, state_text(progress.state), *numbers(progress))
    lines = [
        Text(f"{progress.state}: {one_line(progress.reason)}", style=STYLES.get(progress.state, ""))
        for progress in told
    ]
    counts = Counter(progress.state for progress in found)
    words = [f"{counts[state]} {state}" for state in State if counts[state]]
    hidden = [f"{len(found) - room} of them not shown here"] if len(found) > room else []
    return Group(table, *lines, Text(", ".join(words + hidden), style="dim"))


def numbers(progress: Progress) -> list[str]:
    """The numbers of a line: round, accuracy, lambda, and the time to go."""
    accuracy = "-" if progress.accuracy is None else f"{100 * progress.accuracy:.2f}"
    trust = "-" if progress.trust is None else f"{progress.trust:.3f}"
    return [f"{progress.round}/{progress.rounds or '?'}", accuracy, trust, clock(progress.remaining_seconds)]


def one_run(progress: Progress, console: Console, height: int | None) -> RenderableType:
    """State and times of a run, its curves, and its clients in the last round."""
    times = f"elapsed {clock(progress.seconds)}"
    if progress.remaining_seconds is not None:
        times += f"  eta {clock(progress.remaining_seconds)}"
    lines = [
        Text.assemble(one_line(str(progress.path)), "  ", state_text(progress.state)),
        Text(f"round {progress.round} of {progress.rounds or '?'}  {times}"),
        *curves(progress, console),
    ]
    if progress.reason:
        lines.append(Text(one_line(progress.reason), style=STYLES.get(progress.state, "")))
    # The heading, which may be wrapped, and two more lines for a long path and a long reason.
    room = len(progress.clients) if height is None else max(3, height - len(lines) - 6)
    table = client_table(progress.clients[:room])
    hidden = len(progress.clients) - room
    more = [Text(f"and {hidden} more clients", style="dim")] if hidden > 0 else []
    return Group(*lines, *([table] if progress.clients else []), *more)


def curves(progress: Progress, console: Console) -> list[Text]:
    """Accuracy and lambda over the rounds, each with its first and last value."""
    marks = BLOCKS if console.encoding.lower().startswith("utf") else LETTERS
    width = max(LEAST_ROOM, min(MOST_MARKS, console.width - ROOM_FOR_WORDS))
    accuracies = [100 * accuracy for _, accuracy, _ in progress.history]
    trusts = [trust for _, _, trust in progress.history if trust is not None]
    lines = []
    for name, values, form in (("accuracy", accuracies, ".2f"), ("lambda", trusts, ".3f")):
        if values:
            ends = f"{values[0]:{form}} -> {values[-1]:{form}}{' %' if name == 'accuracy' else ''}"
            lines.append(Text(f"{name:<9} {sparkline(values, width, marks)}  {ends}", no_wrap=True))
    return lines


def client_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line a client; what no client has is left out."""
    names = [name for name in CLIENT_COLUMNS if any(is_number(row.get(name)) for row in rows)]
    table = numbers_table("client", *(CLIENT_COLUMNS[name] for name in names))
    for row in rows:
        table.add_row(str(row["client"]), *(cell(name, row.get(name)) for name in names))
    return table


def cell(name: str, value: object) -> str:
    """A number of a client as it is shown."""
    if not is_number(value):
        return "-"
    return f"{100 * value:.2f}" if name == "accuracy" else f"{value:.3f}"


def numbers_table(first: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "state" else "right")
    return table


def state_text(state: State) -> Text:
    return Text(state.value, style=STYLES.get(state, ""))


def sparkline(values: Sequence[float], width: int, marks: str) -> str:
    """A mark a value, or a mean of several where there are too many; the lowest and the highest span the scale."""
    columns = min(width, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    steps = [int((mean - low) / span * (len(marks) - 1) + 0.5) if span > 0 else 0 for mean in means]
    return "".join(marks[step] for step in steps)


def shorten(name: str, width: int) -> str:
    """A name of at most so many letters; its end tells runs apart."""
    return name if len(name) <= width else f"...{name[3 - width :]}"


def clock(seconds: float | None) -> str:
    """A time as h:mm:ss or m:ss."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def to_json(progress: Progress, details: bool) -> dict[str, Any]:
    """A run as JSON; with `details` its history, and its clients as they stand in the log."""
    content: dict[str, Any] = {
        "path": str(progress.path),
        "state": progress.state.value,
        "reason": progress.reason or None,
        "round": progress.round,
        "rounds": progress.rounds,
        "accuracy": progress.accuracy,
        "lambda": progress.trust,
        "elapsed_seconds": progress.seconds,
        "eta_seconds": progress.remaining_seconds,
    }
    if details:
        names = ("round", "accuracy", "lambda")
        content["history"] = [dict(zip(names, point, strict=True)) for point in progress.history]
        content["clients"] = list(progress.clients)
    return content
