"""Mixtures of a client's own model with views of a student, and the test that chooses one.

A view is the predicted distribution of a model [examples, classes]. The views of a client are its own model, the
student corrected for the client's class frequencies, and the student fine-tuned on the client's data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.cotraining.crossfit import gate_decision, probability_brier_scores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from fedmosaic_cli.cotraining.crossfit import GateDecision

View = Literal["local", "corrected", "tuned"]
VIEWS: tuple[View, ...] = ("local", "corrected", "tuned")
GateName = Literal["safe", "bold", "light", "off"]
Weights = tuple[float, float, float]
"""Weights of `VIEWS` in a mixture."""


@dataclass(frozen=True)
class GateRule:
    """The mixtures that a gate compares with the client's own model.

    Attributes:
        candidates: Weights of the views (own model, corrected student, fine-tuned student) of each mixture.
        z: Standard errors that the gain must exceed.
        increase_z: The weight of the student in the chosen mixture is increased by half if the increase gains more
            than this number of standard errors. None never increases it.
    """

    candidates: tuple[Weights, ...]
    z: float
    increase_z: float | None = None

    @property
    def uses_tuned(self) -> bool:
        """Whether a candidate contains the fine-tuned student."""
        return any(tuned for _, _, tuned in self.candidates)


OWN_MODEL: Weights = (1.0, 0.0, 0.0)
GATE_RULES: dict[str, GateRule] = {
    "safe": GateRule(((0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.5, 0.25, 0.25)), z=1.5, increase_z=2.0),
    "bold": GateRule(((0.75, 0.125, 0.125), (0.5, 0.25, 0.25), (0.25, 0.375, 0.375)), z=1.0),
    "light": GateRule(((0.75, 0.25, 0.0), (0.5, 0.5, 0.0), (0.25, 0.75, 0.0)), z=1.0),
    "off": GateRule(((0.5, 0.25, 0.25),), z=0.0),
}
"""Gates by name. `off` uses its one mixture without a test."""


def mixture_log_probs(log_probs: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """log sum_k w_k p_k, computed without underflow.

    Args:
        log_probs: Log-probabilities of each view [examples, classes].
        weights: The weight of each view, above 0.
    """
    import torch

    return torch.stack([part + math.log(weight) for part, weight in zip(log_probs, weights, strict=True)]).logsumexp(0)


@dataclass(frozen=True)
class MixtureChoice:
    """What the gate chose.

    Attributes:
        weights: Weights of the views; None keeps the client's own model.
        decision: The gain of the best mixture in Brier score.
        accuracy_gain: Its gain in accuracy on held-out examples.
        accuracy_error: The standard error of that gain.
        local_accuracy: The accuracy of the client's own model on held-out examples.
    """

    weights: Weights | None
    decision: GateDecision
    accuracy_gain: float
    accuracy_error: float
    local_accuracy: float


def choose_mixture(
    views: Mapping[View, Tensor], labels: Tensor, rule: GateRule, prior_variance: float
) -> MixtureChoice:
    """Choose the mixture whose gain over the client's own model has the highest lower confidence bound.

    The gain of an example is the difference in Brier score. The client's own model is kept if no bound is above 0. The
    weight of the student in the chosen mixture may then be increased; see `GateRule.increase_z`.

    Args:
        views: Predicted distributions of held-out examples by view [examples, classes].
        labels: Their classes [examples].
        rule: The candidates, in the order that decides ties, and the number of standard errors.
        prior_variance: See `crossfit.gate_decision`.
    """
    own_hits = views["local"].argmax(dim=1) == labels

    def mixture(weights: Weights) -> Tensor:
        parts = [w * views[view].double() for view, w in zip(VIEWS, weights, strict=True) if w]
        return sum(parts[1:], parts[0])

    def gain(weights: Weights, reference: Weights = OWN_MODEL, z: float = rule.z) -> GateDecision:
        scores = [probability_brier_scores(mixture(each), labels) for each in (reference, weights)]
        return gate_decision(scores[0] - scores[1], z, prior_variance)

    # Of equal bounds, the first one counts.
    chosen = max(rule.candidates, key=lambda weights: gain(weights).lower_bound(rule.z))
    if gain(chosen).is_accepted and rule.increase_z is not None:
        larger = increased_weights(chosen)
        chosen = larger if gain(larger, chosen, rule.increase_z).is_accepted else chosen
    decision = gain(chosen)
    hits = (mixture(chosen).argmax(dim=1) == labels).double() - own_hits.double()
    accuracy = gate_decision(hits, rule.z, prior_variance)
    return MixtureChoice(
        chosen if decision.is_accepted else None,
        decision,
        accuracy.gain,
        accuracy.standard_error,
        own_hits.double().mean().item(),
    )


def increased_weights(weights: Weights) -> Weights:
    """Return weights with half as much again of the student: half of it becomes three quarters."""
    _, corrected, tuned = weights
    return 1 - 1.5 * (corrected + tuned), 1.5 * corrected, 1.5 * tuned
