"""How well examples that a model was trained on can be told from others: scores of attacks, and what they are worth.

Everywhere, the larger score says "member". Arrays in, arrays and numbers out; nothing here knows of models or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IndexArray = NDArray[np.int64]
    BoolArray = NDArray[np.bool_]

NUM_BOOTSTRAP = 1000
CONFIDENCE_LEVEL = 0.95
# Resamples are worked on in portions of about so many numbers: more would not fit a processor's cache.
CHUNK_ELEMENTS = 1_000_000
# With fewer reference models than this, a standard deviation an example would be mostly noise.
MIN_MODELS_FOR_EXAMPLE_STD = 64
MIN_STD = 1e-6
# Stands for the logarithm of 0, so that a difference of two of them is a number.
MIN_LOGIT = -1e30


def match_by_stratum(
    member_strata: IndexArray, non_member_strata: IndexArray, rng: np.random.Generator
) -> tuple[IndexArray, IndexArray]:
    """Positions among members and among others, pairwise of the same kind: as many of each kind as both can give.

    `members` and `others` say of what kind each is. Whoever has more of a kind gives some drawn by `rng`.
    """
    pairs = []
    for kind in np.intersect1d(member_strata, non_member_strata):
        ours, theirs = (rng.permutation(np.flatnonzero(kinds == kind)) for kinds in (member_strata, non_member_strata))
        count = min(len(ours), len(theirs))
        pairs.append((np.sort(ours[:count]), np.sort(theirs[:count])))
    nothing = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([nothing, *(ours for ours, _ in pairs)]),
        np.concatenate([nothing, *(theirs for _, theirs in pairs)]),
    )


def message_scores(labels: IndexArray, expertise: FloatArray | None, candidate_labels: IndexArray) -> FloatArray:
    """What a label sent in one round tells: +E where it is the candidate's own label, else -E.

    Where labels travel alone, 1 and 0: the mean over rounds is then the share of rounds in which it was right. Of a row
    of bits, a bit for each class, the candidate's own counts; so it does of expertise with a value for each class.
    """
    right = labels == candidate_labels if labels.ndim == 1 else labels[np.arange(len(labels)), candidate_labels] == 1
    if expertise is not None and expertise.ndim > 1:
        expertise = expertise[0, candidate_labels]
    return right.astype(np.float64) if expertise is None else np.where(right, expertise, -expertise)


def logit_scaled_confidence(logits: FloatArray, labels: IndexArray) -> FloatArray:
    """phi = ln p_y - ln(1 - p_y) for logits [examples, classes]: z_y less the logsumexp of all others.

    Neither probability is ever formed, so none is cut off at 0 or 1.
    """
    rest, rows = np.maximum(logits.astype(np.float64), MIN_LOGIT), np.arange(len(labels))
    own = rest[rows, labels]
    rest[rows, labels] = -np.inf
    most = rest.max(axis=1)
    others = most + np.log(np.exp(rest - most[:, None]).sum(axis=1))
    result: FloatArray = own - others
    return result


def shadow_training_masks(num_examples: int, num_models: int, rng: np.random.Generator) -> BoolArray:
    """[models, count]: which of `count` examples each reference model is trained on, a random half each.

    Every second one has the half that the one before has not, so each example is in half of the models.
    """
    chosen = np.zeros((num_models, num_examples), dtype=bool)
    for first in range(0, num_models, 2):
        chosen[first, rng.permutation(num_examples)[: num_examples // 2]] = True
        if first + 1 < num_models:
            chosen[first + 1] = ~chosen[first]
    return chosen


def lira_scores(
    target_confidences: FloatArray, shadow_confidences: FloatArray, training_mask: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """The likelihood-ratio attack on `target` [examples], given the same of `references` [models, examples].

    Offline (phi - mean_out) / std_out; online log N(phi; in) - log N(phi; out). Means are an example's own, standard
    deviations too if there are enough models; else they are pooled over all examples.
    """
    mean_in, std_in = masked_mean_and_std(shadow_confidences, training_mask)
    mean_out, std_out = masked_mean_and_std(shadow_confidences, ~training_mask)
    offline = (target_confidences - mean_out) / std_out
    online = offline**2 / 2 + np.log(std_out) - ((target_confidences - mean_in) / std_in) ** 2 / 2 - np.log(std_in)
    return offline, online


def masked_mean_and_std(values: FloatArray, mask: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of each column, over the rows `used` of it: at least one, and somewhere two."""
    counts = mask.sum(axis=0)
    means = np.where(mask, values, 0.0).sum(axis=0) / counts
    squares = np.where(mask, (values - means) ** 2, 0.0).sum(axis=0)
    if len(values) < MIN_MODELS_FOR_EXAMPLE_STD:
        variance = np.full_like(means, squares.sum() / (counts - 1).sum())
    else:
        variance = squares / (counts - 1)
    return means, np.maximum(np.sqrt(variance), MIN_STD)


