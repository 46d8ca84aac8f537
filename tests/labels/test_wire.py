"""Messages about the public set: what is written comes back, and what should not be there is refused with a reason."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmosaic_cli.labels import codecs, wire
from fedmosaic_cli.labels.wire import (
    CHECKSUM_BYTES,
    HEADER_STRUCT,
    SERVER_ID,
    ExpertiseEncoding,
    InvalidMessageError,
    LabelEncoding,
    LabelMessageKind,
    MessageSpec,
    RejectionReason,
)
from tests.labels.ballots import PUBLIC, ROUND, RUN, encode_upload, expected, make_header

FIELDS = (
    *("magic", "major", "minor", "kind", "labels", "expertise", "bits", "run", "public"),
    *("round", "client", "public_size", "classes", "high", "payload"),
)
LABELS = np.array([0, 2, 1, 2, 0])
PLAIN = MessageSpec(5, 3)
LEVELS = MessageSpec(5, 3, expertise_encoding=ExpertiseEncoding.LEVELS)
FLOATS = MessageSpec(5, 3, expertise_encoding=ExpertiseEncoding.FLOATS)
SHARES = replace(LEVELS, is_distribution=True)
CONSENSUS = MessageSpec(5, 3, kind=LabelMessageKind.CONSENSUS)
MASKED = replace(CONSENSUS, label_encoding=LabelEncoding.MASKED)


def rewritten(data: bytes, **changes: Any) -> bytes:
    """The message with other fields in its header, and a checksum that fits."""
    fields = dict(zip(FIELDS, HEADER_STRUCT.unpack_from(data), strict=True)) | changes
    return resealed(HEADER_STRUCT.pack(*fields.values()) + data[HEADER_STRUCT.size : -CHECKSUM_BYTES])


def resealed(content: bytes) -> bytes:
    return content + wire.message_checksum(content)


def with_payload(data: bytes, payload: bytes) -> bytes:
    """The message with another payload, of which header and checksum know."""
    return rewritten(data[: HEADER_STRUCT.size] + payload + bytes(CHECKSUM_BYTES), payload=len(payload))


def refusal(
    data: bytes, form: MessageSpec, sender: int = 0, roster: frozenset[int] = frozenset({0})
) -> RejectionReason | None:
    """Why the server does not use a message; None if it does."""
    try:
        wire.validate_header(data, expected(form, roster), sender)
        wire.validate_encoding(data, form)
        wire.validate_payload(data, form)
    except InvalidMessageError as refused:
        return refused.reason
    return None


# What is written comes back.

CLASSES = st.one_of(st.integers(2, 65_536), st.integers(2, 20), st.sampled_from([255, 256, 257, 65_535, 65_536]))


@settings(max_examples=250)
@given(
    classes=CLASSES,
    half=st.integers(0, 20),
    bits=st.integers(1, 32),
    code=st.sampled_from(list(ExpertiseEncoding)),
    label_code=st.sampled_from(list(LabelEncoding)),
    seed=st.integers(0, 2**32 - 1),
)
@example(classes=65_536, half=20, bits=32, code=ExpertiseEncoding.LEVELS, label_code=LabelEncoding.BITS, seed=0)
@example(classes=2, half=0, bits=1, code=ExpertiseEncoding.LEVELS, label_code=LabelEncoding.INDEX, seed=0)
def test_uploads_round_trip_and_size(classes, half, bits, code, label_code, seed):
    rng, size = np.random.default_rng(seed), 2 * half + 1
    form = MessageSpec(
        size,
        classes,
        label_encoding=label_code,
        expertise_encoding=code,
        expertise_bits=bits,
        max_expertise=math.log(classes),
    )
    labels = rng.integers(-1 if label_code is LabelEncoding.MASKED else 0, classes, size)
    labels[0] = classes - 1
    if label_code is LabelEncoding.BITS:
        labels = rng.integers(0, 2, (size, classes), dtype=np.uint8)
    count = classes if code is ExpertiseEncoding.HISTOGRAM else size
    top = 2**bits - 1
    expertise = codecs.dequantise(rng.integers(0, top, count, endpoint=True), form.max_expertise, bits)
    if code is ExpertiseEncoding.FLOATS:
        expertise = expertise.astype(np.float32).astype(np.float64).clip(0, form.max_expertise)
    data = encode_upload(form, labels, None if code is ExpertiseEncoding.NONE else expertise)

    assert refusal(data, form) is None
    assert np.array_equal(wire.decode_labels(data, form), labels)
    read = wire.decode_expertise(data, form)
    if code is ExpertiseEncoding.NONE:
        assert read is None
    else:
        assert np.array_equal(read, expertise)
    label_bits = {
        LabelEncoding.INDEX: size * math.ceil(math.log2(classes)),
        LabelEncoding.MASKED: 8 * math.ceil(size * math.ceil(math.log2(classes)) / 8) + size,
        LabelEncoding.BITS: size * classes,
    }[label_code]
    expertise_bits = {ExpertiseEncoding.NONE: 0, ExpertiseEncoding.FLOATS: 32 * size}.get(code, count * bits)
    assert form.payload_bytes == math.ceil(label_bits / 8) + math.ceil(expertise_bits / 8)
    assert len(data) == form.total_bytes == HEADER_STRUCT.size + form.payload_bytes + CHECKSUM_BYTES


@settings(max_examples=250)
@given(CLASSES, st.integers(0, 20), st.integers(0, 2**32 - 1), st.booleans())
def test_consensus_round_trip(classes, half, seed, masked):
    rng, size = np.random.default_rng(seed), 2 * half + 1
    form = MessageSpec(
        size, classes, LabelMessageKind.CONSENSUS, LabelEncoding.MASKED if masked else LabelEncoding.INDEX
    )
    labels = rng.integers(-1 if masked else 0, classes, size)
    data = wire.encode_consensus_labels(make_header(SERVER_ID), form, labels)
    assert wire.decode_consensus_labels(data, expected(form, {SERVER_ID})).tolist() == labels.tolist()


def test_encoding_is_deterministic():
    assert encode_upload(LEVELS, LABELS, LABELS / 3) == encode_upload(LEVELS, LABELS, LABELS / 3)


# Every reason, by hand.

GOOD = encode_upload(LEVELS, LABELS, [0.5, 0.25, 0, 0.25, 0.5])
NAN_VALUES = [0.5, math.nan, 0, 0.25, 0.5]


def labelled(*labels: int) -> bytes:
    """A payload with these labels, two bits each, whatever classes there are, and no expertise to speak of."""
    return codecs.pack_bits(np.array(labels), 2) + bytes(LEVELS.expertise_bytes)


FAULTS: dict[str, tuple[RejectionReason, bytes, MessageSpec]] = {
    "longer than any can be": (RejectionReason.TOO_LARGE, GOOD + b"\0", LEVELS),
    "another form, which is longer": (RejectionReason.TOO_LARGE, encode_upload(FLOATS, LABELS, np.ones(5)), LEVELS),
    "something else": (RejectionReason.BAD_MAGIC, b"GIF8" + GOOD[4:], LEVELS),
    "a newer version": (RejectionReason.BAD_VERSION, rewritten(GOOD, major=2), LEVELS),
    "a version that never was": (RejectionReason.BAD_VERSION, rewritten(GOOD, major=0), LEVELS),
    "nothing": (RejectionReason.TRUNCATED, b"", LEVELS),
    "half a magic": (RejectionReason.TRUNCATED, GOOD[:2], LEVELS),
    "half a header": (RejectionReason.TRUNCATED, GOOD[:40], LEVELS),
    "no checksum": (RejectionReason.TRUNCATED, GOOD[:-CHECKSUM_BYTES], LEVELS),
    "one byte is missing": (RejectionReason.TRUNCATED, GOOD[:-1], LEVELS),
    "more than the header says": (RejectionReason.TRAILING, rewritten(GOOD, payload=3), LEVELS),
    "less than the form says": (RejectionReason.TRUNCATED, with_payload(GOOD, bytes(3)), LEVELS),
    "one bit in the payload": (RejectionReason.CHECKSUM, GOOD[:-9] + bytes([GOOD[-9] ^ 1]) + GOOD[-8:], LEVELS),
    "one bit in the checksum": (RejectionReason.CHECKSUM, GOOD[:-1] + bytes([GOOD[-1] ^ 1]), LEVELS),
    "another run": (RejectionReason.WRONG_RUN, rewritten(GOOD, run=bytes(16)), LEVELS),
    "another public set": (RejectionReason.WRONG_PUBLIC_SET, rewritten(GOOD, public=RUN), LEVELS),
    "nobody we know": (RejectionReason.UNKNOWN_CLIENT, rewritten(GOOD, client=7), LEVELS),
    "the last round": (RejectionReason.STALE_ROUND, rewritten(GOOD, round=ROUND - 1), LEVELS),
    "the next round": (RejectionReason.FUTURE_ROUND, rewritten(GOOD, round=ROUND + 1), LEVELS),
    "fewer examples": (RejectionReason.WRONG_COUNT, rewritten(GOOD, public_size=4), LEVELS),
    "more classes": (RejectionReason.WRONG_COUNT, rewritten(GOOD, classes=4), LEVELS),
    "a consensus": (RejectionReason.WRONG_ENCODING, rewritten(GOOD, kind=LabelMessageKind.CONSENSUS), LEVELS),
    "no kind": (RejectionReason.WRONG_ENCODING, rewritten(GOOD, kind=77), LEVELS),
    "labels in bits": (RejectionReason.WRONG_ENCODING, rewritten(GOOD, labels=LabelEncoding.BITS), LEVELS),
    "labels in nothing we know": (RejectionReason.WRONG_ENCODING, rewritten(GOOD, labels=200), LEVELS),
    "expertise in floats": (
        RejectionReason.WRONG_ENCODING,
        rewritten(GOOD, expertise=ExpertiseEncoding.FLOATS),
        LEVELS,
    ),
    "other levels": (RejectionReason.WRONG_ENCODING, rewritten(GOOD, bits=7), LEVELS),
    "another range": (RejectionReason.WRONG_ENCODING, rewritten(GOOD, high=1e30), LEVELS),
    "a range that is no number": (RejectionReason.WRONG_ENCODING, rewritten(GOOD, high=math.nan), LEVELS),
    "no expertise where some is due": (RejectionReason.WRONG_ENCODING, encode_upload(PLAIN, LABELS), LEVELS),
    "a class that does not exist": (RejectionReason.LABEL_RANGE, with_payload(GOOD, labelled(0, 1, 2, 3, 0)), LEVELS),
    "a bit behind the labels": (
        RejectionReason.LABEL_RANGE,
        with_payload(GOOD, labelled(0, 1, 2, 1, 0, 0, 0, 1)),
        LEVELS,
    ),
    "a bit behind the bits": (
        RejectionReason.LABEL_RANGE,
        wire.encode_message(make_header(), replace(PLAIN, label_encoding=LabelEncoding.BITS), b"\0\1"),
        replace(PLAIN, label_encoding=LabelEncoding.BITS),
    ),
    "not a number": (RejectionReason.EXPERTISE_NONFINITE, encode_upload(FLOATS, LABELS, NAN_VALUES), FLOATS),
    "infinity": (RejectionReason.EXPERTISE_NONFINITE, encode_upload(FLOATS, LABELS, [0, 0, 0, 0, math.inf]), FLOATS),
    "infinity below": (
        RejectionReason.EXPERTISE_NONFINITE,
        encode_upload(FLOATS, LABELS, [0, -math.inf, 0, 0, 0]),
        FLOATS,
    ),
    "below the range": (RejectionReason.EXPERTISE_RANGE, encode_upload(FLOATS, LABELS, [0, -2e-6, 0, 0, 0]), FLOATS),
    "above the range": (RejectionReason.EXPERTISE_RANGE, encode_upload(FLOATS, LABELS, [0, 0, 1 + 2e-6, 0, 0]), FLOATS),
    "all there is": (RejectionReason.EXPERTISE_RANGE, encode_upload(FLOATS, LABELS, np.full(5, 3e38)), FLOATS),
    "a bit behind the levels": (
        RejectionReason.EXPERTISE_RANGE,
        wire.encode_message(make_header(), replace(LEVELS, expertise_bits=3), bytes(3) + b"\1"),
        replace(LEVELS, expertise_bits=3),
    ),
    "two shares of one class": (
        RejectionReason.EXPERTISE_INCONSISTENT,
        encode_upload(SHARES, LABELS, [0.5, 0.25, 0, 0.25, 0.4]),
        SHARES,
    ),
    "more than there is": (
        RejectionReason.EXPERTISE_INCONSISTENT,
        encode_upload(SHARES, LABELS, np.full(5, 0.34)),
        SHARES,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_invalid_message_is_rejected_with_its_reason(fault):
    reason, data, form = FAULTS[fault]
    assert refusal(data, form) is reason


def test_every_reason_but_duplicate_is_covered():
    assert {reason for reason, _, _ in FAULTS.values()} == set(RejectionReason) - {RejectionReason.DUPLICATE}


def test_valid_messages_are_accepted():
    assert refusal(GOOD, LEVELS) is None
    assert refusal(rewritten(GOOD, minor=9), LEVELS) is None, "a newer minor version can be read"
    assert refusal(encode_upload(FLOATS, LABELS, [-1e-7, 1 + 1e-7, 0, 1, 0.5]), FLOATS) is None
    assert refusal(encode_upload(SHARES, LABELS, [0.5, 0.25, 0.25, 0.25, 0.5]), SHARES) is None


def test_sender_must_match_the_header():
    both = frozenset({0, 1})
    assert refusal(encode_upload(PLAIN, LABELS, client=1), PLAIN, sender=1, roster=both) is None
    assert (
        refusal(encode_upload(PLAIN, LABELS, client=1), PLAIN, sender=0, roster=both) is RejectionReason.UNKNOWN_CLIENT
    )


# From the one that is found first to the last: each is made worse by all that come before it.
ORDER = [
    (RejectionReason.EXPERTISE_INCONSISTENT, lambda data: with_payload(data, data[HEADER_STRUCT.size : -9] + b"\x70")),
    (
        RejectionReason.LABEL_RANGE,
        lambda data: with_payload(data, b"\xff\xff" + data[HEADER_STRUCT.size + 2 : -CHECKSUM_BYTES]),
    ),
    (RejectionReason.WRONG_ENCODING, lambda data: rewritten(data, labels=LabelEncoding.BITS)),
    (RejectionReason.WRONG_COUNT, lambda data: rewritten(data, classes=4)),
    (RejectionReason.STALE_ROUND, lambda data: rewritten(data, round=0)),
    (RejectionReason.UNKNOWN_CLIENT, lambda data: rewritten(data, client=9)),
    (RejectionReason.WRONG_PUBLIC_SET, lambda data: rewritten(data, public=bytes(16))),
    (RejectionReason.WRONG_RUN, lambda data: rewritten(data, run=PUBLIC)),
    (RejectionReason.CHECKSUM, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    (RejectionReason.TRUNCATED, lambda data: data[:-1]),
    (RejectionReason.BAD_VERSION, lambda data: data[:4] + b"\7" + data[5:]),
    (RejectionReason.BAD_MAGIC, lambda data: b"PK\3\4" + data[4:]),
    (RejectionReason.TOO_LARGE, lambda data: data + bytes(1000)),
]


def test_first_of_several_faults_is_reported():
    data = GOOD
    for reason, spoil in ORDER:
        data = spoil(data)
        assert refusal(data, SHARES) is reason


def test_first_of_several_expertise_faults_is_reported():
    form = replace(FLOATS, is_distribution=True)
    assert (
        refusal(encode_upload(form, LABELS, [0.5, 0.25, 0, 0.25, 0.4]), form) is RejectionReason.EXPERTISE_INCONSISTENT
    )
    assert refusal(encode_upload(form, LABELS, [0.5, 2.0, 0, 0.25, 0.4]), form) is RejectionReason.EXPERTISE_RANGE
    assert (
        refusal(encode_upload(form, LABELS, [0.5, 2.0, 0, math.nan, 0.4]), form) is RejectionReason.EXPERTISE_NONFINITE
    )


# Expertise.


@settings(max_examples=250)
@given(st.floats(width=32), st.sampled_from([1.0, math.log(10)]))
def test_floats_are_accepted_only_in_range(value, high):
    form = replace(FLOATS, max_expertise=high)
    found = refusal(encode_upload(form, LABELS, [0.1, value, 0.2, 0.1, 0.0]), form)
    if not math.isfinite(value):
        assert found is RejectionReason.EXPERTISE_NONFINITE
    elif value < -1e-6 or value > high + 1e-6:
        assert found is RejectionReason.EXPERTISE_RANGE
    else:
        assert found is None
        read = wire.decode_expertise(encode_upload(form, LABELS, [0.1, value, 0.2, 0.1, 0.0]), form)
        assert read[1] == min(max(value, 0.0), high)


def test_signalling_nan_is_rejected_without_a_warning():
    signalling = np.full(5, 0x7F800001, dtype="<u4").tobytes()
    data = wire.encode_message(make_header(), FLOATS, bytes(FLOATS.label_bytes) + signalling)
    assert refusal(data, FLOATS) is RejectionReason.EXPERTISE_NONFINITE


@pytest.mark.parametrize("code", [ExpertiseEncoding.LEVELS, ExpertiseEncoding.FLOATS, ExpertiseEncoding.HISTOGRAM])
def test_zero_expertise_is_an_abstention(code):
    form = replace(PLAIN, expertise_encoding=code)
    count = 3 if code is ExpertiseEncoding.HISTOGRAM else 5
    assert wire.validate_payload(encode_upload(form, LABELS, np.zeros(count)), form)
    assert not wire.validate_payload(encode_upload(form, LABELS, np.full(count, 0.1)), form)
    assert not wire.validate_payload(encode_upload(PLAIN, LABELS), PLAIN)


def test_histogram_without_the_voted_classes_is_an_abstention():
    form = replace(PLAIN, expertise_encoding=ExpertiseEncoding.HISTOGRAM, is_distribution=True)
    assert wire.validate_payload(encode_upload(form, [0, 0, 1, 1, 0], [0, 0, 1]), form)
    assert not wire.validate_payload(encode_upload(form, [0, 0, 1, 2, 0], [0, 0, 1]), form)


def many_classes(total: float, code: ExpertiseEncoding, classes: int = 4, bits: int = 8) -> RejectionReason | None:
    """What becomes of shares, the same for all classes, that sum up to `total`."""
    form = MessageSpec(classes, classes, expertise_encoding=code, expertise_bits=bits, is_distribution=True)
    return refusal(encode_upload(form, np.arange(classes), np.full(classes, total / classes)), form)


def test_sum_of_fractions_may_exceed_one_by_rounding_only():
    assert many_classes(1 + 0.9e-3, ExpertiseEncoding.FLOATS) is None
    assert many_classes(1 + 1.1e-3, ExpertiseEncoding.FLOATS) is RejectionReason.EXPERTISE_INCONSISTENT
    # Levels 64 each: 256/255. With 4/255 for rounding, 259/255 is allowed and 260/255 is not.
    for code in ExpertiseEncoding.LEVELS, ExpertiseEncoding.HISTOGRAM:
        assert many_classes(256 / 255, code) is None
        assert many_classes(260 / 255, code) is RejectionReason.EXPERTISE_INCONSISTENT


@settings(max_examples=250)
@given(st.integers(2, 300), st.integers(1, 16), st.integers(0, 2**32 - 1), st.sampled_from(list(ExpertiseEncoding)[1:]))
def test_true_fractions_are_never_rejected(classes, bits, seed, code):
    """However many classes there are and however coarse the levels, whoever tells the truth is heard."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(classes, rng.choice([0.05, 1.0, 100.0])))
    labels = rng.permutation(np.arange(2 * classes + 1) % classes)
    form = MessageSpec(len(labels), classes, expertise_encoding=code, expertise_bits=bits, is_distribution=True)
    assert (
        refusal(encode_upload(form, labels, shares if code is ExpertiseEncoding.HISTOGRAM else shares[labels]), form)
        is None
    )


