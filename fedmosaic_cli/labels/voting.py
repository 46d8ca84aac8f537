"""What the crowd says: one pseudo-label per public example, counted from sealed ballots.

Ballots are read one after the other, in the order of the clients' numbers, and sums are formed in float64: so neither
the order in which they came nor the number of clients that a memory can hold decides about the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.defences import (
    PAPER_VOTING_RULES,
    as_column,
    capped_weights,
    normalised_weights,
    trimmed_vote_sums,
    vote_weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.labels.defences import VotingRules

    LabelArray = NDArray[Any]
    FloatArray = NDArray[np.float64]

# Far above the rounding of float64 sums, far below a level of quantised expertise.
TIE_TOLERANCE = 1e-9
# Keeps every vote alive: where no client claims any expertise, the plain majority decides.
MIN_VOTE_WEIGHT = 1e-6


@dataclass(frozen=True)
class ReportingRates:
    """How often a class is reported where it was meant, and where it was not. Without noise: always and never."""

    true_positive: float = 1.0
    false_positive: float = 0.0


NOISELESS_RATES = ReportingRates()


@dataclass(frozen=True)
class Ballot:
    """An opinion that passed all checks, kept as the bytes it came in until it is counted."""

    client_id: int
    data: bytes
    spec: wire.MessageSpec

    def labels(self) -> LabelArray:
        """A class an example; or, as some noise leaves them, a bit for each example and class."""
        return wire.decode_labels(self.data, self.spec)

    def weights(self) -> FloatArray:
        """What the vote on each example weighs: the client's expertise and a little more. [examples] or, where there is
        a value a class, [1, classes]."""
        expertise = wire.decode_expertise(self.data, self.spec)
        if expertise is None:
            return np.ones(self.spec.public_size)
        return (
            expertise[None, :] if self.spec.expertise_encoding is wire.ExpertiseEncoding.HISTOGRAM else expertise
        ) + MIN_VOTE_WEIGHT


class VoteTally:
    """Votes as they are counted: the sum of weights for each example and class."""

    def __init__(self, public_size: int, num_classes: int) -> None:
        self.weight_sums = np.zeros((public_size, num_classes))
        self.total_weights: FloatArray = np.zeros((1, 1))
        self._flat = self.weight_sums.reshape(-1)
        self._rows = np.arange(0, public_size * num_classes, num_classes)

    def add_votes(self, labels: LabelArray, weights: FloatArray) -> None:
        if labels.ndim == 1:
            self._flat[self._rows + labels] += vote_weights(labels, weights)
        else:
            self.weight_sums += labels * as_column(weights)
        self.total_weights = self.total_weights + as_column(weights)

    def scores(self, rates: ReportingRates) -> FloatArray:
        """S = sum_i diag(E_i) L_i, [examples, classes]; of noisy labels, what it would have been on average."""
        scores = (self.weight_sums - rates.false_positive * self.total_weights) / (
            rates.true_positive - rates.false_positive
        )
        if not np.isfinite(scores).all():
            raise ArithmeticError("a score is not finite")
        return scores

    def winning_labels(self, rates: ReportingRates, previous_labels: LabelArray | None = None) -> LabelArray:
        """The class with the highest score, of equal ones the lowest. Where nothing was weighed, the `previous` one
        or none."""
        labels = tie_tolerant_argmax(self.scores(rates))
        kept = np.full(len(labels), NO_LABEL) if previous_labels is None else previous_labels
        return np.where(self.total_weights.max(axis=1) > 0, labels, kept)


def tie_tolerant_argmax(scores: FloatArray) -> NDArray[np.int64]:
    """The class with the highest score in each row; a tie goes to the lowest class."""
    best = scores.max(axis=1, keepdims=True)
    # Equal sums round differently when they are added up in another order: what is equal but for that is a tie.
    winners: NDArray[np.int64] = (scores >= best - TIE_TOLERANCE * np.abs(best)).argmax(axis=1)
    return winners


@dataclass(frozen=True)
class VoteResult:
    """What came of a vote.

    `labels` is what the server sends out. Beside it stands what the votes come to if they are weighed by expertise, and
    if everybody's weighs the same. Of each client: its share of all weight, how far it agrees with the labels and,
    where somebody keeps count of that, with the majority of the others.
    """

    labels: LabelArray
    weighted_labels: LabelArray
    majority_labels: LabelArray
    weight_share: dict[int, float]
    consensus_agreement: dict[int, float]
    leave_one_out_agreement: dict[int, float]

    @property
    def disagreement_rate(self) -> float:
        """The share of examples on which the weighted vote and the plain majority differ."""
        return mean_or_zero(self.weighted_labels != self.majority_labels)


def aggregate_votes(
    ballots: Sequence[Ballot],
    rules: VotingRules = PAPER_VOTING_RULES,
    reputation: Mapping[int, float] | None = None,
    rates: ReportingRates = NOISELESS_RATES,
    previous_labels: LabelArray | None = None,
) -> VoteResult:
    """Count the ballots, of which there is at least one, in the order of their clients' numbers.

    `reputation` is what each client's votes are multiplied with, 1 where nothing is known of it; None where nobody
    keeps any.
    """
    ballots = sorted(ballots, key=lambda ballot: ballot.client_id)
    size = ballots[0].spec.public_size, ballots[0].spec.num_classes
    weighted, majority = VoteTally(*size), VoteTally(*size)
    weight: dict[int, float] = {}
    votes = []
    for ballot, labels, weights in weighted_ballots(ballots, rules, reputation or {}):
        weighted.add_votes(labels, weights)
        majority.add_votes(labels, np.full(len(labels), reputation_of(ballot, reputation or {})))
        weight[ballot.client_id] = float(vote_weights(labels, weights).sum())
        if rules.vote == "trimmed":
            votes.append((labels, weights))
    used = majority if rules.vote == "majority" else weighted
    if rules.vote == "trimmed":
        used = VoteTally(*size)
        used.weight_sums[:] = trimmed_vote_sums(votes, weighted.weight_sums, rules.trim)
        used.total_weights = weighted.total_weights * used.weight_sums.any(
            axis=1, keepdims=True
        )  # where all was trimmed, nobody voted
    outcome, total = used.winning_labels(rates, previous_labels), sum(weight.values())
    return VoteResult(
        outcome,
        weighted.winning_labels(rates, previous_labels),
        majority.winning_labels(rates, previous_labels),
        {client: own / total if total else 0.0 for client, own in weight.items()},
        {ballot.client_id: agreement_rate(ballot.labels(), outcome) for ballot in ballots},
        {} if reputation is None else leave_one_out_agreement(ballots, majority, reputation),
    )


def leave_one_out_votes(ballots: Sequence[Ballot], *rules: Any) -> dict[int, LabelArray]:
    """For each client what the others would come to without it; see `hold_vote`. No label where it is alone."""
    nobody = np.full(ballots[0].spec.public_size, NO_LABEL)
    found = {}
    for ballot in ballots:
        others = [other for other in ballots if other is not ballot]
        found[ballot.client_id] = aggregate_votes(others, *rules).labels if others else nobody
    return found


def weighted_ballots(
    ballots: Sequence[Ballot], rules: VotingRules, reputation: Mapping[int, float]
) -> Iterator[tuple[Ballot, LabelArray, FloatArray]]:
    """Each ballot with its labels and what they weigh in the end."""
    totals = None if rules.cap_share is None else sum(vote_weights(*ballot_votes(ballot, rules)) for ballot in ballots)
    for ballot in ballots:
        labels, weights = ballot_votes(ballot, rules)
        if totals is not None and rules.cap_share is not None:
            weights = capped_weights(labels, weights, np.asarray(totals), rules.cap_share)
        yield ballot, labels, weights * reputation_of(ballot, reputation)


def ballot_votes(ballot: Ballot, rules: VotingRules) -> tuple[LabelArray, FloatArray]:
    """A ballot's labels and weights, as far as they depend on nobody else."""
    labels, weights = ballot.labels(), ballot.weights()
    return labels, normalised_weights(labels, weights) if rules.normalise else weights


