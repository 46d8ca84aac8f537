"""What is checked and prepared before a run starts: its directory, its shards and its data. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.resume_changes import differences
from fedmosaic_cli.config.run_config import fingerprint, recorded_run, stored_run
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import find_source, load_dataset, locate
from fedmosaic_cli.data.partitioning.partition import partition
from fedmosaic_cli.data.resolve_settings import resolve
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.report.plots.partition_plots import distribution_picture, public_picture
from fedmosaic_cli.storage import shards as records
from fedmosaic_cli.storage.checkpoints import newest_manifest
from fedmosaic_cli.storage.exported_shards import load_exported
from fedmosaic_cli.storage.lock import check_free
from fedmosaic_cli.storage.shard_manifest import client_counts, describe

if TYPE_CHECKING:
    from fedmosaic_cli.config.presets import Preset
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place, Watch
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.storage.runs import RunFiles
    from fedmosaic_cli.storage.shards import Shards


@dataclass(frozen=True)
class Deal:
    """A data set dealt in memory, and the shards that it makes."""

    dataset: Dataset
    shards: Shards
    watch: Watch

    def written(self, export: bool = False) -> Shards:
        """The shards on disk; they are written now unless they are there already."""
        return records.save(self.shards, self.dataset, pictures, export, self.watch)


def pictures(manifest: dict[str, Any]) -> dict[str, bytes]:
    """What there is to look at: the clients' classes, and the public set's."""
    counts, names = client_counts(manifest), manifest["class_names"]
    what = f"{manifest['dataset']}, {manifest['scheme']}"
    domains = [client["domain"] for client in manifest["clients"]]
    title = f"{what}: examples of {len(counts)} clients"
    drawn = {"distribution": distribution_picture(counts, names, title, domains)}
    public = manifest["public"]
    if public["size"]:
        drawn["public"] = public_picture(
            public["class_counts"], names, f"{what}: public set, {public['size']} examples"
        )
    return {f"{name}.{ending}": content for name, files in drawn.items() for ending, content in files.items()}


def deal(settings: DataSettings, seed: int, path: Path, place: Place) -> Deal:
    """Deal the data set; nothing is written."""
    settings = resolve(settings, place)
    dataset = load_dataset(settings, place)
    dealt = partition(dataset, settings, seed)
    # A published data set is found anywhere by its name; the user's own only where it is.
    own = find_source(settings.dataset).look is not None
    found_at = str(locate(settings.dataset, place).absolute()) if own else ""
    return Deal(dataset, records.Shards(path, describe(dataset, dealt, found_at), dealt), place.watch)


def run_directory(runs_dir: Path, config: RunConfig, label: str = "") -> Path:
    """Where a run is written if nobody says otherwise; `label` tells hyper-parameters apart that no name does."""
    return runs_dir / config.setting / "-".join(filter(None, (config.method.variant, label))) / f"seed-{config.seed}"


def find_shards(config: RunConfig, preset: Preset | None, place: Place) -> Shards | Deal:
    """The shards of a run, or, where there are none yet, what they will be.

    Those that are dealt as the preset alone would carry its name, those of a variation a fingerprint behind it, so that
    the two never meet in one directory; settings that deal alike share theirs, whatever they are called.
    """
    name = preset.name if preset else config.setting
    if preset is None or resolve(standard_data(preset), place) != config.data:
        name += f"-{fingerprint(config.data)}"
    path = records.default_path(name, config.partition_seed)
    if not (path / records.MANIFEST).is_file():
        return deal(config.data, config.partition_seed, path, place)
    shards = records.load(path)
    if shards.partition.settings != config.data or shards.partition.seed != config.partition_seed:
        raise RequestError(f"these shards were dealt in another way ({path}): move them away or use --shards")
    return shards


def standard_data(preset: Preset) -> DataSettings:
    """How a preset alone deals the data."""
    layers = Layers()
    layers.add_all(preset.layers)
    return layers.section("data", DataSettings)


def open_shards(shards: Shards, place: Place) -> tuple[Dataset, Partition]:
    """The examples behind the shards, checked to be the same ones, and who holds which of them."""
    if shards.exported:
        return load_exported(shards)
    settings, manifest = shards.partition.settings, shards.manifest
    found_at = Path(str(manifest.get("found_at") or ""))
    places = [replace(place, data_dir=found_at)] if found_at.is_absolute() and found_at.exists() else []
    if found_at.is_absolute() and not places and find_source(settings.dataset).find(place.data_dir) is None:
        raise RequestError(f"the data of these shards is gone ({found_at}): put it back, or name it with --data-dir")
    for spot in (*places, place):
        if spot is place or find_source(settings.dataset).find(spot.data_dir):
            dataset = load_dataset(settings, spot)
            if dataset.fingerprint == manifest["source_fingerprint"] and fits(dataset, manifest):
                return dataset, shards.partition
    raise RequestError(
        f"'{settings.dataset}' here is not the data these shards were made from ({shards.path}): make the shards anew"
    )


def fits(dataset: Dataset, manifest: dict[str, Any]) -> bool:
    """Whether the manifest tells of this data: indices into other data would point anywhere."""
    facts = (len(dataset), list(dataset.images.shape[1:]), list(dataset.class_names))
    return facts == (manifest["examples"], manifest["image_shape"], manifest["class_names"])


def check_run(config: RunConfig, files: RunFiles, resume: bool, place: Place, nonidentical: bool = False) -> None:
    """Refuse a run directory that cannot be used, before anything is written anywhere.

    With `nonidentical`, some of what makes the run end in another result is accepted.
    """
    files.check_kinds()
    check_free(files.path)
    check_directory(files, resume)
    if not files.exists():
        return
    for difference in differences(configuration_of(files, place), config):
        if is_done(files, config):
            raise RequestError(
                f"the run is finished, under another configuration: {difference.text} ({files.config}): "
                "use another --run-dir"
            )
        if not (nonidentical and difference.acceptable):
            ways = "set it back, or use another --run-dir"
            if difference.acceptable:
                ways = "set it back, use another --run-dir, or accept another result with --allow-nonidentical"
            raise RequestError(f"cannot resume with another configuration: {difference.text} ({files.config}): {ways}")


def is_done(files: RunFiles, config: RunConfig) -> bool:
    """Whether there is no round left to play."""
    try:
        return files.finished() and bool(files.summary()["rounds"] == config.train.rounds)
    except RequestError:
        return False


def check_directory(files: RunFiles, resume: bool) -> None:
    """Refuse to begin a run where there is something already."""
    if files.exists() and not resume:
        raise RequestError(
            f"run directory is not empty ({files.path}): add --resume to go on, or choose another place for it"
        )


def configuration_of(files: RunFiles, place: Place) -> RunConfig:
    """The configuration of a run that was begun: as its newest checkpoint has it, which is checked, or its file."""
    manifest = newest_manifest(files.checkpoints)
    if manifest is not None:
        return recorded_run(manifest["config"], str(files.checkpoints), place)
    if not files.config.is_file():
        raise RequestError(f"nothing to resume here ({files.path}): this is not a run directory")
    return stored_run(files.config, place)


def check_finished(files: RunFiles) -> None:
    """Refuse what is not a finished run."""
    if files.finished() and not files.config.exists():
        raise RequestError(f"the configuration is missing ({files.config}): mend the run with --resume")
    if not files.config.is_file():
        raise RequestError(f"not a run directory ({files.path}): name one such as runs/quickstart/local/seed-0")
    if not files.finished():
        check_free(files.path)
        raise RequestError(f"the run is not finished ({files.path}): go on with --resume first")
