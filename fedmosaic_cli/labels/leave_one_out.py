"""The vote of the other clients, for each client, from one tally of all votes.

Two passes over the ballots replace one vote per client, so the time grows with the number of clients instead of its
square. A client's votes are never subtracted from a sum that consists mainly of them, so that no small vote is lost.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.labels.defences import RankedSums, as_column, num_trimmed_votes, vote_matrix, vote_weights
from fedmosaic_cli.labels.voting import (
    NOISELESS_RATES,
    TIE_TOLERANCE,
    VoteTally,
    aggregate_votes,
    ballot_votes,
    is_winning_score,
    lower_and_higher_maxima,
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


class SumsOfOthers:
    """Sums over the clients from which the values of one client can be left out.

    Besides a client's own values, the largest values of the others can be left out of each cell (`num_trimmed`).

    Args:
        shape: Shape of a client's values. The cells are those of the flattened array.
        num_trimmed: Number of largest values of the others that are left out of each cell.
    """

    def __init__(self, shape: tuple[int, ...], num_trimmed: int = 0) -> None:
        self._sums = RankedSums(shape, num_trimmed + 1)

    def add(self, values: FloatArray, cells: LabelArray | slice = slice(None)) -> None:
        """Add a client's non-negative values of these cells, by default of all; its other values are 0."""
        self._sums.add(cells, values.reshape(-1))

    def without(self, own: FloatArray, cells: LabelArray | slice = slice(None)) -> FloatArray:
        """The sums of these cells without a client's own values, in the shape of `own`.

        An own value below the ranks is subtracted from a sum with a value that is at least as large.
        """
        own_values, last = own.reshape(-1), self._sums.largest[-1][cells]
        rest = self._sums.rest[cells]
        return np.where(own_values >= last, rest, last + rest - own_values).reshape(own.shape)


class LeaveOneOutTally:
    """The votes of all clients, from which those of one client can be left out.

    Args:
        ballots: At least two ballots.
        rules: Weighting and defences; not both trimmed and capped.
        rates: Probabilities of noisy labels.
    """

    def __init__(self, ballots: Sequence[Ballot], rules: VotingRules, rates: ReportingRates) -> None:
        spec = ballots[0].spec
        shape = spec.public_size, spec.num_classes
        self._rules, self._rates, self._num_classes = rules, rates, spec.num_classes
        labels, weights = counted_votes(ballots[0], rules)
        num_trimmed = num_trimmed_votes(rules.trim, len(ballots) - 1) if rules.vote == "trimmed" else 0
        # A vote for one class changes one score. Then the classes need not be compared again for each client.
        self._has_single_votes = labels.ndim == 1 and rates == NOISELESS_RATES and rules.vote != "trimmed"
        self._first_cells = np.arange(0, math.prod(shape), spec.num_classes)
        self._vote_sums = SumsOfOthers(shape, num_trimmed)
        self._total_weights = SumsOfOthers(as_column(weights).shape)
        self._large: LargestTotals | None = None
        if rules.vote == "weighted" and rules.cap_share is not None:
            self._large = LargestTotals(rules.cap_share, len(ballots), *shape)
            self._example_totals = SumsOfOthers((spec.public_size,))
        tally = VoteTally(*shape)
        for ballot in ballots:
            self._add(ballot, tally)
        if self._has_single_votes:
            maxima = lower_and_higher_maxima(tally.weight_sums)
            self._lower, self._higher = (maximum.reshape(-1) for maximum in maxima)
            self._winner_among_others = winners_among_other_classes(tally.weight_sums).reshape(-1)
        self._capped_rows = np.empty(0, int)
        if self._large is not None:
            self._capped_rows = self._large.rows_with_caps(tally.weight_sums.sum(axis=1))

    def _add(self, ballot: Ballot, tally: VoteTally) -> None:
        labels, weights = counted_votes(ballot, self._rules)
        totals = vote_weights(labels, weights)
        tally.add_votes(labels, weights)
        if labels.ndim == 1:
            self._vote_sums.add(totals, self._first_cells + labels)
        else:
            self._vote_sums.add(vote_matrix(labels, weights, self._num_classes))
        self._total_weights.add(as_column(weights))
        if self._large is not None:
            self._example_totals.add(totals)
            self._large.add(ballot.client_id, labels, weights, totals)

    def labels_without(self, ballot: Ballot) -> LabelArray:
        """The pseudo-labels of all other clients."""
        labels, weights = counted_votes(ballot, self._rules)
        if not self._has_single_votes:
            return self._recount(ballot.client_id, labels, weights)
        cells = self._first_cells + labels
        rest = self._vote_sums.without(vote_weights(labels, weights), cells)
        is_winning = is_winning_score(rest, self._lower[cells], self._higher[cells])
        result: LabelArray = np.where(is_winning, labels, self._winner_among_others[cells])
        if len(rows := self._capped_rows):
            result[rows] = self._recount(ballot.client_id, labels, weights, rows)
        return result

    def _recount(
        self, client_id: int, labels: LabelArray, weights: FloatArray, rows: LabelArray | slice = slice(None)
    ) -> LabelArray:
        """Compare the scores of all classes on some examples."""
        own = vote_matrix(labels, weights, self._num_classes)
        rest = VoteTally(0, self._num_classes)
        rest.weight_sums = self._vote_sums.without(own)[rows]
        rest.total_weights = np.broadcast_to(self._total_weights.without(as_column(weights)), own.shape)[rows]
        if self._large is not None:
            totals = self._example_totals.without(vote_weights(labels, weights))
            self._large.apply_caps(client_id, totals[rows], rest, rows)
        if self._rules.vote == "trimmed":  # an example whose votes are all trimmed has no votes
            rest.total_weights = rest.total_weights * rest.weight_sums.any(axis=1, keepdims=True)
        return rest.winning_labels(self._rates)


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
