"""Label uploads and ballots made from arrays."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmosaic_cli.labels import codecs, wire
from fedmosaic_cli.labels.voting import Ballot
from fedmosaic_cli.labels.wire import ExpectedMessage, ExpertiseEncoding, LabelEncoding, MessageHeader, MessageSpec

RUN, PUBLIC, ROUND = bytes(range(16)), bytes(range(16, 32)), 5


def make_header(client: int = 0, number: int = ROUND) -> MessageHeader:
    """Return the header of a client's message in the current round."""
    return MessageHeader(RUN, PUBLIC, number, client)


def expected(spec: MessageSpec, roster: Container[int] = frozenset({0}), number: int = ROUND) -> ExpectedMessage:
    return ExpectedMessage(spec, RUN, PUBLIC, number, roster)


def encode_upload(spec: MessageSpec, labels: Any, expertise: Any = None, client: int = 0, number: int = ROUND) -> bytes:
    """Encode the label upload of a client."""
    weights = None if expertise is None else np.asarray(expertise, dtype=np.float64)
    return wire.encode_label_upload(make_header(client, number), spec, np.asarray(labels), weights)


def make_spec(
    labels: Any, expertise: Any, num_classes: int, code: ExpertiseEncoding = ExpertiseEncoding.LEVELS, **options: Any
) -> MessageSpec:
    """Return the spec of uploads with these labels, [examples] or [examples, classes], and optional expertise."""
    label_encoding = LabelEncoding.INDEX if np.ndim(labels) == 1 else LabelEncoding.BITS
    expertise_encoding = ExpertiseEncoding.NONE if expertise is None else code
    return MessageSpec(
        len(labels), num_classes, label_encoding=label_encoding, expertise_encoding=expertise_encoding, **options
    )


def ballots(
    labels: Sequence[Any] | NDArray[Any],
    expertise: Sequence[Any] | NDArray[Any] | None,
    num_classes: int,
    clients: Iterable[int] | None = None,
    **options: Any,
) -> list[Ballot]:
    """Return one ballot per row of labels and, if given, of expertise.

    `clients` are the client numbers, by default 0, 1, ...; `options` are passed to `make_spec`.
    """
    rows = [None] * len(labels) if expertise is None else list(expertise)
    numbers = range(len(labels)) if clients is None else clients
    spec = make_spec(labels[0], rows[0], num_classes, **options)
    return [
        Ballot(client, encode_upload(spec, row, weights, client), spec)
        for client, row, weights in zip(numbers, labels, rows, strict=True)
    ]


def levels(values: Any, high: float = 1.0, bits: int = 8) -> NDArray[np.float64]:
    """Return the expertise that a receiver decodes from these levels."""
    return codecs.dequantise(np.asarray(values), high, bits)
