"""Binary format of label uploads and consensus labels.

A message is a header, a payload and a checksum over both. The header identifies the run, the public set, the round and
the sender. The receiver knows the expected format. It validates a message before it allocates or decodes anything, and
rejects an invalid one as a whole, with a reason.
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
# Magic, version, kind, encodings, bits per level; run, public set; round, client, examples, classes; range, payload.
HEADER_STRUCT = struct.Struct("<4sBBBBBB16s16sIIIIdI")
CHECKSUM_BYTES = 8
# Tolerances for rounding, of a value at the end of its range and of fractions that sum up to 1.
RANGE_TOLERANCE, SHARE_SUM_TOLERANCE = 1e-6, 1e-3
FLOAT_DTYPE = np.dtype("<f4")


class LabelMessageKind(IntEnum):
    """A client's upload, consensus labels, or a share of each class for every public example."""

    UPLOAD = 1
    CONSENSUS = 2
    SHARES = 3


class LabelEncoding(IntEnum):
    """Labels as class indices, as a bit per class, or as class indices with a mask for missing labels."""

    INDEX = 1
    BITS = 2
    MASKED = 3


class ExpertiseEncoding(IntEnum):
    """Expertise: none, quantised levels, single precision, or a quantised value per class."""

    NONE = 0
    LEVELS = 1
    FLOATS = 2
    HISTOGRAM = 3


