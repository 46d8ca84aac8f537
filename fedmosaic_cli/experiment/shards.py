"""Finding the shards of a run, or making them. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.config.run import fingerprint
from fedmosaic_cli.data.partition import partition, resolve
from fedmosaic_cli.data.picture import distribution_picture
from fedmosaic_cli.data.sources import find_source
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.records import shards as records

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.settings import DataSettings
    from fedmosaic_cli.records.shards import Shards


def make_shards(settings: DataSettings, seed: int, path: Path) -> Shards:
    """Deal the data set anew and write the shards under `path`."""
    dataset = find_source(settings.dataset).load()
    dealt = partition(dataset, resolve(settings), seed)
    manifest = records.describe(dataset, dealt)
    counts = [client["train"]["class_counts"] for client in manifest["clients"]]
    title = f"{dataset.name}, {settings.scheme}, {len(counts)} clients: training examples by class"
    return records.save(path, dataset, dealt, distribution_picture(counts, dataset.class_names, title))


def shards_of(config: RunConfig, standard: DataSettings | None) -> Shards:
    """The shards of a run, made if they are not there yet.

    `standard` is how the preset alone would deal: shards of a preset carry its name, those of a variation a fingerprint
    behind it, so that the two never meet in one directory.
    """
    name = config.setting
    if standard is None or resolve(standard) != config.data:
        name += f"-{fingerprint(config.data)}"
    path = records.default_path(name, config.partition_seed)
    if (path / records.MANIFEST).is_file():
        shards = records.load(path)
        if shards.partition.settings != config.data or shards.partition.seed != config.partition_seed:
            raise RequestError(f"these shards were dealt in another way ({path}): move them away or use --shards")
        return shards
    return make_shards(config.data, config.partition_seed, path)


def dataset_of(shards: Shards) -> Dataset:
    """The examples behind the shards, checked to be the same ones."""
    dataset = find_source(shards.manifest["dataset"]).load()
    if dataset.fingerprint != shards.manifest["source_fingerprint"]:
        raise RequestError(
            f"'{dataset.name}' here is not the data these shards were made from ({shards.path}): make the shards anew"
        )
    return dataset
