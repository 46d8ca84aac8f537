"""Make the runs of a plan: lock directories, find shards, check the machine, run one after the other."""

from __future__ import annotations

import traceback
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.method import RunFacts
from fedmosaic_cli.errors import FedMosaicError, ResourceError, RunFailedError, RunStateError
from fedmosaic_cli.plugin_sources import plugin_failure
from fedmosaic_cli.runner.events import RunFailed, RunFinished, RunPreparing, RunStopped, WritingShards
from fedmosaic_cli.runner.prepare import (
    UnsavedPartition,
    check_run_directory,
    find_or_partition_shards,
    is_run_complete,
    is_run_intact,
    require_same_run,
    shard_set,
)
from fedmosaic_cli.storage.files import require_free_space, write_atomic
from fedmosaic_cli.storage.lock import directory_lock, is_held_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.runner.events import RunEvent
    from fedmosaic_cli.runner.plan import PlannedRun, RunPlan
    from fedmosaic_cli.runner.run_options import RemoteBackend, RunOptions
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet

    Shards = dict[tuple[str, int], ShardSet | UnsavedPartition]
    """Shards by `PlannedRun.shards_key`."""
    EventObserver = Callable[[Iterator[RunEvent], RunDirectory], AbstractContextManager[Iterator[RunEvent]]]
    """Wraps the events of a run, e.g. to log them."""


@contextmanager
def lock_runs(plan: RunPlan, data_dirs: DataDirs) -> Iterator[None]:
    """Check and lock the directories of all runs; raise before any of them changes.

    A finished run is not locked, because nothing is written to it. Its directory may be read-only.
    """
    request = plan.request
    for run in plan.runs:
        check_run_directory(run, request, data_dirs)
    with ExitStack() as locks:
        for run in plan.runs:
            if not is_run_intact(run.files, run.config):
                locks.enter_context(directory_lock(run.files.path))
        for run in plan.runs:
            require_same_run(run, request, data_dirs)  # another process may have written between the check and the lock
        yield


def unfinished_runs(plan: RunPlan) -> list[PlannedRun]:
    """Return the runs that are left to make, within `lock_runs`."""
    return [run for run in plan.runs if is_held_here(run.files.path)]


def find_shards(given: ShardSet | None, runs: Iterable[PlannedRun], data_dirs: DataDirs) -> Shards:
    """Return the given shards for all runs, or find or make those of each run; new ones are not written yet."""
    runs_by_shards = {run.shards_key: run for run in runs}
    return {
        key: given or find_or_partition_shards(run.config, run.shards_name, data_dirs)
        for key, run in runs_by_shards.items()
    }


def check_resources(plan: RunPlan, shards: Shards) -> None:
    """Check devices, checkpoints to resume from, networks and disk space for the unfinished runs. Imports torch.

    Raises:
        RequestError: A device is missing, a run cannot be resumed, or a network does not fit the images.
        ResourceError: The disk has too little free space.
    """
    runs = unfinished_runs(plan)
    if not runs:
        return
    from fedmosaic_cli.runner.build import check_networks, find_devices
    from fedmosaic_cli.runner.cost_estimates import dimensions_from_shards, disk_bytes
    from fedmosaic_cli.runner.environment import machine_environment
    from fedmosaic_cli.runner.resume_checks import check_resumable

    devices = find_devices(plan.request.device)
    required_bytes = 0
    for run in runs:
        planned = shard_set(shards[run.shards_key])
        environment = machine_environment(devices, planned.digest, run.config.plugins())
        check_resumable(run.files, environment, plan.request.allow_nonidentical)
        dimensions = dimensions_from_shards(planned)
        channels, height, width = dimensions.input_shape
        check_networks(run.config, (height, width, channels), dimensions.num_classes, devices[0])
        if not is_run_complete(run.files, run.config):
            required_bytes += max(0, disk_bytes(run.config, dimensions) - run.files.size_bytes())
    require_free_space(runs[0].files.path, required_bytes, "free some space or choose another --runs-dir")


def cost_notes(runs: Iterable[PlannedRun]) -> list[str]:
    """Notes about methods that need more computation than others."""
    notes = (run.config.method.costs(FederationInfo(0, {}, {}, run.config.train.rounds)).note for run in runs)
    return list(filter(None, dict.fromkeys(notes)))


