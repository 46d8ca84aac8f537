"""What a training command shows in the end: the numbers of its runs, and what one would do next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedmosaic_cli.cli.common_options import Device
from fedmosaic_cli.cli.console import out, remark, say
from fedmosaic_cli.cli.flower_options import is_federated
from fedmosaic_cli.cli.privacy_options import options_of, spent_lines
from fedmosaic_cli.cli.views.local_comparison import show_beside_local

if TYPE_CHECKING:
    from fedmosaic_cli.cli.train_options import Request
    from fedmosaic_cli.cli.views.local_comparison import BesideLocal
    from fedmosaic_cli.runner.local_baseline import NoLocalRun
    from fedmosaic_cli.runner.plan import Planned


def show_results(
    finished: list[tuple[Planned, dict[str, Any]]],
    beside: list[BesideLocal | NoLocalRun | None],
    request: Request,
) -> None:
    """The numbers of the runs, and what one would do next."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for heading in ("accuracy %", "weighted %", "worst client %", "kB up", "kB down"):
        table.add_column(heading, justify="right")
    for run, summary in finished:
        accuracy = summary["accuracy"]
        numbers = [f"{100 * accuracy[key]:.2f}" for key in ("client_mean", "sample_weighted", "worst")]
        bits = [summary["bits"][way] for way in ("up", "down")]
        traffic = ["raw data" if number is None else f"{number / 8000:.1f}" for number in bits]
        table.add_row(str(run.files.path), *numbers, *traffic)
    out().print(table)
    for line in spent_lines(summary for _, summary in finished):
        say(line)
    for run, summary in finished:
        if summary.get("degraded"):
            remark(
                f"warning: {run.label}: too few valid messages in {len(summary['degraded'])} of {summary['rounds']} "
                "rounds, in which the consensus stayed as it was (defence.min_clients, or more than half)"
            )
        if "honest_accuracy" in summary:
            say(f"{run.label}: {100 * summary['honest_accuracy']['client_mean']:.2f}% over clients that do not attack")
    if request.verbose:
        for run, summary in finished:
            marks = " ".join(f"{100 * value:.1f}" for value in summary["accuracy"]["per_client"])
            say(f"{run.label}: {marks}")
    if not request.quiet:
        say("accuracy: mean over clients, each on its own test part, last round")
        show_beside_local(beside)
        for line in next_steps([run for run, _ in finished], request):
            say(line)


def next_steps(runs: list[Planned], request: Request) -> list[str]:
    """The commands that one would type next: the baselines under the same conditions, and the report."""
    place = str(request.run_dir or request.runs_dir)
    report = shlex.join(["fedmosaic", "report", *([] if place == "runs" else [place])])
    if is_federated(request) or any(run.config.method.name != "fedmosaic" for run in runs):
        return [f"next: {report}"]
    options = {
        "--preset": request.preset,
        "--shards": request.shards,
        "--rounds": request.rounds,
        "--seed": request.seed,
        "--seeds": request.seeds,
        "--config": request.config,
        "--name": request.name,
        **options_of(request),
        "--execution": request.execution and request.execution.value,
        "--on-nan": request.on_nan and request.on_nan.value,
        "--device": None if request.device is Device.auto else request.device.value,
        "--data-dir": request.data_dir,
        "--runs-dir": None if str(request.runs_dir) == "runs" else request.runs_dir,
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    words += ["--tensorboard"] if request.tensorboard else []
    words += [word for assignment in request.assignments or [] for word in ("--set", assignment)]
    return [f"next: {shlex.join(['fedmosaic', 'baseline', 'all', *words])}", f"then: {report}"]
