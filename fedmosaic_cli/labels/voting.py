"""Aggregation of clients' votes into one pseudo-label per public example.

Ballots are decoded one by one in the order of client ids and summed in float64. So the result does not depend on their
order of arrival, and memory does not limit the number of clients. Trimmed votes are decoded in blocks of examples.
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
    num_trimmed_votes,
    vote_weights,
)
from fedmosaic_cli.labels.vote_sums import trimmed_vote_sums

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.labels.defences import VotingRules

    LabelArray = NDArray[Any]
    FloatArray = NDArray[np.float64]

# Far above the rounding errors of float64 sums, far below one level of quantised expertise.
TIE_TOLERANCE = 1e-9
# Added to every weight, so that the majority decides if no client claims expertise.
MIN_VOTE_WEIGHT = 1e-6


@dataclass(frozen=True)
class ReportingRates:
    """The probabilities that a class is reported if it is the true label, and if it is not."""

    true_positive: float = 1.0
    false_positive: float = 0.0


NOISELESS_RATES = ReportingRates()


@dataclass(frozen=True)
class Ballot:
    """A validated upload, kept as bytes until it is counted."""

    client_id: int
    data: bytes
    spec: wire.MessageSpec

    def labels(self) -> LabelArray:
        """Classes [examples] or, with noise on bits, [examples, classes]."""
        return wire.decode_labels(self.data, self.spec)

    def weights(self) -> FloatArray:
        """Expertise plus MIN_VOTE_WEIGHT: [examples] or, with a value per class, [1, classes]."""
        expertise = wire.decode_expertise(self.data, self.spec)
        if expertise is None:
            return np.ones(self.spec.public_size)
        by_class = self.spec.expertise_encoding is wire.ExpertiseEncoding.HISTOGRAM
        return (expertise[None, :] if by_class else expertise) + MIN_VOTE_WEIGHT


class VoteTally:
    """The sum of vote weights for each example and class."""

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
        """S = sum_i diag(E_i) L_i [examples, classes]; for noisy labels an unbiased estimate of it."""
        scores = (self.weight_sums - rates.false_positive * self.total_weights) / (
            rates.true_positive - rates.false_positive
        )
        if not np.isfinite(scores).all():
            raise ArithmeticError("a score is not finite")
        return scores

    def winning_labels(self, rates: ReportingRates, previous_labels: LabelArray | None = None) -> LabelArray:
        """The class with the highest score, the lowest one in a tie; without votes the previous label, or NO_LABEL."""
        labels = tie_tolerant_argmax(self.scores(rates))
        fallback = np.full(len(labels), NO_LABEL) if previous_labels is None else previous_labels
        return np.where(self.total_weights.max(axis=1) > 0, labels, fallback)


def tie_tolerant_argmax(scores: FloatArray) -> NDArray[np.int64]:
    """The class with the highest score in each row, the lowest one in a tie."""
    best = scores.max(axis=1, keepdims=True)
    # Sums that differ only by the rounding of another order of summation are a tie.
    winners: NDArray[np.int64] = (scores >= best - TIE_TOLERANCE * np.abs(best)).argmax(axis=1)
    return winners


def winners_of_votes(sums: FloatArray) -> NDArray[np.int64]:
    """The class with the largest sum of votes in each row, the lowest one in a tie; NO_LABEL without votes."""
    return np.where(sums.any(axis=1), tie_tolerant_argmax(sums), NO_LABEL)


@dataclass(frozen=True)
class VoteResult:
    """The result of a vote.

    Attributes:
        labels: Pseudo-labels that the server broadcasts.
        weighted_labels: Result of the vote weighted by expertise.
        majority_labels: Result of the majority vote.
        weight_share: Fraction of the total weight per client.
        consensus_agreement: Fraction of examples on which each client agrees with `labels`.
        leave_one_out_agreement: Agreement with the majority of the other clients; empty without reputations.
    """

    labels: LabelArray
    weighted_labels: LabelArray
    majority_labels: LabelArray
    weight_share: dict[int, float]
    consensus_agreement: dict[int, float]
    leave_one_out_agreement: dict[int, float]

    @property
    def disagreement_rate(self) -> float:
        """The fraction of examples on which the weighted and the majority vote differ."""
        return mean_or_zero(self.weighted_labels != self.majority_labels)


def aggregate_votes(
    ballots: Sequence[Ballot],
    rules: VotingRules = PAPER_VOTING_RULES,
    reputation: Mapping[int, float] | None = None,
    rates: ReportingRates = NOISELESS_RATES,
    previous_labels: LabelArray | None = None,
) -> VoteResult:
    """Compute pseudo-labels from votes.

    Args:
        ballots: At least one ballot.
        rules: Weighting and defences.
        reputation: Factor of each client's votes, by default 1; None if reputations are not used.
        rates: Probabilities of noisy labels.
        previous_labels: Pseudo-labels for examples without votes.
    """
    ballots = sorted(ballots, key=lambda ballot: ballot.client_id)
    size = ballots[0].spec.public_size, ballots[0].spec.num_classes
    weighted, majority = VoteTally(*size), VoteTally(*size)
    weight: dict[int, float] = {}
    for ballot, labels, weights in weighted_ballots(ballots, rules, reputation or {}):
        weighted.add_votes(labels, weights)
        majority.add_votes(labels, np.full(len(labels), reputation_of(ballot, reputation or {})))
        weight[ballot.client_id] = float(vote_weights(labels, weights).sum())
    used = majority if rules.vote == "majority" else weighted
    if rules.vote == "trimmed":
        used = VoteTally(*size)
        sums = trimmed_vote_sums(ballots, rules, reputation or {}, num_trimmed_votes(rules.trim, len(ballots)))
        used.weight_sums[:] = sums.total.reshape(size)
        # An example whose votes are all trimmed has no votes.
        used.total_weights = weighted.total_weights * used.weight_sums.any(axis=1, keepdims=True)
    labels, total = used.winning_labels(rates, previous_labels), sum(weight.values())
    return VoteResult(
        labels,
        weighted.winning_labels(rates, previous_labels),
        majority.winning_labels(rates, previous_labels),
        {client: own / total if total else 0.0 for client, own in weight.items()},
        {ballot.client_id: agreement_rate(ballot.labels(), labels) for ballot in ballots},
        {} if reputation is None else leave_one_out_agreement(ballots, majority, reputation),
    )


def weighted_ballots(
    ballots: Sequence[Ballot], rules: VotingRules, reputation: Mapping[int, float]
) -> Iterator[tuple[Ballot, LabelArray, FloatArray]]:
    """Each ballot with its labels and their final weights."""
    totals = None if rules.cap_share is None else sum(vote_weights(*ballot_votes(ballot, rules)) for ballot in ballots)
    for ballot in ballots:
        labels, weights = ballot_votes(ballot, rules)
        if totals is not None and rules.cap_share is not None:
            weights = capped_weights(labels, weights, np.asarray(totals), rules.cap_share)
        yield ballot, labels, weights * reputation_of(ballot, reputation)


def ballot_votes(ballot: Ballot, rules: VotingRules) -> tuple[LabelArray, FloatArray]:
    """The labels and weights of a ballot before they are capped."""
    labels, weights = ballot.labels(), ballot.weights()
    return labels, normalised_weights(labels, weights) if rules.normalise else weights


def reputation_of(ballot: Ballot, reputation: Mapping[int, float]) -> float:
    return reputation.get(ballot.client_id, 1.0)


def agreement_rate(labels: LabelArray, consensus: LabelArray) -> float:
    """The fraction of examples on which a client's labels contain the consensus label."""
    if labels.ndim == 1:
        return mean_or_zero(labels == consensus)
    return mean_or_zero(labels[np.arange(len(consensus)), np.maximum(consensus, 0)] * (consensus >= 0))


