"""From the options of a training command to its runs."""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from fedmosaic_cli.cli.console import print_json, print_notes, print_stderr
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.cli.flower_options import SiteTransports, check_federated_config, check_flower_options, is_federated
from fedmosaic_cli.cli.interrupt import catch_stop_signals
from fedmosaic_cli.cli.privacy_options import print_planned_privacy
from fedmosaic_cli.cli.tensorboard import (
    require_tensorboard_importable,
    require_tensorboard_installed,
    tensorboard_logging,
)
from fedmosaic_cli.cli.views.dry_run_view import print_dry_run
from fedmosaic_cli.cli.views.local_comparison import compare_run_with_local, summary_document, warn_about_trust
from fedmosaic_cli.cli.views.progress_view import make_run_progress_view
from fedmosaic_cli.cli.views.summary_view import print_results
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.errors import FedMosaicError, RequestError, ResourceError, RunFailedError
from fedmosaic_cli.federation.site_shards import train_sizes
from fedmosaic_cli.runner.plan import build_config_layers, plan_runs, select_compatible_runs
from fedmosaic_cli.runner.prepare import (
    UnsavedPartition,
    check_run_directory,
    find_or_partition_shards,
    require_empty_or_resume,
)
from fedmosaic_cli.storage.files import require_free_space, write_atomic
from fedmosaic_cli.storage.lock import directory_lock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fedmosaic_cli.cli.interrupt import StopRequest
    from fedmosaic_cli.cli.train_options import TrainOptions
    from fedmosaic_cli.cli.views.local_comparison import LocalComparison
    from fedmosaic_cli.cli.views.progress_view import RunProgressView
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.coordinator import RemoteOptions
    from fedmosaic_cli.runner.local_baseline import MissingLocalBaseline
    from fedmosaic_cli.runner.plan import PlannedRun
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet

MAX_STOP_TIMEOUT_SECONDS = 86_400


def launch_runs(methods: list[str], optional_methods: Collection[str], options: TrainOptions) -> None:
    """Check everything that was asked for, then make the runs one after the other.

    Methods that were not named one by one (`if_they_fit`) are left out where these clients cannot play them.
    """
    if not 0 <= options.stop_timeout <= MAX_STOP_TIMEOUT_SECONDS:
        raise RequestError(
            f"a time of {options.stop_timeout} s (--stop-timeout): it must be between 0 and {MAX_STOP_TIMEOUT_SECONDS}"
        )
    check_flower_options(options)
    if options.tensorboard:
        require_tensorboard_installed()
    layers, setting, given = build_config_layers(methods, options)
    with ExitStack() as hold:
        with data_dirs_with_progress(options.data_dir, options.quiet or options.as_json) as place:
            runs = select_compatible_runs(plan_runs(methods, options, layers, setting, given, place), optional_methods)
            for run in runs:
                check_federated_config(options, run.config)
                run.config.check_privacy_budget()
            if options.dry_run:
                configs, files = [run.config for run in runs], [run.files for run in runs]
                print_dry_run(configs, layers, files, given, place, options.device.value, options.as_json)
                print_run_warnings(runs, options.quiet)
                return
            hold.enter_context(lock_runs(runs, options, place))
            shards = shards_by_seed(runs, given, options, place)
            print_notes(
                line
                for found in shards.values()
                if isinstance(found, UnsavedPartition)
                for line in found.dataset.warnings
            )
        check_resources(options, runs, shards)
        print_planned_privacy(
            ((run.config, *num_classes_and_train_sizes(shards[run.config.partition_seed])) for run in runs),
            is_federated(options),
        )
        print_run_warnings(runs, options.quiet)
        execute_runs(runs, shards, options, place)


@contextmanager
def lock_runs(runs: list[PlannedRun], options: TrainOptions, data_dirs: DataDirs) -> Iterator[None]:
    """Be the only one who writes to the directories of all runs; they are refused before any is touched."""
    resume, nonidentical = options.resume, options.allow_nonidentical
    for run in runs:
        check_run_directory(run.config, run.files, resume, data_dirs, nonidentical)
    with ExitStack() as locks:
        for run in runs:
            locks.enter_context(directory_lock(run.files.path))
        for run in runs:  # whoever held one a moment ago may have left something in it
            require_empty_or_resume(run.files, resume)
        yield


