"""`fedmosaic evaluate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmosaic_cli.cli.audit import (
    DEFAULT_SHADOW_MODELS,
    MIN_SHADOW_MODELS,
    audit_runs,
    save_and_show_audits,
    validate_audit_options,
)
from fedmosaic_cli.cli.common_options import (
    DataDirOption,
    DebugOption,
    DeviceChoice,
    DeviceOption,
    JsonOption,
    QuietOption,
    VerboseOption,
)
from fedmosaic_cli.cli.console import print_json, print_stderr
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.cli.views.evaluation_view import show_evaluations
from fedmosaic_cli.cli.views.local_comparison import warn_about_trust
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.local_baseline import (
    LocalBaseline,
    MissingLocalBaseline,
    RecordedRun,
    compare_accuracies,
    comparison_to_dict,
    find_local_baseline,
    load_recorded_run,
)
from fedmosaic_cli.storage.files import write_files_atomic

EvaluationResults = dict[Path, dict[str, Any]]


class SplitName(StrEnum):
    test = "test"
    train = "train"
    val = "val"


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Directories of finished runs.")],
    split: Annotated[
        SplitName | None, typer.Option(help="Which part of each client's data.", show_default="test")
    ] = None,
    local: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="The Local run to compare with.", show_default="among the RUNs, or beside each"
        ),
    ] = None,
    privacy: Annotated[
        bool,
        typer.Option("--privacy", help="Instead of all this: can training examples be told from others?"),
    ] = False,
    last_round: Annotated[
        bool,
        typer.Option("--last-round", help="With --privacy: messages of the last round alone; no run is played again."),
    ] = False,
    lira: Annotated[
        bool,
        typer.Option("--lira", help="With --privacy: also by reference models of every client, which are trained now."),
    ] = False,
    references: Annotated[
        int | None,
        typer.Option(
            help=f"With --lira: how many models a client, at least {MIN_SHADOW_MODELS}.",
            show_default=str(DEFAULT_SHADOW_MODELS),
        ),
    ] = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = DeviceChoice.auto,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Examine the saved personal models of finished runs, without training.

    Accuracy, loss, macro-F1, balanced accuracy, calibration error and confusion of every client; and how many clients
    collaboration helped, left unharmed or hurt, against their Local models on the same shards.
    Writes evaluation.json into each run directory (evaluation-train.json for --split train).

    With --privacy the models are not examined but audited, and privacy.json is written: how well a client's training
    examples can be told from as many of the same classes that nobody trained on, by what the client sends (in its last
    round, and in all of them, for which the run is played again in memory) and by its model.

    \b
    [bold]Examples[/bold]
    fedmosaic evaluate runs/quickstart/*/seed-0
    fedmosaic evaluate runs/quickstart/fedmosaic-entropy/seed-0 --verbose
    fedmosaic evaluate mine --local runs/quickstart/local/seed-0 --json
    fedmosaic evaluate runs/quickstart/*/seed-0 --split train
    fedmosaic evaluate runs/practical-fashion-mnist/*/seed-0 --privacy --lira --references 16
    """
    validate_audit_options(privacy, last_round, lira, references, split, local)
    asked = [load_recorded_run(run) for run in deduplicate_runs(runs, quiet)]
    if privacy:
        with data_dirs_with_progress(data_dir, quiet or as_json) as place:
            audits = audit_runs(
                asked, last_round, (references or DEFAULT_SHADOW_MODELS) if lira else 0, device.value, place
            )
        save_and_show_audits(asked, audits, as_json, quiet, verbose)
        return
    split = split or SplitName.test
    named = named_local_run(local)
    with data_dirs_with_progress(data_dir, quiet or as_json) as place:
        alone = {run.files.path: find_local_baseline(run, asked, named, split.value, place) for run in asked}
        # All of them first: if one is unfit, nothing is written.
        results = evaluate_runs(asked, split.value, device.value, place)
    for run in asked:
        run.check_unchanged()
    missing = [add_local_comparison(run, alone[run.files.path], results) for run in asked]
    try:
        write_files_atomic(dict(run.files.evaluation_file(split.value, results[run.files.path]) for run in asked))
    finally:  # what was found out is told, even if it cannot be kept
        if as_json:
            print_json([{"run": str(path), **result} for path, result in results.items()])
        elif not quiet:
            show_evaluations(results, split.value, verbose)
    if not quiet:
        for run in asked:
            warn_about_trust(str(run.files.path), run.summary)
        for line in dict.fromkeys(str(local) for local in missing if local and local.remedy):
            print_stderr(f"note: {line}")


