"""Where examples come from. One file a data set; SOURCES is the table of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets import (
    cifar10,
    digits,
    digits_domains,
    domainnet,
    fashion_mnist,
    folder,
    npz,
    office10,
    pfllib,
)
from fedmosaic_cli.data.datasets.dataset_source import LoadOptions
from fedmosaic_cli.data.io.download import download_files
from fedmosaic_cli.errors import RequestError, unknown_name_error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.datasets.dataset_source import DatasetSource

DATASETS = {
    "digits": digits.SOURCE,
    "digits-domains": digits_domains.SOURCE,
    "fashion-mnist": fashion_mnist.SOURCE,
    "cifar10": cifar10.SOURCE,
    "office10": office10.SOURCE,
    "domainnet": domainnet.SOURCE,
    "folder": folder.SOURCE,
    "npz": npz.SOURCE,
    "pfllib": pfllib.SOURCE,
}
# What is fetched without being asked for: a matter of a minute, not of an evening and a disk.
MAX_AUTO_DOWNLOAD_BYTES = 1_000_000_000


def find_dataset_source(name: str) -> DatasetSource:
    """The source called `name`."""
    if name not in DATASETS:
        raise unknown_name_error("data set", name, DATASETS, "data.dataset", "'fedmosaic doctor' lists them")
    return DATASETS[name]


def locate_dataset(name: str, data_dirs: DataDirs) -> Path:
    """Where the data set lies."""
    source = find_dataset_source(name)
    path = source.find(data_dirs.data_dir)
    if path is None:
        elsewhere = "" if source.inspect else "; --data-dir tells where data lies"
        raise RequestError(f"data set '{name}' is not here ({data_dirs.data_dir}): {source.setup_hint}{elsewhere}")
    return path


def load_dataset(settings: DataSettings, data_dirs: DataDirs) -> Dataset:
    """The data set of resolved `settings`. A small one that is published is fetched where it is missing."""
    key = (settings.dataset, data_dirs.data_dir.absolute(), settings.domains, settings.image_size, settings.share)
    if key not in data_dirs.dataset_cache:
        data_dirs.dataset_cache.clear()  # before the next one comes: two would not always fit
        data_dirs.dataset_cache[key] = load_or_download(settings, data_dirs)
    return data_dirs.dataset_cache[key]


def load_or_download(settings: DataSettings, data_dirs: DataDirs) -> Dataset:
    source = find_dataset_source(settings.dataset)
    if (
        source.find(data_dirs.data_dir) is None
        and 0 < sum(file.size_bytes for file in source.downloads) <= MAX_AUTO_DOWNLOAD_BYTES
    ):
        download_files(source.downloads, data_dirs)
    return load_local_dataset(settings, LoadOptions(data_dirs, settings.domains, settings.image_size))


def load_dataset_without_pixels(settings: DataSettings, data_dirs: DataDirs) -> Dataset:
    """The same for those who need no pixels: nothing is fetched and nothing written."""
    return load_local_dataset(
        settings, LoadOptions(data_dirs, settings.domains, settings.image_size, load_pixels=False)
    )


def load_local_dataset(settings: DataSettings, options: LoadOptions) -> Dataset:
    dataset = find_dataset_source(settings.dataset).load(locate_dataset(settings.dataset, options.data_dirs), options)
    for name in settings.domains:
        if name not in dataset.domain_names:
            raise unknown_name_error("domain", name, dataset.domain_names, "data.domains")
    dataset = dataset.select_domains(settings.domains) if settings.domains else dataset
    return subsample_dataset(dataset, settings) if settings.share < 1 else dataset


def subsample_dataset(dataset: Dataset, settings: DataSettings) -> Dataset:
    """As much of the data set as the settings ask for, and something of all that there was."""
    sample = dataset.subsample(settings.share)
    left = set(describe_groups(sample, settings))
    for kind in describe_groups(dataset, settings):
        if kind not in left:
            raise RequestError(
                f"a share of {settings.share:g} leaves nothing of {kind} in '{dataset.name}' (data.share): raise it"
            )
    return sample


def describe_groups(dataset: Dataset, settings: DataSettings) -> Iterator[str]:
    """What there are examples of, in words."""
    for part, use in ((dataset.train_indices, "train"), (dataset.test_indices, "test")):
        yield from (f"class '{dataset.class_names[label]}' to {use} on" for label in np.unique(dataset.labels[part]))
    if dataset.domain_ids is not None:
        yield from (f"domain '{dataset.domain_names[number]}'" for number in np.unique(dataset.domain_ids))
    if dataset.client_ids is not None and settings.scheme == "natural":
        yield from (f"client {number}" for number in np.unique(dataset.client_ids))
