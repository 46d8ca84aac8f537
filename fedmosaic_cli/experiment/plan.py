"""What is checked and prepared before a run starts: its directory and its shards. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedmosaic_cli.config.run import fingerprint, first_difference, stored_run
from fedmosaic_cli.data.partition import partition, resolve
from fedmosaic_cli.data.picture import distribution_picture
from fedmosaic_cli.data.sources import find_source
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.records import shards as records

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.config.run import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partition import Partition
    from fedmosaic_cli.data.settings import DataSettings
    from fedmosaic_cli.records.runs import RunFiles
    from fedmosaic_cli.records.shards import Shards


@dataclass(frozen=True)
class Deal:
    """A data set dealt in memory, and where its shards belong."""

    path: Path
    dataset: Dataset
    partition: Partition

    def written(self) -> Shards:
        """The shards on disk; they are written now unless they are there already."""
        return records.save(self.path, self.dataset, self.partition, distribution_picture)


def deal(settings: DataSettings, seed: int, path: Path) -> Deal:
    """Deal the data set; nothing is written."""
    dataset = find_source(settings.dataset).load()
    return Deal(path, dataset, partition(dataset, resolve(settings), seed))


def find_shards(config: RunConfig, standard: DataSettings | None) -> Shards | Deal:
    """The shards of a run, or, where there are none yet, what they will be.

    `standard` is how the preset alone would deal: shards of a preset carry its name, those of a variation a fingerprint
    behind it, so that the two never meet in one directory.
    """
    name = config.setting
    if standard is None or resolve(standard) != config.data:
        name += f"-{fingerprint(config.data)}"
    path = records.default_path(name, config.partition_seed)
    if not (path / records.MANIFEST).is_file():
        return deal(config.data, config.partition_seed, path)
    shards = records.load(path)
    if shards.partition.settings != config.data or shards.partition.seed != config.partition_seed:
        raise RequestError(f"these shards were dealt in another way ({path}): move them away or use --shards")
    return shards


def dataset_of(shards: Shards) -> Dataset:
    """The examples behind the shards, checked to be the same ones."""
    dataset = find_source(shards.manifest["dataset"]).load()
    if dataset.fingerprint != shards.manifest["source_fingerprint"]:
        raise RequestError(
            f"'{dataset.name}' here is not the data these shards were made from ({shards.path}): make the shards anew"
        )
    return dataset


def check_run(config: RunConfig, files: RunFiles, resume: bool) -> None:
    """Refuse a run directory that cannot be used, before anything is written anywhere."""
    if not files.exists():
        return
    if not resume:
        raise RequestError(
            f"run directory is not empty ({files.path}): add --resume to go on, or choose another --runs-dir"
        )
    if not files.config.is_file():
        raise RequestError(f"nothing to resume here ({files.path}): this is not a run directory")
    difference = first_difference(stored_run(files.config), config)
    if difference:
        raise RequestError(
            f"cannot resume with another configuration: {difference} ({files.config}): use another --run-dir"
        )


def check_finished(files: RunFiles) -> None:
    """Refuse what is not a finished run."""
    if not files.config.is_file():
        raise RequestError(f"not a run directory ({files.path}): name one such as runs/quickstart/local/seed-0")
    if not files.finished():
        raise RequestError(f"the run is not finished ({files.path}): go on with --resume first")
