"""`fedmosaic evaluate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmosaic_cli.cli.common_options import (
    DataDirOption,
    DebugOption,
    DeviceChoice,
    DeviceOption,
    JsonOption,
    PluginOption,
    QuietOption,
    VerboseOption,
    deprecated_aliases,
    with_option_groups,
)
from fedmosaic_cli.cli.console import print_json, print_stderr
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.cli.help import choices
from fedmosaic_cli.cli.views.evaluation_view import show_audits, show_evaluations
from fedmosaic_cli.cli.views.local_comparison import warn_about_trust
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.plugins import register_named
from fedmosaic_cli.runner.baseline_lookup import (
    LocalBaseline,
    MissingLocalBaseline,
    RecordedRun,
    compare_accuracies,
    comparison_to_dict,
    find_local_baseline,
    load_recorded_run,
)
from fedmosaic_cli.storage.files import write_files_atomic

DEFAULT_SHADOW_MODELS = 16
# Two models with an example and two without it: fewer do not show how much models vary.
MIN_SHADOW_MODELS, MAX_SHADOW_MODELS = 4, 10_000
Results = dict[Path, dict[str, Any]]


class SplitName(StrEnum):
    test = "test"
    train = "train"
    val = "val"


@with_option_groups(
    {
        "Evaluation": ("split", "compare_with"),
        "Membership-inference audit": ("privacy", "last_round", "lira", "shadow_models"),
        "Methods, models and data sets of your own": ("method", "model", "dataset", "plugin"),
        "Data and execution": ("data_dir", "device"),
    }
)
@deprecated_aliases({"--references": "--shadow-models", "--local": "--compare-with"})
def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of finished runs.")],
    split: Annotated[
        SplitName | None,
        typer.Option(metavar=choices(SplitName), help="Part of each client's data.", show_default="test"),
    ] = None,
    compare_with: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="The Local run to compare with.", show_default="one of the RUNs, or next to each"
        ),
    ] = None,
    privacy: Annotated[
        bool, typer.Option("--privacy", help="Run a membership-inference audit instead of the evaluation.")
    ] = False,
    last_round: Annotated[
        bool,
        typer.Option("--last-round", help="With --privacy: attack only the last messages, without replaying the run."),
    ] = False,
    lira: Annotated[
        bool, typer.Option("--lira", help="With --privacy: also attack with shadow models, which are trained first.")
    ] = False,
    shadow_models: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"With --lira: shadow models per client, at least {MIN_SHADOW_MODELS}.",
            show_default=str(DEFAULT_SHADOW_MODELS),
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="A method of your own that the runs use.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="A model of your own that the runs use.", show_default=False),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="A data set of your own that the runs use.", show_default=False),
    ] = None,
    plugin: PluginOption = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = DeviceChoice.auto,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Evaluate the saved personal models of finished runs, without training.

    Computes accuracy, loss, macro-F1, balanced accuracy, calibration error and confusion matrix of every client, and
    counts the clients that collaboration helped or hurt compared with their Local models on the same shards.
    Writes evaluation.json into each run directory (evaluation-train.json for --split train).

    --privacy runs a membership-inference audit instead and writes privacy.json: how well an attacker distinguishes a
    client's training examples from unused examples of the same classes, by the client's messages (of the last round,
    and of all rounds, for which the run is replayed) and by its model.

    \b
    [bold]Examples[/bold]
    fedmosaic evaluate runs/quickstart/*/seed-0
    fedmosaic evaluate runs/quickstart/fedmosaic-entropy/seed-0 --verbose
    fedmosaic evaluate mine --compare-with runs/quickstart/local/seed-0 --json
    fedmosaic evaluate runs/quickstart/*/seed-0 --split train
    fedmosaic evaluate runs/practical-fashion-mnist/*/seed-0 --privacy --lira --shadow-models 16
    """
    register_named(method, model, dataset, plugin)
    validate_audit_options(privacy, last_round, lira, shadow_models, split, compare_with)
    recorded = [load_recorded_run(run) for run in deduplicate_runs(runs, quiet)]
    local_run, split_name = load_local_run(compare_with), (split or SplitName.test).value
    with data_dirs_with_progress(data_dir, quiet or as_json) as data_dirs:
        # All runs before the first write: if one of them is invalid, nothing is written.
        if privacy:
            num_models = (shadow_models or DEFAULT_SHADOW_MODELS) if lira else 0
            results = audit_runs(recorded, last_round, num_models, device.value, data_dirs)
        else:
            baselines = [find_local_baseline(run, recorded, local_run, split_name, data_dirs) for run in recorded]
            results = evaluate_runs(recorded, split_name, device.value, data_dirs)
    for run in recorded:
        run.check_unchanged()
    if privacy:
        files = [run.files.privacy_file(results[run.files.path]) for run in recorded]
        notes = [f"{note} ({path})" for path, result in results.items() for note in result["notes"]]
    else:
        pairs = zip(recorded, baselines, strict=True)
        missing = [add_local_comparison(run, baseline, results) for run, baseline in pairs]
        files = [run.files.evaluation_file(split_name, results[run.files.path]) for run in recorded]
        notes = list(dict.fromkeys(str(baseline) for baseline in missing if baseline and baseline.remedy))
    try:
        write_files_atomic(dict(files))
    finally:  # show the results even if they cannot be written
        if as_json:
            print_json([{"run": str(path), **result} for path, result in results.items()])
        elif not quiet:
            show_audits(results, verbose) if privacy else show_evaluations(results, split_name, verbose)
    if not quiet:
        warn_about_trust([(str(run.files.path), run) for run in recorded if not privacy], data_dirs)
        for note in notes:
            print_stderr(f"note: {note}")


