"""The data sets: one module each, registered in DATASETS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.data.datasets import (
    cifar10,
    cifar100,
    digits,
    domainnet,
    emnist,
    fashion_mnist,
    folder,
    mnist,
    npz,
    office10,
    pfllib,
    tiny_imagenet,
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
    digits.DOMAINS_NAME: digits.DOMAINS_SOURCE,
    "mnist": mnist.SOURCE,
    **emnist.SOURCES,
    "fashion-mnist": fashion_mnist.SOURCE,
    fashion_mnist.DOMAINS_NAME: fashion_mnist.DOMAINS_SOURCE,
    "cifar10": cifar10.SOURCE,
    "cifar100": cifar100.SOURCE,
    cifar100.COARSE_NAME: cifar100.COARSE_SOURCE,
    "tiny-imagenet": tiny_imagenet.SOURCE,
    "office10": office10.SOURCE,
    "domainnet": domainnet.SOURCE,
    "folder": folder.SOURCE,
    "npz": npz.SOURCE,
    "pfllib": pfllib.SOURCE,
}
# Larger data sets are downloaded only by `fedmosaic fetch`.
MAX_AUTO_DOWNLOAD_BYTES = 1_000_000_000


def find_dataset_source(name: str) -> DatasetSource:
    """Return the description of a data set.

    Raises:
        RequestError: If there is no data set of this name.
    """
    if name not in DATASETS:
        raise unknown_name_error("data set", name, DATASETS, "data.dataset", "'fedmosaic doctor' lists them")
    return DATASETS[name]


def locate_dataset(name: str, data_dirs: DataDirs) -> Path:
    """Return the location of a data set on this machine."""
    source = find_dataset_source(name)
    path = source.find(data_dirs.data_dir)
    if path is None:
        option = "" if source.inspect else "; --data-dir sets the data directory"
        raise RequestError(f"data set '{name}' not found ({data_dirs.data_dir}): {source.setup_hint}{option}")
    return path


def load_dataset(settings: DataSettings, data_dirs: DataDirs) -> Dataset:
    """Load the data set of resolved settings; a small published data set is downloaded if it is missing."""
    key = (settings.dataset, data_dirs.data_dir.absolute(), settings.domains, settings.image_size, settings.share)
    if key not in data_dirs.dataset_cache:
        data_dirs.dataset_cache.clear()  # first, because two data sets may not fit into memory
        source = find_dataset_source(settings.dataset)
        download_bytes = sum(file.size_bytes for file in source.downloads)
        if source.find(data_dirs.data_dir) is None and 0 < download_bytes <= MAX_AUTO_DOWNLOAD_BYTES:
            download_files(source.downloads, data_dirs)
        data_dirs.dataset_cache[key] = load_local_dataset(settings, data_dirs)
    return data_dirs.dataset_cache[key]


def load_dataset_without_pixels(settings: DataSettings, data_dirs: DataDirs) -> Dataset:
    """Load shapes and labels only; nothing is downloaded or written."""
    return load_local_dataset(settings, data_dirs, load_pixels=False)


def load_local_dataset(settings: DataSettings, data_dirs: DataDirs, load_pixels: bool = True) -> Dataset:
    """Load a data set that is on this machine and select domains and share."""
    options = LoadOptions(data_dirs, settings.domains, settings.image_size, load_pixels)
    dataset = find_dataset_source(settings.dataset).load(locate_dataset(settings.dataset, data_dirs), options)
    for name in settings.domains:
        if name not in dataset.domain_names:
            raise unknown_name_error("domain", name, dataset.domain_names, "data.domains")
    dataset = dataset.select_domains(settings.domains) if settings.domains else dataset
    return subsample_dataset(dataset, settings) if settings.share < 1 else dataset


def subsample_dataset(dataset: Dataset, settings: DataSettings) -> Dataset:
    """Return the requested share, which must contain every class, domain and client."""
    sample = dataset.subsample(settings.share)
    remaining = set(describe_groups(sample, settings))
    for group in describe_groups(dataset, settings):
        if group not in remaining:
            raise RequestError(
                f"a share of {settings.share:g} leaves nothing of {group} in '{dataset.name}' (data.fraction): raise it"
            )
    return sample


def describe_groups(dataset: Dataset, settings: DataSettings) -> Iterator[str]:
    """Yield a description of every class, domain and client with examples."""
    for indices, use in ((dataset.train_indices, "train"), (dataset.test_indices, "test")):
        yield from (f"class '{dataset.class_names[label]}' to {use} on" for label in np.unique(dataset.labels[indices]))
    if dataset.domain_ids is not None:
        yield from (f"domain '{dataset.domain_names[number]}'" for number in np.unique(dataset.domain_ids))
    if dataset.client_ids is not None and settings.scheme == "natural":
        yield from (f"client {number}" for number in np.unique(dataset.client_ids))
