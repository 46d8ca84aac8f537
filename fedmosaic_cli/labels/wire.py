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

from fedmosaic_cli.engine.messages import SERVER_ID, MessageHeader
from fedmosaic_cli.labels import codecs

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]

MAGIC = b"FMOS"
MAJOR_VERSION, MINOR_VERSION = 1, 0
# Magic, version, kind, encodings, bits of a score; run, public set; round, client, examples, classes; range, payload.
HEADER_STRUCT = struct.Struct("<4sBBBBBB16s16sIIIIdI")
CHECKSUM_BYTES = 8
# What floating point may add to a value at the end of its range, and to a sum of shares that should be 1.
RANGE_TOLERANCE, SHARE_SUM_TOLERANCE = 1e-6, 1e-3
FLOAT_DTYPE = np.dtype("<f4")


class LabelMessageKind(IntEnum):
    """What a message is."""

    UPLOAD = 1
    CONSENSUS = 2


class LabelEncoding(IntEnum):
    """How labels are written: a class each, a bit for every class, or a class each where there is one."""

    INDEX = 1
    BITS = 2
    MASKED = 3


class ExpertiseEncoding(IntEnum):
    """How expertise is written: not at all, in levels, in single precision, or as a value for each class."""

    NONE = 0
    LEVELS = 1
    FLOATS = 2
    HISTOGRAM = 3


class RejectionReason(StrEnum):
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