def test_maximum_expertise_is_inconsistent_for_several_classes():
    assert refusal(encode_upload(SHARES, LABELS, np.ones(5)), SHARES) is RejectionReason.EXPERTISE_INCONSISTENT
    assert refusal(encode_upload(SHARES, np.full(5, 2), np.ones(5)), SHARES) is None
    assert refusal(encode_upload(LEVELS, LABELS, np.ones(5)), LEVELS) is None, "other expertise need not be shares"


# What clients receive.


def heard(data: bytes, form: MessageSpec) -> RejectionReason | None:
    try:
        wire.decode_consensus_labels(data, expected(form, {SERVER_ID}))
    except InvalidMessageError as refused:
        return refused.reason
    return None


TOLD = wire.encode_consensus_labels(make_header(SERVER_ID), CONSENSUS, LABELS)


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        (None, TOLD),
        (RejectionReason.TOO_LARGE, TOLD + b"\0"),
        (RejectionReason.BAD_MAGIC, b"\0" + TOLD[1:]),
        (RejectionReason.BAD_VERSION, rewritten(TOLD, major=2)),
        (RejectionReason.TRUNCATED, TOLD[:-3]),
        (RejectionReason.TRAILING, rewritten(TOLD, payload=1)),
        (RejectionReason.TRUNCATED, with_payload(TOLD, b"\0")),
        (RejectionReason.CHECKSUM, TOLD[:-1] + bytes([TOLD[-1] ^ 128])),
        (RejectionReason.WRONG_RUN, rewritten(TOLD, run=bytes(16))),
        (RejectionReason.WRONG_PUBLIC_SET, rewritten(TOLD, public=bytes(16))),
        (RejectionReason.UNKNOWN_CLIENT, rewritten(TOLD, client=0)),
        (RejectionReason.STALE_ROUND, rewritten(TOLD, round=ROUND - 1)),
        (RejectionReason.FUTURE_ROUND, rewritten(TOLD, round=ROUND + 1)),
        (RejectionReason.WRONG_COUNT, rewritten(TOLD, public_size=6)),
        (RejectionReason.WRONG_ENCODING, rewritten(TOLD, kind=LabelMessageKind.UPLOAD)),
        (RejectionReason.WRONG_ENCODING, rewritten(TOLD, labels=LabelEncoding.MASKED)),
        (RejectionReason.LABEL_RANGE, with_payload(TOLD, b"\xc0\0")),
        (RejectionReason.LABEL_RANGE, with_payload(TOLD, b"\0\x3f")),
    ],
)
def test_clients_validate_the_consensus(reason, data):
    assert heard(data, CONSENSUS) is reason


