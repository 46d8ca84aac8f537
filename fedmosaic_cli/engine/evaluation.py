"""The one evaluator: predictions and scores of any model on any examples, leaving no trace in either."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.objective import mean_cross_entropy

if TYPE_CHECKING:
    from torch import Tensor

    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.method import Parameters
    from fedmosaic_cli.engine.workspace import Workspace

BATCH = 256


@dataclass(frozen=True)
class Score:
    """A model on a set of examples."""

    accuracy: float
    loss: float
    count: int


def log_probabilities(workspace: Workspace, parameters: Parameters, examples: Examples) -> Tensor:
    """[examples, classes], in evaluation mode."""
    module = workspace.module(parameters).eval()
    batches = (examples.inputs(slice(start, start + BATCH)) for start in range(0, len(examples), BATCH))
    with torch.inference_mode():
        outputs = [module(batch).log_softmax(dim=1) for batch in batches]
    return torch.cat(outputs) if outputs else torch.empty(0, workspace.num_classes, dtype=workspace.dtype)


def score(workspace: Workspace, parameters: Parameters, examples: Examples) -> Score:
    """Accuracy over all classes and mean cross-entropy."""
    log_probs, labels = log_probabilities(workspace, parameters, examples), examples.targets
    correct = (log_probs.argmax(dim=1) == labels).sum()
    return Score(correct.item() / len(examples), mean_cross_entropy(log_probs, labels), len(examples))


def averages(accuracies: list[float], sizes: list[int]) -> dict[str, float]:
    """The accuracies of all clients in a few numbers."""
    return {
        "client_mean": fmean(accuracies),
        "sample_weighted": fmean(accuracies, weights=sizes),
        "client_std": pstdev(accuracies),
        "worst": min(accuracies),
    }
