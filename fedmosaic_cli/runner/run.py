"""One run, recorded: from the first round, or from the last checkpoint, to the summary."""

from __future__ import annotations

import time
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run_config import run_config_from_dict
from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
from fedmosaic_cli.engine.local_pool import server_state_by_device
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.errors import DivergenceError, RequestError, RunFailedError, RunStateError
from fedmosaic_cli.machine import tune_malloc
from fedmosaic_cli.runner.build import build_federation, find_devices
from fedmosaic_cli.runner.environment import FEDERATION_KEY, collect_environment
from fedmosaic_cli.runner.events import (
    RoundCompleted,
    RunEvent,
    RunFinished,
    RunOptions,
    RunResumed,
    RunStarted,
    RunStopped,
    WaitingForClients,
)
from fedmosaic_cli.runner.prepare import load_latest_run_config, load_shard_data
from fedmosaic_cli.runner.privacy_section import privacy_summary_fields
from fedmosaic_cli.runner.resume_checks import require_identical_resume, resume_differences
from fedmosaic_cli.runner.run_state import capture_state, restore_state, to_arrays
from fedmosaic_cli.runner.summary import build_summary, diagnosis_section, privacy_ledgers, skipped_round_counts
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.runs import DIGESTS_FILE, RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.engine.rounds import RoundRecord
    from fedmosaic_cli.storage.runs import ArrayDict
    from fedmosaic_cli.storage.shards import ShardSet


DEFAULT_RUN_OPTIONS = RunOptions()


def run_experiment(
    config: RunConfig,
    shards: ShardSet,
    files: RunDirectory,
    data_dirs: DataDirs,
    options: RunOptions = DEFAULT_RUN_OPTIONS,
) -> Iterator[RunEvent]:
    """Play and record the run, from where it stands. Asked to stop, it does so after a round, with a checkpoint."""
    damaged = files.damaged_files() if files.is_finished() else []
    if files.is_finished() and not damaged and files.read_summary()["rounds"] == config.train.rounds:
        yield RunFinished(files.read_summary())
        return
    use_single_thread()
    tune_malloc()
    remote = options.remote
    with open_federation(config, shards, files, data_dirs, options) as federation:
        now = collect_environment(federation, shards, options.cli_args)
        now |= remote.environment(federation) if remote else {}
        resumed, origin = restore_or_start(
            config, files, federation, now, shards.manifest, data_dirs, options.allow_nonidentical
        )
        yield RunStarted(federation.client_devices, federation.execution, federation.worker_pool.num_workers)
        if resumed is not None:
            mended = [f"the file is missing or damaged ({path}); made again" for path in damaged]
            yield RunResumed(resumed.round, mended + resumed.warnings)
        for missing in remote.join(federation, config, shards) if remote else ():
            if options.should_stop():
                yield RunStopped(federation.state.finished)
                return
            yield WaitingForClients(missing)
        for event in run_remaining_rounds(config, files, federation, origin, options):
            yield event
            if isinstance(event, RunStopped):
                return
        digests = remote.finish(federation) if remote else save_personal_models(files, federation)
        rows = files.read_rounds()
        summary = {
            **build_summary(config, shards, rows),
            **privacy_summary_fields(config, shards, privacy_ledgers(federation), is_remote=remote is not None),
            **diagnosis_section(config, rows),
            "device": ", ".join(remote.device_types(federation) if remote else local_device_types(federation)),
            "execution": federation.execution,
            "nonidentical": origin["nonidentical"],
            "left_out": skipped_round_counts(rows),
            "degraded": sorted({row["round"] for row in rows if "degraded" in row}),
            "models": digests,
            **(remote.summary(rows) if remote else {}),
        }
        files.finalize(summary)
        yield RunFinished(summary)


