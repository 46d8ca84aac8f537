"""Shards that carry their examples: what a machine needs that has no copy of the data set.

Beside its indices a client's file holds `<part>_images` and `<part>_labels`; the public one `images`, never labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.shards import PUBLIC_FILE, SHARD_MANIFEST_FILE, client_file_name, read_shard_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.storage.shards import ShardSet

NO_LABEL = -1


def check_exported_examples(
    images: NDArray[Any], labels: NDArray[Any], num_examples: int, manifest: dict[str, Any]
) -> None:
    """Refuse what no export of ours looks like."""
    shape = (num_examples, *manifest["image_shape"])
    if images.dtype != np.uint8 or images.shape != shape or labels.shape != (num_examples,) or labels.dtype != np.int64:
        raise ValueError("examples of another shape")
    if num_examples and not 0 <= labels.min() <= labels.max() < len(manifest["class_names"]):
        raise ValueError("labels of other classes")


def load_exported_shards(shards: ShardSet) -> tuple[Dataset, Partition]:
    """The examples of exported shards as a data set of their own, and the partition in its numbering."""
    manifest = shards.manifest
    try:
        public = read_shard_arrays(shards.path / PUBLIC_FILE, ["images"], manifest)["images"]
        check_exported_examples(public, np.zeros(len(public), dtype=np.int64), len(shards.partition.public), manifest)
        images: list[NDArray[Any]] = [public]
        labels: list[NDArray[Any]] = [np.full(len(public), NO_LABEL)]
        moved, at = [], len(public)
        for shard in shards.partition.shards:
            names = [f"{part}_{what}" for part in shard.splits() for what in ("images", "labels")]
            arrays = read_shard_arrays(shards.path / client_file_name(shard.client), names, manifest)
            places: dict[str, Any] = {}
            for part, index in shard.splits().items():
                check_exported_examples(arrays[f"{part}_images"], arrays[f"{part}_labels"], len(index), manifest)
                images.append(arrays[f"{part}_images"])
                labels.append(arrays[f"{part}_labels"])
                places["validation" if part == "val" else part] = np.arange(at, at + len(index))
                at += len(index)
            # The labels in the file are the client's own: nothing is left to turn around or to disturb.
            moved.append(replace(shard, **places, has_flipped_labels=False, noisy_labels=None))
        dataset = Dataset(
            name=manifest["dataset"],
            images=np.concatenate(images),
            labels=np.concatenate(labels),
            class_names=tuple(manifest["class_names"]),
        )
    except (KeyError, TypeError, ValueError):
        raise RequestError(
            f"the manifest does not describe its examples ({shards.path / SHARD_MANIFEST_FILE}): export the shards anew"
        ) from None
    partition = replace(shards.partition, shards=tuple(moved), public=np.arange(len(public)))
    return dataset, partition
