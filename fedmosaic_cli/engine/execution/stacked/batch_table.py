"""The batches of several clients side by side, padded to one length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples


@dataclass(frozen=True)
class StepBatch:
    """One step's batches [clients, batch].

    `positions` are those in each client's set, `joined` those in all sets laid end to end; `places` [batch, clients]
    are those in the array of images. `present` says which examples are no padding, where there is any.
    """

    batch_sizes: list[int]
    local_indices: Tensor
    concat_indices: Tensor
    image_indices: Tensor
    counts: Tensor
    mask: Tensor | None

    def client_means(self, values: Tensor) -> Tensor:
        """Each client's mean of [clients, batch]."""
        return masked_means(values, self.mask, self.counts)


def masked_means(values: Tensor, mask: Tensor | None, counts: Tensor) -> Tensor:
    """The mean of every row [rows, values]: over what is present, of which there is so much."""
    return values.mean(dim=1) if mask is None else (values * mask).sum(dim=1) / counts


def padding_mask(batch_sizes: list[int], counts: Tensor) -> Tensor | None:
    """Which places of padded rows are taken [rows, longest]; None where all are. `counts` are the lengths again."""
    if min(batch_sizes) == max(batch_sizes):
        return None
    return torch.arange(max(batch_sizes), device=counts.device) < counts[:, None]


class BatchTable:
    """The batches of all pupils in a set of examples each, padded to one length: [steps, pupils, batch]."""

    def __init__(self, example_sets: Sequence[Examples], local_batches: Sequence[list[Tensor]]) -> None:
        device = example_sets[0].device
        longest = max(len(positions) for batches in local_batches for positions in batches)
        padded = [
            pad_sequence([*batches, torch.zeros(longest, dtype=torch.int64)])[:, :-1].T for batches in local_batches
        ]
        positions = pad_sequence(padded)
        offsets = torch.tensor([0, *(len(each) for each in example_sets[:-1])]).cumsum(0)
        self._concat_indices = positions + offsets[None, :, None]
        self.batch_sizes = [[len(positions) for positions in batches] for batches in local_batches]
        held = torch.cat([each.indices for each in example_sets])
        self._image_indices = held[self._concat_indices.to(held.device)]
        self._concat_indices = self._concat_indices.to(device)
        self._local_indices = positions.to(device)
        self._counts = pad_sequence([torch.tensor(lengths, dtype=torch.int64) for lengths in self.batch_sizes]).to(
            device
        )

    def step_batch(self, step_index: int, num_clients: int) -> StepBatch:
        lengths = [lengths[step_index] for lengths in self.batch_sizes[:num_clients]]
        here = (step_index, slice(num_clients), slice(max(lengths)))
        counts = self._counts[step_index, :num_clients]
        places, present = self._image_indices[here].T, padding_mask(lengths, counts)
        return StepBatch(lengths, self._local_indices[here], self._concat_indices[here], places, counts, present)