@contextmanager
def open_federation(
    config: RunConfig, shards: ShardSet, files: RunDirectory, data_dirs: DataDirs, options: RunOptions
) -> Iterator[Federation]:
    """Build the federation in its initial state, with clients in this process or at remote sites."""
    devices = find_devices(options.device)
    if options.remote is not None:
        with options.remote.open(config, shards, files, data_dirs, devices[0]) as federation:
            yield federation
        return
    manifest = checkpoints.read_newest_manifest(files.checkpoints_dir)
    if manifest and FEDERATION_KEY in manifest["environment"]:
        # The state of remote clients is not in the checkpoint.
        raise RequestError(
            f"the run was started with clients at sites (--engine, {files.path}): continue it with --engine flower"
        )
    federation = build_federation(config, *load_shard_data(shards, data_dirs), devices, shards_digest=shards.digest)
    with federation.worker_pool:
        yield federation


def local_device_types(federation: Federation) -> list[str]:
    return sorted({device.type for device in federation.client_devices})


def run_remaining_rounds(
    config: RunConfig, files: RunDirectory, federation: Federation, metadata: dict[str, Any], options: RunOptions
) -> Iterator[RunEvent]:
    """Play the rounds that remain, each logged, some kept as checkpoints.

    A checkpoint is made every so many rounds, and before the last one is older than anybody waits for a round to end:
    so hardly more than a round is lost when one is dropped because time is up.
    """
    last, rounds = config.train.rounds, run_rounds(federation, config.train.rounds)
    started = saved = time.perf_counter()
    while (done := next_round(rounds, config, files)) is not None:
        seconds = time.perf_counter() - started
        files.append_round(done.rows, {"round": done.number, "seconds": round(seconds, 6)})
        stopping = options.should_stop() and done.number < last
        # As long as this round took, the next one may.
        late = time.perf_counter() - saved + seconds >= options.stop_timeout_seconds
        # Sites cannot go back further than a round or two.
        due = done.number % config.train.checkpoint_every == 0 or late or federation.remote_pool is not None
        if stopping or due or done.number == last:
            save_checkpoint(files, federation, metadata)
            saved = time.perf_counter()
        trusts = [row["lambda"] for row in done.rows if row["lambda"] is not None]
        accuracy = fmean(row["accuracy"] for row in done.rows)
        left_out = [row["client"] for row in done.rows if "left_out" in row]
        lost = {row["client"]: row["lost"] for row in done.rows if "lost" in row}
        yield RoundCompleted(
            done.number, accuracy, fmean(trusts) if trusts else None, seconds, left_out, lost, done.rows
        )
        if stopping:
            yield RunStopped(done.number)
            return
        started = time.perf_counter()


def next_round(rounds: Iterator[RoundRecord], config: RunConfig, files: RunDirectory) -> RoundRecord | None:
    """The next round, if there is one. A client that diverges is the end of the run, not of what was kept."""
    try:
        return next(rounds, None)
    except DivergenceError as error:
        rates = {"train.lr": config.train_settings_for(error.client).lr, **numeric_hyperparameters(config)}
        values = ", ".join(f"{key} {value:g}" for key, value in rates.items())
        kept = checkpoints.list_checkpoints(files.checkpoints_dir)
        raise RunFailedError(
            f"client {error.client} diverged in round {error.round} of {config.method.variant}, seed {config.seed}, "
            f"{error.quantity} is not finite ({values}): lower the learning rate"
            f"{', or leave such clients out with --on-nan skip' if config.train.on_nan == 'stop' else ''}; "
            f"{f'{kept[-1]} is kept' if kept else 'there is no checkpoint yet'}"
        ) from None


def numeric_hyperparameters(config: RunConfig) -> dict[str, float]:
    """The method's own hyper-parameters, as far as they are numbers."""
    name = config.method.name
    own = config.to_dict()["methods"][name].items()
    return {f"methods.{name}.{key}": value for key, value in own if isinstance(value, float)}


