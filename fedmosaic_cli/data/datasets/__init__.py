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
from fedmosaic_cli.data.datasets.dataset_source import Wanted
from fedmosaic_cli.data.io.download import fetch
from fedmosaic_cli.errors import RequestError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.data_settings import DataSettings
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.datasets.dataset_source import Source

SOURCES = {
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
SMALL_BYTES = 1_000_000_000


def find_source(name: str) -> Source:
    """The source called `name`."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES, "data.dataset", "'fedmosaic doctor' lists them")
    return SOURCES[name]


def locate(name: str, place: Place) -> Path:
    """Where the data set lies."""
    source = find_source(name)
    path = source.find(place.data_dir)
    if path is None:
        elsewhere = "" if source.look else "; --data-dir tells where data lies"
        raise RequestError(f"data set '{name}' is not here ({place.data_dir}): {source.how_to_get}{elsewhere}")
    return path


def load_dataset(settings: DataSettings, place: Place) -> Dataset:
    """The data set of resolved `settings`. A small one that is published is fetched where it is missing."""
    key = (settings.dataset, place.data_dir.absolute(), settings.domains, settings.image_size, settings.share)
    if key not in place.loaded:
        place.loaded.clear()  # before the next one comes: two would not always fit
        place.loaded[key] = load_or_fetch(settings, place)
    return place.loaded[key]


def load_or_fetch(settings: DataSettings, place: Place) -> Dataset:
    source = find_source(settings.dataset)
    if source.find(place.data_dir) is None and 0 < sum(file.size for file in source.downloads) <= SMALL_BYTES:
        fetch(source.downloads, place)
    return load_found(settings, Wanted(place, settings.domains, settings.image_size))


def count_dataset(settings: DataSettings, place: Place) -> Dataset:
    """The same for those who need no pixels: nothing is fetched and nothing written."""
    return load_found(settings, Wanted(place, settings.domains, settings.image_size, pixels=False))


def load_found(settings: DataSettings, wanted: Wanted) -> Dataset:
    dataset = find_source(settings.dataset).load(locate(settings.dataset, wanted.place), wanted)
    for name in settings.domains:
        if name not in dataset.domain_names:
            raise unknown("domain", name, dataset.domain_names, "data.domains")
    dataset = dataset.only(settings.domains) if settings.domains else dataset
    return share_of(dataset, settings) if settings.share < 1 else dataset


def share_of(dataset: Dataset, settings: DataSettings) -> Dataset:
    """As much of the data set as the settings ask for, and something of all that there was."""
    sample = dataset.sample(settings.share)
    left = set(kinds_in(sample, settings))
    for kind in kinds_in(dataset, settings):
        if kind not in left:
            raise RequestError(
                f"a share of {settings.share:g} leaves nothing of {kind} in '{dataset.name}' (data.share): raise it"
            )
    return sample


def kinds_in(dataset: Dataset, settings: DataSettings) -> Iterator[str]:
    """What there are examples of, in words."""
    for part, use in ((dataset.training_part, "train"), (dataset.test_part, "test")):
        yield from (f"class '{dataset.class_names[label]}' to {use} on" for label in np.unique(dataset.labels[part]))
    if dataset.domains is not None:
        yield from (f"domain '{dataset.domain_names[number]}'" for number in np.unique(dataset.domains))
    if dataset.holders is not None and settings.scheme == "natural":
        yield from (f"client {number}" for number in np.unique(dataset.holders))
