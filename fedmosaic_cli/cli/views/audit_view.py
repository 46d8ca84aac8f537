"""How audits look on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.console import print_stdout, stdout_console
from fedmosaic_cli.cli.views.evaluation_view import (
    MIN_WIDE_COLUMNS,
    MISSING_CELL,
    numeric_table,
    percent_text,
    split_common_parent,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AUDIT_COLUMNS = ("AUC", "95 % interval", "TPR % at 1 %", "at 0.1 %", "member acc. %", "other acc. %")
AUDIT_LEGEND = (
    "AUC: the chance that an attack ranks a training example above one that nobody trained on, 0.5 is guessing; with",
    "its 95 % bootstrap interval; TPR: training examples found while 1 % or 0.1 % of the others are taken for such;",
    "accuracy on both. messages: by what a client would send about them in its last round, or in all; model: by who",
    "has its model. Means over clients; as many of both in each class. Another attack may find more.",
    "kept in privacy.json beside each summary.json",
)


def show_audits(audits: Mapping[Path, dict[str, Any]], verbose: bool) -> None:
    """A line a run and view; if asked for, a line a client as well."""
    console, paths = stdout_console(), list(audits)
    above, labels = (
        split_common_parent(paths) if console.width < MIN_WIDE_COLUMNS else ("", [str(path) for path in paths])
    )
    view = numeric_table(
        f"run in {above}" if above else "run", "view", "clients", "examples", *AUDIT_COLUMNS, "finding"
    )
    for column in (1, -1):
        view.columns[column].justify = "left"
    for label, result in zip(labels, audits.values(), strict=True):
        for name, entry in result["views"].items():
            view.add_row(label, name, str(entry["clients"]), *audit_cells(entry))
        for client in result["per_client"] if verbose else ():
            for name, entry in client["views"].items():
                view.add_row(f"  client {client['client']}", name, MISSING_CELL, *audit_cells(entry))
    console.print(view)
    for line in AUDIT_LEGEND:
        print_stdout(line)


def audit_cells(entry: dict[str, Any]) -> list[str]:
    """The cells of a view: examples of either side, what they were told apart by, and what that means."""
    low, high = entry["auc_interval"]
    shares = ("tpr_at_fpr_0.01", "tpr_at_fpr_0.001", "member_accuracy", "non_member_accuracy")
    return [
        str(entry["members"]),
        f"{entry['auc']:.3f}",
        f"{low:.3f}-{high:.3f}",
        *(percent_text(entry[name]) for name in shares),
        entry["finding"],
    ]
