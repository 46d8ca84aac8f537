"""Prepare a run: check its directory, find or make its shards, load its data. Does not import torch."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run_config import load_run_config, run_config_from_dict
from fedmosaic_cli.data.datasets import find_dataset_source, load_dataset, locate_dataset
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.plots.canvas import Caption
from fedmosaic_cli.report.plots.partition_plots import (
    COUNTED_EXAMPLES_NOTE,
    render_class_counts,
    render_public_class_counts,
)
from fedmosaic_cli.runner.resume_checks import config_differences, display_difference, input_differences
from fedmosaic_cli.storage import shards as records
from fedmosaic_cli.storage.checkpoints import read_newest_manifest
from fedmosaic_cli.storage.files import read_json, require_no_links_below, write_atomic
from fedmosaic_cli.storage.lock import require_unlocked
from fedmosaic_cli.storage.shard_manifest import build_shard_manifest, class_counts_by_client
from fedmosaic_cli.storage.shards import load_exported_shards
from fedmosaic_cli.storage.syscalls import private_files

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs, ProgressCallback
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.runner.plan import PlannedRun, RunRequest
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet


@dataclass(frozen=True)
class UnsavedPartition:
    """A partitioned data set that is not on disk yet."""

    dataset: Dataset
    shards: ShardSet
    on_progress: ProgressCallback

    def save(self, export: bool = False) -> ShardSet:
        """Write the shards unless they exist; return those on disk."""
        return records.write_shards(self.shards, self.dataset, export, self.on_progress)


def shard_set(shards: ShardSet | UnsavedPartition) -> ShardSet:
    """Return the shards, whether or not they are on disk."""
    return shards.shards if isinstance(shards, UnsavedPartition) else shards


def write_partition_plots(shards: ShardSet) -> None:
    """Plot the class counts of the clients and of the public set into the directory of the shards, unless they exist.

    Training does not need them, so only `fedmosaic partition` calls this.
    """
    stems = ("distribution", "public") if shards.manifest["public"]["size"] else ("distribution",)
    names = [f"{stem}.{ending}" for stem in stems for ending in ("png", "pdf")]
    if all((shards.path / name).exists() for name in names):
        return
    with private_files() if shards.has_examples else nullcontext():
        for name, content in partition_plots(shards.manifest).items():
            write_atomic(shards.path / name, content)


def partition_plots(manifest: dict[str, Any]) -> dict[str, bytes]:
    """Plot the class counts of the clients and of the public set; return file contents by name."""
    counts, names = class_counts_by_client(manifest), manifest["class_names"]
    source = f"{manifest['dataset']}, {manifest['scheme']}"
    domains = [client["domain"] for client in manifest["clients"]]
    clients = f"{len(counts)} client{'s' * (len(counts) > 1)}"
    caption = Caption("examples per client and class", f"{source}, {clients}", COUNTED_EXAMPLES_NOTE)
    plots = {"distribution": render_class_counts(counts, names, caption, domains)}
    public = manifest["public"]
    if public["size"]:
        caption = Caption(f"classes of the {public['size']} examples of the public set", source)
        plots["public"] = render_public_class_counts(public["class_counts"], names, caption)
    return {f"{name}.{ending}": content for name, files in plots.items() for ending, content in files.items()}


def load_and_partition(settings: DataSettings, seed: int, path: Path, data_dirs: DataDirs) -> UnsavedPartition:
    """Fill in default data settings, load the data set and partition it. Writes nothing."""
    return partition_resolved(resolve_data_settings(settings, data_dirs), seed, path, data_dirs)


def partition_resolved(settings: DataSettings, seed: int, path: Path, data_dirs: DataDirs) -> UnsavedPartition:
    """Load and partition the data set of settings without open defaults. Writes nothing."""
    dataset = load_dataset(settings, data_dirs)
    partition = partition_dataset(dataset, settings, seed)
    # Published data sets are found by name; for user data the manifest records the path.
    own = find_dataset_source(settings.dataset).inspect is not None
    found_at = str(locate_dataset(settings.dataset, data_dirs).absolute()) if own else ""
    return UnsavedPartition(
        dataset,
        records.ShardSet(path, build_shard_manifest(dataset, partition, found_at), partition),
        data_dirs.on_progress,
    )


def run_directory(runs_dir: Path, config: RunConfig, tag: str = "") -> Path:
    """Return the default directory of a run; `tag` distinguishes hyper-parameters that the variant does not show."""
    return (
        runs_dir / config.experiment_name / "-".join(filter(None, (config.method.variant, tag))) / f"seed-{config.seed}"
    )


def find_or_partition_shards(config: RunConfig, name: str, data_dirs: DataDirs) -> ShardSet | UnsavedPartition:
    """Read the shards of a run from the default directory, or partition the data set if they do not exist."""
    path = records.default_shards_path(name, config.partition_seed)
    if not (path / records.SHARD_MANIFEST_FILE).is_file():
        return partition_resolved(config.data, config.partition_seed, path, data_dirs)
    shards = records.read_shards(path)
    if shards.partition.settings != config.data or shards.partition.seed != config.partition_seed:
        raise RequestError(f"existing shards have other data settings ({path}): move them or use --shards")
    return shards


def load_shard_data(shards: ShardSet, data_dirs: DataDirs) -> tuple[Dataset, Partition]:
    """Load the data set of shards and check that it is the one they were made from."""
    if shards.has_examples:
        return load_exported_shards(shards)
    settings, manifest = shards.partition.settings, shards.manifest
    found_at = Path(str(manifest.get("found_at") or ""))
    recorded = [replace(data_dirs, data_dir=found_at)] if found_at.is_absolute() and found_at.exists() else []
    if (
        found_at.is_absolute()
        and not recorded
        and find_dataset_source(settings.dataset).find(data_dirs.data_dir) is None
    ):
        raise RequestError(
            f"the data of these shards is missing ({found_at}): restore it, or name its directory with --data-dir"
        )
    for dirs in (*recorded, data_dirs):
        if dirs is data_dirs or find_dataset_source(settings.dataset).find(dirs.data_dir):
            dataset = load_dataset(settings, dirs)
            if dataset.fingerprint == manifest["source_fingerprint"] and matches_manifest(dataset, manifest):
                return dataset, shards.partition
    raise RequestError(
        f"'{settings.dataset}' here is not the data these shards were made from ({shards.path}): "
        "re-run 'fedmosaic partition'"
    )


def matches_manifest(dataset: Dataset, manifest: dict[str, Any]) -> bool:
    """Whether size, image shape and class names agree, so that indices are valid."""
    facts = (len(dataset), list(dataset.images.shape[1:]), list(dataset.class_names))
    return facts == (manifest["examples"], manifest["image_shape"], manifest["class_names"])


def check_run_directory(run: PlannedRun, request: RunRequest, data_dirs: DataDirs) -> None:
    """Refuse a directory that is locked, or that holds another run than the planned one."""
    run.files.check_file_types()
    require_unlocked(run.files.path)
    require_same_run(run, request, data_dirs)


def require_same_run(run: PlannedRun, request: RunRequest, data_dirs: DataDirs) -> None:
    """Refuse a directory that holds another run than the planned one."""
    config, files = run.config, run.files
    if request.must_be_new:
        require_empty(files)
    if not files.has_content():
        return
    stored = load_latest_run_config(files, data_dirs)
    for difference in config_differences(stored, config):
        is_finished = is_run_complete(files, config)
        if not is_finished and request.allow_nonidentical and difference.is_overridable:
            continue
        remedies = ["set it back", rename_advice(request)]
        if difference.is_overridable and not is_finished:
            remedies.append("accept another result with --allow-nonidentical")
        raise RequestError(
            f"another run{' is finished' if is_finished else ''} here: {display_difference(difference.text)} "
            f"({files.config_path}): {', '.join(remedies[:-1])}, or {remedies[-1]}"
        )
    if stored.train.rounds < config.train.rounds and not request.resume:
        raise RequestError(
            f"the run here has {stored.train.rounds} rounds, not {config.train.rounds} ({files.path}): add --resume "
            f"to extend it, or {rename_advice(request)}"
        )
    if is_run_complete(files, config):
        require_same_inputs(run, request)


def require_same_inputs(run: PlannedRun, request: RunRequest) -> None:
    """Refuse to take a finished run for the planned one if it used other shards or another plug-in.

    Unfinished runs are compared when they are resumed.
    """
    path = records.default_shards_path(run.shards_name, run.config.partition_seed) / records.SHARD_MANIFEST_FILE
    shards_digest, recorded = "", dict[str, Any]()
    with suppress(RequestError, OSError, ValueError):  # damaged files are reported or repaired later
        recorded = run.files.read_environment()
        shards_digest = request.shards.digest if request.shards else str(read_json(path)["digest"])
    for difference in input_differences(recorded, shards_digest, run.config.plugins()) if recorded else ():
        raise RequestError(
            f"another run is finished here: {display_difference(difference)} ({run.files.path}): "
            f"set it back, or {rename_advice(request)}"
        )


def rename_advice(request: RunRequest) -> str:
    """Return how to put a run into another directory."""
    if request.run_dir is not None:
        return "use another --run-dir"
    given = [
        option for option, value in (("--name", request.experiment_name), ("--tag", request.tag)) if value is not None
    ]
    if not given:
        return "choose a --name"
    return f"leave out {' and '.join(given)} or choose {'others' if len(given) > 1 else 'another'}"


def is_run_complete(files: RunDirectory, config: RunConfig) -> bool:
    """Whether all configured rounds are finished."""
    try:
        return files.is_finished() and bool(files.read_summary()["rounds"] == config.train.rounds)
    except RequestError:
        return False


def is_run_intact(files: RunDirectory, config: RunConfig) -> bool:
    """Whether all configured rounds are finished and no file is damaged, so that nothing is left to do."""
    return is_run_complete(files, config) and not files.damaged_files()


def require_empty(files: RunDirectory) -> None:
    """Refuse a directory with content."""
    if files.has_content():
        raise RequestError(
            f"run directory is not empty ({files.path}): add --resume to continue, or choose another directory"
        )


def load_latest_run_config(files: RunDirectory, data_dirs: DataDirs) -> RunConfig:
    """Load the configuration of a started run from its newest checkpoint, else from config.yaml."""
    manifest = read_newest_manifest(files.checkpoints_dir)
    if manifest is not None:
        return run_config_from_dict(manifest["config"], str(files.checkpoints_dir), data_dirs)
    if not files.config_path.is_file():
        raise RequestError(f"the directory has other content and no run ({files.path}): choose another directory")
    return load_run_config(files.config_path, data_dirs)


def require_finished_run(files: RunDirectory) -> None:
    """Raise RequestError unless the directory contains a finished run."""
    if files.is_finished() and not files.config_path.exists():
        raise RequestError(f"the configuration is missing ({files.config_path}): repeat its command to repair the run")
    if not files.config_path.is_file():
        raise RequestError(f"not a run directory ({files.path}): name one such as runs/quickstart/local/seed-0")
    require_no_links_below(files.path)
    if not files.is_finished():
        require_unlocked(files.path)
        raise RequestError(f"the run is not finished ({files.path}): repeat its command to continue it")
