"""Opinions and ballots made from arrays."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmosaic_cli.labels import codecs, wire
from fedmosaic_cli.labels.voting import Ballot
from fedmosaic_cli.labels.wire import ExpectedMessage, ExpertiseEncoding, LabelEncoding, MessageHeader, MessageSpec

RUN, PUBLIC, ROUND = bytes(range(16)), bytes(range(16, 32)), 5


def envelope(client: int = 0, number: int = ROUND) -> MessageHeader:
    """What stands on a client's message of the round that is open."""
    return MessageHeader(RUN, PUBLIC, number, client)


def expected(form: MessageSpec, roster: Container[int] = frozenset({0}), number: int = ROUND) -> ExpectedMessage:
    return ExpectedMessage(form, RUN, PUBLIC, number, roster)


def opinion(form: MessageSpec, labels: Any, expertise: Any = None, client: int = 0, number: int = ROUND) -> bytes:
    """A client's message."""
    said = None if expertise is None else np.asarray(expertise, dtype=np.float64)
    return wire.encode_label_upload(envelope(client, number), form, np.asarray(labels), said)


def form_of(
    labels: Any, expertise: Any, num_classes: int, code: ExpertiseEncoding = ExpertiseEncoding.LEVELS, **form: Any
) -> MessageSpec:
    """The form of opinions with these labels, [examples] or [examples, classes], and expertise, if there is any."""
    written = LabelEncoding.INDEX if np.ndim(labels) == 1 else LabelEncoding.BITS
    told = ExpertiseEncoding.NONE if expertise is None else code
    return MessageSpec(len(labels), num_classes, label_encoding=written, expertise_encoding=told, **form)


def ballots(
    labels: Sequence[Any] | NDArray[Any],
    expertise: Sequence[Any] | NDArray[Any] | None,
    num_classes: int,
    clients: Iterable[int] | None = None,
    **form: Any,
) -> list[Ballot]:
    """A ballot for each client's row of labels and, unless nobody tells any, of expertise.

    `clients` are their numbers, by default 0, 1, ...; `form` is what `form_of` takes.
    """
    told = [None] * len(labels) if expertise is None else list(expertise)
    numbers = range(len(labels)) if clients is None else clients
    agreed = form_of(labels[0], told[0], num_classes, **form)
    return [
        Ballot(client, opinion(agreed, row, weights, client), agreed)
        for client, row, weights in zip(numbers, labels, told, strict=True)
    ]


def levels(values: Any, high: float = 1.0, bits: int = 8) -> NDArray[np.float64]:
    """The expertise that a receiver takes these levels for."""
    return codecs.dequantise(np.asarray(values), high, bits)
