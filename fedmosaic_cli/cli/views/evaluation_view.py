"""How evaluations look on a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedmosaic_cli.cli.console import out, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MISSING = "-"
MOST_CLASSES = 20
# Less than this is no room for whole paths and headings of one line.
WIDE = 140
COLUMNS = {
    "mean %": ("accuracy", "client_mean"),
    "weighted %": ("accuracy", "sample_weighted"),
    "std": ("accuracy", "client_std"),
    "worst %": ("accuracy", "worst"),
    "decile %": ("accuracy", "worst_decile"),
    "macro F1 %": ("macro_f1", "client_mean"),
    "balanced %": ("balanced_accuracy", "client_mean"),
    "ECE %": ("calibration_error", "client_mean"),
}
OUTCOMES = ("helped", "unharmed", "hurt")


def show(results: Mapping[Path, dict[str, Any]], split: str, verbose: bool) -> None:
    """A line a run; if asked for, a line a client and the confusion matrix of each run."""
    paths, console = list(results), out()
    narrow = console.width < WIDE
    above, labels = short_names(paths) if narrow else ("", [str(path) for path in paths])
    headings = [f"run in {above}" if above else "run", *COLUMNS, " ".join(OUTCOMES)]
    view = table_of(*(heading.replace(" ", "\n") if narrow else heading for heading in headings))
    for label, result in zip(labels, results.values(), strict=True):
        numbers = [percent(result[metric][average]) for metric, average in COLUMNS.values()]
        found = result["collaboration"]
        outcome = "/".join(str(found[name]) for name in OUTCOMES) if found else MISSING
        view.add_row(label, *numbers, outcome)
    console.print(view)
    for path, result in results.items() if verbose else ():
        show_in_full(path, result)
    for line in legend(split, any(result["collaboration"] for result in results.values())):
        say(line)
    for path, result in results.items():
        for caveat in (result["collaboration"] or {}).get("caveats", ()):
            say(f"mind that {caveat} ({path})")


def short_names(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """The directory that all of several runs lie in, and the rest of each path."""
    above = os.path.commonpath([path.parent for path in paths]) if len({p.is_absolute() for p in paths}) == 1 else ""
    if len(paths) == 1 or not above:
        return "", [str(path) for path in paths]
    return above, [str(path.relative_to(above)) for path in paths]


def legend(split: str, compared: bool) -> list[str]:
    """What the columns mean."""
    lines = [
        f"each client on its own {split} part; accuracy: mean over clients and over examples, std over clients, worst",
        "client, worst tenth of the clients; macro F1, balanced accuracy, calibration error (ECE): means over clients",
    ]
    if compared:
        lines.append("helped, unharmed, hurt: clients with more, as many, fewer right answers than their Local model")
    return [*lines, "kept beside each summary.json"]


def show_in_full(path: Path, result: dict[str, Any]) -> None:
    """The clients of a run, how they fare beside Local, and what their models take for what."""
    say(f"\n{path}")
    out().print(clients_of(result["per_client"]))
    found = result["collaboration"]
    if found:
        counts = ", ".join(f"{found[name]} {name}" for name in OUTCOMES)
        gains = f"mean gain {percent(found['mean_gain'])}, largest gain {percent(found['largest_gain'])}"
        say(f"beside Local: {counts}; {gains}, largest loss {percent(found['largest_loss'])} points of accuracy")
    else:
        say(f"beside Local: {result['no_collaboration']}")
    names, matrices = result["class_names"], [mark["confusion"] for mark in result["per_client"]]
    if None in matrices:
        say(f"confusion matrices of {len(names)} classes for {len(matrices)} clients are too large to be kept")
    elif len(names) > MOST_CLASSES:
        say(f"the confusion matrices of {len(names)} classes are in the file")
    else:
        say("all clients together, what is there (rows) and what it is taken for (columns):")
        out().print(confusion_of(names, matrices))


def clients_of(marks: Sequence[dict[str, Any]]) -> Table:
    view = table_of("client", "domain", "examples", "accuracy %", "loss", "macro F1 %", "balanced %", "ECE %", "gain")
    for mark in marks:
        rest = (percent(mark[name]) for name in ("macro_f1", "balanced_accuracy", "calibration_error"))
        gain = MISSING if mark["gain"] is None else signed(mark["gain"])
        first = (str(mark["client"]), mark["domain"] or MISSING, str(mark["examples"]))
        view.add_row(*first, percent(mark["accuracy"]), f"{mark['loss']:.4f}", *rest, gain)
    return view


def confusion_of(names: Sequence[str], matrices: Sequence[list[list[int]]]) -> Table:
    """The sum of all matrices."""
    view = table_of("", *names)
    for row, name in enumerate(names):
        sums = [sum(matrix[row][column] for matrix in matrices) for column in range(len(names))]
        view.add_row(name, *(str(number) if number else "." for number in sums))
    return view


def table_of(first: str, *others: str) -> Table:
    """A plain table whose columns but the first hold numbers."""
    view = Table(box=None, pad_edge=False, collapse_padding=True)
    view.add_column(first, overflow="fold")
    for heading in others:
        view.add_column(heading, justify="right")
    return view


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def signed(share: float) -> str:
    return f"{100 * share:+.2f}" if share else "0.00"
