"""Messages about the public set as bytes: what a client says of it, and what the crowd came to.

A message is a header, a payload and a checksum over both. The header says what the payload is of: which run, which
public set in which order, which round, whose words. Whoever reads one knows what it should be like, compares before
anything is allocated or decoded, and refuses as a whole what is not like that, with the reason. Nothing is repaired.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.labels import codecs

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MAGIC = b"FMOS"
MAJOR, MINOR = 1, 0
# Magic, version, kind, encodings, bits of a score; run, public set; round, client, examples, classes; range, payload.
HEADER = struct.Struct("<4sBBBBBB16s16sIIIIdI")
CHECKSUM = 8
# What floating point may add to a value at the end of its range, and to a sum of shares that should be 1.
ROUNDING, EXCESS = 1e-6, 1e-3
FLOAT = np.dtype("<f4")


class Kind(IntEnum):
    """What a message is."""

    OPINION = 1
    CONSENSUS = 2


class LabelCode(IntEnum):
    """How labels are written: a class each, a bit for every class, or a class each where there is one."""

    INDEX = 1
    BITS = 2
    MASKED = 3


class ExpertiseCode(IntEnum):
    """How expertise is written: not at all, in levels, in single precision, or as a value for each class."""

    NONE = 0
    LEVELS = 1
    FLOATS = 2
    HISTOGRAM = 3


class Reason(StrEnum):
    """Why a message is not used. These names are logged: they stay as they are."""

    TOO_LARGE = "too_large"
    BAD_MAGIC = "bad_magic"
    BAD_VERSION = "bad_version"
    TRUNCATED = "truncated"
    TRAILING = "trailing"
    CHECKSUM = "checksum"
    WRONG_RUN = "wrong_run"
    WRONG_PUBLIC_SET = "wrong_public_set"
    UNKNOWN_CLIENT = "unknown_client"
    STALE_ROUND = "stale_round"
    FUTURE_ROUND = "future_round"
    DUPLICATE = "duplicate"
    WRONG_COUNT = "wrong_count"
    WRONG_ENCODING = "wrong_encoding"
    LABEL_RANGE = "label_range"
    EXPERTISE_NONFINITE = "expertise_nonfinite"
    EXPERTISE_RANGE = "expertise_range"
    EXPERTISE_INCONSISTENT = "expertise_inconsistent"


class RefusedError(Exception):
    """A message that is not used."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class Form:
    """What the messages of a run look like; both sides know it.

    `high` is the upper end of expertise. Where it is a `share` of a client's data, a class has one value and all of
    them together are not more than 1.
    """

    public_size: int
    num_classes: int
    kind: Kind = Kind.OPINION
    labels: LabelCode = LabelCode.INDEX
    expertise: ExpertiseCode = ExpertiseCode.NONE
    expertise_bits: int = 8
    high: float = 1.0
    share: bool = False

    @property
    def level_bits(self) -> int:
        """The bits of a level; 0 where nothing is written in levels."""
        return self.expertise_bits if self.expertise in (ExpertiseCode.LEVELS, ExpertiseCode.HISTOGRAM) else 0

    @property
    def label_bytes(self) -> int:
        if self.labels is LabelCode.BITS:
            return codecs.packed_bits(self.public_size * self.num_classes, 1) // 8
        mask = codecs.packed_bits(self.public_size, 1) // 8 if self.labels is LabelCode.MASKED else 0
        return codecs.packed_bits(self.public_size, codecs.label_bits(self.num_classes)) // 8 + mask

    @property
    def expertise_bytes(self) -> int:
        if self.expertise is ExpertiseCode.NONE:
            return 0
        if self.expertise is ExpertiseCode.FLOATS:
            return FLOAT.itemsize * self.public_size
        count = self.num_classes if self.expertise is ExpertiseCode.HISTOGRAM else self.public_size
        return codecs.packed_bits(count, self.expertise_bits) // 8

    @property
    def payload_bytes(self) -> int:
        return self.label_bytes + self.expertise_bytes

    @property
    def total_bytes(self) -> int:
        return HEADER.size + self.payload_bytes + CHECKSUM


@dataclass(frozen=True)
class Envelope:
    """What a message says of itself. The server's own number is that of nobody's client."""

    run: bytes
    public: bytes
    round: int
    client: int