def execute_runs(
    runs: list[PlannedRun], shards: dict[int, ShardSet | UnsavedPartition], options: TrainOptions, data_dirs: DataDirs
) -> None:
    """Make the runs one after the other. One that fails leaves the others alone, and is the end of it in the end."""
    finished: list[tuple[PlannedRun, dict[str, Any]]] = []
    failures: list[RunFailedError] = []
    with (
        catch_stop_signals(options.stop_timeout) as asked_to_stop,
        make_run_progress_view(options.quiet or options.as_json, len(runs)) as progress,
        ExitStack() as hold,
    ):
        sites = SiteTransports(options, data_dirs, hold)
        for run in runs:
            if asked_to_stop():
                print_stderr(f"stopped before {run.label}: continue with --resume")
                raise typer.Exit(asked_to_stop.exit_code)
            on_disk = shards[run.config.partition_seed] = ensure_saved(shards[run.config.partition_seed])
            try:
                finished.append(
                    (
                        run,
                        run_one(
                            run, on_disk, options, data_dirs, progress, asked_to_stop, sites.remote_options(on_disk)
                        ),
                    )
                )
            except RunFailedError as error:
                failures.append(error)
                if len(runs) > 1:
                    print_stderr(f"failed: {error}")
    beside = local_comparisons(finished, shards, options, data_dirs)
    for run, summary in finished if not options.quiet else ():
        warn_about_trust(run.label, summary)
    if options.as_json:
        print_json([summary_document(summary, result) for (_, summary), result in zip(finished, beside, strict=True)])
    elif finished:
        print_results(finished, beside, options)
    if failures and len(runs) == 1:
        raise failures[0]
    if failures:
        raise RunFailedError(f"{len(failures)} of {len(runs)} runs failed, the first: {failures[0]}")
    if asked_to_stop():  # too late to stop anything here, but not for what the shell would do next
        print_stderr("asked to stop in the last round: everything is finished")
        raise typer.Exit(asked_to_stop.exit_code)


def local_comparisons(
    finished: list[tuple[PlannedRun, dict[str, Any]]],
    shards: dict[int, ShardSet | UnsavedPartition],
    options: TrainOptions,
    data_dirs: DataDirs,
) -> list[LocalComparison | MissingLocalBaseline | None]:
    """How each run fares beside its Local run, if anybody wants to know."""
    if options.quiet and not options.as_json:
        return [None] * len(finished)
    dealt = {seed: found.shards if isinstance(found, UnsavedPartition) else found for seed, found in shards.items()}
    sizes = {seed: found.test_sizes() for seed, found in dealt.items()}
    return [
        compare_run_with_local(run.label, run.files, summary, sizes[run.config.partition_seed], data_dirs)
        for run, summary in finished
    ]


def shards_by_seed(
    runs: list[PlannedRun], given_shards: ShardSet | None, options: TrainOptions, data_dirs: DataDirs
) -> dict[int, ShardSet | UnsavedPartition]:
    """The shards of all runs: runs that differ in method alone share theirs."""
    standard = load_preset(options.preset) if options.preset is not None else None
    one_a_seed = {run.config.partition_seed: run.config for run in runs}
    return {
        seed: given_shards or find_or_partition_shards(config, standard, data_dirs)
        for seed, config in one_a_seed.items()
    }


def num_classes_and_train_sizes(found: ShardSet | UnsavedPartition) -> tuple[int, list[int]]:
    """The number of classes, and of the training examples of each client."""
    shards = found.shards if isinstance(found, UnsavedPartition) else found
    return len(shards.manifest["class_names"]), list(train_sizes(shards.manifest).values())


def ensure_saved(shards: ShardSet | UnsavedPartition) -> ShardSet:
    """The shards on disk."""
    return shards.save() if isinstance(shards, UnsavedPartition) else shards


