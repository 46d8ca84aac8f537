"""What the crowd says: one pseudo-label per public example, counted from sealed ballots.

Ballots are read one after the other, in the order of the clients' numbers, and sums are formed in float64: so neither
the order in which they came nor the number of clients that a memory can hold decides about the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.defences import PAPER, capped, cast, column, normalised, trimmed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.labels.defences import Rules

    Labels = NDArray[Any]
    Floats = NDArray[np.float64]

# Far above the rounding of float64 sums, far below a level of quantised expertise.
TIE = 1e-9
# Keeps every vote alive: where no client claims any expertise, the plain majority decides.
FLOOR = 1e-6
NO_LABEL = -1


@dataclass(frozen=True)
class Rates:
    """How often a class is reported where it was meant, and where it was not. Without noise: always and never."""

    hit: float = 1.0
    false: float = 0.0


CERTAIN = Rates()


@dataclass(frozen=True)
class Ballot:
    """An opinion that passed all checks, kept as the bytes it came in until it is counted."""

    client: int
    data: bytes
    form: wire.Form

    def labels(self) -> Labels:
        """A class an example; or, as some noise leaves them, a bit for each example and class."""
        return wire.read_labels(self.data, self.form)

    def weights(self) -> Floats:
        """What the vote on each example weighs: the client's expertise and a little more. [examples] or, where there is
        a value a class, [1, classes]."""
        expertise = wire.read_expertise(self.data, self.form)
        if expertise is None:
            return np.ones(self.form.public_size)
        return (expertise[None, :] if self.form.expertise is wire.ExpertiseCode.HISTOGRAM else expertise) + FLOOR


class Tally:
    """Votes as they are counted: the sum of weights for each example and class."""

    def __init__(self, public_size: int, num_classes: int) -> None:
        self.sums = np.zeros((public_size, num_classes))
        self.totals: Floats = np.zeros((1, 1))
        self._flat = self.sums.reshape(-1)
        self._rows = np.arange(0, public_size * num_classes, num_classes)

    def add(self, labels: Labels, weights: Floats) -> None:
        if labels.ndim == 1:
            self._flat[self._rows + labels] += cast(labels, weights)
        else:
            self.sums += labels * column(weights)
        self.totals = self.totals + column(weights)

    def scores(self, rates: Rates) -> Floats:
        """S = sum_i diag(E_i) L_i, [examples, classes]; of noisy labels, what it would have been on average."""
        scores = (self.sums - rates.false * self.totals) / (rates.hit - rates.false)
        if not np.isfinite(scores).all():
            raise ArithmeticError("a score is not finite")
        return scores

    def winners(self, rates: Rates, previous: Labels | None = None) -> Labels:
        """The class with the highest score, of equal ones the lowest. Where nothing was weighed, the `previous` one
        or none."""
        labels = highest(self.scores(rates))
        kept = np.full(len(labels), NO_LABEL) if previous is None else previous
        return np.where(self.totals.max(axis=1) > 0, labels, kept)


def highest(scores: Floats) -> NDArray[np.int64]:
    """The class with the highest score in each row; a tie goes to the lowest class."""
    best = scores.max(axis=1, keepdims=True)
    # Equal sums round differently when they are added up in another order: what is equal but for that is a tie.
    winners: NDArray[np.int64] = (scores >= best - TIE * np.abs(best)).argmax(axis=1)
    return winners


@dataclass(frozen=True)
class Outcome:
    """What came of a vote.

    `labels` is what the server sends out. Beside it stands what the votes come to if they are weighed by expertise, and
    if everybody's weighs the same. Of each client: its share of all weight, how far it agrees with the labels and,
    where somebody keeps count of that, with the majority of the others.
    """

    labels: Labels
    weighted: Labels
    majority: Labels
    weight_share: dict[int, float]
    agreement: dict[int, float]
    agreement_with_others: dict[int, float]

    @property
    def votes_differ(self) -> float:
        """The share of examples on which the weighted vote and the plain majority differ."""
        return mean(self.weighted != self.majority)


def hold_vote(
    ballots: Sequence[Ballot],
    rules: Rules = PAPER,
    reputation: Mapping[int, float] | None = None,
    rates: Rates = CERTAIN,
    previous: Labels | None = None,
) -> Outcome:
    """Count the ballots, of which there is at least one, in the order of their clients' numbers.

    `reputation` is what each client's votes are multiplied with, 1 where nothing is known of it; None where nobody
    keeps any.
    """
    ballots = sorted(ballots, key=lambda ballot: ballot.client)
    size = ballots[0].form.public_size, ballots[0].form.num_classes
    weighted, majority = Tally(*size), Tally(*size)
    weight: dict[int, float] = {}
    votes = []
    for ballot, labels, weights in weighed(ballots, rules, reputation or {}):
        weighted.add(labels, weights)
        majority.add(labels, np.full(len(labels), standing_of(ballot, reputation or {})))
        weight[ballot.client] = float(cast(labels, weights).sum())
        if rules.vote == "trimmed":
            votes.append((labels, weights))
    used = majority if rules.vote == "majority" else weighted
    if rules.vote == "trimmed":
        used = Tally(*size)
        used.sums[:] = trimmed(votes, weighted.sums, rules.trim)
        used.totals = weighted.totals * used.sums.any(axis=1, keepdims=True)  # where all was trimmed, nobody voted
    outcome, total = used.winners(rates, previous), sum(weight.values())
    return Outcome(
        outcome,
        weighted.winners(rates, previous),
        majority.winners(rates, previous),
        {client: own / total if total else 0.0 for client, own in weight.items()},
        {ballot.client: agreement(ballot.labels(), outcome) for ballot in ballots},
        {} if reputation is None else with_others(ballots, majority, reputation),
    )


def votes_without(ballots: Sequence[Ballot], *rules: Any) -> dict[int, Labels]:
    """For each client what the others would come to without it; see `hold_vote`. No label where it is alone."""
    nobody = np.full(ballots[0].form.public_size, NO_LABEL)
    found = {}
    for ballot in ballots:
        others = [other for other in ballots if other is not ballot]
        found[ballot.client] = hold_vote(others, *rules).labels if others else nobody
    return found


def weighed(
    ballots: Sequence[Ballot], rules: Rules, reputation: Mapping[int, float]
) -> Iterator[tuple[Ballot, Labels, Floats]]:
    """Each ballot with its labels and what they weigh in the end."""
    totals = None if rules.cap_share is None else sum(cast(*read(ballot, rules)) for ballot in ballots)
    for ballot in ballots:
        labels, weights = read(ballot, rules)
        if totals is not None and rules.cap_share is not None:
            weights = capped(labels, weights, np.asarray(totals), rules.cap_share)
        yield ballot, labels, weights * standing_of(ballot, reputation)


def read(ballot: Ballot, rules: Rules) -> tuple[Labels, Floats]:
    """A ballot's labels and weights, as far as they depend on nobody else."""
    labels, weights = ballot.labels(), ballot.weights()
    return labels, normalised(labels, weights) if rules.normalise else weights


