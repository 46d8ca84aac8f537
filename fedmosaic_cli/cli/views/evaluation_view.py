"""How evaluations look on a terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedmosaic_cli.cli.console import print_stdout, stdout_console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MISSING_CELL = "-"
MAX_CONFUSION_CLASSES = 20
# Less than this is no room for whole paths and headings of one line.
MIN_WIDE_COLUMNS = 140
EVALUATION_COLUMNS = {
    "mean %": ("accuracy", "client_mean"),
    "weighted %": ("accuracy", "sample_weighted"),
    "std": ("accuracy", "client_std"),
    "worst %": ("accuracy", "worst"),
    "decile %": ("accuracy", "worst_decile"),
    "macro F1 %": ("macro_f1", "client_mean"),
    "balanced %": ("balanced_accuracy", "client_mean"),
    "ECE %": ("calibration_error", "client_mean"),
}
COLLABORATION_OUTCOMES = ("helped", "unharmed", "hurt")


def show_evaluations(results: Mapping[Path, dict[str, Any]], split: str, verbose: bool) -> None:
    """A line a run; if asked for, a line a client and the confusion matrix of each run."""
    paths, console = list(results), stdout_console()
    narrow = console.width < MIN_WIDE_COLUMNS
    above, labels = split_common_parent(paths) if narrow else ("", [str(path) for path in paths])
    headings = [f"run in {above}" if above else "run", *EVALUATION_COLUMNS, " ".join(COLLABORATION_OUTCOMES)]
    view = numeric_table(*(heading.replace(" ", "\n") if narrow else heading for heading in headings))
    for label, result in zip(labels, results.values(), strict=True):
        numbers = [percent_text(result[metric][average]) for metric, average in EVALUATION_COLUMNS.values()]
        found = result["collaboration"]
        outcome = "/".join(str(found[name]) for name in COLLABORATION_OUTCOMES) if found else MISSING_CELL
        view.add_row(label, *numbers, outcome)
    console.print(view)
    for path, result in results.items() if verbose else ():
        show_evaluation_details(path, result)
    for line in evaluation_legend(split, any(result["collaboration"] for result in results.values())):
        print_stdout(line)
    for path, result in results.items():
        for caveat in (result["collaboration"] or {}).get("caveats", ()):
            print_stdout(f"mind that {caveat} ({path})")


def split_common_parent(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """The directory that all of several runs lie in, and the rest of each path."""
    above = os.path.commonpath([path.parent for path in paths]) if len({p.is_absolute() for p in paths}) == 1 else ""
    if len(paths) == 1 or not above:
        return "", [str(path) for path in paths]
    return above, [str(path.relative_to(above)) for path in paths]


def evaluation_legend(split: str, has_comparison: bool) -> list[str]:
    """What the columns mean."""
    lines = [
        f"each client on its own {split} part; accuracy: mean over clients and over examples, std over clients, worst",
        "client, worst tenth of the clients; macro F1, balanced accuracy, calibration error (ECE): means over clients",
    ]
    if has_comparison:
        lines.append("helped, unharmed, hurt: clients with more, as many, fewer right answers than their Local model")
    return [*lines, "kept beside each summary.json"]


def show_evaluation_details(path: Path, result: dict[str, Any]) -> None:
    """The clients of a run, how they fare beside Local, and what their models take for what."""
    print_stdout(f"\n{path}")
    stdout_console().print(client_results_table(result["per_client"]))
    found = result["collaboration"]
    if found:
        counts = ", ".join(f"{found[name]} {name}" for name in COLLABORATION_OUTCOMES)
        gains = f"mean gain {percent_text(found['mean_gain'])}, largest gain {percent_text(found['largest_gain'])}"
        print_stdout(
            f"beside Local: {counts}; {gains}, largest loss {percent_text(found['largest_loss'])} points of accuracy"
        )
    else:
        print_stdout(f"beside Local: {result['no_collaboration']}")
    names, matrices = result["class_names"], [mark["confusion"] for mark in result["per_client"]]
    if None in matrices:
        print_stdout(f"confusion matrices of {len(names)} classes for {len(matrices)} clients are too large to be kept")
    elif len(names) > MAX_CONFUSION_CLASSES:
        print_stdout(f"the confusion matrices of {len(names)} classes are in the file")
    else:
        print_stdout("all clients together, what is there (rows) and what it is taken for (columns):")
        stdout_console().print(confusion_table(names, matrices))


def client_results_table(client_results: Sequence[dict[str, Any]]) -> Table:
    view = numeric_table(
        "client", "domain", "examples", "accuracy %", "loss", "macro F1 %", "balanced %", "ECE %", "gain"
    )
    for mark in client_results:
        rest = (percent_text(mark[name]) for name in ("macro_f1", "balanced_accuracy", "calibration_error"))
        gain = MISSING_CELL if mark["gain"] is None else signed_percent_text(mark["gain"])
        first = (str(mark["client"]), mark["domain"] or MISSING_CELL, str(mark["examples"]))
        view.add_row(*first, percent_text(mark["accuracy"]), f"{mark['loss']:.4f}", *rest, gain)
    return view


def confusion_table(class_names: Sequence[str], matrices: Sequence[list[list[int]]]) -> Table:
    """The sum of all matrices."""
    view = numeric_table("", *class_names)
    for row, name in enumerate(class_names):
        sums = [sum(matrix[row][column] for matrix in matrices) for column in range(len(class_names))]
        view.add_row(name, *(str(number) if number else "." for number in sums))
    return view


def numeric_table(first: str, *others: str) -> Table:
    """A plain table whose columns but the first hold numbers."""
    view = Table(box=None, pad_edge=False, collapse_padding=True)
    view.add_column(first, overflow="fold")
    for heading in others:
        view.add_column(heading, justify="right")
    return view


def percent_text(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def signed_percent_text(fraction: float) -> str:
    return f"{100 * fraction:+.2f}" if fraction else "0.00"
