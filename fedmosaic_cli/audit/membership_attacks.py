"""Scores of membership-inference attacks. A larger score means "member". Only arrays: no models, no files, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IndexArray = NDArray[np.int64]
    BoolArray = NDArray[np.bool_]

# With fewer shadow models, a standard deviation per example would be mostly noise.
MIN_MODELS_FOR_EXAMPLE_STD = 64
MIN_STD = 1e-6
# Replaces the logarithm of 0, so that differences stay finite.
MIN_LOGIT = -1e30


def message_scores(labels: IndexArray, expertise: FloatArray | None, candidate_labels: IndexArray) -> FloatArray:
    """Score candidates by the message of one round: +E if the sent label is the candidate's label, else -E.

    Args:
        labels: A label per candidate, or a row of bits with one bit per class, of which the candidate's class counts.
        expertise: A value per candidate or per class. If None, the score is 1 for the candidate's label, else 0.
        candidate_labels: The labels of the candidates.
    """
    correct = labels == candidate_labels if labels.ndim == 1 else labels[np.arange(len(labels)), candidate_labels] == 1
    if expertise is not None and expertise.ndim > 1:
        expertise = expertise[0, candidate_labels]
    return correct.astype(np.float64) if expertise is None else np.where(correct, expertise, -expertise)


def logit_scaled_confidence(logits: FloatArray, labels: IndexArray) -> FloatArray:
    """Return phi = ln p_y - ln(1 - p_y) for logits [examples, classes].

    It is computed as z_y minus the logsumexp of all other logits, so it does not saturate as probabilities do.
    """
    others, rows = np.maximum(logits.astype(np.float64), MIN_LOGIT), np.arange(len(labels))
    own = others[rows, labels]
    others[rows, labels] = -np.inf
    largest = others.max(axis=1)
    confidence: FloatArray = own - (largest + np.log(np.exp(others - largest[:, None]).sum(axis=1)))
    return confidence


def shadow_training_masks(num_examples: int, num_models: int, rng: np.random.Generator) -> BoolArray:
    """Draw the training set of each shadow model, [models, examples]: a random half.

    Every second model has the complement of the one before, so half of the models are trained on each example.
    """
    masks = np.zeros((num_models, num_examples), dtype=bool)
    for first in range(0, num_models, 2):
        masks[first, rng.permutation(num_examples)[: num_examples // 2]] = True
        if first + 1 < num_models:
            masks[first + 1] = ~masks[first]
    return masks


def lira_scores(
    target_confidences: FloatArray, shadow_confidences: FloatArray, training_mask: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Score examples by the likelihood-ratio attack (LiRA).

    Offline: (phi - mean_out) / std_out. Online: log N(phi; in) - log N(phi; out). Means are per example; standard
    deviations are per example if there are enough shadow models, else pooled over all examples.

    Args:
        target_confidences: [examples], of the audited model.
        shadow_confidences: [models, examples], of the shadow models.
        training_mask: [models, examples], which examples each shadow model was trained on.

    Returns:
        The offline and the online scores.
    """
    mean_in, std_in = masked_mean_and_std(shadow_confidences, training_mask)
    mean_out, std_out = masked_mean_and_std(shadow_confidences, ~training_mask)
    offline = (target_confidences - mean_out) / std_out
    online = offline**2 / 2 + np.log(std_out) - ((target_confidences - mean_in) / std_in) ** 2 / 2 - np.log(std_in)
    return offline, online


def masked_mean_and_std(values: FloatArray, mask: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation per column over the rows in the mask: at least one, in some column two."""
    counts = mask.sum(axis=0)
    means = np.where(mask, values, 0.0).sum(axis=0) / counts
    squares = np.where(mask, (values - means) ** 2, 0.0).sum(axis=0)
    if len(values) < MIN_MODELS_FOR_EXAMPLE_STD:
        variance = np.full_like(means, squares.sum() / (counts - 1).sum())
    else:
        variance = squares / (counts - 1)
    return means, np.maximum(np.sqrt(variance), MIN_STD)
