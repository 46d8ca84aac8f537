"""The terms that a method adds to a client's loss, for several clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.losses import TargetLoss
from fedmosaic_cli.engine.training import BatchOutputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.execution.stacked.batch_table import StepBatch
    from fedmosaic_cli.engine.method import LossTerm
    from fedmosaic_cli.engine.network_runner import NetworkRunner


@dataclass(frozen=True)
class StackedOutputs:
    """What the networks make of a step's private batches and, where a term asks for them, of its public ones."""

    private_batch: StepBatch
    private_features: Tensor
    private_logits: Tensor
    public_batch: StepBatch | None = None
    public_logits: Tensor | None = None


class StackedTerm:
    """The same term of all clients: its mean over each one's batch."""

    def __init__(self, terms: Sequence[LossTerm], runner: NetworkRunner) -> None:
        self._terms = [term.to_device(runner.device) for term in terms]
        self.weight = torch.tensor([term.weight for term in terms], dtype=runner.dtype, device=runner.device)
        self._targets = None
        if isinstance(terms[0], TargetLoss):
            self._targets = torch.cat([term.targets for term in self._terms if isinstance(term, TargetLoss)])

    def client_losses(self, outputs: StackedOutputs) -> Tensor:
        """[clients]"""
        first = self._terms[0]
        if self._targets is None or not isinstance(first, TargetLoss):
            return self._per_client_losses(outputs)
        batch, logits = outputs.private_batch, outputs.private_logits
        if first.uses_public and outputs.public_batch is not None and outputs.public_logits is not None:
            batch, logits = outputs.public_batch, outputs.public_logits
        losses = first.example_losses(logits.flatten(0, 1), self._targets[batch.concat_indices].flatten(0, 1))
        return batch.client_means(losses.view(len(batch.batch_sizes), -1))

    def _per_client_losses(self, stacked_outputs: StackedOutputs) -> Tensor:
        """For terms that look at a batch as a whole."""
        values = []
        for place, length in enumerate(stacked_outputs.private_batch.batch_sizes):
            positions, logits = (
                stacked_outputs.private_batch.local_indices[place, :length],
                stacked_outputs.private_logits[place, :length],
            )
            index, public_logits = positions[:0], logits[:0]
            if stacked_outputs.public_batch is not None and stacked_outputs.public_logits is not None:
                index, public_logits = (
                    stacked_outputs.public_batch.local_indices[place],
                    stacked_outputs.public_logits[place],
                )
            features = stacked_outputs.private_features[place, :length]
            outputs = BatchOutputs(positions, features, logits, index, public_logits)
            values.append(self._terms[place].loss(outputs))
        return torch.stack(values)
