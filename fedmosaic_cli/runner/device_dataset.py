"""The data set of a run on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.engine.examples import Examples
from fedmosaic_cli.machine import PAGE_BYTES, physical_memory_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.partitioning.partition import Partition, Shard


class DeviceDataset:
    """The data set on a device: one array of images for all clients of that device.

    Images that need more than half of a GPU's free memory stay on the host (`train.image_device`).
    """

    def __init__(
        self, dataset: Dataset, partition: Partition, device: torch.device, dtype: torch.dtype, image_device: str
    ) -> None:
        preload_images(dataset.images)
        # The memory layout of images affects the last bits of a result.
        images = torch.as_tensor(np.ascontiguousarray(dataset.images))
        self.images = images if should_stay_on_host(image_device, images.nbytes, device) else images.to(device)
        self.dataset = dataset
        self.dtype = dtype
        self.device = device
        self.public_examples = self._examples(partition.public, None)

    def examples(self, shard: Shard, split: str) -> Examples:
        """Return one split (train, test, val) of a client's examples with the client's labels."""
        labels = torch.tensor(shard.split_labels(split, self.dataset), device=self.device)
        return self._examples(shard.splits()[split], labels)

    def _examples(self, index: NDArray[np.int64], labels: torch.Tensor | None) -> Examples:
        indices = torch.tensor(index, device=self.images.device)
        return Examples(self.images, indices, labels, self.dtype, self.device)


def preload_images(images: NDArray[np.uint8]) -> None:
    """Read memory-mapped images into memory if they fit, so that rounds do not wait for the disk."""
    if isinstance(images, np.memmap) and images.nbytes < physical_memory_bytes() / 2:
        images.reshape(-1)[::PAGE_BYTES].max(initial=0)


def should_stay_on_host(image_device: str, num_bytes: int, device: torch.device) -> bool:
    """Whether images stay on the host: on request, or because a GPU has too little free memory."""
    if device.type != "cuda" or image_device != "auto":
        return image_device == "host"
    free, _ = torch.cuda.mem_get_info(device)
    return num_bytes > free / 2
