"""The votes of all clients on a few examples at a time, for rules that compare votes with each other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedmosaic_cli.labels import codecs, wire
from fedmosaic_cli.labels.defences import (
    MAX_RELATIVE_WEIGHT,
    as_column,
    capped_weights,
    mean_vote_weight,
    vote_weights,
)
from fedmosaic_cli.labels.wire import ExpertiseEncoding, LabelEncoding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fedmosaic_cli.labels.defences import VotingRules
    from fedmosaic_cli.labels.voting import Ballot, FloatArray, LabelArray

BLOCK_VOTES = 2**20
"""Number of votes that are decoded at once. An array of their weights takes 8 MB."""
ALIGNMENT = 8
"""Examples with an index that is a multiple of this start at a byte, for any number of bits."""


def vote_blocks(
    ballots: Sequence[Ballot], rules: VotingRules, reputation: Mapping[int, float]
) -> Iterator[tuple[int, LabelArray, FloatArray]]:
    """Yield the votes on each block of examples, weighted as by `weighted_ballots`.

    Args:
        ballots: At least one ballot. All have the same format.
        rules: Weighting and caps.
        reputation: Factor of each client's votes, by default 1.

    Yields:
        The first example; labels [examples, clients] or bits [examples, clients, classes]; weights of these votes.
    """
    spec, num_clients = ballots[0].spec, len(ballots)
    votes_per_example = num_clients * (spec.num_classes if spec.label_encoding is LabelEncoding.BITS else 1)
    block_size = ALIGNMENT * max(1, BLOCK_VOTES // (ALIGNMENT * votes_per_example))
    factors = np.array([reputation.get(ballot.client_id, 1.0) for ballot in ballots])
    if rules.normalise:
        means = np.array([mean_vote_weight(ballot.labels(), ballot.weights()) for ballot in ballots])
        means[means == 0] = 1.0  # these clients have no votes
    for first in range(0, spec.public_size, block_size):
        size = min(block_size, spec.public_size - first)
        labels, weights = joined_votes(ballots, first, size)
        if rules.normalise:
            relative = weights.reshape(num_clients, -1) / as_column(means)
            weights = np.minimum(relative, MAX_RELATIVE_WEIGHT).reshape(weights.shape)
        if rules.cap_share is not None:
            totals = vote_weights(labels, weights).reshape(num_clients, size).sum(axis=0)
            weights = capped_weights(labels, weights, np.tile(totals, num_clients), rules.cap_share)
        votes = vote_weights(labels, weights) if labels.ndim == 1 else labels * as_column(weights)
        shape = num_clients, size, *labels.shape[1:]
        votes = (votes.reshape(num_clients, -1) * as_column(factors)).reshape(shape)
        # Clients next to each other in memory, because values are sorted over the clients.
        yield first, np.ascontiguousarray(labels.reshape(shape).swapaxes(0, 1)), votes.swapaxes(0, 1).copy()


def joined_votes(ballots: Sequence[Ballot], first: int, size: int) -> tuple[LabelArray, FloatArray]:
    """Labels and weights of some examples of all ballots, one client after the other, as if of one ballot.

    Args:
        ballots: At least one ballot.
        first: The first example, a multiple of ALIGNMENT.
        size: Number of examples.

    Returns:
        Labels and their weights: one per label, or one per bit if labels are bits and expertise is per class.
    """
    padded_size = -(-size // ALIGNMENT) * ALIGNMENT
    joined = joined_ballot(ballots, first, padded_size)
    is_example = np.tile(np.arange(padded_size) < size, len(ballots))
    labels = joined.labels()[is_example]
    if ballots[0].spec.expertise_encoding is not ExpertiseEncoding.HISTOGRAM:
        return labels, joined.weights()[is_example]
    by_class = np.concatenate([ballot.weights() for ballot in ballots])
    if labels.ndim == 2:
        return labels, np.repeat(by_class, size, axis=0)
    return labels, np.take_along_axis(by_class, labels.reshape(len(ballots), size), axis=1).reshape(-1)


def joined_ballot(ballots: Sequence[Ballot], first: int, size: int) -> Ballot:
    """One ballot with the same examples of several ballots, without their expertise if that is a value per class.

    The number of examples and the first one are multiples of ALIGNMENT. Examples beyond the last one are 0.
    """
    spec = ballots[0].spec
    if spec.label_encoding is LabelEncoding.MASKED:
        raise ValueError("masked labels cannot be joined (label_encoding): use INDEX or BITS")
    is_bits = spec.label_encoding is LabelEncoding.BITS
    label_bits = spec.num_classes if is_bits else codecs.label_bits(spec.num_classes)
    value_bits = {
        ExpertiseEncoding.LEVELS: spec.expertise_bits,
        ExpertiseEncoding.FLOATS: 8 * wire.FLOAT_DTYPE.itemsize,
    }
    expertise_bits = value_bits.get(spec.expertise_encoding, 0)
    start, parts = wire.HEADER_STRUCT.size, [bytes(wire.HEADER_STRUCT.size)]
    for bits, num_bytes in ((label_bits, spec.label_bytes), (expertise_bits, spec.expertise_bytes)):
        begin, width = start + first * bits // 8, size * bits // 8
        end = min(begin + width, start + num_bytes)
        parts += [ballot.data[begin:end].ljust(width, b"\0") for ballot in ballots]
        start += num_bytes
    has_expertise = spec.expertise_encoding in value_bits
    joined_spec = replace(
        spec,
        public_size=size * len(ballots),
        expertise_encoding=spec.expertise_encoding if has_expertise else ExpertiseEncoding.NONE,
    )
    return replace(ballots[0], data=b"".join([*parts, bytes(wire.CHECKSUM_BYTES)]), spec=joined_spec)
