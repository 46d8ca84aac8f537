"""The terms that a method adds to a client's loss, for several clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.losses import Targets
from fedmosaic_cli.engine.training import BatchOutputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fedmosaic_cli.engine.execution.stacked.batch_table import Slot
    from fedmosaic_cli.engine.method import Term
    from fedmosaic_cli.engine.network_runner import Workspace


@dataclass(frozen=True)
class Seen:
    """What the networks make of a step's private batches and, where a term asks for them, of its public ones."""

    batch: Slot
    features: Tensor
    logits: Tensor
    others: Slot | None = None
    public_logits: Tensor | None = None


class JoinedTerm:
    """The same term of all clients: its mean over each one's batch."""

    def __init__(self, terms: Sequence[Term], workspace: Workspace) -> None:
        self._terms = [term.on(workspace.device) for term in terms]
        self.weight = torch.tensor([term.weight for term in terms], dtype=workspace.dtype, device=workspace.device)
        self._targets = None
        if isinstance(terms[0], Targets):
            self._targets = torch.cat([term.targets for term in self._terms if isinstance(term, Targets)])

    def values(self, seen: Seen) -> Tensor:
        """[clients]"""
        first = self._terms[0]
        if self._targets is None or not isinstance(first, Targets):
            return self._one_by_one(seen)
        batch, logits = seen.batch, seen.logits
        if first.uses_public and seen.others is not None and seen.public_logits is not None:
            batch, logits = seen.others, seen.public_logits
        losses = first.values(logits.flatten(0, 1), self._targets[batch.joined].flatten(0, 1))
        return batch.means(losses.view(len(batch.lengths), -1))

    def _one_by_one(self, seen: Seen) -> Tensor:
        """For terms that look at a batch as a whole."""
        values = []
        for place, length in enumerate(seen.batch.lengths):
            positions, logits = seen.batch.positions[place, :length], seen.logits[place, :length]
            index, public_logits = positions[:0], logits[:0]
            if seen.others is not None and seen.public_logits is not None:
                index, public_logits = seen.others.positions[place], seen.public_logits[place]
            features = seen.features[place, :length]
            outputs = BatchOutputs(positions, features, logits, index, public_logits)
            values.append(self._terms[place].loss(outputs))
        return torch.stack(values)