def roc_auc(members: FloatArray, non_members: FloatArray) -> float:
    """The chance that a member scores higher than another example; a tie counts half."""
    lined_up = np.sort(non_members)
    below, up_to = (np.searchsorted(lined_up, members, side) for side in ("left", "right"))
    return float((below + up_to).sum() / (2 * len(members) * len(non_members)))


def tpr_at_fpr(members: FloatArray, non_members: FloatArray, false_positive_rate: float) -> float:
    """The largest share of members above a threshold that at most this share of the others is above.

    Those who tie with the first of the others that is one too many are below: a threshold cannot part them.
    """
    allowed = int(false_positive_rate * len(non_members) + 1e-9)
    if allowed >= len(non_members):
        return 1.0
    return float((members > np.sort(non_members)[-allowed - 1]).mean())


def bootstrap_counts(num_examples: int, rng: np.random.Generator) -> NDArray[np.uint16]:
    """[resamples, count]: how often each of `count` examples is in a resample of as many, drawn with replacement."""
    drawn = np.empty((NUM_BOOTSTRAP, num_examples), dtype=np.uint16)
    for start, stop in bootstrap_chunks(num_examples):
        rows = np.arange(stop - start)[:, None] * num_examples
        places = rng.integers(num_examples, size=(stop - start, num_examples)) + rows
        drawn[start:stop] = np.bincount(places.ravel(), minlength=(stop - start) * num_examples).reshape(
            -1, num_examples
        )
    return drawn


def stratified_weights(counts: NDArray[np.uint16], strata: IndexArray) -> FloatArray:
    """Resamples as weights [resamples, examples] that leave every kind its share; see `resamples`.

    Members and others are matched by kind. Resamples in which they no longer are would spread far more than the AUC
    of matched ones does, and leaks would go unnoticed. A kind of which a resample has nothing stays as it is.
    """
    weights = counts.astype(np.float64)
    for kind in np.unique(strata):
        places = np.flatnonzero(strata == kind)
        sums = weights[:, places].sum(axis=1, keepdims=True)
        weights[:, places] = np.where(sums > 0, weights[:, places] * len(places) / np.maximum(sums, 1), 1.0)
    return weights


def bootstrap_aucs(
    members: FloatArray, non_members: FloatArray, member_weights: FloatArray, non_member_weights: FloatArray
) -> FloatArray:
    """The AUC of each resample; weights are [resamples, examples]."""
    order = np.argsort(non_members, kind="stable")
    lined_up, result = non_members[order], np.empty(len(member_weights))
    below, up_to = np.searchsorted(lined_up, members, "left"), np.searchsorted(lined_up, members, "right")
    for start, stop in bootstrap_chunks(len(members) + len(non_members)):
        passed = np.zeros((stop - start, len(non_members) + 1))
        np.cumsum(non_member_weights[start:stop, order], axis=1, out=passed[:, 1:])
        drawn = member_weights[start:stop]
        wins = (drawn * (passed[:, below] + passed[:, up_to])).sum(axis=1) / 2
        result[start:stop] = wins / (drawn.sum(axis=1) * passed[:, -1])
    return result


def bootstrap_chunks(row_elements: int) -> list[tuple[int, int]]:
    """Where portions of the resamples, each of `width` numbers, begin and end."""
    size = max(1, CHUNK_ELEMENTS // max(row_elements, 1))
    return [(start, min(start + size, NUM_BOOTSTRAP)) for start in range(0, NUM_BOOTSTRAP, size)]


def confidence_interval(values: FloatArray) -> tuple[float, float]:
    """The middle 95 % of bootstrapped values, without the last bits: what is 0.5 in any resample is no leak."""
    low, high = np.quantile(values, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return round(float(low), 9), round(float(high), 9)