class RejectionReason(StrEnum):
    """Why a message is rejected. The values are logged and must not change."""

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
    """A rejected message."""

    def __init__(self, reason: RejectionReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class MessageSpec:
    """The format of the messages of a run, known to both sides.

    Attributes:
        public_size: Number of public examples.
        num_classes: Number of classes.
        kind: Upload, consensus or shares. Shares are quantised levels, one per example and class, and no labels.
        label_encoding: Encoding of labels.
        expertise_encoding: Encoding of expertise.
        expertise_bits: Bits per quantised level.
        max_expertise: Upper bound of expertise.
        is_distribution: Expertise is a fraction of the client's data: one value per class, and a sum of at most 1.
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
        """Bits per level in the header; 0 if expertise is not quantised."""
        is_quantised = self.expertise_encoding in (ExpertiseEncoding.LEVELS, ExpertiseEncoding.HISTOGRAM)
        return self.expertise_bits if is_quantised else 0

    @property
    def num_levels(self) -> int:
        """Number of quantised values."""
        if self.kind is LabelMessageKind.SHARES:
            return self.public_size * self.num_classes
        return self.num_classes if self.expertise_encoding is ExpertiseEncoding.HISTOGRAM else self.public_size

    @property
    def label_bytes(self) -> int:
        if self.kind is LabelMessageKind.SHARES:
            return 0
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
        return codecs.packed_bits(self.num_levels, self.expertise_bits) // 8

    @property
    def payload_bytes(self) -> int:
        return self.label_bytes + self.expertise_bytes

    @property
    def total_bytes(self) -> int:
        return HEADER_STRUCT.size + self.payload_bytes + CHECKSUM_BYTES


def encode_message(header_fields: MessageHeader, spec: MessageSpec, payload: bytes) -> bytes:
    """A complete message: header, payload and checksum."""
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
    """Encode classes [examples] or bits [examples, classes]. With a mask, negative classes are missing labels."""
    if spec.label_encoding is LabelEncoding.BITS:
        return codecs.pack_bits(labels.reshape(-1), 1)
    bits = codecs.label_bits(spec.num_classes)
    if spec.label_encoding is LabelEncoding.INDEX:
        return codecs.pack_bits(labels, bits)
    return codecs.pack_bits(np.maximum(labels, 0), bits) + codecs.pack_bits(labels >= 0, 1)


def encode_expertise(values: FloatArray | None, spec: MessageSpec) -> bytes:
    """Encode a value per example or, as a histogram, per class. Levels are clipped to the range."""
    if spec.expertise_encoding is ExpertiseEncoding.NONE or values is None:
        return b""
    if spec.expertise_encoding is ExpertiseEncoding.FLOATS:
        return values.astype(FLOAT_DTYPE).tobytes()
    return codecs.pack_bits(codecs.quantise(values, spec.max_expertise, spec.expertise_bits), spec.expertise_bits)


def encode_label_upload(
    header: MessageHeader, spec: MessageSpec, labels: NDArray[Any], expertise: FloatArray | None
) -> bytes:
    """The message of a client."""
    return encode_message(header, spec, encode_labels(labels, spec) + encode_expertise(expertise, spec))


@dataclass(frozen=True)
class ExpectedMessage:
    """What a receiver accepts: the format, run, public set, round and senders."""

    spec: MessageSpec
    run_id: bytes
    public_set_id: bytes
    round: int
    client_ids: Container[int]


def validate_header(data: bytes, expected: ExpectedMessage, sender_id: int) -> MessageHeader:
    """Validate length, checksum and origin of a message.

    Args:
        data: The message.
        expected: What the receiver accepts.
        sender_id: Sender according to the transport.

    Raises:
        InvalidMessageError: The message is damaged, or belongs to another run, public set, client or round.
    """
    if len(data) > expected.spec.total_bytes:
        raise InvalidMessageError(RejectionReason.TOO_LARGE)
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise InvalidMessageError(RejectionReason.BAD_MAGIC)
    if len(data) > len(MAGIC) and data[len(MAGIC)] != MAJOR_VERSION:
        raise InvalidMessageError(RejectionReason.BAD_VERSION)
    if len(data) < HEADER_STRUCT.size + CHECKSUM_BYTES:
        raise InvalidMessageError(RejectionReason.TRUNCATED)
    declared = HEADER_STRUCT.size + HEADER_STRUCT.unpack_from(data)[-1] + CHECKSUM_BYTES
    if len(data) != declared:
        raise InvalidMessageError(RejectionReason.TRUNCATED if len(data) < declared else RejectionReason.TRAILING)
    if message_checksum(memoryview(data)[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
        raise InvalidMessageError(RejectionReason.CHECKSUM)
    header = parse_header(data)
    if header.run_id != expected.run_id:
        raise InvalidMessageError(RejectionReason.WRONG_RUN)
    if header.public_set_id != expected.public_set_id:
        raise InvalidMessageError(RejectionReason.WRONG_PUBLIC_SET)
    if header.client_id != sender_id or sender_id not in expected.client_ids:
        raise InvalidMessageError(RejectionReason.UNKNOWN_CLIENT)
    if header.round != expected.round:
        raise InvalidMessageError(
            RejectionReason.STALE_ROUND if header.round < expected.round else RejectionReason.FUTURE_ROUND
        )
    return header


def parse_header(data: bytes) -> MessageHeader:
    """The header of a message that is at least as long as a header, without validation."""
    return MessageHeader(*HEADER_STRUCT.unpack_from(data)[7:11])


def validate_encoding(data: bytes, spec: MessageSpec) -> None:
    """Validate counts and encodings of a message with a valid header. Raises InvalidMessageError."""
    fields = HEADER_STRUCT.unpack_from(data)
    (kind, labels, expertise, bits), (public_size, num_classes, max_expertise) = fields[3:7], fields[11:14]
    if (public_size, num_classes) != (spec.public_size, spec.num_classes):
        raise InvalidMessageError(RejectionReason.WRONG_COUNT)
    encoding = spec.kind, spec.label_encoding, spec.expertise_encoding, spec.level_bits, spec.max_expertise
    if (kind, labels, expertise, bits, max_expertise) != encoding:
        raise InvalidMessageError(RejectionReason.WRONG_ENCODING)
    if len(data) != spec.total_bytes:
        raise InvalidMessageError(RejectionReason.TRUNCATED)


def decode_labels(data: bytes, spec: MessageSpec) -> NDArray[Any]:
    """The labels of a message with a valid encoding, as passed to `encode_labels`."""
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
        has_label = unpack_zero_padded(part[split:], 1, spec.public_size)
        if labels[has_label == 0].any():  # a missing label has a single encoding
            raise InvalidMessageError(RejectionReason.LABEL_RANGE)
        return np.where(has_label, labels.astype(np.int64), -1)
    return labels


def unpack_zero_padded(part: memoryview, bits: int, count: int) -> NDArray[Any]:
    """Unpack values and reject padding that is not zero."""
    if not codecs.has_zero_padding(part, bits, count):
        raise InvalidMessageError(RejectionReason.LABEL_RANGE)
    return codecs.unpack_bits(part, bits, count)


def decode_expertise(data: bytes, spec: MessageSpec) -> FloatArray | None:
    """The expertise of a message with a valid encoding, in [0, max_expertise].

    A value per example or, as a histogram, per class; None if the format has no expertise.
    """
    part = memoryview(data)[HEADER_STRUCT.size + spec.label_bytes : -CHECKSUM_BYTES]
    if spec.expertise_encoding is ExpertiseEncoding.NONE:
        return None
    if spec.expertise_encoding is ExpertiseEncoding.FLOATS:
        single = np.frombuffer(part, dtype=FLOAT_DTYPE)
        if not np.isfinite(single).all():  # converting some NaN values would emit a warning
            raise InvalidMessageError(RejectionReason.EXPERTISE_NONFINITE)
        values = single.astype(np.float64)
        if values.min(initial=0.0) < -RANGE_TOLERANCE or values.max(initial=0.0) > spec.max_expertise + RANGE_TOLERANCE:
            raise InvalidMessageError(RejectionReason.EXPERTISE_RANGE)
        return values.clip(0.0, spec.max_expertise)
    if not codecs.has_zero_padding(part, spec.expertise_bits, spec.num_levels):
        raise InvalidMessageError(RejectionReason.EXPERTISE_RANGE)
    levels = codecs.unpack_bits(part, spec.expertise_bits, spec.num_levels)
    return codecs.dequantise(levels, spec.max_expertise, spec.expertise_bits)


def validate_payload(data: bytes, spec: MessageSpec) -> bool:
    """Validate labels and expertise of a message with a valid encoding.

    Returns:
        True if the client abstains: all its votes have weight 0.

    Raises:
        InvalidMessageError: Labels or expertise are out of range or inconsistent.
    """
    labels = decode_labels(data, spec)
    expertise = decode_expertise(data, spec)
    if expertise is None:
        return False
    by_class = spec.expertise_encoding is ExpertiseEncoding.HISTOGRAM
    if spec.is_distribution and (by_class or labels.ndim == 1):  # a row of bits has no single class
        validate_class_shares(expertise, np.arange(spec.num_classes) if by_class else labels, spec)
    if by_class and labels.ndim == 1:
        expertise = expertise[labels]
    return not expertise.any()


def validate_class_shares(values: FloatArray, labels: NDArray[Any], spec: MessageSpec) -> None:
    """Reject class fractions that differ within a class or sum up to more than 1."""
    class_values = np.zeros(spec.num_classes)
    class_values[labels] = values
    is_exact = spec.expertise_encoding is ExpertiseEncoding.FLOATS
    rounding = 0.0 if is_exact else spec.num_classes / ((1 << spec.expertise_bits) - 1)
    if (class_values[labels] != values).any() or class_values.sum() > 1 + SHARE_SUM_TOLERANCE + rounding:
        raise InvalidMessageError(RejectionReason.EXPERTISE_INCONSISTENT)


def encode_consensus_labels(header: MessageHeader, spec: MessageSpec, labels: NDArray[Any]) -> bytes:
    """The message of the server."""
    return encode_message(header, spec, encode_labels(labels, spec))


def encode_class_shares(header: MessageHeader, spec: MessageSpec, shares: FloatArray) -> bytes:
    """The message of the server with the share of each class [examples, classes], relative to the largest one."""
    relative = shares / shares.max(axis=1, keepdims=True)
    return encode_message(header, spec, encode_expertise(relative.reshape(-1), spec))


def decode_class_shares(data: bytes, expected: ExpectedMessage) -> FloatArray:
    """The share of each class [examples, classes], with rows that sum up to 1. Raises InvalidMessageError."""
    validate_header(data, expected, SERVER_ID)
    validate_encoding(data, expected.spec)
    levels = decode_expertise(data, expected.spec)
    if levels is None:
        raise InvalidMessageError(RejectionReason.WRONG_ENCODING)
    shares = levels.reshape(expected.spec.public_size, expected.spec.num_classes)
    sums = shares.sum(axis=1, keepdims=True)
    if not sums.all():
        raise InvalidMessageError(RejectionReason.EXPERTISE_RANGE)
    normalised: FloatArray = shares / sums
    return normalised


def decode_consensus_labels(data: bytes, expected: ExpectedMessage) -> NDArray[Any]:
    """The label of each public example, -1 if it has none. Raises InvalidMessageError."""
    validate_header(data, expected, SERVER_ID)
    validate_encoding(data, expected.spec)
    return decode_labels(data, expected.spec)
