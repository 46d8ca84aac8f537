"""Print the results of training commands and suggest the next commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cli.common_options import DeviceChoice
from fedmosaic_cli.cli.console import print_command, print_stderr, print_text, stdout_console
from fedmosaic_cli.cli.flower_options import is_federated
from fedmosaic_cli.cli.privacy_options import privacy_option_values, spent_privacy_lines
from fedmosaic_cli.cli.views.local_comparison import print_local_comparisons
from fedmosaic_cli.cli.views.results_table import (
    RowRun,
    group_by_method,
    has_curve_column,
    legend_lines,
    locations_line,
    results_table,
)

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
    results = [RowRun(run, summary, each) for (run, summary), each in zip(finished, comparisons, strict=True)]
    methods = group_by_method(results)
    console = stdout_console()
    table = results_table(methods, console)
    console.print(table)
    if not options.quiet:
        for line in legend_lines(methods, has_curve_column(table)):
            print_text(line)
    print_text(locations_line(methods))
    for line in spent_privacy_lines(summary for _, summary in finished):
        print_text(line)
    for run, summary in finished:
        if summary.get("degraded"):
            print_stderr(
                f"warning: {run.label}: too few valid messages in {len(summary['degraded'])} of {summary['rounds']} "
                "rounds, in which the consensus did not change: check the sites, or set a lower defence.min_clients "
                "(default: more than half)"
            )
        if "honest_accuracy" in summary:
            print_text(f"{run.label}: {100 * summary['honest_accuracy']['client_mean']:.2f}% over honest clients")
        print_certificates(run.label, summary)
    if options.verbose:
        for run, summary in finished:
            accuracies = " ".join(f"{100 * value:.1f}" for value in summary["accuracy"]["per_client"] or ())
            print_text(f"{run.label}: {accuracies}")
    if not options.quiet:
        print_local_comparisons(methods, console)
        for label, command in next_commands([run for run, _ in finished], options):
            print_command(command, label)


def print_certificates(label: str, summary: dict[str, Any]) -> None:
    """Print how many clients use what they received in one exchange, what it brings them, and warnings."""
    if "exchange" not in summary:
        return
    from fedmosaic_cli.labels.certificates import Certificate, ExchangeDiagnosis, describe_certificates

    exchange = ExchangeDiagnosis.model_validate(summary["exchange"])
    certificates = [Certificate.model_validate(content) for content in summary["certificates"]]
    for line in describe_certificates(certificates, exchange):
        print_text(f"{label}: {line}")
    for warning in exchange.warnings(has_noise="privacy" in summary):
        print_stderr(f"warning: {label}: {warning}")


def next_commands(runs: list[PlannedRun], train_options: TrainOptions) -> list[tuple[str, str]]:
    """Return the next commands with their labels: the baselines with the same options, and the report."""
    directory = str(train_options.run_dir or train_options.runs_dir)
    report = shlex.join(["fedmosaic", "report", *([] if directory == "runs" else [directory])])
    if is_federated(train_options) or any(run.config.method.info.name != "fedmosaic" for run in runs):
        return [("next:", report)]
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
    words += ["--resume"] if train_options.resume else []
    words += [word for assignment in train_options.assignments or [] for word in ("--set", assignment)]
    return [("next:", shlex.join(["fedmosaic", "baseline", "all", *words])), ("then:", report)]