def validate_audit_options(
    privacy: bool, last_round: bool, lira: bool, num_shadow_models: int | None, split: object, local_run: Path | None
) -> None:
    """Raise RequestError for options that contradict each other."""
    if privacy:
        for option, is_given in {"--split": split is not None, "--compare-with": local_run is not None}.items():
            if is_given:
                raise RequestError(f"{option} does not apply to an audit (--privacy): leave out one of the two")
    for option, is_given in {
        "--last-round": last_round,
        "--lira": lira,
        "--shadow-models": num_shadow_models is not None,
    }.items():
        if is_given and not privacy:
            raise RequestError(f"{option} applies to an audit only (evaluate): add --privacy, or leave it out")
    if num_shadow_models is not None and not lira:
        raise RequestError("--shadow-models applies to --lira only (evaluate): add --lira, or leave it out")
    if num_shadow_models is not None and not MIN_SHADOW_MODELS <= num_shadow_models <= MAX_SHADOW_MODELS:
        raise RequestError(
            f"{num_shadow_models} shadow models (--shadow-models): choose {MIN_SHADOW_MODELS} to {MAX_SHADOW_MODELS}, "
            f"such as {DEFAULT_SHADOW_MODELS}"
        )


def deduplicate_runs(runs: list[Path], quiet: bool) -> list[Path]:
    """Remove repeated runs, which overlapping shell patterns produce."""
    unique: dict[str, Path] = {}
    for run in runs:  # unlike Path.resolve, os.path.realpath accepts symlink loops
        if unique.setdefault(os.path.realpath(run), run) is not run and not quiet:
            print_stderr(f"note: given twice, evaluated once ({run})")
    return list(unique.values())


def load_local_run(path: Path | None) -> RecordedRun | None:
    """Load the run of --compare-with, if given."""
    if path is None:
        return None
    run = load_recorded_run(path)
    if run.summary["method"] != "local":
        raise RequestError(
            f"a run of '{run.summary['method']}' is not a Local run (--compare-with {path}): name one such as "
            "runs/quickstart/local/seed-0"
        )
    return run


def audit_runs(
    runs: list[RecordedRun], last_round: bool, num_shadow_models: int, device: str, data_dirs: DataDirs
) -> Results:
    """Audit all runs; the results are in the order of the runs."""
    from fedmosaic_cli.audit.membership_audit import AuditSettings, run_membership_audits

    settings, results = AuditSettings(last_round, num_shadow_models), {run.files.path: dict[str, Any]() for run in runs}
    for audit in run_membership_audits([run.files for run in runs], settings, device, data_dirs):
        results[audit.run_files.path] = audit.content
    return results


def evaluate_runs(runs: list[RecordedRun], split: Any, device: str, data_dirs: DataDirs) -> Results:
    """Evaluate all runs; the results are in the order of the runs."""
    total, done = sum(run.summary["shards"]["clients"] for run in runs), 0
    data_dirs.on_progress("evaluating clients", done, total)

    from fedmosaic_cli.runner.evaluate import ClientEvaluated, evaluate_saved_models

    results: Results = {run.files.path: {} for run in runs}
    for event in evaluate_saved_models([run.files for run in runs], split, device, data_dirs):
        if isinstance(event, ClientEvaluated):
            done += 1
            data_dirs.on_progress("evaluating clients", done, total)
        else:
            results[event.files.path] = event.result
    return results


def add_local_comparison(
    run: RecordedRun, local: LocalBaseline | MissingLocalBaseline, results: Results
) -> MissingLocalBaseline | None:
    """Add the comparison with the Local run to the result of a run, or null and the reason.

    Returns:
        Why there is no comparison, or None.
    """
    result = results[run.files.path]
    clients = result["per_client"]
    result |= {"collaboration": None, "no_collaboration": None}
    missing: MissingLocalBaseline | None = None
    gains: Sequence[float | None] = [None] * len(clients)
    if isinstance(local, MissingLocalBaseline):
        missing = local
    else:
        local_accuracies = local.accuracies
        if local_accuracies is None:
            local_accuracies = [client["accuracy"] for client in results[local.files.path]["per_client"]]
        accuracies, sizes = ([client[key] for client in clients] for key in ("accuracy", "examples"))
        comparison = compare_accuracies(local, accuracies, local_accuracies, sizes)
        if isinstance(comparison, MissingLocalBaseline):
            if local.is_user_given:
                raise RequestError(str(comparison))
            missing = comparison
        else:
            result["collaboration"] = comparison_to_dict(run.files, local, comparison)
            gains = comparison.gains
    if missing is not None:
        result["no_collaboration"] = missing.reason
    for client, gain in zip(clients, gains, strict=True):
        client["gain"] = gain
    return missing
