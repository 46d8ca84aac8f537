"""`fedmosaic train` and `fedmosaic baseline`: parse options, call the runner, show its events."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import parse_integers
from fedmosaic_cli.cli.completion import complete_baseline, complete_method
from fedmosaic_cli.cli.console import print_json, print_notes, print_stderr, stdout_console
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.cli.flower_options import is_federated, parse_flower_options
from fedmosaic_cli.cli.interrupt import catch_stop_signals
from fedmosaic_cli.cli.privacy_options import print_planned_privacy, privacy_config_layer
from fedmosaic_cli.cli.tensorboard import tensorboard_logging
from fedmosaic_cli.cli.train_options import TrainOptions, with_train_options
from fedmosaic_cli.cli.views.dry_run_view import print_dry_run
from fedmosaic_cli.cli.views.local_comparison import compare_run_with_local, summary_document, warn_about_trust
from fedmosaic_cli.cli.views.progress_view import make_run_progress_view
from fedmosaic_cli.cli.views.summary_view import print_results
from fedmosaic_cli.config.presets import preset_names
from fedmosaic_cli.errors import RequestError, RunFailedError
from fedmosaic_cli.federation.flower_options import SiteTransports
from fedmosaic_cli.federation.site_shards import read_exported_manifest
from fedmosaic_cli.methods.registry import ALL_BASELINES, METHODS
from fedmosaic_cli.plugins import load_named_plugins, resolve_dataset, resolve_method, resolve_model
from fedmosaic_cli.runner.baseline_lookup import RecordedRun
from fedmosaic_cli.runner.events import (
    RoundCompleted,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPreparing,
    RunResumed,
    RunStarted,
    RunStopped,
    WaitingForClients,
    WritingShards,
)
from fedmosaic_cli.runner.execute import (
    check_resources,
    cost_notes,
    execute_runs,
    find_shards,
    lock_runs,
    method_warnings,
    unfinished_runs,
)
from fedmosaic_cli.runner.plan import PlannedRun, RunPlan, RunRequest, plan_runs
from fedmosaic_cli.runner.prepare import UnsavedPartition, shard_set
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.runner.tensorboard_log import require_tensorboard_importable, require_tensorboard_installed
from fedmosaic_cli.storage.shards import read_shards

if TYPE_CHECKING:
    from fedmosaic_cli.cli.views.progress_view import RunProgressView
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.flower_options import FlowerOptions
    from fedmosaic_cli.runner.execute import Shards

MAX_STOP_TIMEOUT_SECONDS = 86_400


@with_train_options
def train(
    request: TrainOptions,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help="Method to train: a name of 'baseline --list', or FILE.py:NAME for your own. May be repeated.",
            show_default="fedmosaic",
            autocompletion=complete_method,
        ),
    ] = None,
) -> None:
    """Train FedMosaic, or another method with --method.

    \b
    [bold]Examples[/bold]
    fedmosaic train --preset quickstart
    fedmosaic train --preset quickstart --method ./my_method.py:MyMethod --model ./my_model.py:MyModel
    fedmosaic train --preset quickstart --expertise frequency --seeds 0-2
    fedmosaic train --preset quickstart --set methods.fedmosaic.trust=paper,0.3,1.0
    fedmosaic train --preset quickstart --set data.alpha=0.1,1 --seeds 0,1
    fedmosaic train --preset quickstart --set clients.0-4.model=random-forest
    fedmosaic train --preset quickstart --set model.name=cnn --augment crop
    fedmosaic train --preset quickstart --execution threads --workers 1
    fedmosaic train --preset quickstart --eval-every 5 --set train.client_state=disk
    fedmosaic train --preset quickstart --rounds 60 --resume --stop-timeout 5
    fedmosaic train --preset quickstart --rounds 90 --resume --set train.lr=0.001 --allow-nonidentical
    fedmosaic train --preset quickstart --tensorboard && tensorboard --logdir runs
    fedmosaic train --preset quickstart --expertise frequency --dp krr,histogram --dp-epsilon 8 --dry-run
    fedmosaic train --preset quickstart --set attack.kind=flip --set "attack.clients=[0,1]"
    fedmosaic train --shards shards/digits-dirichlet-s0 --rounds 50 --dry-run
    fedmosaic train --preset quickstart --engine flower --simulate-sites 3 --rounds 6
    fedmosaic train --shards shards/ours --engine flower --quorum 2 --round-timeout 300 --join-timeout 900
    """
    load_named_plugins(request.plugin or ())
    launch_runs(*select_methods(method or ["fedmosaic"]), request)


@with_train_options
def baseline(
    request: TrainOptions,
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD",
            help="Methods, FILE.py:NAME, or 'all' for gated and those of the paper.",
            autocompletion=complete_baseline,
        ),
    ] = None,
    list_methods: Annotated[bool, typer.Option("--list", help="List the methods and exit.")] = False,
) -> None:
    """Train baselines for comparison with FedMosaic, on the same shards.

    \b
    [bold]Examples[/bold]
    fedmosaic baseline --list
    fedmosaic baseline local centralized --preset quickstart --seeds 0,1,2
    fedmosaic baseline ditto --preset quickstart --set methods.ditto.mu=0.01,0.1,1
    fedmosaic baseline local fedavgft ditto fedmosaic student --preset quickstart
    fedmosaic baseline gated local --preset quickstart --seeds 0,1,2
    fedmosaic baseline fedavg --preset quickstart --set train.clients_per_round=5
    fedmosaic baseline all --preset quickstart --on-nan skip
    """
    if list_methods:
        show_methods(request.as_json)
        return
    if not methods:
        raise RequestError("no method is given (fedmosaic baseline): add one or 'all'; --list shows them")
    load_named_plugins(request.plugin or ())
    launch_runs(*select_methods(methods), request)


def select_methods(words: list[str]) -> tuple[list[str], set[str]]:
    """The methods that the words name, and those among them that only 'all' names.

    `ditto,local` is `ditto local`; a reference such as FILE.py:NAME is one word.
    """
    words = [part for word in words for part in ([word] if ":" in word else filter(None, word.split(",")))]
    for word in words:
        if word in preset_names() and word not in METHODS:
            raise RequestError(f"'{word}' is a preset, not a method (METHOD): write --preset {word}")
    named = {word: resolve_method(word) for word in words if word != "all"}
    selected = [name for word in words for name in (ALL_BASELINES if word == "all" else [named[word]])]
    return list(dict.fromkeys(selected)), set(selected) - set(named.values())


def run_request(methods: list[str], optional_methods: set[str], options: TrainOptions) -> RunRequest:
    """The request that the options make."""
    if options.seeds is not None and options.seed is not None:
        raise RequestError("both --seed and --seeds are given (fedmosaic): use one of them")
    shards = None
    if options.shards is not None:
        # The coordinator of a federation has the manifest and the public set, not the files of the clients.
        only_header = is_federated(options) and options.simulate_sites is None
        shards = read_exported_manifest(options.shards) if only_header else read_shards(options.shards)
    flags = {
        "rounds": options.rounds,
        "eval_every": options.eval_every,
        "augment": options.augment and options.augment.value,
        "workers": options.workers,
        "execution": options.execution and options.execution.value,
        "on_nan": options.on_nan and options.on_nan.value,
    }
    overrides: dict[str, Any] = {
        "train": {key: value for key, value in flags.items() if value is not None},
        "privacy": privacy_config_layer(options),
    }
    if options.model is not None:
        overrides["model"] = {"name": resolve_model(options.model)}
    if options.dataset is not None:
        overrides["data"] = {"dataset": resolve_dataset(options.dataset)}
    if options.expertise is not None:
        if "fedmosaic" not in methods:
            raise RequestError("--expertise applies to fedmosaic only (fedmosaic baseline): leave it out")
        overrides["methods"] = {"fedmosaic": {"expertise": options.expertise}}
    return RunRequest(
        methods=tuple(methods),
        optional_methods=frozenset(optional_methods),
        preset=options.preset,
        shards=shards,
        simulated_sites=options.simulate_sites,
        experiment_name=options.name,
        config_file=options.config,
        assignments=tuple(options.assignments or ()),
        overrides=overrides,
        seeds=(options.seed or 0,) if options.seeds is None else parse_integers(options.seeds, "--seeds"),
        tag=options.tag,
        runs_dir=options.runs_dir,
        run_dir=options.run_dir,
        resume=options.resume,
        allow_nonidentical=options.allow_nonidentical,
        device=options.device.value,
    )


def launch_runs(methods: list[str], optional_methods: set[str], options: TrainOptions) -> None:
    """Check the options, then plan and make the runs."""
    if not 0 <= options.stop_timeout <= MAX_STOP_TIMEOUT_SECONDS:
        raise RequestError(
            f"a time of {options.stop_timeout} s (--stop-timeout): it must be between 0 and {MAX_STOP_TIMEOUT_SECONDS}"
        )
    flower_options = parse_flower_options(options)
    if options.tensorboard:
        require_tensorboard_installed()
    request = run_request(methods, optional_methods, options)
    with ExitStack() as locks:
        with data_dirs_with_progress(options.data_dir, options.quiet or options.as_json) as data_dirs:
            plan = plan_runs(request, data_dirs)
            print_notes(plan.layers.notices)
            for note in plan.skipped:
                print_stderr(note)
            if flower_options is not None:
                for run in plan.runs:
                    flower_options.check_config(run.config)
            if options.dry_run:
                print_dry_run(plan, data_dirs, options.as_json)
                print_run_warnings(plan.runs, options.quiet)
                return
            locks.enter_context(lock_runs(plan, data_dirs))
            unfinished = unfinished_runs(plan)
            shards = find_shards(request.shards, unfinished, data_dirs)
            new = [planned for planned in shards.values() if isinstance(planned, UnsavedPartition)]
            print_notes(line for planned in new for line in planned.dataset.warnings)
        if options.tensorboard:
            require_tensorboard_importable()
        check_resources(plan, shards)
        manifests = {key: shard_set(planned).manifest for key, planned in shards.items()}
        print_planned_privacy(
            ((run.config, manifests[run.shards_key]) for run in unfinished), flower_options is not None
        )
        print_run_warnings(unfinished, options.quiet)
        run_and_report(plan, shards, options, data_dirs, flower_options)


def print_run_warnings(runs: list[PlannedRun], quiet: bool) -> None:
    """Print warnings about the methods, once all checks have passed."""
    for note in [] if quiet else cost_notes(runs):
        print_stderr(note)
    for warning in method_warnings(runs):
        print_stderr(f"warning: {warning}")


def run_and_report(
    plan: RunPlan, shards: Shards, options: TrainOptions, data_dirs: DataDirs, flower_options: FlowerOptions | None
) -> None:
    """Make the runs, show their progress and print their results."""
    finished: list[tuple[PlannedRun, dict[str, Any]]] = []
    failures: list[RunFailedError] = []
    shown_warnings: set[str] = set()
    with (
        catch_stop_signals(options.stop_timeout) as stop,
        make_run_progress_view(options.quiet or options.as_json, len(unfinished_runs(plan))) as progress,
        ExitStack() as transports,
    ):
        stop.num_live_lines = progress.num_live_lines
        run_options = RunOptions(
            device=options.device.value,
            cli_args=tuple(sys.argv[1:]),
            should_stop=stop,
            stop_timeout_seconds=options.stop_timeout,
            allow_nonidentical=options.allow_nonidentical,
        )
        on_start = (lambda line: None) if options.quiet or options.as_json else print_stderr
        remote_for = SiteTransports(flower_options, data_dirs, transports, on_start).coordinator
        observe = partial(tensorboard_logging, is_enabled=options.tensorboard)
        for run, event in execute_runs(plan, shards, run_options, data_dirs, remote_for, observe):
            if isinstance(event, RunFinished):
                finished.append((run, event.summary))
                if event.was_finished and not options.quiet:
                    accuracy = event.summary["accuracy"].get("client_mean")
                    result = "accuracy withheld" if accuracy is None else f"{100 * accuracy:.2f} %"
                    print_stderr(f"finished already: {run.label}: {result}")
            elif isinstance(event, RunFailed):
                failures.append(event.error)
                if len(plan.runs) > 1:
                    print_stderr(f"failed: {event.error}")
            elif isinstance(event, RunStopped):
                where = f"after round {event.round} of" if event.started else "before"
                print_stderr(f"stopped {where} {run.label}: repeat the command to continue")
                raise typer.Exit(stop.exit_code)
            else:
                show_event(run, event, progress, shown_warnings)
    show_results(finished, options, data_dirs)
    if failures and len(plan.runs) == 1:
        raise failures[0]
    if failures:
        raise RunFailedError(f"{len(failures)} of {len(plan.runs)} runs failed, the first: {failures[0]}")
    if stop():  # all runs are finished, but the shell must not start the next command
        print_stderr("stop requested in the last round: all runs are finished")
        raise typer.Exit(stop.exit_code)


def show_event(
    run: PlannedRun, event: RunEvent | WritingShards | RunPreparing, progress: RunProgressView, shown_warnings: set[str]
) -> None:
    """Show an event of a run that continues. Warnings at the start are shown for the first run that has them."""
    if isinstance(event, WritingShards):
        progress.on_write_shards()
    elif isinstance(event, RunPreparing):
        progress.on_prepare(run.label, run.config.train.rounds)
    elif isinstance(event, RunStarted):
        for warning in event.warnings:
            if warning not in shown_warnings:
                shown_warnings.add(warning)
                print_stderr(f"warning: {warning}")
        progress.on_start(event)
    elif isinstance(event, RunResumed):
        for warning in event.warnings:
            print_stderr(f"warning: {warning}")
        progress.on_resume(event.round)
    elif isinstance(event, WaitingForClients):
        progress.on_waiting(event.missing_clients)
    elif isinstance(event, RoundCompleted):
        progress.on_round(event)


def show_results(finished: list[tuple[PlannedRun, dict[str, Any]]], options: TrainOptions, data_dirs: DataDirs) -> None:
    """Print the results of finished runs as a table or as JSON, compared with Local runs."""
    comparisons = [
        None
        if options.quiet and not options.as_json
        else compare_run_with_local(run.label, run.files, summary, data_dirs)
        for run, summary in finished
    ]
    if not options.quiet:
        warn_about_trust([(run.label, RecordedRun(run.files, summary)) for run, summary in finished], data_dirs)
    if options.as_json:
        print_json([summary_document(s, comparison) for (_, s), comparison in zip(finished, comparisons, strict=True)])
    elif finished:
        print_results(finished, comparisons, options)


def show_methods(as_json: bool) -> None:
    """Print the methods with what they share and their papers."""
    keys = {"travels": "exchanges", "evaluated": "evaluates"}
    names = ("name", "title", "family", "travels", "evaluated", "citation")
    methods = [{name: getattr(method.info, keys.get(name, name)) for name in names} for method in METHODS.values()]
    if as_json:
        print_json(methods)
        return
    view = Table("method", "family", "what travels", "citation", box=None, pad_edge=False)
    for method in methods:
        view.add_row(method["name"], method["family"], method["travels"], method["citation"])
    stdout_console().print(view)
