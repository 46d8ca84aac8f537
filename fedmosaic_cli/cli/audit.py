"""`fedmosaic evaluate --privacy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedmosaic_cli.cli.console import print_json, print_stderr
from fedmosaic_cli.cli.views.audit_view import show_audits
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.local_baseline import RecordedRun
from fedmosaic_cli.storage.files import write_files_atomic

DEFAULT_SHADOW_MODELS = 16
# Two models with an example and two without it: from fewer, nobody could tell how far models differ.
MIN_SHADOW_MODELS, MAX_SHADOW_MODELS = 4, 10_000


def validate_audit_options(
    privacy: bool, last_round: bool, lira: bool, num_shadow_models: int | None, split: object, local_run: Path | None
) -> None:
    """Refuse options that do not go together."""
    of_audits = {"--last-round": last_round, "--lira": lira, "--references": num_shadow_models is not None}
    of_examinations = {"--split": split is not None, "--local": local_run is not None}
    for option, given in (of_examinations if privacy else of_audits).items():
        if given and privacy:
            raise RequestError(f"an audit has no {option} (--privacy): leave out one of the two")
        if given:
            raise RequestError(f"this belongs to an audit ({option}): add --privacy, or leave it out")
    if num_shadow_models is not None and not lira:
        raise RequestError("this belongs to an attack by reference models (--references): add --lira, or leave it out")
    if num_shadow_models is not None and not MIN_SHADOW_MODELS <= num_shadow_models <= MAX_SHADOW_MODELS:
        raise RequestError(
            f"{num_shadow_models} reference models (--references): ask for {MIN_SHADOW_MODELS} to {MAX_SHADOW_MODELS}, such as "
            f"{DEFAULT_SHADOW_MODELS}"
        )


def audit_runs(
    runs: list[RecordedRun], last_round: bool, num_shadow_models: int, device: str, data_dirs: DataDirs
) -> dict[Path, dict[str, Any]]:
    """The audits of all runs, in the order in which they were asked for."""
    from fedmosaic_cli.audit.membership_audit import AuditSettings, run_membership_audits

    audits: dict[Path, dict[str, Any]] = {run.files.path: {} for run in runs}
    for audited in run_membership_audits(
        [run.files for run in runs], AuditSettings(last_round, num_shadow_models), device, data_dirs
    ):
        audits[audited.run_files.path] = audited.content
    return audits


def save_and_show_audits(
    runs: list[RecordedRun], audits: dict[Path, dict[str, Any]], as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Write and show what was found out."""
    for run in runs:
        run.check_unchanged()
    try:
        write_files_atomic(dict(run.files.privacy_file(audits[run.files.path]) for run in runs))
    finally:  # what was found out is told, even if it cannot be kept
        if as_json:
            print_json([{"run": str(path), **result} for path, result in audits.items()])
        elif not quiet:
            show_audits(audits, verbose)
    for path, result in audits.items() if not quiet else ():
        for note in result["notes"]:
            print_stderr(f"note: {note} ({path})")