def print_run_warnings(runs: list[PlannedRun], quiet: bool) -> None:
    """Say what one should know, once all that would be refused is."""
    for note in dict.fromkeys(run.config.method.cost_note(run.config.train.rounds) for run in runs):
        if note and not quiet:
            print_stderr(note)
    for warning in dict.fromkeys(filter(None, map(method_warning, runs))):
        print_stderr(f"warning: {warning}")


def method_warning(run: PlannedRun) -> str:
    """A word where a method would be another one under its name."""
    config = run.config
    participants = config.train.clients_per_round or config.data.clients or 1
    return config.method.warning(config.train.rounds, participants, config.model_settings_for(0).has_batch_norm)


def check_resources(
    options: TrainOptions, runs: list[PlannedRun], shards: dict[int, ShardSet | UnsavedPartition]
) -> None:
    """Refuse a device that is not there, a run that cannot go on, a network that cannot see the images, and a disk
    that is too full. From here on torch is needed."""
    if options.tensorboard:
        require_tensorboard_importable()
    from fedmosaic_cli.runner.build import check_networks, find_devices
    from fedmosaic_cli.runner.cost_estimates import dimensions_from_shards, disk_bytes
    from fedmosaic_cli.runner.environment import machine_environment
    from fedmosaic_cli.runner.resume_checks import check_resumable

    devices = find_devices(options.device.value)
    need = 0
    for run in runs:
        found = shards[run.config.partition_seed]
        dealt = found.shards if isinstance(found, UnsavedPartition) else found
        check_resumable(run.files, machine_environment(devices, dealt.digest), options.allow_nonidentical)
        facts = dimensions_from_shards(dealt)
        channels, height, width = facts.input_shape
        check_networks(run.config, (height, width, channels), devices[0])
        need += max(0, disk_bytes(run.config, facts) - run.files.size_bytes())
    require_free_space(runs[0].files.path, need, "make room or choose another --runs-dir")


def run_one(
    run: PlannedRun,
    shards: ShardSet,
    options: TrainOptions,
    data_dirs: DataDirs,
    progress: RunProgressView,
    stop: StopRequest,
    remote_options: RemoteOptions | None,
) -> dict[str, Any]:
    """Make one run and show how it goes. Its summary."""
    from fedmosaic_cli.runner import run as experiment

    progress.on_prepare(run.label, run.config.train.rounds)
    terms = experiment.RunOptions(
        device=options.device.value,
        cli_args=tuple(sys.argv[1:]),
        should_stop=stop,
        stop_timeout_seconds=options.stop_timeout,
        allow_nonidentical=options.allow_nonidentical,
        remote_options=remote_options,
    )
    played = experiment.run_experiment(run.config, shards, run.files, data_dirs, terms)
    with record_crash(run.files), tensorboard_logging(played, run.files, options.tensorboard) as events:
        for event in events:
            if isinstance(event, experiment.RunStarted):
                progress.on_start(event)
            elif isinstance(event, experiment.RunResumed):
                for warning in event.warnings:
                    print_stderr(f"warning: {warning}")
                progress.on_resume(event.round)
            elif isinstance(event, experiment.WaitingForClients):
                progress.on_waiting(event.missing_clients)
            elif isinstance(event, experiment.RoundCompleted):
                progress.on_round(event)
            elif isinstance(event, experiment.RunStopped):
                print_stderr(
                    f"stopped after round {event.round} of {run.label}: continue with --resume and the same options"
                )
                raise typer.Exit(stop.exit_code)
            else:
                return event.summary
    raise AssertionError("a run ends with a summary or is stopped")


@contextmanager
def record_crash(files: RunDirectory) -> Iterator[None]:
    """Leave word in the run's directory if it fails in a way that nobody foresaw."""
    try:
        yield
    except FileNotFoundError as error:
        raise ResourceError(
            f"{error.strerror} ({error.filename}): somebody took it away while the run was writing; start it again"
        ) from None
    except (FedMosaicError, typer.Exit, OSError):
        raise
    except Exception:
        with suppress(OSError):
            write_atomic(files.crash_path, traceback.format_exc().encode())
        raise
