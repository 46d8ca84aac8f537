"""Tables of evaluations and membership audits on the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedmosaic_cli.cli.console import print_text, stdout_console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MISSING_CELL = "-"
MAX_CONFUSION_CLASSES = 20
# Narrower terminals get shortened paths and headings of several lines.
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
NARROW_HEADINGS = {
    "weighted %": "weigh- ted %",
    "balanced %": "bal- anced %",
    "helped unharmed hurt": "helped/ un- harmed/ hurt",
}
COLLABORATION_OUTCOMES = ("helped", "unharmed", "hurt")
AUDIT_COLUMNS = ("AUC", "95 % interval", "TPR % at 1 %", "at 0.1 %", "member acc. %", "other acc. %")
AUDIT_FRACTIONS = ("tpr_at_fpr_0.01", "tpr_at_fpr_0.001", "member_accuracy", "non_member_accuracy")
AUDIT_LEGEND = (
    "AUC: probability that an attack ranks a training example above an unused one, 0.5 is guessing; 95 % bootstrap "
    "interval",
    "TPR: detected training examples at a false-positive rate of 1 % or 0.1 %; accuracy on both kinds of examples",
    "messages: the attacker reads the messages of the last round, or of all rounds; model: the attacker has the model",
    "means over clients; training and unused examples have the same classes; another attack may find more",
    "written to privacy.json next to each summary.json",
)


def show_evaluations(results: Mapping[Path, dict[str, Any]], split: str, verbose: bool) -> None:
    """Print one line per run; if verbose, also one line per client and the confusion matrix of each run."""
    console = stdout_console()
    is_narrow = console.width < MIN_WIDE_COLUMNS
    run_heading, labels = run_labels(list(results), is_narrow)
    headings = [*EVALUATION_COLUMNS, " ".join(COLLABORATION_OUTCOMES)]
    if is_narrow:
        headings = [NARROW_HEADINGS.get(heading, heading).replace(" ", "\n") for heading in headings]
        labels = [label.replace("/", "/\n") for label in labels]
    table = numeric_table(run_heading, *headings)
    for label, result in zip(labels, results.values(), strict=True):
        numbers = [percent_text(result[metric][average]) for metric, average in EVALUATION_COLUMNS.values()]
        comparison = result["collaboration"]
        outcome = "/".join(str(comparison[name]) for name in COLLABORATION_OUTCOMES) if comparison else MISSING_CELL
        table.add_row(label, *numbers, outcome)
    console.print(table)
    for path, result in results.items() if verbose else ():
        show_evaluation_details(path, result)
    print_text(f"each client on its {split} data")
    print_text(
        "accuracy: mean over clients, weighted by examples, std over clients, worst client, worst tenth of clients"
    )
    print_text("macro F1, balanced accuracy, calibration error (ECE): means over clients")
    if any(result["collaboration"] for result in results.values()):
        print_text(
            "helped, unharmed, hurt: clients with more, as many, fewer correct predictions than their Local model"
        )
    print_text("written to evaluation files next to each summary.json")
    for path, result in results.items():
        for caveat in (result["collaboration"] or {}).get("caveats", ()):
            print_text(f"note: {caveat} ({path})")


def show_audits(audits: Mapping[Path, dict[str, Any]], verbose: bool) -> None:
    """Print one line per run and view; if verbose, also one per client and view."""
    console = stdout_console()
    run_heading, labels = run_labels(list(audits), console.width < MIN_WIDE_COLUMNS)
    table = numeric_table(run_heading, "view", "clients", "examples", *AUDIT_COLUMNS, "finding")
    for column in (1, -1):
        table.columns[column].justify = "left"
    for label, audit in zip(labels, audits.values(), strict=True):
        for name, metrics in audit["views"].items():
            table.add_row(label, name, str(metrics["clients"]), *audit_cells(metrics))
        for client in audit["per_client"] if verbose else ():
            for name, metrics in client["views"].items():
                table.add_row(f"  client {client['client']}", name, MISSING_CELL, *audit_cells(metrics))
    console.print(table)
    for line in AUDIT_LEGEND:
        print_text(line)


def audit_cells(metrics: dict[str, Any]) -> list[str]:
    low, high = metrics["auc_interval"]
    fractions = [percent_text(metrics[name]) for name in AUDIT_FRACTIONS]
    return [str(metrics["members"]), f"{metrics['auc']:.3f}", f"{low:.3f}-{high:.3f}", *fractions, metrics["finding"]]


def run_labels(paths: Sequence[Path], is_narrow: bool) -> tuple[str, list[str]]:
    """Return the heading of the first column and the label of each run; on narrow terminals without common parent."""
    parent, labels = split_common_parent(paths) if is_narrow else ("", [str(path) for path in paths])
    return (f"run in {parent}".replace("/", "/\n") if parent else "run"), labels


def split_common_parent(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """Return the common parent directory of several runs, and the rest of each path."""
    parent = os.path.commonpath([path.parent for path in paths]) if len({p.is_absolute() for p in paths}) == 1 else ""
    if len(paths) == 1 or not parent:
        return "", [str(path) for path in paths]
    return parent, [str(path.relative_to(parent)) for path in paths]


def show_evaluation_details(path: Path, result: dict[str, Any]) -> None:
    """Print the clients of a run, the comparison with Local and the confusion matrix."""
    print_text(f"\n{path}")
    stdout_console().print(client_results_table(result["per_client"]))
    comparison = result["collaboration"]
    if comparison:
        counts = ", ".join(f"{comparison[name]} {name}" for name in COLLABORATION_OUTCOMES)
        mean, gain, loss = (percent_text(comparison[name]) for name in ("mean_gain", "largest_gain", "largest_loss"))
        gains = f"mean gain {mean}, largest gain {gain}, largest loss {loss} points of accuracy"
        print_text(f"compared with Local: {counts}; {gains}")
    else:
        print_text(f"compared with Local: {result['no_collaboration']}")
    names, matrices = result["class_names"], [client["confusion"] for client in result["per_client"]]
    if None in matrices:
        print_text(f"confusion matrices of {len(names)} classes for {len(matrices)} clients are too large to store")
    elif len(names) > MAX_CONFUSION_CLASSES:
        print_text(f"the confusion matrices of {len(names)} classes are only in the file")
    else:
        print_text("confusion matrix of all clients, true classes (rows) and predictions (columns):")
        stdout_console().print(confusion_table(names, matrices))


def client_results_table(client_results: Sequence[dict[str, Any]]) -> Table:
    table = numeric_table(
        "client", "domain", "examples", "accuracy %", "loss", "macro F1 %", "balanced %", "ECE %", "gain"
    )
    for client in client_results:
        metrics = (percent_text(client[name]) for name in ("macro_f1", "balanced_accuracy", "calibration_error"))
        gain = client["gain"]
        gain_text = MISSING_CELL if gain is None else f"{100 * gain:+.2f}" if gain else "0.00"
        ids = (str(client["client"]), client["domain"] or MISSING_CELL, str(client["examples"]))
        table.add_row(*ids, percent_text(client["accuracy"]), f"{client['loss']:.4f}", *metrics, gain_text)
    return table


def confusion_table(class_names: Sequence[str], matrices: Sequence[list[list[int]]]) -> Table:
    """Return the sum of all matrices."""
    table = numeric_table("", *class_names)
    for row, name in enumerate(class_names):
        sums = [sum(matrix[row][column] for matrix in matrices) for column in range(len(class_names))]
        table.add_row(name, *(str(number) if number else "." for number in sums))
    return table


def numeric_table(first: str, *others: str) -> Table:
    """Return a plain table with numbers in all columns except the first."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def percent_text(fraction: float) -> str:
    return f"{100 * fraction:.2f}"
