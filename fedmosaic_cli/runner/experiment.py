"""Run one experiment from the first round or the newest checkpoint, and record it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.key_names import display_key
from fedmosaic_cli.config.run_config import run_config_from_dict
from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.errors import DivergenceError, RequestError, RunFailedError, RunStateError
from fedmosaic_cli.machine import collect_as_usual, tune_malloc
from fedmosaic_cli.runner.accelerator_options import with_accelerator_options
from fedmosaic_cli.runner.build import build_federation, find_devices
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state, to_arrays
from fedmosaic_cli.runner.client_state_files import client_state_files
from fedmosaic_cli.runner.environment import FEDERATION_KEY, collect_environment
from fedmosaic_cli.runner.events import (
    RoundCompleted,
    RunEvent,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
    WaitingForClients,
)
from fedmosaic_cli.runner.prepare import load_latest_run_config, load_shard_data
from fedmosaic_cli.runner.privacy_section import privacy_summary_fields
from fedmosaic_cli.runner.resume_checks import config_differences, environment_differences, require_identical_resume
from fedmosaic_cli.runner.run_options import RunOptions
from fedmosaic_cli.runner.summary import (
    build_summary,
    certificate_sections,
    diagnosis_section,
    privacy_ledgers,
    skipped_round_counts,
)
from fedmosaic_cli.runner.unused_options import unused_option_warnings
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.runs import DIGESTS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    import torch

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.context import Parameters
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.engine.rounds import RoundRecord
    from fedmosaic_cli.storage.runs import ArrayDict, RunLogs
    from fedmosaic_cli.storage.shards import ShardSet


DEFAULT_RUN_OPTIONS = RunOptions()


def run_experiment(
    config: RunConfig,
    shards: ShardSet,
    files: RunDirectory,
    data_dirs: DataDirs,
    options: RunOptions = DEFAULT_RUN_OPTIONS,
) -> Iterator[RunEvent]:
    """Run and record an experiment; continue from its newest checkpoint if there is one.

    Args:
        config: The configuration, resolved and checked.
        shards: Shards on disk.
        files: The run's directory; the caller holds its lock.
        data_dirs: Where the data set of the shards is.
        options: Device, stop requests and the like.

    Yields:
        Events; the last one is `RunFinished` or `RunStopped`.

    Raises:
        RunFailedError: A client diverged, or too few remote clients answered.
        RequestError: The run cannot be resumed with this configuration or environment.
    """
    damaged = files.damaged_files() if files.is_finished() else []
    if files.is_finished() and not damaged and files.read_summary()["rounds"] == config.train.rounds:
        yield RunFinished(files.read_summary())
        return
    use_single_thread()
    tune_malloc()
    collect_as_usual()
    devices = find_devices(options.device)
    events = record_experiment(config, shards, files, data_dirs, options, devices, damaged)
    yield from with_accelerator_options(config.train, devices[0], events)


def record_experiment(
    config: RunConfig,
    shards: ShardSet,
    files: RunDirectory,
    data_dirs: DataDirs,
    options: RunOptions,
    devices: list[torch.device],
    damaged: list[Path],
) -> Generator[RunEvent, None, None]:
    """Run and record an experiment that is not finished, or whose files are `damaged`; see `run_experiment`."""
    remote = options.remote
    with open_federation(config, shards, files, data_dirs, options, devices) as federation:
        environment = collect_environment(federation, shards, options.cli_args, config.plugins())
        environment |= remote.environment(federation) if remote else {}
        resumed, origin, logs = restore_or_start(
            config, files, federation, environment, shards.manifest, data_dirs, options.allow_nonidentical
        )
        clients, execution = federation.client_devices, federation.execution
        # The devices and the execution of remote clients are not known here.
        unused = [] if remote else unused_option_warnings(config.train, clients, execution)
        yield RunStarted(clients, execution, federation.worker_pool.num_workers, unused)
        if resumed is not None:
            replaced = [f"the file is missing or damaged ({path}); it is created again" for path in damaged]
            yield RunResumed(resumed.round, replaced + resumed.warnings)
        for missing in remote.join(federation, config, shards) if remote else ():
            if options.should_stop():
                yield RunStopped(max(0, federation.state.finished))
                return
            yield WaitingForClients(missing)
        for event in run_remaining_rounds(config, files, logs, federation, origin, options):
            yield event
            if isinstance(event, RunStopped):
                return
        digests = remote.finish(federation) if remote else save_personal_models(files, federation)
        rows = logs.read_rounds()
        device_types = sorted({device.type for device in federation.client_devices})
        summary = {
            **build_summary(config, shards, rows),
            **privacy_summary_fields(config, shards, privacy_ledgers(config, federation), is_remote=remote is not None),
            **diagnosis_section(config, rows),
            **certificate_sections(rows, shards),
            "device": ", ".join(remote.device_types(federation) if remote else device_types),
            "execution": federation.execution,
            "nonidentical": origin["nonidentical"],
            "left_out": skipped_round_counts(rows),
            "degraded": sorted({row["round"] for row in rows if "degraded" in row}),
            "models": digests,
            **(remote.summary(rows) if remote else {}),
        }
        files.finalize(summary, logs.digests())
        yield RunFinished(summary)


@contextmanager
def open_federation(
    config: RunConfig,
    shards: ShardSet,
    files: RunDirectory,
    data_dirs: DataDirs,
    options: RunOptions,
    devices: list[torch.device],
) -> Iterator[Federation]:
    """Build the federation in its initial state, with clients in this process or at remote sites."""
    if options.remote is not None:
        if config.train.eval_every != 1:
            raise RequestError(
                f"sites evaluate in every round (train.eval_every {config.train.eval_every}): remove it, or use "
                "--engine local"
            )
        with options.remote.open(config, shards, files, data_dirs, devices[0]) as federation:
            yield federation
        return
    manifest = checkpoints.read_newest_manifest(files.checkpoints_dir)
    if manifest and FEDERATION_KEY in manifest["environment"]:
        # The state of remote clients is not in the checkpoint.
        raise RequestError(
            f"the run was started with clients at sites (--engine, {files.path}): continue it with --engine flower"
        )
    data = load_shard_data(shards, data_dirs)
    with client_state_files(config.train.client_state, files) as store:
        federation = build_federation(config, *data, devices, shards_digest=shards.digest, state_store=store)
        with federation.worker_pool:
            yield federation


def run_remaining_rounds(
    config: RunConfig,
    files: RunDirectory,
    logs: RunLogs,
    federation: Federation,
    metadata: dict[str, Any],
    options: RunOptions,
) -> Iterator[RunEvent]:
    """Run the remaining rounds, log each of them and write checkpoints.

    A checkpoint is due every `train.checkpoint_every` rounds, and before the last one is older than the stop timeout,
    so that a round that is aborted costs little more than itself.
    """
    last, rounds = config.train.rounds, run_rounds(federation, config.train.rounds)
    started = saved = time.perf_counter()
    while (record := next_round(rounds, config, files)) is not None:
        seconds = time.perf_counter() - started
        logs.append_round(record.rows, {"round": record.number, "seconds": round(seconds, 6)})
        stopping = options.should_stop() and record.number < last
        # The next round may take as long as this one.
        late = time.perf_counter() - saved + seconds >= options.stop_timeout_seconds
        # Sites can go back by one or two rounds only.
        due = record.number % config.train.checkpoint_every == 0 or late or federation.remote_pool is not None
        if stopping or due or record.number == last:
            save_checkpoint(files, logs, federation, metadata)
            saved = time.perf_counter()
        trusts = [row["lambda"] for row in record.rows if row["lambda"] is not None]
        accuracies = [row["accuracy"] for row in record.rows if row["accuracy"] is not None]
        accuracy = fmean(accuracies) if accuracies else None
        skipped = [row["client"] for row in record.rows if "left_out" in row]
        failed = {row["client"]: row["lost"] for row in record.rows if "lost" in row}
        yield RoundCompleted(
            record.number, accuracy, fmean(trusts) if trusts else None, seconds, skipped, failed, record.rows
        )
        if stopping:
            yield RunStopped(record.number)
            return
        started = time.perf_counter()


def next_round(rounds: Iterator[RoundRecord], config: RunConfig, files: RunDirectory) -> RoundRecord | None:
    """Run the next round, or return None after the last one; turn divergence into RunFailedError."""
    try:
        return next(rounds, None)
    except DivergenceError as error:
        rates = {"train.lr": config.train_settings_for(error.client).lr, **numeric_hyperparameters(config)}
        values = ", ".join(f"{key} {value:g}" for key, value in rates.items())
        kept = checkpoints.list_checkpoints(files.checkpoints_dir)
        raise RunFailedError(
            f"client {error.client} diverged in round {error.round} of {config.method.variant}, seed {config.seed}, "
            f"{error.quantity} is not finite ({values}): lower the learning rate"
            f"{', or skip diverged clients with --on-nan skip' if config.train.on_nan == 'stop' else ''}; "
            f"{f'the newest checkpoint is {kept[-1]}' if kept else 'there is no checkpoint yet'}"
        ) from None


def numeric_hyperparameters(config: RunConfig) -> dict[str, float]:
    """Return the floating-point hyper-parameters of the method, e.g. for an error message."""
    name = config.method.info.name
    values = config.to_dict()["methods"][name].items()
    return {display_key(f"methods.{name}.{key}"): value for key, value in values if isinstance(value, float)}


def restore_or_start(
    config: RunConfig,
    files: RunDirectory,
    federation: Federation,
    environment: dict[str, Any],
    manifest: dict[str, Any],
    data_dirs: DataDirs,
    allow_nonidentical: bool,
) -> tuple[RunResumed | None, dict[str, Any], RunLogs]:
    """Restore federation and files from the newest checkpoint, or initialize the run's directory.

    Changes nothing if the run cannot be resumed.

    Returns:
        The event if the run is resumed, the metadata for its checkpoints, and its logs.
    """
    begun = files.has_content()
    checkpoint, damaged = checkpoints.read_newest_checkpoint(files.checkpoints_dir)
    origin: dict[str, Any] = {"config": config.to_dict(), "environment": environment, "nonidentical": []}
    if checkpoint is None:
        require_checkpoints_present(files, config, data_dirs)
        logs = files.initialize(origin["config"], environment, manifest, {})
        return RunResumed(0, []) if begun else None, origin, logs
    metadata = checkpoint.metadata
    old_config = run_config_from_dict(metadata["config"], str(files.checkpoints_dir), data_dirs)
    differences = [difference.text for difference in config_differences(old_config, config)]
    differences += environment_differences(metadata["environment"], environment)
    require_identical_resume(differences, allow_nonidentical, str(files.path))
    restore_state(federation, checkpoint.arrays, checkpoint.values, checkpoint.round)
    if not differences:
        origin["environment"] = metadata["environment"]  # env.json describes the start of the run
    changes = [f"after round {checkpoint.round}: {text}" for text in differences]
    origin["nonidentical"] = metadata["nonidentical"] + changes
    warnings = [f"{reason}; using the checkpoint of round {checkpoint.round}" for reason in damaged.values()]
    warnings += log_mismatch_warnings(files, checkpoint.logs)
    for path in damaged:
        checkpoints.quarantine_checkpoint(path)
    logs = files.initialize(origin["config"], origin["environment"], manifest, checkpoint.logs)
    return RunResumed(checkpoint.round, warnings), origin, logs


def require_checkpoints_present(files: RunDirectory, config: RunConfig, data_dirs: DataDirs) -> None:
    """Refuse to start a run again that has logged enough rounds to have had checkpoints.

    The first checkpoint is written after the log of its round.
    """
    if not files.has_content():
        return
    every = max(config.train.checkpoint_every, load_latest_run_config(files, data_dirs).train.checkpoint_every)
    if files.is_finished() or (files.path / DIGESTS_FILE).exists() or files.num_logged_rounds() > every:
        raise RunStateError(
            f"its checkpoints are missing ({files.checkpoints_dir}): restore them, or use another --run-dir"
        )


def log_mismatch_warnings(files: RunDirectory, checkpoint_logs: dict[str, bytes]) -> list[str]:
    """Return a warning for each log that does not start with the content recorded in the checkpoint."""
    warnings = []
    for name, content in checkpoint_logs.items():
        path = files.path / name
        if not path.is_file() or path.read_bytes()[: len(content)] != content:
            warnings.append(f"the log is missing or damaged ({path}); it is restored from the checkpoint")
    return warnings


def save_checkpoint(files: RunDirectory, logs: RunLogs, federation: Federation, metadata: dict[str, Any]) -> None:
    """Write a checkpoint. It contains the logs, which are compared with what was written to them."""
    arrays, values = capture_state(federation.state)
    state = checkpoints.Checkpoint(federation.state.finished, arrays, values, logs.read_unchanged(), metadata)
    checkpoints.write_checkpoint(files.checkpoints_dir, state)


def save_personal_models(files: RunDirectory, federation: Federation) -> dict[str, str]:
    """Write the final personal models one at a time, because methods may compute them; return their digests."""
    clients = {client.id: client for client in federation.state.clients}
    received = ServerView(federation)

    def models() -> Iterator[tuple[int, ArrayDict]]:
        last: tuple[Parameters, ArrayDict] | None = None
        for task in federation.eval_tasks:
            client = clients[task.owner_id]
            model = federation.method.personal_model(client, received.for_client(client))
            if last is None or model is not last[0]:
                last = model, to_arrays(model)
            client.release_state(is_changed=False)
            yield task.client_id, last[1]

    return files.save_models(models())