def restore_or_start(
    config: RunConfig,
    files: RunDirectory,
    federation: Federation,
    environment: dict[str, Any],
    manifest: dict[str, Any],
    data_dirs: DataDirs,
    allow_nonidentical: bool,
) -> tuple[RunResumed | None, dict[str, Any]]:
    """Bring federation and files to the newest checkpoint, or to the start; where the run comes from.

    Until it is clear that the run can go on, nothing is changed.
    """
    begun = files.has_content()
    checkpoint, damaged = checkpoints.read_newest_checkpoint(files.checkpoints_dir)
    origin: dict[str, Any] = {"config": config.to_dict(), "environment": environment, "nonidentical": []}
    if checkpoint is None:
        require_checkpoints_present(files, config, data_dirs)
        files.initialize(origin["config"], environment, manifest, {})
        return RunResumed(0, []) if begun else None, origin
    was = checkpoint.metadata
    found = resume_differences(
        run_config_from_dict(was["config"], str(files.checkpoints_dir), data_dirs),
        config,
        was["environment"],
        environment,
    )
    require_identical_resume(found, allow_nonidentical, str(files.path))
    restore_state(federation, checkpoint.arrays, checkpoint.values, checkpoint.round)
    if not found:
        origin["environment"] = was["environment"]  # the record of how the run began
    origin["nonidentical"] = was["nonidentical"] + [f"after round {checkpoint.round}: {text}" for text in found]
    warnings = [f"{reason}; using the checkpoint of round {checkpoint.round}" for reason in damaged.values()]
    warnings += log_mismatch_warnings(files, checkpoint.logs)
    for path in damaged:
        checkpoints.quarantine_checkpoint(path)
    files.initialize(origin["config"], origin["environment"], manifest, checkpoint.logs)
    return RunResumed(checkpoint.round, warnings), origin


def require_checkpoints_present(files: RunDirectory, config: RunConfig, data_dirs: DataDirs) -> None:
    """Refuse to begin again what had come so far that there must have been checkpoints.

    The round after which the first is made may be logged before it is there.
    """
    if not files.has_content():
        return
    every = max(config.train.checkpoint_every, load_latest_run_config(files, data_dirs).train.checkpoint_every)
    if files.is_finished() or (files.path / DIGESTS_FILE).exists() or files.num_logged_rounds() > every:
        raise RunStateError(
            f"its checkpoints are gone ({files.checkpoints_dir}): put them back, or start the run anew in another place"
        )


def log_mismatch_warnings(files: RunDirectory, checkpoint_logs: dict[str, bytes]) -> list[str]:
    """A warning for each log that does not begin as it did when the checkpoint was made; the checkpoint knows it."""
    warnings = []
    for name, content in checkpoint_logs.items():
        path = files.path / name
        if not path.is_file() or path.read_bytes()[: len(content)] != content:
            warnings.append(f"the log is missing or damaged ({path}); taken from the checkpoint")
    return warnings


def save_checkpoint(files: RunDirectory, federation: Federation, metadata: dict[str, Any]) -> None:
    arrays, values = capture_state(federation.state)
    state = checkpoints.Checkpoint(federation.state.finished, arrays, values, files.read_logs(), metadata)
    checkpoints.write_checkpoint(files.checkpoints_dir, state)


def save_personal_models(files: RunDirectory, federation: Federation) -> dict[str, str]:
    """Write the final personal models, one at a time, as some are made for the occasion. Their digests."""
    client_of = {client.id: client for client in federation.state.clients}
    seen_from = server_state_by_device(federation)

    def models() -> Iterator[tuple[int, ArrayDict]]:
        last: tuple[Parameters, ArrayDict] | None = None
        for exam in federation.eval_tasks:
            client = client_of[exam.owner_id]
            model = federation.method.personal_model(seen_from[client.device], client)
            if last is None or model is not last[0]:
                last = model, to_arrays(model)
            yield exam.client_id, last[1]

    return files.save_models(models())
