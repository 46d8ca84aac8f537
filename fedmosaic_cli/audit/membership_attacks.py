"""How well examples that a model was trained on can be told from others: scores of attacks, and what they are worth.

Everywhere, the larger score says "member". Arrays in, arrays and numbers out; nothing here knows of models or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[np.float64]
    Index = NDArray[np.int64]
    Mask = NDArray[np.bool_]

RESAMPLES = 1000
COVERAGE = 0.95
# Resamples are worked on in portions of about so many numbers: more would not fit a processor's cache.
PORTION = 1_000_000
# With fewer reference models than this, a standard deviation an example would be mostly noise.
ENOUGH_REFERENCES = 64
LEAST_SPREAD = 1e-6
# Stands for the logarithm of 0, so that a difference of two of them is a number.
LEAST_LOGIT = -1e30


def matched(members: Index, others: Index, rng: np.random.Generator) -> tuple[Index, Index]:
    """Positions among members and among others, pairwise of the same kind: as many of each kind as both can give.

    `members` and `others` say of what kind each is. Whoever has more of a kind gives some drawn by `rng`.
    """
    pairs = []
    for kind in np.intersect1d(members, others):
        ours, theirs = (rng.permutation(np.flatnonzero(kinds == kind)) for kinds in (members, others))
        count = min(len(ours), len(theirs))
        pairs.append((np.sort(ours[:count]), np.sort(theirs[:count])))
    nothing = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([nothing, *(ours for ours, _ in pairs)]),
        np.concatenate([nothing, *(theirs for _, theirs in pairs)]),
    )


def message_scores(labels: Index, expertise: Values | None, candidates: Index) -> Values:
    """What a label sent in one round tells: +E where it is the candidate's own label, else -E.

    Where labels travel alone, 1 and 0: the mean over rounds is then the share of rounds in which it was right. Of a row
    of bits, a bit for each class, the candidate's own counts; so it does of expertise with a value for each class.
    """
    right = labels == candidates if labels.ndim == 1 else labels[np.arange(len(labels)), candidates] == 1
    if expertise is not None and expertise.ndim > 1:
        expertise = expertise[0, candidates]
    return right.astype(np.float64) if expertise is None else np.where(right, expertise, -expertise)


def confidence(logits: Values, labels: Index) -> Values:
    """phi = ln p_y - ln(1 - p_y) for logits [examples, classes]: z_y less the logsumexp of all others.

    Neither probability is ever formed, so none is cut off at 0 or 1.
    """
    rest, rows = np.maximum(logits.astype(np.float64), LEAST_LOGIT), np.arange(len(labels))
    own = rest[rows, labels]
    rest[rows, labels] = -np.inf
    most = rest.max(axis=1)
    others = most + np.log(np.exp(rest - most[:, None]).sum(axis=1))
    result: Values = own - others
    return result


def halves(count: int, models: int, rng: np.random.Generator) -> Mask:
    """[models, count]: which of `count` examples each reference model is trained on, a random half each.

    Every second one has the half that the one before has not, so each example is in half of the models.
    """
    chosen = np.zeros((models, count), dtype=bool)
    for first in range(0, models, 2):
        chosen[first, rng.permutation(count)[: count // 2]] = True
        if first + 1 < models:
            chosen[first + 1] = ~chosen[first]
    return chosen


def likelihood_scores(target: Values, references: Values, trained_on: Mask) -> tuple[Values, Values]:
    """The likelihood-ratio attack on `target` [examples], given the same of `references` [models, examples].

    Offline (phi - mean_out) / std_out; online log N(phi; in) - log N(phi; out). Means are an example's own, standard
    deviations too if there are enough models; else they are pooled over all examples.
    """
    mean_in, std_in = spread(references, trained_on)
    mean_out, std_out = spread(references, ~trained_on)
    offline = (target - mean_out) / std_out
    online = offline**2 / 2 + np.log(std_out) - ((target - mean_in) / std_in) ** 2 / 2 - np.log(std_in)
    return offline, online


def spread(values: Values, used: Mask) -> tuple[Values, Values]:
    """Mean and standard deviation of each column, over the rows `used` of it: at least one, and somewhere two."""
    counts = used.sum(axis=0)
    means = np.where(used, values, 0.0).sum(axis=0) / counts
    squares = np.where(used, (values - means) ** 2, 0.0).sum(axis=0)
    if len(values) < ENOUGH_REFERENCES:
        variance = np.full_like(means, squares.sum() / (counts - 1).sum())
    else:
        variance = squares / (counts - 1)
    return means, np.maximum(np.sqrt(variance), LEAST_SPREAD)


def auc(members: Values, others: Values) -> float:
    """The chance that a member scores higher than another example; a tie counts half."""
    lined_up = np.sort(others)
    below, up_to = (np.searchsorted(lined_up, members, side) for side in ("left", "right"))
    return float((below + up_to).sum() / (2 * len(members) * len(others)))


def true_positive_rate(members: Values, others: Values, false_positive_rate: float) -> float:
    """The largest share of members above a threshold that at most this share of the others is above.

    Those who tie with the first of the others that is one too many are below: a threshold cannot part them.
    """
    allowed = int(false_positive_rate * len(others) + 1e-9)
    if allowed >= len(others):
        return 1.0
    return float((members > np.sort(others)[-allowed - 1]).mean())


def resamples(count: int, rng: np.random.Generator) -> NDArray[np.uint16]:
    """[resamples, count]: how often each of `count` examples is in a resample of as many, drawn with replacement."""
    drawn = np.empty((RESAMPLES, count), dtype=np.uint16)
    for start, stop in portions(count):
        rows = np.arange(stop - start)[:, None] * count
        places = rng.integers(count, size=(stop - start, count)) + rows
        drawn[start:stop] = np.bincount(places.ravel(), minlength=(stop - start) * count).reshape(-1, count)
    return drawn


def balanced(draws: NDArray[np.uint16], kinds: Index) -> Values:
    """Resamples as weights [resamples, examples] that leave every kind its share; see `resamples`.

    Members and others are matched by kind. Resamples in which they no longer are would spread far more than the AUC
    of matched ones does, and leaks would go unnoticed. A kind of which a resample has nothing stays as it is.
    """
    weights = draws.astype(np.float64)
    for kind in np.unique(kinds):
        places = np.flatnonzero(kinds == kind)
        sums = weights[:, places].sum(axis=1, keepdims=True)
        weights[:, places] = np.where(sums > 0, weights[:, places] * len(places) / np.maximum(sums, 1), 1.0)
    return weights


def resampled_aucs(members: Values, others: Values, member_weights: Values, other_weights: Values) -> Values:
    """The AUC of each resample; weights are [resamples, examples]."""
    order = np.argsort(others, kind="stable")
    lined_up, result = others[order], np.empty(len(member_weights))
    below, up_to = np.searchsorted(lined_up, members, "left"), np.searchsorted(lined_up, members, "right")
    for start, stop in portions(len(members) + len(others)):
        passed = np.zeros((stop - start, len(others) + 1))
        np.cumsum(other_weights[start:stop, order], axis=1, out=passed[:, 1:])
        drawn = member_weights[start:stop]
        wins = (drawn * (passed[:, below] + passed[:, up_to])).sum(axis=1) / 2
        result[start:stop] = wins / (drawn.sum(axis=1) * passed[:, -1])
    return result


def portions(width: int) -> list[tuple[int, int]]:
    """Where portions of the resamples, each of `width` numbers, begin and end."""
    size = max(1, PORTION // max(width, 1))
    return [(start, min(start + size, RESAMPLES)) for start in range(0, RESAMPLES, size)]


def interval(values: Values) -> tuple[float, float]:
    """The middle 95 % of bootstrapped values, without the last bits: what is 0.5 in any resample is no leak."""
    low, high = np.quantile(values, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return round(float(low), 9), round(float(high), 9)
