"""What is checked and prepared before a run starts: its directory, its shards and its data. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.resume_changes import config_differences
from fedmosaic_cli.config.run_config import load_run_config, run_config_from_dict
from fedmosaic_cli.data.datasets import find_dataset_source, load_dataset, locate_dataset
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.plots.partition_plots import render_class_counts, render_public_class_counts
from fedmosaic_cli.storage import shards as records
from fedmosaic_cli.storage.checkpoints import read_newest_manifest
from fedmosaic_cli.storage.lock import require_unlocked
from fedmosaic_cli.storage.shard_manifest import build_shard_manifest, class_counts_by_client
from fedmosaic_cli.storage.shards import load_exported_shards

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs, ProgressCallback
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.storage.runs import RunDirectory
    from fedmosaic_cli.storage.shards import ShardSet


@dataclass(frozen=True)
class UnsavedPartition:
    """A data set dealt in memory, and the shards that it makes."""

    dataset: Dataset
    shards: ShardSet
    on_progress: ProgressCallback

    def save(self, export: bool = False) -> ShardSet:
        """The shards on disk; they are written now unless they are there already."""
        return records.write_shards(self.shards, self.dataset, partition_plots, export, self.on_progress)


def shard_set(shards: ShardSet | UnsavedPartition) -> ShardSet:
    """Return the shards, whether or not they are on disk."""
    return shards.shards if isinstance(shards, UnsavedPartition) else shards


def partition_plots(manifest: dict[str, Any]) -> dict[str, bytes]:
    """What there is to look at: the clients' classes, and the public set's."""
    counts, names = class_counts_by_client(manifest), manifest["class_names"]
    what = f"{manifest['dataset']}, {manifest['scheme']}"
    domains = [client["domain"] for client in manifest["clients"]]
    title = f"{what}: examples of {len(counts)} clients"
    drawn = {"distribution": render_class_counts(counts, names, title, domains)}
    public = manifest["public"]
    if public["size"]:
        drawn["public"] = render_public_class_counts(
            public["class_counts"], names, f"{what}: public set, {public['size']} examples"
        )
    return {f"{name}.{ending}": content for name, files in drawn.items() for ending, content in files.items()}


def load_and_partition(settings: DataSettings, seed: int, path: Path, data_dirs: DataDirs) -> UnsavedPartition:
    """Fill in default data settings, load the data set and partition it. Writes nothing."""
    return partition_resolved(resolve_data_settings(settings, data_dirs), seed, path, data_dirs)


def partition_resolved(settings: DataSettings, seed: int, path: Path, data_dirs: DataDirs) -> UnsavedPartition:
    """Load and partition the data set of settings without open defaults. Writes nothing."""
    dataset = load_dataset(settings, data_dirs)
    dealt = partition_dataset(dataset, settings, seed)
    # A published data set is found anywhere by its name; the user's own only where it is.
    own = find_dataset_source(settings.dataset).inspect is not None
    found_at = str(locate_dataset(settings.dataset, data_dirs).absolute()) if own else ""
    return UnsavedPartition(
        dataset, records.ShardSet(path, build_shard_manifest(dataset, dealt, found_at), dealt), data_dirs.on_progress
    )


def run_directory(runs_dir: Path, config: RunConfig, tag: str = "") -> Path:
    """Where a run is written if nobody says otherwise; `label` tells hyper-parameters apart that no name does."""
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
    """The examples behind the shards, checked to be the same ones, and who holds which of them."""
    if shards.has_examples:
        return load_exported_shards(shards)
    settings, manifest = shards.partition.settings, shards.manifest
    found_at = Path(str(manifest.get("found_at") or ""))
    places = [replace(data_dirs, data_dir=found_at)] if found_at.is_absolute() and found_at.exists() else []
    if found_at.is_absolute() and not places and find_dataset_source(settings.dataset).find(data_dirs.data_dir) is None:
        raise RequestError(f"the data of these shards is gone ({found_at}): put it back, or name it with --data-dir")
    for spot in (*places, data_dirs):
        if spot is data_dirs or find_dataset_source(settings.dataset).find(spot.data_dir):
            dataset = load_dataset(settings, spot)
            if dataset.fingerprint == manifest["source_fingerprint"] and matches_manifest(dataset, manifest):
                return dataset, shards.partition
    raise RequestError(
        f"'{settings.dataset}' here is not the data these shards were made from ({shards.path}): make the shards anew"
    )


def matches_manifest(dataset: Dataset, manifest: dict[str, Any]) -> bool:
    """Whether the manifest tells of this data: indices into other data would point anywhere."""
    facts = (len(dataset), list(dataset.images.shape[1:]), list(dataset.class_names))
    return facts == (manifest["examples"], manifest["image_shape"], manifest["class_names"])


def check_run_directory(
    config: RunConfig, files: RunDirectory, resume: bool, data_dirs: DataDirs, allow_nonidentical: bool = False
) -> None:
    """Refuse a run directory that cannot be used, before anything is written anywhere.

    With `nonidentical`, some of what makes the run end in another result is accepted.
    """
    files.check_file_types()
    require_unlocked(files.path)
    require_empty_or_resume(files, resume)
    if not files.has_content():
        return
    for difference in config_differences(load_latest_run_config(files, data_dirs), config):
        if is_run_complete(files, config):
            raise RequestError(
                f"the run is finished, under another configuration: {difference.text} ({files.config_path}): "
                "use another --run-dir"
            )
        if not (allow_nonidentical and difference.is_overridable):
            ways = "set it back, or use another --run-dir"
            if difference.is_overridable:
                ways = "set it back, use another --run-dir, or accept another result with --allow-nonidentical"
            raise RequestError(
                f"cannot resume with another configuration: {difference.text} ({files.config_path}): {ways}"
            )


def is_run_complete(files: RunDirectory, config: RunConfig) -> bool:
    """Whether there is no round left to play."""
    try:
        return files.is_finished() and bool(files.read_summary()["rounds"] == config.train.rounds)
    except RequestError:
        return False


def require_empty_or_resume(files: RunDirectory, resume: bool) -> None:
    """Refuse to begin a run where there is something already."""
    if files.has_content() and not resume:
        raise RequestError(
            f"run directory is not empty ({files.path}): add --resume to go on, or choose another place for it"
        )


def load_latest_run_config(files: RunDirectory, data_dirs: DataDirs) -> RunConfig:
    """The configuration of a run that was begun: as its newest checkpoint has it, which is checked, or its file."""
    manifest = read_newest_manifest(files.checkpoints_dir)
    if manifest is not None:
        return run_config_from_dict(manifest["config"], str(files.checkpoints_dir), data_dirs)
    if not files.config_path.is_file():
        raise RequestError(f"nothing to resume here ({files.path}): this is not a run directory")
    return load_run_config(files.config_path, data_dirs)


def require_finished_run(files: RunDirectory) -> None:
    """Refuse what is not a finished run."""
    if files.is_finished() and not files.config_path.exists():
        raise RequestError(f"the configuration is missing ({files.config_path}): mend the run with --resume")
    if not files.config_path.is_file():
        raise RequestError(f"not a run directory ({files.path}): name one such as runs/quickstart/local/seed-0")
    if not files.is_finished():
        require_unlocked(files.path)
        raise RequestError(f"the run is not finished ({files.path}): continue with --resume first")
