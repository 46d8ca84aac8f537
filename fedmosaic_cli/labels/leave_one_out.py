"""The vote of the other clients, for each client, by subtraction from one tally of all votes.

Two passes over the ballots replace one vote per client, so the time grows with the number of clients instead of its
square.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.labels.defences import as_column, heaviest_votes, num_trimmed_votes, vote_matrix, vote_weights
from fedmosaic_cli.labels.voting import (
    NOISELESS_RATES,
    TIE_TOLERANCE,
    VoteTally,
    aggregate_votes,
    ballot_votes,
    is_winning_score,
    lower_and_higher_maxima,
    subtract_own_votes,
    tie_tolerant_argmax,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.labels.defences import VotingRules
    from fedmosaic_cli.labels.voting import Ballot, FloatArray, LabelArray, ReportingRates


def leave_one_out_votes(
    ballots: Sequence[Ballot], rules: VotingRules, rates: ReportingRates = NOISELESS_RATES
) -> dict[int, LabelArray]:
    """The pseudo-labels of the other clients, for each client; NO_LABEL if there are no others.

    They equal the labels that `aggregate_votes` returns for the ballots of the others.

    Args:
        ballots: At least one ballot.
        rules: Weighting and defences.
        rates: Probabilities of noisy labels.

    Returns:
        The labels by client, in the smallest type that holds them.
    """
    spec = ballots[0].spec
    dtype = np.min_scalar_type(-spec.num_classes)
    ballots = sorted(ballots, key=lambda ballot: ballot.client_id)
    if len(ballots) == 1:
        return {ballots[0].client_id: np.full(spec.public_size, NO_LABEL, dtype)}
    if rules.vote == "trimmed" and rules.cap_share is not None:  # no formula: votes are capped before they are trimmed
        return {
            ballot.client_id: aggregate_votes(
                [other for other in ballots if other is not ballot], rules, rates=rates
            ).labels.astype(dtype)
            for ballot in ballots
        }
    tally = LeaveOneOutTally(ballots, rules, rates)
    return {ballot.client_id: tally.labels_without(ballot).astype(dtype) for ballot in ballots}


class LeaveOneOutTally:
    """The votes of all clients, from which those of one client can be subtracted.

    Args:
        ballots: At least two ballots.
        rules: Weighting and defences; not both trimmed and capped.
        rates: Probabilities of noisy labels.
    """

    def __init__(self, ballots: Sequence[Ballot], rules: VotingRules, rates: ReportingRates) -> None:
        spec = ballots[0].spec
        shape = spec.public_size, spec.num_classes
        self._rules, self._rates = rules, rates
        self._tally = VoteTally(*shape)
        self._sums = self._tally.weight_sums
        self._example_totals = np.zeros(spec.public_size)
        self._large: LargestTotals | None = None
        if rules.vote == "weighted" and rules.cap_share is not None:
            self._large = LargestTotals(rules.cap_share, len(ballots), *shape)
        for ballot in ballots:
            labels, weights = counted_votes(ballot, rules)
            totals = vote_weights(labels, weights)
            self._tally.add_votes(labels, weights)
            self._example_totals += totals
            if self._large is not None:
                self._large.add(ballot.client_id, labels, weights, totals)
        self._trimmed: FloatArray | None = None
        if rules.vote == "trimmed" and (dropped := num_trimmed_votes(rules.trim, len(ballots) - 1)):
            votes = (counted_votes(ballot, rules) for ballot in ballots)
            self._trimmed = heaviest_votes(votes, shape, dropped + 1)
        # A vote for one class changes one score. Then the classes need not be compared again for each client.
        self._has_single_votes = labels.ndim == 1 and rates == NOISELESS_RATES and rules.vote != "trimmed"
        if self._has_single_votes:
            self._first_cells = np.arange(0, self._sums.size, spec.num_classes)
            self._lower, self._higher = (maxima.reshape(-1) for maxima in lower_and_higher_maxima(self._sums))
            self._winner_among_others = winners_among_other_classes(self._sums).reshape(-1)
        self._capped_rows = np.empty(0, int)
        if self._large is not None:
            self._capped_rows = self._large.rows_with_caps(self._example_totals)

    def labels_without(self, ballot: Ballot) -> LabelArray:
        """The pseudo-labels of all other clients."""
        labels, weights = counted_votes(ballot, self._rules)
        if not self._has_single_votes:
            return self._recount(ballot.client_id, labels, weights)
        cells = self._first_cells + labels
        rest = subtract_own_votes(self._sums.reshape(-1)[cells], vote_weights(labels, weights))
        is_winning = is_winning_score(rest, self._lower[cells], self._higher[cells])
        result: LabelArray = np.where(is_winning, labels, self._winner_among_others[cells])
        if len(rows := self._capped_rows):
            result[rows] = self._recount(ballot.client_id, labels, weights, rows)
        return result

    def _recount(
        self, client_id: int, labels: LabelArray, weights: FloatArray, rows: LabelArray | slice = slice(None)
    ) -> LabelArray:
        """Compare the scores of all classes on some examples."""
        own, totals = vote_matrix(labels, weights, self._sums.shape[1]), vote_weights(labels, weights)
        if self._trimmed is None:
            sums = subtract_own_votes(self._sums, own)
        else:
            sums = self._without_heaviest(own, self._trimmed)
        rest = VoteTally(0, self._sums.shape[1])
        total_weights = subtract_own_votes(self._tally.total_weights, as_column(weights))
        rest.total_weights = np.broadcast_to(total_weights, own.shape)[rows]
        rest.weight_sums = sums[rows]
        if self._large is not None:
            self._large.apply_caps(client_id, (self._example_totals - totals)[rows], rest, rows)
        if self._rules.vote == "trimmed":  # an example whose votes are all trimmed has no votes
            rest.total_weights = rest.total_weights * rest.weight_sums.any(axis=1, keepdims=True)
        return rest.winning_labels(self._rates)

    def _without_heaviest(self, own: FloatArray, heaviest: FloatArray) -> FloatArray:
        """The sums of the other clients without their heaviest votes. `heaviest` has one vote more."""
        is_among_heaviest = own >= heaviest[-2]
        rest = self._sums - heaviest[:-1].sum(axis=0) - np.where(is_among_heaviest, heaviest[-1], own)
        return np.where(rest < TIE_TOLERANCE * (self._sums - own), 0.0, rest)


class LargestTotals:
    """The clients with the largest total weights on each example. A cap can reduce only their votes.

    Fewer than 1 / `cap_share` of the other clients have more than the share `cap_share` of the others' total weight.
    """

    def __init__(self, cap_share: float, num_clients: int, public_size: int, num_classes: int) -> None:
        self._cap_share = cap_share
        count = min(num_clients, math.ceil(1 / cap_share) + 1)
        self._totals = np.zeros((count, public_size))
        self._smallest = np.zeros(public_size)
        self._owners = np.full((count, public_size), -1)
        self._votes = np.zeros((count, public_size, num_classes))
        self._weights = np.zeros((count, public_size, num_classes))

    def add(self, client_id: int, labels: LabelArray, weights: FloatArray, totals: FloatArray) -> None:
        """Keep the votes of a client on the examples where they are among the largest."""
        rows = np.flatnonzero(totals > self._smallest)
        if not len(rows):
            return
        cells = self._totals[:, rows].argmin(axis=0), rows
        self._totals[cells], self._owners[cells] = totals[rows], client_id
        self._votes[cells] = vote_matrix(labels, weights, self._votes.shape[2])[rows]
        self._weights[cells] = np.broadcast_to(as_column(weights), self._votes.shape[1:])[rows]
        self._smallest[rows] = self._totals[:, rows].min(axis=0)

    def rows_with_caps(self, example_totals: FloatArray) -> NDArray[np.intp]:
        """The examples on which a cap can reduce a vote after any client is left out."""
        largest = self._totals.max(axis=0)
        return np.flatnonzero(largest > (1 - TIE_TOLERANCE) * self._cap_share * (example_totals - largest))

    def apply_caps(self, client_id: int, totals: FloatArray, rest: VoteTally, rows: LabelArray | slice) -> None:
        """Reduce the votes of the other clients to their largest share of `totals` on some examples, in place."""
        limits = self._cap_share * totals
        own = self._totals[:, rows]
        is_capped = (own > limits) & (self._owners[:, rows] != client_id)
        factors = np.divide(limits, own, out=np.ones_like(own), where=is_capped)
        rest.weight_sums = rest.weight_sums - np.einsum("rn,rnc->nc", 1 - factors, self._votes[:, rows])
        rest.total_weights = rest.total_weights - np.einsum("rn,rnc->nc", 1 - factors, self._weights[:, rows])


def winners_among_other_classes(scores: FloatArray) -> NDArray[np.int64]:
    """For each example and class: the winning class if this class had no votes."""
    winners = np.empty(scores.shape, np.int64)
    for label in range(scores.shape[1]):
        others = scores.copy()
        others[:, label] = 0.0
        winners[:, label] = tie_tolerant_argmax(others)
    return winners


def counted_votes(ballot: Ballot, rules: VotingRules) -> tuple[LabelArray, FloatArray]:
    """The labels of a ballot and their weights, before caps."""
    labels, weights = ballot_votes(ballot, rules)
    return labels, np.ones(len(labels)) if rules.vote == "majority" else weights