def method_warnings(runs: Iterable[PlannedRun]) -> list[str]:
    """Warnings about configurations, e.g. if they make a method equivalent to another one."""
    warnings: list[str] = []
    for run in runs:
        config, num_clients = run.config, run.config.data.clients or 1
        facts = RunFacts(
            num_rounds=config.train.rounds,
            num_clients=num_clients,
            num_participants=config.train.clients_per_round or num_clients,
            has_batch_norm=config.model_settings_for(0).has_batch_norm,
            public_size=config.data.public_size or 0,
            optimizer=config.train.optimizer,
            learning_rate=config.train.lr,
            examples_per_client=config.data.examples_per_client,
        )
        warnings += config.method.warnings(facts)
        if config.train.augment != "none" and (names := estimator_names(config)):
            warnings.append(
                f"clients with a {' or '.join(names)} are trained without augmentation "
                f"(train.augment {config.train.augment})"
            )
    return list(dict.fromkeys(warnings))


def estimator_names(config: RunConfig) -> list[str]:
    """The scikit-learn models that clients of a run have."""
    return list(dict.fromkeys(model.name for model, _ in config.client_groups if not model.is_network))


def execute_runs(
    plan: RunPlan,
    shards: Shards,
    options: RunOptions,
    data_dirs: DataDirs,
    remote_for: Callable[[ShardSet], RemoteBackend | None] = lambda _: None,
    observe: EventObserver = lambda events, _: nullcontext(events),
) -> Iterator[tuple[PlannedRun, RunEvent | WritingShards | RunPreparing | RunFailed]]:
    """Make the runs of a plan one after the other, within `lock_runs`.

    A finished run yields its result only. A run that fails does not affect the others. After a stop request, the
    current run stops and the rest do not start.

    Args:
        shards: The result of `find_shards`; those that are not on disk are written when first used.
        remote_for: Returns the remote federation for shards, or None to run all clients in this process.
        observe: Wraps the events of each run.

    Yields:
        Each event with the run that it belongs to.
    """
    for run in plan.runs:
        if options.should_stop():
            yield run, RunStopped(0, started=False)
            return
        if not is_held_here(run.files.path):
            require_intact_run(run)
            result = RunFinished(run.files.read_summary(), was_finished=True)
            with observe(iter([result]), run.files) as observed:
                for event in observed:
                    yield run, event
            continue
        from fedmosaic_cli.runner.experiment import run_experiment  # torch is not imported if all runs are finished

        saved = shards[run.shards_key]
        if isinstance(saved, UnsavedPartition):
            yield run, WritingShards()
            saved = shards[run.shards_key] = saved.save()
        yield run, RunPreparing()
        run_options = replace(options, remote=remote_for(saved))
        try:
            events = run_experiment(run.config, saved, run.files, data_dirs, run_options)
            with record_crash(run.files, run.config), observe(events, run.files) as observed:
                for event in observed:
                    yield run, event
                    if isinstance(event, RunStopped):
                        return
        except RunFailedError as error:
            yield run, RunFailed(error)


def require_intact_run(run: PlannedRun) -> None:
    """Raise `RunStateError` if a run that was finished when the command started is not finished any more."""
    if not is_run_intact(run.files, run.config):
        raise RunStateError(
            f"another process changed this finished run ({run.files.path}): wait for it, then repeat the command"
        )


@contextmanager
def record_crash(files: RunDirectory, config: RunConfig) -> Iterator[None]:
    """Write the traceback of an unexpected error to the run's directory. Errors of plug-ins name their place."""
    try:
        yield
    except FedMosaicError:
        raise
    except FileNotFoundError as error:
        raise plugin_failure(error) or ResourceError(
            f"{error.strerror} ({error.filename}): it was removed while the run was writing; start the run again"
        ) from None
    except OSError as error:
        failure = plugin_failure(error)
        if failure is not None:
            raise failure from None
        raise
    except Exception as error:
        with suppress(OSError):
            write_atomic(files.crash_path, traceback.format_exc().encode())
        failure = plugin_failure(error)
        if failure is None and config.plugins():
            where = ", ".join(config.plugins())
            failure = RunFailedError(
                f"{type(error).__name__}: {error} (in a run with {where}): correct the plug-in; see {files.crash_path}"
            )
        if failure is not None:
            raise failure from error
        raise