def mean_or_zero(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def leave_one_out_agreement(
    ballots: Sequence[Ballot], majority: VoteTally, reputation: Mapping[int, float]
) -> dict[int, float]:
    """Each client's agreement with the majority of the others, weighted by their reputation.

    Expertise is not used: clients declare it themselves, so an attacker can claim any value.
    """
    lower, higher = lower_and_higher_maxima(majority.weight_sums)
    agreement = {}
    for ballot in ballots:
        labels, weight = ballot.labels(), reputation_of(ballot, reputation)
        if labels.ndim == 1:
            cells = np.arange(len(labels)), labels
            rest = subtract_own_votes(majority.weight_sums[cells], weight)
            agreement[ballot.client_id] = mean_or_zero(is_winning_score(rest, lower[cells], higher[cells]))
        else:
            rest = subtract_own_votes(majority.weight_sums, labels * weight)
            consensus = winners_of_votes(rest)
            agreement[ballot.client_id] = agreement_rate(labels, consensus)
    return agreement


def subtract_own_votes(sums: FloatArray, own_votes: FloatArray | float) -> FloatArray:
    """Sums without a client's votes; rounding errors are set to 0."""
    rest: FloatArray = sums - own_votes
    return np.where(rest < TIE_TOLERANCE * sums, 0.0, rest)


def lower_and_higher_maxima(sums: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For each example and class: the highest sum of a lower class, and of a higher class."""
    lower, higher = np.zeros_like(sums), np.zeros_like(sums)
    lower[:, 1:] = np.maximum.accumulate(sums[:, :-1], axis=1)
    higher[:, :-1] = np.maximum.accumulate(sums[:, :0:-1], axis=1)[:, ::-1]
    return lower, higher


def is_winning_score(score: FloatArray, lower: FloatArray, higher: FloatArray) -> NDArray[np.bool_]:
    """True if `tie_tolerant_argmax` chooses a class with this score over the lower and the higher classes."""
    best = np.maximum(np.maximum(lower, higher), score)
    threshold = best - TIE_TOLERANCE * best
    return (score > 0) & (score >= threshold) & (lower < threshold)
