"""A personal model that is a mixture: its entries, and its predictions.

The views of a client are its own model (`local`), a student corrected for the client's class frequencies (`corrected`)
and the student fine-tuned on the client's data (`tuned`). A mixture contains those with a positive weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.cotraining.mixture import VIEWS, mixture_log_probs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from fedmosaic_cli.cotraining.mixture import View
    from fedmosaic_cli.engine.context import Parameters, Predictor

WEIGHTS_ENTRY, SHIFT_ENTRY = "mixture_weights", "prior_shift"
"""Entries of a mixture besides its models: the weights of all views, and the shift of the student's logits."""


def make_mixture(
    weights: tuple[float, ...], shift: Tensor, models: Mapping[View, Callable[[], Parameters]]
) -> Parameters:
    """Return a mixture as one dictionary of tensors.

    Args:
        weights: The weight of each view.
        shift: What is added to the logits of the student before its softmax.
        models: Returns the model of each view. Called only for views with a positive weight.
    """
    import torch

    used = {view: models[view]() for view, weight in zip(VIEWS, weights, strict=True) if weight}
    entries = {f"{view}.{name}": tensor for view, model in used.items() for name, tensor in model.items()}
    return {WEIGHTS_ENTRY: torch.tensor(weights, dtype=torch.float64), SHIFT_ENTRY: shift, **entries}


def is_mixture(model: Parameters) -> bool:
    """Return whether a personal model is a mixture, and not the client's own model."""
    return WEIGHTS_ENTRY in model


def predict_mixture(model: Parameters, predictor: Predictor, examples: Any, network: str) -> Tensor:
    """Return the log-probabilities of a mixture.

    Args:
        model: The mixture.
        predictor: Computes the outputs of the client's networks.
        examples: The examples.
        network: The name of the student's network.
    """
    return mix(model, lambda view, part: predictor.predict(part, examples, None if view == "local" else network))


def mix(model: Parameters, logits_of: Callable[[View, Parameters], Tensor]) -> Tensor:
    """Return the log-probabilities of a mixture, given the logits of each of its models."""
    log_probs, used = [], []
    for view, weight in zip(VIEWS, model[WEIGHTS_ENTRY].tolist(), strict=True):
        if weight:
            prefix = f"{view}."
            part = {name.removeprefix(prefix): t for name, t in model.items() if name.startswith(prefix)}
            logits = logits_of(view, part)
            shifted = logits + model[SHIFT_ENTRY].to(logits) if view == "corrected" else logits
            log_probs.append(shifted.log_softmax(dim=1))
            used.append(weight)
    return mixture_log_probs(log_probs, used)
