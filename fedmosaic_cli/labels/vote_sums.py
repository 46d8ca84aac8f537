"""Sums of votes, without the heaviest votes and without those of one client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.labels.vote_blocks import vote_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.labels.defences import VotingRules
    from fedmosaic_cli.labels.voting import Ballot, FloatArray, LabelArray


class VoteSums:
    """The largest value of each cell and the sum of its other values.

    The values of one client can be left out. They are never subtracted from a sum that consists mainly of them, so a
    small value counts exactly beside a large one.

    Args:
        shape: Shape of a client's values. The cells are those of the flattened array.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.largest = np.zeros(math.prod(shape))
        self.rest = np.zeros(math.prod(shape))

    @property
    def total(self) -> FloatArray:
        """The sum of all values of each cell."""
        return self.largest + self.rest

    def add(self, values: FloatArray, cells: LabelArray | slice = slice(None)) -> None:
        """Add a client's non-negative values of these cells, by default of all; its other values are 0."""
        own, previous = values.reshape(-1), self.largest[cells]
        self.rest[cells] += np.minimum(previous, own)
        self.largest[cells] = np.maximum(previous, own)

    def without(self, own: FloatArray, cells: LabelArray | slice = slice(None)) -> FloatArray:
        """The sums of these cells without a client's own values, in the shape of `own`.

        If the sums leave out the k largest values, the result leaves out the k largest values of the others.
        """
        own_values, largest, rest = own.reshape(-1), self.largest[cells], self.rest[cells]
        return np.where(own_values >= largest, rest, largest + rest - own_values).reshape(own.shape)


def trimmed_vote_sums(
    ballots: Sequence[Ballot], rules: VotingRules, reputation: Mapping[int, float], num_trimmed: int
) -> VoteSums:
    """Sums of the votes for each example and class without the `num_trimmed` heaviest ones.

    Args:
        ballots: At least one ballot.
        rules: Weighting and caps.
        reputation: Factor of each client's votes, by default 1.
        num_trimmed: Number of votes that are dropped for each example and class.
    """
    shape = ballots[0].spec.public_size, ballots[0].spec.num_classes
    sums = VoteSums(shape)
    largest, rest = sums.largest.reshape(shape), sums.rest.reshape(shape)
    for first, labels, votes in vote_blocks(ballots, rules, reputation):
        counts = num_votes(labels, shape[1])
        for label in np.flatnonzero((counts > num_trimmed).any(axis=0)):
            rows = np.flatnonzero(counts[:, label] > num_trimmed)
            of_label = votes[rows] * (labels[rows] == label) if labels.ndim == 2 else votes[rows, :, label]
            kept = np.sort(of_label, axis=1)[:, : len(ballots) - num_trimmed]
            largest[first + rows, label] = kept[:, -1]
            rest[first + rows, label] = kept[:, :-1].sum(axis=1)
    return sums


def num_votes(labels: LabelArray, num_classes: int) -> NDArray[np.intp]:
    """The number of votes for each class [examples, classes]."""
    if labels.ndim == 3:
        return np.asarray(np.count_nonzero(labels, axis=1))
    shape = len(labels), num_classes
    cells = labels + np.arange(0, math.prod(shape), num_classes)[:, None]
    return np.bincount(cells.reshape(-1), minlength=math.prod(shape)).reshape(shape)