SERVER = 0xFFFFFFFF


def seal(envelope: Envelope, form: Form, payload: bytes) -> bytes:
    """A message as it travels."""
    header = HEADER.pack(
        MAGIC,
        MAJOR,
        MINOR,
        form.kind,
        form.labels,
        form.expertise,
        form.level_bits,
        envelope.run,
        envelope.public,
        envelope.round,
        envelope.client,
        form.public_size,
        form.num_classes,
        form.high,
        len(payload),
    )
    return header + payload + checksum(header + payload)


def checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECKSUM).digest()


def write_labels(labels: NDArray[Any], form: Form) -> bytes:
    """Classes [examples], or bits [examples, classes]. Where labels may be missing, those below 0 are."""
    if form.labels is LabelCode.BITS:
        return codecs.pack(labels.reshape(-1), 1)
    bits = codecs.label_bits(form.num_classes)
    if form.labels is LabelCode.INDEX:
        return codecs.pack(labels, bits)
    return codecs.pack(np.maximum(labels, 0), bits) + codecs.pack(labels >= 0, 1)


def write_expertise(values: Floats | None, form: Form) -> bytes:
    """A value an example or, as a histogram, a class; what lies outside of the range is moved to its end."""
    if form.expertise is ExpertiseCode.NONE or values is None:
        return b""
    if form.expertise is ExpertiseCode.FLOATS:
        return values.astype(FLOAT).tobytes()
    return codecs.pack(codecs.quantise(values, form.high, form.expertise_bits), form.expertise_bits)


def write_opinion(envelope: Envelope, form: Form, labels: NDArray[Any], expertise: Floats | None) -> bytes:
    """What a client sends."""
    return seal(envelope, form, write_labels(labels, form) + write_expertise(expertise, form))


@dataclass(frozen=True)
class Expected:
    """What somebody waits for: messages of this form about this round, from these clients."""

    form: Form
    run: bytes
    public: bytes
    round: int
    roster: Container[int]


def open_envelope(data: bytes, expected: Expected, sender: int) -> Envelope:
    """The envelope of a message that `sender` handed over, if it is meant for us. Raises RefusedError if not."""
    if len(data) > expected.form.total_bytes:
        raise RefusedError(Reason.TOO_LARGE)
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise RefusedError(Reason.BAD_MAGIC)
    if len(data) > len(MAGIC) and data[len(MAGIC)] != MAJOR:
        raise RefusedError(Reason.BAD_VERSION)
    if len(data) < HEADER.size + CHECKSUM:
        raise RefusedError(Reason.TRUNCATED)
    told = HEADER.size + HEADER.unpack_from(data)[-1] + CHECKSUM
    if len(data) != told:
        raise RefusedError(Reason.TRUNCATED if len(data) < told else Reason.TRAILING)
    if checksum(memoryview(data)[:-CHECKSUM]) != data[-CHECKSUM:]:
        raise RefusedError(Reason.CHECKSUM)
    envelope = envelope_of(data)
    if envelope.run != expected.run:
        raise RefusedError(Reason.WRONG_RUN)
    if envelope.public != expected.public:
        raise RefusedError(Reason.WRONG_PUBLIC_SET)
    if envelope.client != sender or sender not in expected.roster:
        raise RefusedError(Reason.UNKNOWN_CLIENT)
    if envelope.round != expected.round:
        raise RefusedError(Reason.STALE_ROUND if envelope.round < expected.round else Reason.FUTURE_ROUND)
    return envelope


def envelope_of(data: bytes) -> Envelope:
    """What a message, of which there is at least a header, says of itself. Nothing is checked."""
    return Envelope(*HEADER.unpack_from(data)[7:11])


def check_form(data: bytes, form: Form) -> None:
    """Refuse a message, whose envelope was opened, if it is about other things, or in other words, than expected."""
    _, _, _, kind, labels, expertise, bits, _, _, _, _, public_size, classes, high, _ = HEADER.unpack_from(data)
    if (public_size, classes) != (form.public_size, form.num_classes):
        raise RefusedError(Reason.WRONG_COUNT)
    wanted = form.kind, form.labels, form.expertise, form.level_bits, form.high
    if (kind, labels, expertise, bits, high) != wanted:
        raise RefusedError(Reason.WRONG_ENCODING)
    if len(data) != form.total_bytes:
        raise RefusedError(Reason.TRUNCATED)


