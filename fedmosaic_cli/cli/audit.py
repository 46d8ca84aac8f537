"""`fedmosaic evaluate --privacy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmosaic_cli.cli.console import remark, say_json
from fedmosaic_cli.cli.views.audit_view import show
from fedmosaic_cli.data.data_dirs import Place
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.local_baseline import Recorded
from fedmosaic_cli.storage.files import write_together

REFERENCES = 16
# Two models with an example and two without it: from fewer, nobody could tell how far models differ.
FEWEST_REFERENCES, MOST_REFERENCES = 4, 10_000


def check_request(
    privacy: bool, last_round: bool, lira: bool, references: int | None, split: object, local: Path | None
) -> None:
    """Refuse options that do not go together."""
    of_audits = {"--last-round": last_round, "--lira": lira, "--references": references is not None}
    of_examinations = {"--split": split is not None, "--local": local is not None}
    for option, given in (of_examinations if privacy else of_audits).items():
        if given and privacy:
            raise RequestError(f"an audit has no {option} (--privacy): leave out one of the two")
        if given:
            raise RequestError(f"this belongs to an audit ({option}): add --privacy, or leave it out")
    if references is not None and not lira:
        raise RequestError("this belongs to an attack by reference models (--references): add --lira, or leave it out")
    if references is not None and not FEWEST_REFERENCES <= references <= MOST_REFERENCES:
        raise RequestError(
            f"{references} reference models (--references): ask for {FEWEST_REFERENCES} to {MOST_REFERENCES}, such as "
            f"{REFERENCES}"
        )


def audit_all(
    asked: list[Recorded], last_round: bool, references: int, device: str, place: Place
) -> dict[Path, dict[str, Any]]:
    """The audits of all runs, in the order in which they were asked for."""
    from fedmosaic_cli.audit.membership_audit import Terms, audit

    audits: dict[Path, dict[str, Any]] = {run.files.path: {} for run in asked}
    for audited in audit([run.files for run in asked], Terms(last_round, references), device, place):
        audits[audited.files.path] = audited.result
    return audits


def keep_audits(
    asked: list[Recorded], audits: dict[Path, dict[str, Any]], as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Write and show what was found out."""
    for run in asked:
        run.check_unchanged()
    try:
        write_together(dict(run.files.privacy(audits[run.files.path]) for run in asked))
    finally:  # what was found out is told, even if it cannot be kept
        if as_json:
            say_json([{"run": str(path), **result} for path, result in audits.items()])
        elif not quiet:
            show(audits, verbose)
    for path, result in audits.items() if not quiet else ():
        for note in result["notes"]:
            remark(f"note: {note} ({path})")
