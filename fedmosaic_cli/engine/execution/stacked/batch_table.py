"""Padded batches of several clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

from fedmosaic_cli.engine.augmentation import has_windows
from fedmosaic_cli.engine.batching import num_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples


@dataclass(frozen=True)
class StepBatch:
    """The batches of one step.

    Attributes:
        batch_sizes: Number of examples per client.
        local_indices: Positions in each client's set [clients, batch].
        concat_indices: Positions in the concatenation of all sets [clients, batch].
        image_indices: Positions in the array of images [batch, clients].
        counts: `batch_sizes` as a tensor [clients].
        mask: True for examples, False for padding [clients, batch]; None without padding.
        windows: Flips and crops of the images [batch, clients]; None without augmentation; see `engine.augmentation`.
    """

    batch_sizes: list[int]
    local_indices: Tensor
    concat_indices: Tensor
    image_indices: Tensor
    counts: Tensor
    mask: Tensor | None
    windows: Tensor | None

    def client_means(self, values: Tensor) -> Tensor:
        """The mean per client of values [clients, batch]."""
        return masked_means(values, self.mask, self.counts)


def masked_means(values: Tensor, mask: Tensor | None, counts: Tensor) -> Tensor:
    """The mean of every row without padding."""
    return values.mean(dim=1) if mask is None else (values * mask).sum(dim=1) / counts


def padding_mask(batch_sizes: list[int], counts: Tensor) -> Tensor | None:
    """The mask of padded rows [rows, longest]; None without padding. `counts` are the sizes as a tensor."""
    if min(batch_sizes) == max(batch_sizes):
        return None
    return torch.arange(max(batch_sizes), device=counts.device) < counts[:, None]


class BatchTable:
    """The batches of a round of several clients, padded to one size: [steps, clients, batch]."""

    def __init__(self, example_sets: Sequence[Examples], local_batches: Sequence[list[Tensor]]) -> None:
        device = example_sets[0].device
        self.batch_sizes = [list(map(num_rows, batches)) for batches in local_batches]
        table = padded_table(local_batches, self.batch_sizes)
        on_device = table.to(device)
        self._windows: Tensor | None = None
        if has_windows(local_batches[0][0]):
            table, on_device, self._windows = table[..., 0], on_device[..., 0], on_device[..., 1]
        offsets = torch.tensor([0, *(len(examples) for examples in example_sets[:-1])]).cumsum(0)
        concat_indices = table + offsets[None, :, None]
        image_indices = torch.cat([examples.indices for examples in example_sets])
        self._image_indices = image_indices[concat_indices.to(image_indices.device)]
        self._concat_indices = concat_indices.to(device)
        self._local_indices = on_device
        self._counts = pad_sequence([torch.tensor(sizes, dtype=torch.int64) for sizes in self.batch_sizes]).to(device)

    def gather(self, values: Tensor) -> Tensor:
        """Values of the concatenation of all sets, for all batches [steps, clients, batch]: one call for a round."""
        return values[self._concat_indices]

    def step_batch(self, step_index: int, num_clients: int) -> StepBatch:
        """The batches of the first clients in one step."""
        sizes = [sizes[step_index] for sizes in self.batch_sizes[:num_clients]]
        cells = (step_index, slice(num_clients), slice(max(sizes)))
        counts = self._counts[step_index, :num_clients]
        return StepBatch(
            batch_sizes=sizes,
            local_indices=self._local_indices[cells],
            concat_indices=self._concat_indices[cells],
            image_indices=self._image_indices[cells].T,
            counts=counts,
            mask=padding_mask(sizes, counts),
            windows=None if self._windows is None else self._windows[cells].T,
        )


def padded_table(local_batches: Sequence[list[Tensor]], batch_sizes: list[list[int]]) -> Tensor:
    """The batches [steps, clients, batch, ...] of the clients, padded with zeros."""
    first, shape = local_batches[0][0], {(len(sizes), *sizes) for sizes in batch_sizes}
    if len(shape) == 1 and len(set(batch_sizes[0])) == 1:
        joined = torch.cat([batch for batches in local_batches for batch in batches])
        return joined.view(len(local_batches), len(batch_sizes[0]), *first.shape).transpose(0, 1)
    longest = first.new_zeros(max(size for sizes in batch_sizes for size in sizes), *first.shape[1:])
    return pad_sequence([pad_sequence([*batches, longest])[:, :-1].transpose(0, 1) for batches in local_batches])
