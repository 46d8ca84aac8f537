"""The vote of the other clients, for each client, from one tally of all votes.

A few passes over the ballots replace one vote per client, so the time grows with the number of clients instead of its
square. A client's votes are never subtracted from a sum that consists mainly of them, so that no small vote is lost.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.labels.defences import as_column, num_trimmed_votes, vote_matrix, vote_weights
from fedmosaic_cli.labels.vote_sums import VoteSums, trimmed_vote_sums
from fedmosaic_cli.labels.voting import (
    NOISELESS_RATES,
    TIE_TOLERANCE,
    VoteTally,
    aggregate_votes,
    ballot_votes,
    is_winning_score,
    lower_and_higher_maxima,
    tie_tolerant_argmax,
    winners_of_votes,
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
    if rules.vote == "trimmed" and rules.cap_share is not None:
        if can_caps_change_labels(ballots, rules, rates):  # one vote per client
            return {
                ballot.client_id: aggregate_votes(
                    [other for other in ballots if other is not ballot], rules, rates=rates
                ).labels.astype(dtype)
                for ballot in ballots
            }
        rules = replace(rules, cap_share=None)
    tally = LeaveOneOutTally(ballots, rules, rates)
    return {ballot.client_id: tally.labels_without(ballot).astype(dtype) for ballot in ballots}


def can_caps_change_labels(ballots: Sequence[Ballot], rules: VotingRules, rates: ReportingRates) -> bool:
    """False if caps cannot change the pseudo-labels of a trimmed vote, whichever client is left out."""
    cap_share = rules.cap_share or 1.0
    totals = VoteSums((ballots[0].spec.public_size,))
    for ballot in ballots:
        totals.add(vote_weights(*ballot_votes(ballot, rules)))
    if not len(examples_with_caps(totals, cap_share)):
        return False
    # Fewer than 1 / cap_share clients are capped, and capped votes are the heaviest. So trimming drops them all if it
    # drops at least as many. This holds if a client has one vote per example.
    num_trimmed = num_trimmed_votes(rules.trim, len(ballots) - 1)
    return not (has_single_votes(ballots[0].labels(), rates) and num_trimmed * cap_share >= 1)


def examples_with_caps(totals: VoteSums, cap_share: float) -> NDArray[np.intp]:
    """The examples on which a cap can reduce a vote after any client is left out."""
    return np.flatnonzero(totals.largest > (1 - TIE_TOLERANCE) * cap_share * totals.rest)


def has_single_votes(labels: LabelArray, rates: ReportingRates) -> bool:
    """True if a client changes the score of one class per example."""
    return labels.ndim == 1 and rates == NOISELESS_RATES


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
        self._has_single_votes = has_single_votes(labels, rates)
        self._first_cells = np.arange(0, math.prod(shape), spec.num_classes)
        self._vote_sums = VoteSums(shape)
        self._total_weights = VoteSums(as_column(weights).shape)
        self._large: LargestTotals | None = None
        if rules.vote == "weighted" and rules.cap_share is not None:
            self._large = LargestTotals(rules.cap_share, len(ballots), *shape)
            self._example_totals = VoteSums((spec.public_size,))
        for ballot in ballots:
            self._add(ballot)
        if rules.vote == "trimmed":
            num_trimmed = num_trimmed_votes(rules.trim, len(ballots) - 1)
            self._vote_sums = trimmed_vote_sums(ballots, rules, {}, num_trimmed)
        if self._has_single_votes:  # then the classes need not be compared again for each client
            scores = self._vote_sums.total.reshape(shape)
            self._lower, self._higher = (maximum.reshape(-1) for maximum in lower_and_higher_maxima(scores))
            self._winner_among_others = winners_among_other_classes(scores).reshape(-1)
        self._capped_rows = np.empty(0, int)
        if self._large is not None:
            self._capped_rows = examples_with_caps(self._example_totals, self._large.cap_share)

    def _add(self, ballot: Ballot) -> None:
        labels, weights = counted_votes(ballot, self._rules)
        totals = vote_weights(labels, weights)
        self._total_weights.add(as_column(weights))
        if self._rules.vote != "trimmed":
            if labels.ndim == 1:
                self._vote_sums.add(totals, self._first_cells + labels)
            else:
                self._vote_sums.add(vote_matrix(labels, weights, self._num_classes))
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
        self.cap_share = cap_share
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

    def apply_caps(self, client_id: int, totals: FloatArray, rest: VoteTally, rows: LabelArray | slice) -> None:
        """Reduce the votes of the other clients to their largest share of `totals` on some examples, in place."""
        limits = self.cap_share * totals
        own = self._totals[:, rows]
        is_capped = (own > limits) & (self._owners[:, rows] != client_id)
        factors = np.divide(limits, own, out=np.ones_like(own), where=is_capped)
        rest.weight_sums = rest.weight_sums - np.einsum("rn,rnc->nc", 1 - factors, self._votes[:, rows])
        rest.total_weights = rest.total_weights - np.einsum("rn,rnc->nc", 1 - factors, self._weights[:, rows])


def winners_among_other_classes(scores: FloatArray) -> NDArray[np.int64]:
    """For each example and class: the winning class if this class had no votes; NO_LABEL if no class had."""
    rows = np.arange(len(scores))
    winners = np.repeat(winners_of_votes(scores)[:, None], scores.shape[1], axis=1)
    # A class that neither wins nor has the highest score does not affect the result.
    for labels in (tie_tolerant_argmax(scores), scores.argmax(axis=1)):
        others = scores.copy()
        others[rows, labels] = 0.0
        winners[rows, labels] = winners_of_votes(others)
    return winners


def counted_votes(ballot: Ballot, rules: VotingRules) -> tuple[LabelArray, FloatArray]:
    """The labels of a ballot and their weights, before caps."""
    labels, weights = ballot_votes(ballot, rules)
    return labels, np.ones(len(labels)) if rules.vote == "majority" else weights