def test_missing_labels_are_encoded_uniquely():
    labels = np.array([-1, 2, 0, -1, 1])
    told = wire.encode_consensus_labels(make_header(SERVER_ID), MASKED, labels)
    assert wire.decode_consensus_labels(told, expected(MASKED, {SERVER_ID})).tolist() == labels.tolist()
    assert heard(with_payload(told, b"\x40\0\x78"), MASKED) is RejectionReason.LABEL_RANGE, (
        "a class where there is none"
    )
    assert heard(with_payload(told, b"\0\0\xff"), MASKED) is RejectionReason.LABEL_RANGE, "bits behind the mask"
    assert heard(with_payload(told, b"\0\x01\xf8"), MASKED) is RejectionReason.LABEL_RANGE, "bits behind the labels"
    assert heard(with_payload(told, b"\xc0\0\xf8"), MASKED) is RejectionReason.LABEL_RANGE, (
        "a class that does not exist"
    )


# Whatever comes.


@pytest.mark.parametrize("field", ["public_size", "classes", "payload"])
def test_large_counts_in_the_header_allocate_nothing(field):
    data = rewritten(GOOD, **{field: 2**32 - 1})
    tracemalloc.start()
    reason = refusal(data, LEVELS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason in (RejectionReason.TRUNCATED, RejectionReason.WRONG_COUNT)
    assert peak < 100_000


def test_oversized_message_is_not_copied():
    data = GOOD + bytes(50_000_000)
    tracemalloc.start()
    assert refusal(data, LEVELS) is RejectionReason.TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


EVERY_FORM = [
    MessageSpec(7, 10, label_encoding=labels, expertise_encoding=code, is_distribution=share)
    for labels in (LabelEncoding.INDEX, LabelEncoding.BITS)
    for code in ExpertiseEncoding
    for share in (False, True)
]


def written(form: MessageSpec, rng: np.random.Generator) -> bytes:
    """A message of this form that is as it should be."""
    shape = (7, 10) if form.label_encoding is LabelEncoding.BITS else 7
    labels = rng.integers(0, 2 if form.label_encoding is LabelEncoding.BITS else 10, shape)
    shares = rng.dirichlet(np.ones(10))
    if form.expertise_encoding is ExpertiseEncoding.HISTOGRAM:
        return encode_upload(form, labels, shares)
    return encode_upload(form, labels, shares[labels] if labels.ndim == 1 else shares[:7])


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """The message, damaged or forged in one of the ways in which messages are."""
    spoilt = bytearray(data)
    place, way = int(rng.integers(len(data))), rng.integers(8)
    if way == 0:
        spoilt[place] ^= 1 << int(rng.integers(8))
    elif way == 1:
        del spoilt[place:]
    elif way == 2:
        spoilt[place:place] = rng.bytes(int(rng.integers(1, 9)))
    elif way == 3:
        spoilt = bytearray(rng.bytes(place))
    elif way == 4:
        spoilt = spoilt[place:] + spoilt[:place]
    elif way == 5:  # noise in the payload, sealed
        inside = slice(HEADER_STRUCT.size, -CHECKSUM_BYTES)
        spoilt[inside] = rng.bytes(len(spoilt[inside]))
        return resealed(bytes(spoilt[:-CHECKSUM_BYTES]))
    elif way == 6:  # noise in the header, sealed
        start = int(rng.integers(HEADER_STRUCT.size))
        spoilt[start : start + 4] = rng.bytes(len(spoilt[start : start + 4]))
        return resealed(bytes(spoilt[:-CHECKSUM_BYTES]))
    else:  # one bit anywhere, sealed
        spoilt[place] ^= 1 << int(rng.integers(8))
        return resealed(bytes(spoilt[:-CHECKSUM_BYTES]))
    return bytes(spoilt)


def test_mutated_uploads_are_only_rejected():
    rng = np.random.default_rng(0)
    good = [(form, written(form, rng)) for form in EVERY_FORM for _ in range(4)]
    assert all(refusal(data, form) is None for form, data in good)
    outcomes: Counter[RejectionReason | None] = Counter()
    tracemalloc.start()
    for number in range(30_000):
        form, data = good[number % len(good)]
        outcomes[refusal(mutated(data, rng), form)] += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert set(outcomes) == {None, *RejectionReason} - {RejectionReason.DUPLICATE}, "every check is reached"
    assert outcomes[RejectionReason.CHECKSUM] > 1_500
    assert outcomes[None] < 9_000, "bits, and numbers in range, are as good as others"


def test_mutated_consensus_is_only_rejected():
    rng = np.random.default_rng(1)
    outcomes: Counter[RejectionReason | None] = Counter()
    for form in CONSENSUS, MASKED:
        data = wire.encode_consensus_labels(make_header(SERVER_ID), form, LABELS)
        outcomes.update(heard(mutated(data, rng), form) for _ in range(10_000))
    assert RejectionReason.LABEL_RANGE in outcomes
    assert outcomes[None] < 5_000