def standing_of(ballot: Ballot, reputation: Mapping[int, float]) -> float:
    return reputation.get(ballot.client, 1.0)


def agreement(labels: Labels, outcome: Labels) -> float:
    """The share of examples on which a client says what the outcome says."""
    if labels.ndim == 1:
        return mean(labels == outcome)
    return mean(labels[np.arange(len(outcome)), np.maximum(outcome, 0)] * (outcome >= 0))


def mean(values: NDArray[Any]) -> float:
    """0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0


def with_others(ballots: Sequence[Ballot], majority: Tally, reputation: Mapping[int, float]) -> dict[int, float]:
    """How far each client agrees with the majority of the others, each of whom counts its reputation.

    Expertise has no part in this: clients declare it themselves, and whoever lies about labels lies about it, too.
    """
    lower, higher = rivals(majority.sums)
    found = {}
    for ballot in ballots:
        labels, standing = ballot.labels(), standing_of(ballot, reputation)
        if labels.ndim == 1:
            cells = np.arange(len(labels)), labels
            left = without(majority.sums[cells], standing)
            found[ballot.client] = mean(wins(left, lower[cells], higher[cells]))
        else:
            left = without(majority.sums, labels * standing)
            found[ballot.client] = agreement(labels, np.where(left.any(axis=1), highest(left), NO_LABEL))
    return found


def without(sums: Floats, own: Floats | float) -> Floats:
    """Sums less one's own part of them. What is left of a sum that had no other part is rounding."""
    left: Floats = sums - own
    return np.where(left < TIE * sums, 0.0, left)


def rivals(sums: Floats) -> tuple[Floats, Floats]:
    """For each example and class the highest sum of a lower class, and that of a higher one."""
    lower, higher = np.zeros_like(sums), np.zeros_like(sums)
    lower[:, 1:] = np.maximum.accumulate(sums[:, :-1], axis=1)
    higher[:, :-1] = np.maximum.accumulate(sums[:, :0:-1], axis=1)[:, ::-1]
    return lower, higher


def wins(score: Floats, lower: Floats, higher: Floats) -> NDArray[np.bool_]:
    """Whether `highest` would choose a class with this score over lower and over higher ones."""
    best = np.maximum(np.maximum(lower, higher), score)
    enough = best - TIE * best
    return (score > 0) & (score >= enough) & (lower < enough)