def reputation_of(ballot: Ballot, reputation: Mapping[int, float]) -> float:
    return reputation.get(ballot.client_id, 1.0)


def agreement_rate(labels: LabelArray, consensus: LabelArray) -> float:
    """The share of examples on which a client says what the outcome says."""
    if labels.ndim == 1:
        return mean_or_zero(labels == consensus)
    return mean_or_zero(labels[np.arange(len(consensus)), np.maximum(consensus, 0)] * (consensus >= 0))


def mean_or_zero(values: NDArray[Any]) -> float:
    """0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0


def leave_one_out_agreement(
    ballots: Sequence[Ballot], majority: VoteTally, reputation: Mapping[int, float]
) -> dict[int, float]:
    """How far each client agrees with the majority of the others, each of whom counts its reputation.

    Expertise has no part in this: clients declare it themselves, and whoever lies about labels lies about it, too.
    """
    lower, higher = lower_and_higher_maxima(majority.weight_sums)
    found = {}
    for ballot in ballots:
        labels, standing = ballot.labels(), reputation_of(ballot, reputation)
        if labels.ndim == 1:
            cells = np.arange(len(labels)), labels
            left = subtract_own_votes(majority.weight_sums[cells], standing)
            found[ballot.client_id] = mean_or_zero(is_winning_score(left, lower[cells], higher[cells]))
        else:
            left = subtract_own_votes(majority.weight_sums, labels * standing)
            found[ballot.client_id] = agreement_rate(
                labels, np.where(left.any(axis=1), tie_tolerant_argmax(left), NO_LABEL)
            )
    return found


def subtract_own_votes(sums: FloatArray, own_votes: FloatArray | float) -> FloatArray:
    """Sums less one's own part of them. What is left of a sum that had no other part is rounding."""
    left: FloatArray = sums - own_votes
    return np.where(left < TIE_TOLERANCE * sums, 0.0, left)


def lower_and_higher_maxima(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For each example and class the highest sum of a lower class, and that of a higher one."""
    lower, higher = np.zeros_like(sums), np.zeros_like(sums)
    lower[:, 1:] = np.maximum.accumulate(sums[:, :-1], axis=1)
    higher[:, :-1] = np.maximum.accumulate(sums[:, :0:-1], axis=1)[:, ::-1]
    return lower, higher


def is_winning_score(score: FloatArray, lower: FloatArray, higher: FloatArray) -> NDArray[np.bool_]:
    """Whether `highest` would choose a class with this score over lower and over higher ones."""
    best = np.maximum(np.maximum(lower, higher), score)
    enough = best - TIE_TOLERANCE * best
    return (score > 0) & (score >= enough) & (lower < enough)