def read_labels(data: bytes, form: Form) -> NDArray[Any]:
    """The labels of a message whose form was checked: as they were given to `write_labels`."""
    part = memoryview(data)[HEADER.size : HEADER.size + form.label_bytes]
    if form.labels is LabelCode.BITS:
        count = form.public_size * form.num_classes
        return padded(part, 1, count).reshape(form.public_size, form.num_classes)
    bits = codecs.label_bits(form.num_classes)
    split = codecs.packed_bits(form.public_size, bits) // 8
    labels = padded(part[:split], bits, form.public_size)
    if form.num_classes < 1 << bits and labels.max(initial=0) >= form.num_classes:
        raise RefusedError(Reason.LABEL_RANGE)
    if form.labels is LabelCode.MASKED:
        there = padded(part[split:], 1, form.public_size)
        if labels[there == 0].any():  # one way to say nothing is enough
            raise RefusedError(Reason.LABEL_RANGE)
        return np.where(there, labels.astype(np.int64), -1)
    return labels


def padded(part: memoryview, bits: int, count: int) -> NDArray[Any]:
    """What is packed in a part, behind which nothing is hidden."""
    if not codecs.is_padded_with_zeros(part, bits, count):
        raise RefusedError(Reason.LABEL_RANGE)
    return codecs.unpack(part, bits, count)


def read_expertise(data: bytes, form: Form) -> Floats | None:
    """The expertise of a message whose form was checked, in [0, high]: a value an example or, as a histogram, a class;
    None where none is sent."""
    part = memoryview(data)[HEADER.size + form.label_bytes : -CHECKSUM]
    if form.expertise is ExpertiseCode.NONE:
        return None
    if form.expertise is ExpertiseCode.FLOATS:
        single = np.frombuffer(part, dtype=FLOAT)
        if not np.isfinite(single).all():  # some of what is no number cannot even be converted without a warning
            raise RefusedError(Reason.EXPERTISE_NONFINITE)
        values = single.astype(np.float64)
        if values.min(initial=0.0) < -ROUNDING or values.max(initial=0.0) > form.high + ROUNDING:
            raise RefusedError(Reason.EXPERTISE_RANGE)
        return values.clip(0.0, form.high)
    count = form.num_classes if form.expertise is ExpertiseCode.HISTOGRAM else form.public_size
    if not codecs.is_padded_with_zeros(part, form.expertise_bits, count):
        raise RefusedError(Reason.EXPERTISE_RANGE)
    return codecs.dequantise(codecs.unpack(part, form.expertise_bits, count), form.high, form.expertise_bits)


def check_content(data: bytes, form: Form) -> bool:
    """Refuse a message, whose form was checked, if what it says cannot be. Whether it says that all its votes weigh
    nothing."""
    labels = read_labels(data, form)
    expertise = read_expertise(data, form)
    if expertise is None:
        return False
    by_class = form.expertise is ExpertiseCode.HISTOGRAM
    if form.share and (by_class or labels.ndim == 1):  # a row of bits is of no one class
        check_shares(expertise, np.arange(form.num_classes) if by_class else labels, form)
    if by_class and labels.ndim == 1:
        expertise = expertise[labels]
    return not expertise.any()


def check_shares(values: Floats, labels: NDArray[Any], form: Form) -> None:
    """Refuse shares of a client's data that contradict each other: two for one class, or more than there is."""
    of_class = np.zeros(form.num_classes)
    of_class[labels] = values
    rounding = 0.0 if form.expertise is ExpertiseCode.FLOATS else form.num_classes / ((1 << form.expertise_bits) - 1)
    if (of_class[labels] != values).any() or of_class.sum() > 1 + EXCESS + rounding:
        raise RefusedError(Reason.EXPERTISE_INCONSISTENT)


def write_consensus(envelope: Envelope, form: Form, labels: NDArray[Any]) -> bytes:
    """What the server sends."""
    return seal(envelope, form, write_labels(labels, form))


def read_consensus(data: bytes, expected: Expected) -> NDArray[Any]:
    """What the crowd says of each public example, -1 where it says nothing. Raises RefusedError."""
    open_envelope(data, expected, SERVER)
    check_form(data, expected.form)
    return read_labels(data, expected.form)