class InvalidMessageError(Exception):
    """A message that is not used."""

    def __init__(self, reason: RejectionReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class MessageSpec:
    """What the messages of a run look like; both sides know it.

    `high` is the upper end of expertise. Where it is a `share` of a client's data, a class has one value and all of
    them together are not more than 1.
    """

    public_size: int
    num_classes: int
    kind: LabelMessageKind = LabelMessageKind.UPLOAD
    label_encoding: LabelEncoding = LabelEncoding.INDEX
    expertise_encoding: ExpertiseEncoding = ExpertiseEncoding.NONE
    expertise_bits: int = 8
    max_expertise: float = 1.0
    is_distribution: bool = False

    @property
    def level_bits(self) -> int:
        """The bits of a level; 0 where nothing is written in levels."""
        return (
            self.expertise_bits
            if self.expertise_encoding in (ExpertiseEncoding.LEVELS, ExpertiseEncoding.HISTOGRAM)
            else 0
        )

    @property
    def label_bytes(self) -> int:
        if self.label_encoding is LabelEncoding.BITS:
            return codecs.packed_bits(self.public_size * self.num_classes, 1) // 8
        mask = codecs.packed_bits(self.public_size, 1) // 8 if self.label_encoding is LabelEncoding.MASKED else 0
        return codecs.packed_bits(self.public_size, codecs.label_bits(self.num_classes)) // 8 + mask

    @property
    def expertise_bytes(self) -> int:
        if self.expertise_encoding is ExpertiseEncoding.NONE:
            return 0
        if self.expertise_encoding is ExpertiseEncoding.FLOATS:
            return FLOAT_DTYPE.itemsize * self.public_size
        count = self.num_classes if self.expertise_encoding is ExpertiseEncoding.HISTOGRAM else self.public_size
        return codecs.packed_bits(count, self.expertise_bits) // 8

    @property
    def payload_bytes(self) -> int:
        return self.label_bytes + self.expertise_bytes

    @property
    def total_bytes(self) -> int:
        return HEADER_STRUCT.size + self.payload_bytes + CHECKSUM_BYTES


def encode_message(header_fields: MessageHeader, spec: MessageSpec, payload: bytes) -> bytes:
    """A message as it travels."""
    header = HEADER_STRUCT.pack(
        MAGIC,
        MAJOR_VERSION,
        MINOR_VERSION,
        spec.kind,
        spec.label_encoding,
        spec.expertise_encoding,
        spec.level_bits,
        header_fields.run_id,
        header_fields.public_set_id,
        header_fields.round,
        header_fields.client_id,
        spec.public_size,
        spec.num_classes,
        spec.max_expertise,
        len(payload),
    )
    return header + payload + message_checksum(header + payload)


def message_checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def encode_labels(labels: NDArray[Any], spec: MessageSpec) -> bytes:
    """Classes [examples], or bits [examples, classes]. Where labels may be missing, those below 0 are."""
    if spec.label_encoding is LabelEncoding.BITS:
        return codecs.pack_bits(labels.reshape(-1), 1)
    bits = codecs.label_bits(spec.num_classes)
    if spec.label_encoding is LabelEncoding.INDEX:
        return codecs.pack_bits(labels, bits)
    return codecs.pack_bits(np.maximum(labels, 0), bits) + codecs.pack_bits(labels >= 0, 1)


def encode_expertise(values: FloatArray | None, spec: MessageSpec) -> bytes:
    """A value an example or, as a histogram, a class; what lies outside of the range is moved to its end."""
    if spec.expertise_encoding is ExpertiseEncoding.NONE or values is None:
        return b""
    if spec.expertise_encoding is ExpertiseEncoding.FLOATS:
        return values.astype(FLOAT_DTYPE).tobytes()
    return codecs.pack_bits(codecs.quantise(values, spec.max_expertise, spec.expertise_bits), spec.expertise_bits)


def encode_label_upload(
    header: MessageHeader, spec: MessageSpec, labels: NDArray[Any], expertise: FloatArray | None
) -> bytes:
    """What a client sends."""
    return encode_message(header, spec, encode_labels(labels, spec) + encode_expertise(expertise, spec))


@dataclass(frozen=True)
class ExpectedMessage:
    """What somebody waits for: messages of this form about this round, from these clients."""

    spec: MessageSpec
    run_id: bytes
    public_set_id: bytes
    round: int
    client_ids: Container[int]


def validate_header(data: bytes, expected: ExpectedMessage, sender_id: int) -> MessageHeader:
    """The envelope of a message that `sender` handed over, if it is meant for us. Raises RefusedError if not."""
    if len(data) > expected.spec.total_bytes:
        raise InvalidMessageError(RejectionReason.TOO_LARGE)
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise InvalidMessageError(RejectionReason.BAD_MAGIC)
    if len(data) > len(MAGIC) and data[len(MAGIC)] != MAJOR_VERSION:
        raise InvalidMessageError(RejectionReason.BAD_VERSION)
    if len(data) < HEADER_STRUCT.size + CHECKSUM_BYTES:
        raise InvalidMessageError(RejectionReason.TRUNCATED)
    told = HEADER_STRUCT.size + HEADER_STRUCT.unpack_from(data)[-1] + CHECKSUM_BYTES
    if len(data) != told:
        raise InvalidMessageError(RejectionReason.TRUNCATED if len(data) < told else RejectionReason.TRAILING)
    if message_checksum(memoryview(data)[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
        raise InvalidMessageError(RejectionReason.CHECKSUM)
    envelope = parse_header(data)
    if envelope.run_id != expected.run_id:
        raise InvalidMessageError(RejectionReason.WRONG_RUN)
    if envelope.public_set_id != expected.public_set_id:
        raise InvalidMessageError(RejectionReason.WRONG_PUBLIC_SET)
    if envelope.client_id != sender_id or sender_id not in expected.client_ids:
        raise InvalidMessageError(RejectionReason.UNKNOWN_CLIENT)
    if envelope.round != expected.round:
        raise InvalidMessageError(
            RejectionReason.STALE_ROUND if envelope.round < expected.round else RejectionReason.FUTURE_ROUND
        )
    return envelope


def parse_header(data: bytes) -> MessageHeader:
    """What a message, of which there is at least a header, says of itself. Nothing is checked."""
    return MessageHeader(*HEADER_STRUCT.unpack_from(data)[7:11])


def validate_encoding(data: bytes, spec: MessageSpec) -> None:
    """Refuse a message, whose envelope was opened, if it is about other things, or in other words, than expected."""
    _, _, _, kind, labels, expertise, bits, _, _, _, _, public_size, classes, high, _ = HEADER_STRUCT.unpack_from(data)
    if (public_size, classes) != (spec.public_size, spec.num_classes):
        raise InvalidMessageError(RejectionReason.WRONG_COUNT)
    wanted = spec.kind, spec.label_encoding, spec.expertise_encoding, spec.level_bits, spec.max_expertise
    if (kind, labels, expertise, bits, high) != wanted:
        raise InvalidMessageError(RejectionReason.WRONG_ENCODING)
    if len(data) != spec.total_bytes:
        raise InvalidMessageError(RejectionReason.TRUNCATED)


def decode_labels(data: bytes, spec: MessageSpec) -> NDArray[Any]:
    """The labels of a message whose form was checked: as they were given to `write_labels`."""
    part = memoryview(data)[HEADER_STRUCT.size : HEADER_STRUCT.size + spec.label_bytes]
    if spec.label_encoding is LabelEncoding.BITS:
        count = spec.public_size * spec.num_classes
        return unpack_zero_padded(part, 1, count).reshape(spec.public_size, spec.num_classes)
    bits = codecs.label_bits(spec.num_classes)
    split = codecs.packed_bits(spec.public_size, bits) // 8
    labels = unpack_zero_padded(part[:split], bits, spec.public_size)
    if spec.num_classes < 1 << bits and labels.max(initial=0) >= spec.num_classes:
        raise InvalidMessageError(RejectionReason.LABEL_RANGE)
    if spec.label_encoding is LabelEncoding.MASKED:
        there = unpack_zero_padded(part[split:], 1, spec.public_size)
        if labels[there == 0].any():  # one way to say nothing is enough
            raise InvalidMessageError(RejectionReason.LABEL_RANGE)
        return np.where(there, labels.astype(np.int64), -1)
    return labels


def unpack_zero_padded(part: memoryview, bits: int, count: int) -> NDArray[Any]:
    """What is packed in a part, behind which nothing is hidden."""
    if not codecs.has_zero_padding(part, bits, count):
        raise InvalidMessageError(RejectionReason.LABEL_RANGE)
    return codecs.unpack_bits(part, bits, count)


def decode_expertise(data: bytes, spec: MessageSpec) -> FloatArray | None:
    """The expertise of a message whose form was checked, in [0, high]: a value an example or, as a histogram, a class;
    None where none is sent."""
    part = memoryview(data)[HEADER_STRUCT.size + spec.label_bytes : -CHECKSUM_BYTES]
    if spec.expertise_encoding is ExpertiseEncoding.NONE:
        return None
    if spec.expertise_encoding is ExpertiseEncoding.FLOATS:
        single = np.frombuffer(part, dtype=FLOAT_DTYPE)
        if not np.isfinite(single).all():  # some of what is no number cannot even be converted without a warning
            raise InvalidMessageError(RejectionReason.EXPERTISE_NONFINITE)
        values = single.astype(np.float64)
        if values.min(initial=0.0) < -RANGE_TOLERANCE or values.max(initial=0.0) > spec.max_expertise + RANGE_TOLERANCE:
            raise InvalidMessageError(RejectionReason.EXPERTISE_RANGE)
        return values.clip(0.0, spec.max_expertise)
    count = spec.num_classes if spec.expertise_encoding is ExpertiseEncoding.HISTOGRAM else spec.public_size
    if not codecs.has_zero_padding(part, spec.expertise_bits, count):
        raise InvalidMessageError(RejectionReason.EXPERTISE_RANGE)
    return codecs.dequantise(
        codecs.unpack_bits(part, spec.expertise_bits, count), spec.max_expertise, spec.expertise_bits
    )


def validate_payload(data: bytes, spec: MessageSpec) -> bool:
    """Refuse a message, whose form was checked, if what it says cannot be. Whether it says that all its votes weigh
    nothing."""
    labels = decode_labels(data, spec)
    expertise = decode_expertise(data, spec)
    if expertise is None:
        return False
    by_class = spec.expertise_encoding is ExpertiseEncoding.HISTOGRAM
    if spec.is_distribution and (by_class or labels.ndim == 1):  # a row of bits is of no one class
        validate_class_shares(expertise, np.arange(spec.num_classes) if by_class else labels, spec)
    if by_class and labels.ndim == 1:
        expertise = expertise[labels]
    return not expertise.any()


def validate_class_shares(values: FloatArray, labels: NDArray[Any], spec: MessageSpec) -> None:
    """Refuse shares of a client's data that contradict each other: two for one class, or more than there is."""
    of_class = np.zeros(spec.num_classes)
    of_class[labels] = values
    rounding = (
        0.0
        if spec.expertise_encoding is ExpertiseEncoding.FLOATS
        else spec.num_classes / ((1 << spec.expertise_bits) - 1)
    )
    if (of_class[labels] != values).any() or of_class.sum() > 1 + SHARE_SUM_TOLERANCE + rounding:
        raise InvalidMessageError(RejectionReason.EXPERTISE_INCONSISTENT)


def encode_consensus_labels(header: MessageHeader, spec: MessageSpec, labels: NDArray[Any]) -> bytes:
    """What the server sends."""
    return encode_message(header, spec, encode_labels(labels, spec))


def decode_consensus_labels(data: bytes, expected: ExpectedMessage) -> NDArray[Any]:
    """What the crowd says of each public example, -1 where it says nothing. Raises RefusedError."""
    validate_header(data, expected, SERVER_ID)
    validate_encoding(data, expected.spec)
    return decode_labels(data, expected.spec)
