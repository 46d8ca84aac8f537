"""Padded batches of several clients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

from fedmosaic_cli.engine.augmentation import has_windows
from fedmosaic_cli.engine.batching import num_rows

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import TrainingTask


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
        image_indices = torch.cat([examples.indices for examples in example_sets])
        offsets = torch.tensor([0, *(len(examples) for examples in example_sets[:-1])]).cumsum(0)
        # Padding of a last set without examples would point beyond the end.
        concat_indices = table + offsets.clamp(max=len(image_indices) - 1)[None, :, None]
        self._image_indices = image_indices[concat_indices.to(image_indices.device)]
        self._concat_indices = concat_indices.to(device)
        self._local_indices = on_device
        self._counts = pad_sequence([torch.tensor(sizes, dtype=torch.int64) for sizes in self.batch_sizes]).to(device)

    def gather(self, values: Tensor) -> Tensor:
        """Values of the concatenation of all sets, for all batches [steps, clients, batch]: one call for a round."""
        return values[self._concat_indices]

    def step_sizes(self, step_index: int, num_clients: int) -> list[int]:
        """The number of examples of each of the first clients in one step."""
        return [sizes[step_index] for sizes in self.batch_sizes[:num_clients]]

    def step_batch(self, step_index: int, num_clients: int, position: Tensor | None = None) -> StepBatch:
        """The batches of the first clients in one step; for `position` see `step_cells`."""
        sizes = self.step_sizes(step_index, num_clients)
        cells = partial(step_cells, step_index=step_index, sizes=sizes, position=position)
        counts = self._counts[step_index, :num_clients]
        return StepBatch(
            batch_sizes=sizes,
            local_indices=cells(self._local_indices),
            concat_indices=cells(self._concat_indices),
            image_indices=cells(self._image_indices).T,
            counts=counts,
            mask=padding_mask(sizes, counts),
            windows=None if self._windows is None else cells(self._windows).T,
        )


class RoundBatches:
    """The private batches of a round with their labels and, if a loss term uses them, the public batches.

    Args:
        tasks: The training of each client.
        steps: The private and the public batch of every step of each client.
    """

    def __init__(self, tasks: Sequence[TrainingTask], steps: Sequence[list[tuple[Tensor, Tensor | None]]]) -> None:
        private_sets = [task.private for task in tasks]
        self._private = BatchTable(private_sets, [[private for private, _ in own] for own in steps])
        self._labels = self._private.gather(torch.cat([examples.targets for examples in private_sets]))
        self._public = None
        if steps[0][0][1] is not None:
            public_batches = [[public for _, public in own if public is not None] for own in steps]
            self._public = BatchTable([task.public for task in tasks], public_batches)

    def shape(self, step_index: int, num_clients: int) -> Hashable:
        """Equal for steps of the first clients whose tensors have equal shapes."""
        tables = [self._private] if self._public is None else [self._private, self._public]
        return num_clients, *(tuple(table.step_sizes(step_index, num_clients)) for table in tables)

    def step(
        self, step_index: int, num_clients: int, position: Tensor | None = None
    ) -> tuple[Tensor, StepBatch, StepBatch | None]:
        """The labels [clients, batch], the private and the public batch of a step; for `position` see `step_cells`."""
        private = self._private.step_batch(step_index, num_clients, position)
        public = None if self._public is None else self._public.step_batch(step_index, num_clients, position)
        return step_cells(self._labels, step_index, private.batch_sizes, position), private, public


def step_cells(table: Tensor, step_index: int, sizes: list[int], position: Tensor | None = None) -> Tensor:
    """The part of a table [steps, clients, batch] for one step [clients, batch], without the padding of other steps.

    Args:
        table: Values for all batches.
        step_index: Number of the step.
        sizes: Number of examples of each client in the step.
        position: `step_index` as a tensor [1] on the device, which a replayed graph reads anew. None makes a view.
    """
    clients, batch = slice(len(sizes)), slice(max(sizes))
    if position is None:
        is_full = (len(sizes), max(sizes)) == table.shape[1:3]
        return table[step_index] if is_full else table[step_index, clients, batch]
    return table[:, clients, batch].index_select(0, position)[0]


def padded_table(local_batches: Sequence[list[Tensor]], batch_sizes: list[list[int]]) -> Tensor:
    """The batches [steps, clients, batch, ...] of the clients, padded with zeros."""
    first, shape = local_batches[0][0], {(len(sizes), *sizes) for sizes in batch_sizes}
    if len(shape) == 1 and len(set(batch_sizes[0])) == 1:
        joined = torch.cat([batch for batches in local_batches for batch in batches])
        return joined.view(len(local_batches), len(batch_sizes[0]), *first.shape).transpose(0, 1)
    longest = first.new_zeros(max(size for sizes in batch_sizes for size in sizes), *first.shape[1:])
    return pad_sequence([pad_sequence([*batches, longest])[:, :-1].transpose(0, 1) for batches in local_batches])
