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
class Slot:
    """One step's batches [clients, batch].

    `positions` are those in each client's set, `joined` those in all sets laid end to end; `places` [batch, clients]
    are those in the array of images. `present` says which examples are no padding, where there is any.
    """

    lengths: list[int]
    positions: Tensor
    joined: Tensor
    places: Tensor
    counts: Tensor
    present: Tensor | None

    def means(self, values: Tensor) -> Tensor:
        """Each client's mean of [clients, batch]."""
        return means(values, self.present, self.counts)


def means(values: Tensor, present: Tensor | None, counts: Tensor) -> Tensor:
    """The mean of every row [rows, values]: over what is present, of which there is so much."""
    return values.mean(dim=1) if present is None else (values * present).sum(dim=1) / counts


def presence(lengths: list[int], counts: Tensor) -> Tensor | None:
    """Which places of padded rows are taken [rows, longest]; None where all are. `counts` are the lengths again."""
    if min(lengths) == max(lengths):
        return None
    return torch.arange(max(lengths), device=counts.device) < counts[:, None]


class Timetable:
    """The batches of all pupils in a set of examples each, padded to one length: [steps, pupils, batch]."""

    def __init__(self, sets: Sequence[Examples], drawn: Sequence[list[Tensor]]) -> None:
        device = sets[0].device
        longest = max(len(positions) for batches in drawn for positions in batches)
        padded = [pad_sequence([*batches, torch.zeros(longest, dtype=torch.int64)])[:, :-1].T for batches in drawn]
        positions = pad_sequence(padded)
        offsets = torch.tensor([0, *(len(each) for each in sets[:-1])]).cumsum(0)
        self._joined = positions + offsets[None, :, None]
        self.lengths = [[len(positions) for positions in batches] for batches in drawn]
        held = torch.cat([each.index for each in sets])
        self._places = held[self._joined.to(held.device)]
        self._joined = self._joined.to(device)
        self._positions = positions.to(device)
        self._counts = pad_sequence([torch.tensor(lengths, dtype=torch.int64) for lengths in self.lengths]).to(device)

    def step(self, number: int, clients: int) -> Slot:
        lengths = [lengths[number] for lengths in self.lengths[:clients]]
        here = (number, slice(clients), slice(max(lengths)))
        counts = self._counts[number, :clients]
        places, present = self._places[here].T, presence(lengths, counts)
        return Slot(lengths, self._positions[here], self._joined[here], places, counts, present)