def deduplicate_runs(runs: list[Path], quiet: bool) -> list[Path]:
    """The runs without those that are named again: lists written with asterisks overlap."""
    different: dict[str, Path] = {}
    for run in runs:  # unlike Path.resolve, this bears links that lead to themselves
        if different.setdefault(os.path.realpath(run), run) is not run and not quiet:
            print_stderr(f"note: named twice, examined once ({run})")
    return list(different.values())


def named_local_run(path: Path | None) -> RecordedRun | None:
    """The run that --local names, if any."""
    if path is None:
        return None
    named = load_recorded_run(path)
    if named.summary["method"] != "local":
        raise RequestError(
            f"a run of '{named.summary['method']}' is no Local run (--local {path}): name one such as "
            "runs/quickstart/local/seed-0"
        )
    return named


def evaluate_runs(runs: list[RecordedRun], split: Any, device: str, data_dirs: DataDirs) -> EvaluationResults:
    """The evaluations of all runs, in the order in which they were asked for."""
    total, done = sum(run.summary["shards"]["clients"] for run in runs), 0
    data_dirs.on_progress("examining clients", done, total)

    from fedmosaic_cli.runner.evaluate import ClientEvaluated
    from fedmosaic_cli.runner.evaluate import evaluate_saved_models as examine

    results: EvaluationResults = {run.files.path: {} for run in runs}
    for event in examine([run.files for run in runs], split, device, data_dirs):
        if isinstance(event, ClientEvaluated):
            done += 1
            data_dirs.on_progress("examining clients", done, total)
        else:
            results[event.files.path] = event.result
    return results


def add_local_comparison(
    run: RecordedRun, local: LocalBaseline | MissingLocalBaseline, results: EvaluationResults
) -> MissingLocalBaseline | None:
    """Lay the comparison with the Local run into the result of a run: null and the reason where there is none.

    Why there is none, or None.
    """
    result = results[run.files.path]
    marks = result["per_client"]
    result |= {"collaboration": None, "no_collaboration": None}
    if isinstance(local, MissingLocalBaseline):
        result["no_collaboration"] = local.reason
        set_gains(marks, [None] * len(marks))
        return local
    sizes = [mark["examples"] for mark in marks]
    found = compare_accuracies(local, client_accuracies(marks), local_accuracies(local, results), sizes)
    if isinstance(found, MissingLocalBaseline):
        if local.is_user_given:
            raise RequestError(str(found))
        return add_local_comparison(run, found, results)
    result["collaboration"] = comparison_to_dict(run.files, local, found)
    set_gains(marks, found.gains)
    return None


def local_accuracies(local: LocalBaseline, results: EvaluationResults) -> list[float]:
    """The accuracies of a Local run: on record, or just measured."""
    if local.accuracies is not None:
        return local.accuracies
    return client_accuracies(results[local.files.path]["per_client"])


def client_accuracies(client_results: list[dict[str, Any]]) -> list[float]:
    return [mark["accuracy"] for mark in client_results]


def set_gains(client_results: list[dict[str, Any]], gains: Sequence[float | None]) -> None:
    for mark, gain in zip(client_results, gains, strict=True):
        mark["gain"] = gain
