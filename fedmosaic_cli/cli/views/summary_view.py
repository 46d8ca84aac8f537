"""Print the results of training commands and suggest the next commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedmosaic_cli.cli.common_options import DeviceChoice
from fedmosaic_cli.cli.console import print_stderr, print_stdout, stdout_console
from fedmosaic_cli.cli.flower_options import is_federated
from fedmosaic_cli.cli.privacy_options import privacy_option_values, spent_privacy_lines
from fedmosaic_cli.cli.views.local_comparison import print_local_comparisons

if TYPE_CHECKING:
    from fedmosaic_cli.cli.train_options import TrainOptions
    from fedmosaic_cli.cli.views.local_comparison import LocalComparison
    from fedmosaic_cli.runner.baseline_lookup import MissingLocalBaseline
    from fedmosaic_cli.runner.plan import PlannedRun


def print_results(
    finished: list[tuple[PlannedRun, dict[str, Any]]],
    comparisons: list[LocalComparison | MissingLocalBaseline | None],
    options: TrainOptions,
) -> None:
    """Print a table of results, notes about the runs, and the next commands."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for heading in ("accuracy %", "weighted %", "worst client %", "kB up", "kB down"):
        table.add_column(heading, justify="right")
    for run, summary in finished:
        accuracy = summary["accuracy"]
        keys = ("client_mean", "sample_weighted", "worst")
        numbers = ["withheld" if accuracy.get(key) is None else f"{100 * accuracy[key]:.2f}" for key in keys]
        bits = [summary["bits"][direction] for direction in ("up", "down")]
        traffic = ["raw data" if number is None else f"{number / 8000:.1f}" for number in bits]
        table.add_row(str(run.files.path), *numbers, *traffic)
    stdout_console().print(table)
    for line in spent_privacy_lines(summary for _, summary in finished):
        print_stdout(line)
    for run, summary in finished:
        if summary.get("degraded"):
            print_stderr(
                f"warning: {run.label}: too few valid messages in {len(summary['degraded'])} of {summary['rounds']} "
                "rounds, in which the consensus did not change (defence.min_clients, or more than half)"
            )
        if "honest_accuracy" in summary:
            print_stdout(f"{run.label}: {100 * summary['honest_accuracy']['client_mean']:.2f}% over honest clients")
        print_certificates(run.label, summary)
    if options.verbose:
        for run, summary in finished:
            accuracies = " ".join(f"{100 * value:.1f}" for value in summary["accuracy"]["per_client"] or ())
            print_stdout(f"{run.label}: {accuracies}")
    if not options.quiet:
        print_stdout("accuracy: mean over clients, each on its own test data, last round")
        print_local_comparisons(comparisons)
        for line in next_commands([run for run, _ in finished], options):
            print_stdout(line)


def print_certificates(label: str, summary: dict[str, Any]) -> None:
    """Print how many clients use what they received in one exchange, what it brings them, and warnings."""
    if "exchange" not in summary:
        return
    from fedmosaic_cli.labels.certificates import Certificate, ExchangeDiagnosis, describe_certificates

    exchange = ExchangeDiagnosis.model_validate(summary["exchange"])
    certificates = [Certificate.model_validate(content) for content in summary["certificates"]]
    for line in describe_certificates(certificates, exchange):
        print_stdout(f"{label}: {line}")
    for warning in exchange.warnings(has_noise="privacy" in summary):
        print_stderr(f"warning: {label}: {warning}")


def next_commands(runs: list[PlannedRun], train_options: TrainOptions) -> list[str]:
    """Return the next commands: the baselines with the same options, and the report."""
    directory = str(train_options.run_dir or train_options.runs_dir)
    report = shlex.join(["fedmosaic", "report", *([] if directory == "runs" else [directory])])
    if is_federated(train_options) or any(run.config.method.info.name != "fedmosaic" for run in runs):
        return [f"next: {report}"]
    options = {
        "--preset": train_options.preset,
        "--shards": train_options.shards,
        "--model": train_options.model,
        "--dataset": train_options.dataset,
        "--rounds": train_options.rounds,
        "--eval-every": train_options.eval_every,
        "--augment": train_options.augment and train_options.augment.value,
        "--seed": train_options.seed,
        "--seeds": train_options.seeds,
        "--config": train_options.config,
        "--name": train_options.name,
        **privacy_option_values(train_options),
        "--execution": train_options.execution and train_options.execution.value,
        "--on-nan": train_options.on_nan and train_options.on_nan.value,
        "--device": None if train_options.device is DeviceChoice.auto else train_options.device.value,
        "--data-dir": train_options.data_dir,
        "--runs-dir": None if str(train_options.runs_dir) == "runs" else train_options.runs_dir,
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    words += [word for plugin in train_options.plugin or [] for word in ("--plugin", plugin)]
    words += ["--tensorboard"] if train_options.tensorboard else []
    words += [word for assignment in train_options.assignments or [] for word in ("--set", assignment)]
    return [f"next: {shlex.join(['fedmosaic', 'baseline', 'all', *words])}", f"then: {report}"]
