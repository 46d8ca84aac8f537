"""`fedmosaic evaluate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.console import out, say, say_json
from fedmosaic_cli.cli.options import (
    DataDirOption,
    DebugOption,
    Device,
    DeviceOption,
    JsonOption,
    QuietOption,
    VerboseOption,
)
from fedmosaic_cli.cli.place import data_place
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.experiment.plan import check_finished
from fedmosaic_cli.files import write_together
from fedmosaic_cli.records.runs import RunFiles


class SplitName(StrEnum):
    test = "test"
    train = "train"
    val = "val"


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories.")],
    split: Annotated[SplitName, typer.Option(help="Which part of each client's data.")] = SplitName.test,
    data_dir: DataDirOption = None,
    device: DeviceOption = Device.auto,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    debug: DebugOption = False,
) -> None:
    """Examine the saved personal models of finished runs, without training.

    Writes evaluation.json into each run directory.

    \b
    [bold]Examples[/bold]
    fedmosaic evaluate runs/quickstart/*/seed-0
    fedmosaic evaluate runs/quickstart/local/seed-0 --split train --verbose
    """
    for run in runs:
        check_finished(RunFiles(run))

    from fedmosaic_cli.experiment.evaluate import evaluate as examine

    with data_place(data_dir, quiet or as_json) as place:
        # All of them first: if one is unfit, nothing is written.
        results = [(RunFiles(run), examine(RunFiles(run), split.value, device.value, place)) for run in runs]
    for files, result in results:
        if not files.finished() or files.summary()["rounds"] != result["rounds"]:
            raise RequestError(f"the run went on in the meantime ({files.path}): evaluate it when it is finished")
    write_together(dict(files.evaluation(split.value, result) for files, result in results))
    if as_json:
        say_json([result for _, result in results])
    elif not quiet:
        show(results, split.value, verbose)


def show(results: list[tuple[RunFiles, dict[str, Any]]], split: str, verbose: bool) -> None:
    view = Table(box=None, pad_edge=False)
    view.add_column("run")
    for heading in ("mean %", "weighted %", "std", "worst %", "clients"):
        view.add_column(heading, justify="right")
    for files, result in results:
        accuracy = result["accuracy"]
        numbers = [accuracy[key] for key in ("client_mean", "sample_weighted", "client_std", "worst")]
        view.add_row(str(files.path), *(f"{100 * number:.2f}" for number in numbers), str(len(result["per_client"])))
    out().print(view)
    if verbose:
        for files, result in results:
            out().print(per_client(str(files.path), result["per_client"]))
    say(f"accuracy on each client's own {split} part; written beside each run's summary.json")


def per_client(title: str, marks: list[dict[str, Any]]) -> Table:
    view = Table("client", "domain", title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("examples", "accuracy %", "loss"):
        view.add_column(heading, justify="right")
    for mark in marks:
        numbers = (str(mark["examples"]), f"{100 * mark['accuracy']:.2f}", f"{mark['loss']:.4f}")
        view.add_row(str(mark["client"]), mark["domain"] or "-", *numbers)
    return view
