"""`fedmosaic evaluate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmosaic_cli.cli.audit import (
    FEWEST_REFERENCES,
    REFERENCES,
    audit_all,
    check_request,
    keep_audits,
)
from fedmosaic_cli.cli.common_options import (
    DataDirOption,
    DebugOption,
    Device,
    DeviceOption,
    JsonOption,
    QuietOption,
    VerboseOption,
)
from fedmosaic_cli.cli.console import remark, say_json
from fedmosaic_cli.cli.data_dir_options import data_place
from fedmosaic_cli.cli.views.evaluation_view import show
from fedmosaic_cli.cli.views.local_comparison import warn_of_trust
from fedmosaic_cli.data.data_dirs import Place
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.local_baseline import LocalRun, NoLocalRun, Recorded, compared, find_local, recorded, told
from fedmosaic_cli.storage.files import write_together

Results = dict[Path, dict[str, Any]]


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
            help=f"With --lira: how many models a client, at least {FEWEST_REFERENCES}.", show_default=str(REFERENCES)
        ),
    ] = None,
    data_dir: DataDirOption = None,
    device: DeviceOption = Device.auto,
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
    check_request(privacy, last_round, lira, references, split, local)
    asked = [recorded(run) for run in once_each(runs, quiet)]
    if privacy:
        with data_place(data_dir, quiet or as_json) as place:
            audits = audit_all(asked, last_round, (references or REFERENCES) if lira else 0, device.value, place)
        keep_audits(asked, audits, as_json, quiet, verbose)
        return
    split = split or SplitName.test
    named = local_named(local)
    with data_place(data_dir, quiet or as_json) as place:
        alone = {run.files.path: find_local(run, asked, named, split.value, place) for run in asked}
        # All of them first: if one is unfit, nothing is written.
        results = examine_all(asked, split.value, device.value, place)
    for run in asked:
        run.check_unchanged()
    missing = [set_beside(run, alone[run.files.path], results) for run in asked]
    try:
        write_together(dict(run.files.evaluation(split.value, results[run.files.path]) for run in asked))
    finally:  # what was found out is told, even if it cannot be kept
        if as_json:
            say_json([{"run": str(path), **result} for path, result in results.items()])
        elif not quiet:
            show(results, split.value, verbose)
    if not quiet:
        for run in asked:
            warn_of_trust(str(run.files.path), run.summary)
        for line in dict.fromkeys(str(local) for local in missing if local and local.way_out):
            remark(f"note: {line}")


def once_each(runs: list[Path], quiet: bool) -> list[Path]:
    """The runs without those that are named again: lists written with asterisks overlap."""
    different: dict[str, Path] = {}
    for run in runs:  # unlike Path.resolve, this bears links that lead to themselves
        if different.setdefault(os.path.realpath(run), run) is not run and not quiet:
            remark(f"note: named twice, examined once ({run})")
    return list(different.values())


def local_named(path: Path | None) -> Recorded | None:
    """The run that --local names, if any."""
    if path is None:
        return None
    named = recorded(path)
    if named.summary["method"] != "local":
        raise RequestError(
            f"a run of '{named.summary['method']}' is no Local run (--local {path}): name one such as "
            "runs/quickstart/local/seed-0"
        )
    return named


def examine_all(asked: list[Recorded], split: Any, device: str, place: Place) -> Results:
    """The evaluations of all runs, in the order in which they were asked for."""
    total, done = sum(run.summary["shards"]["clients"] for run in asked), 0
    place.watch("examining clients", done, total)

    from fedmosaic_cli.runner.evaluate import Examined
    from fedmosaic_cli.runner.evaluate import evaluate as examine

    results: Results = {run.files.path: {} for run in asked}
    for event in examine([run.files for run in asked], split, device, place):
        if isinstance(event, Examined):
            done += 1
            place.watch("examining clients", done, total)
        else:
            results[event.files.path] = event.result
    return results


def set_beside(run: Recorded, local: LocalRun | NoLocalRun, results: Results) -> NoLocalRun | None:
    """Lay the comparison with the Local run into the result of a run: null and the reason where there is none.

    Why there is none, or None.
    """
    result = results[run.files.path]
    marks = result["per_client"]
    result |= {"collaboration": None, "no_collaboration": None}
    if isinstance(local, NoLocalRun):
        result["no_collaboration"] = local.reason
        set_gains(marks, [None] * len(marks))
        return local
    sizes = [mark["examples"] for mark in marks]
    found = compared(local, accuracies_in(marks), known(local, results), sizes)
    if isinstance(found, NoLocalRun):
        if local.named:
            raise RequestError(str(found))
        return set_beside(run, found, results)
    result["collaboration"] = told(run.files, local, found)
    set_gains(marks, found.gains)
    return None


def known(local: LocalRun, results: Results) -> list[float]:
    """The accuracies of a Local run: on record, or just measured."""
    if local.accuracies is not None:
        return local.accuracies
    return accuracies_in(results[local.files.path]["per_client"])


def accuracies_in(marks: list[dict[str, Any]]) -> list[float]:
    return [mark["accuracy"] for mark in marks]


def set_gains(marks: list[dict[str, Any]], gains: Sequence[float | None]) -> None:
    for mark, gain in zip(marks, gains, strict=True):
        mark["gain"] = gain
