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
    CHECKSUM,
    HEADER,
    SERVER,
    ExpertiseCode,
    Form,
    Kind,
    LabelCode,
    Reason,
    RefusedError,
)
from tests.cotraining.ballots import PUBLIC, ROUND, RUN, envelope, expected, opinion

FIELDS = (
    *("magic", "major", "minor", "kind", "labels", "expertise", "bits", "run", "public"),
    *("round", "client", "public_size", "classes", "high", "payload"),
)
LABELS = np.array([0, 2, 1, 2, 0])
PLAIN = Form(5, 3)
LEVELS = Form(5, 3, expertise=ExpertiseCode.LEVELS)
FLOATS = Form(5, 3, expertise=ExpertiseCode.FLOATS)
SHARES = replace(LEVELS, share=True)
CONSENSUS = Form(5, 3, kind=Kind.CONSENSUS)
MASKED = replace(CONSENSUS, labels=LabelCode.MASKED)


def rewritten(data: bytes, **changes: Any) -> bytes:
    """The message with other fields in its header, and a checksum that fits."""
    fields = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True)) | changes
    return resealed(HEADER.pack(*fields.values()) + data[HEADER.size : -CHECKSUM])


def resealed(content: bytes) -> bytes:
    return content + wire.checksum(content)


def with_payload(data: bytes, payload: bytes) -> bytes:
    """The message with another payload, of which header and checksum know."""
    return rewritten(data[: HEADER.size] + payload + bytes(CHECKSUM), payload=len(payload))


def refusal(data: bytes, form: Form, sender: int = 0, roster: frozenset[int] = frozenset({0})) -> Reason | None:
    """Why the server does not use a message; None if it does."""
    try:
        wire.open_envelope(data, expected(form, roster), sender)
        wire.check_form(data, form)
        wire.check_content(data, form)
    except RefusedError as refused:
        return refused.reason
    return None


# What is written comes back.

CLASSES = st.one_of(st.integers(2, 65_536), st.integers(2, 20), st.sampled_from([255, 256, 257, 65_535, 65_536]))


@settings(max_examples=1000)
@given(
    classes=CLASSES,
    half=st.integers(0, 20),
    bits=st.integers(1, 32),
    code=st.sampled_from(list(ExpertiseCode)),
    label_code=st.sampled_from(list(LabelCode)),
    seed=st.integers(0, 2**32 - 1),
)
@example(classes=65_536, half=20, bits=32, code=ExpertiseCode.LEVELS, label_code=LabelCode.BITS, seed=0)
@example(classes=2, half=0, bits=1, code=ExpertiseCode.LEVELS, label_code=LabelCode.INDEX, seed=0)
def test_what_is_written_is_read_and_takes_as_many_bits_as_it_must(classes, half, bits, code, label_code, seed):
    rng, size = np.random.default_rng(seed), 2 * half + 1
    form = Form(size, classes, labels=label_code, expertise=code, expertise_bits=bits, high=math.log(classes))
    labels = rng.integers(-1 if label_code is LabelCode.MASKED else 0, classes, size)
    labels[0] = classes - 1
    if label_code is LabelCode.BITS:
        labels = rng.integers(0, 2, (size, classes), dtype=np.uint8)
    count = classes if code is ExpertiseCode.HISTOGRAM else size
    top = 2**bits - 1
    expertise = codecs.dequantise(rng.integers(0, top, count, endpoint=True), form.high, bits)
    if code is ExpertiseCode.FLOATS:
        expertise = expertise.astype(np.float32).astype(np.float64).clip(0, form.high)
    data = opinion(form, labels, None if code is ExpertiseCode.NONE else expertise)

    assert refusal(data, form) is None
    assert np.array_equal(wire.read_labels(data, form), labels)
    read = wire.read_expertise(data, form)
    if code is ExpertiseCode.NONE:
        assert read is None
    else:
        assert np.array_equal(read, expertise)
    label_bits = {
        LabelCode.INDEX: size * math.ceil(math.log2(classes)),
        LabelCode.MASKED: 8 * math.ceil(size * math.ceil(math.log2(classes)) / 8) + size,
        LabelCode.BITS: size * classes,
    }[label_code]
    expertise_bits = {ExpertiseCode.NONE: 0, ExpertiseCode.FLOATS: 32 * size}.get(code, count * bits)
    assert form.payload_bytes == math.ceil(label_bits / 8) + math.ceil(expertise_bits / 8)
    assert len(data) == form.total_bytes == HEADER.size + form.payload_bytes + CHECKSUM


@settings(max_examples=1000)
@given(CLASSES, st.integers(0, 20), st.integers(0, 2**32 - 1), st.booleans())
def test_a_consensus_is_read_as_it_was_written(classes, half, seed, masked):
    rng, size = np.random.default_rng(seed), 2 * half + 1
    form = Form(size, classes, Kind.CONSENSUS, LabelCode.MASKED if masked else LabelCode.INDEX)
    labels = rng.integers(-1 if masked else 0, classes, size)
    data = wire.write_consensus(envelope(SERVER), form, labels)
    assert wire.read_consensus(data, expected(form, {SERVER})).tolist() == labels.tolist()


def test_writing_twice_gives_the_same_bytes():
    assert opinion(LEVELS, LABELS, LABELS / 3) == opinion(LEVELS, LABELS, LABELS / 3)


# Every reason, by hand.

GOOD = opinion(LEVELS, LABELS, [0.5, 0.25, 0, 0.25, 0.5])
NAN_VALUES = [0.5, math.nan, 0, 0.25, 0.5]


def labelled(*labels: int) -> bytes:
    """A payload with these labels, two bits each, whatever classes there are, and no expertise to speak of."""
    return codecs.pack(np.array(labels), 2) + bytes(LEVELS.expertise_bytes)


FAULTS: dict[str, tuple[Reason, bytes, Form]] = {
    "longer than any can be": (Reason.TOO_LARGE, GOOD + b"\0", LEVELS),
    "another form, which is longer": (Reason.TOO_LARGE, opinion(FLOATS, LABELS, np.ones(5)), LEVELS),
    "something else": (Reason.BAD_MAGIC, b"GIF8" + GOOD[4:], LEVELS),
    "a newer version": (Reason.BAD_VERSION, rewritten(GOOD, major=2), LEVELS),
    "a version that never was": (Reason.BAD_VERSION, rewritten(GOOD, major=0), LEVELS),
    "nothing": (Reason.TRUNCATED, b"", LEVELS),
    "half a magic": (Reason.TRUNCATED, GOOD[:2], LEVELS),
    "half a header": (Reason.TRUNCATED, GOOD[:40], LEVELS),
    "no checksum": (Reason.TRUNCATED, GOOD[:-CHECKSUM], LEVELS),
    "one byte is missing": (Reason.TRUNCATED, GOOD[:-1], LEVELS),
    "more than the header says": (Reason.TRAILING, rewritten(GOOD, payload=3), LEVELS),
    "less than the form says": (Reason.TRUNCATED, with_payload(GOOD, bytes(3)), LEVELS),
    "one bit in the payload": (Reason.CHECKSUM, GOOD[:-9] + bytes([GOOD[-9] ^ 1]) + GOOD[-8:], LEVELS),
    "one bit in the checksum": (Reason.CHECKSUM, GOOD[:-1] + bytes([GOOD[-1] ^ 1]), LEVELS),
    "another run": (Reason.WRONG_RUN, rewritten(GOOD, run=bytes(16)), LEVELS),
    "another public set": (Reason.WRONG_PUBLIC_SET, rewritten(GOOD, public=RUN), LEVELS),
    "nobody we know": (Reason.UNKNOWN_CLIENT, rewritten(GOOD, client=7), LEVELS),
    "the last round": (Reason.STALE_ROUND, rewritten(GOOD, round=ROUND - 1), LEVELS),
    "the next round": (Reason.FUTURE_ROUND, rewritten(GOOD, round=ROUND + 1), LEVELS),
    "fewer examples": (Reason.WRONG_COUNT, rewritten(GOOD, public_size=4), LEVELS),
    "more classes": (Reason.WRONG_COUNT, rewritten(GOOD, classes=4), LEVELS),
    "a consensus": (Reason.WRONG_ENCODING, rewritten(GOOD, kind=Kind.CONSENSUS), LEVELS),
    "no kind": (Reason.WRONG_ENCODING, rewritten(GOOD, kind=77), LEVELS),
    "labels in bits": (Reason.WRONG_ENCODING, rewritten(GOOD, labels=LabelCode.BITS), LEVELS),
    "labels in nothing we know": (Reason.WRONG_ENCODING, rewritten(GOOD, labels=200), LEVELS),
    "expertise in floats": (Reason.WRONG_ENCODING, rewritten(GOOD, expertise=ExpertiseCode.FLOATS), LEVELS),
    "other levels": (Reason.WRONG_ENCODING, rewritten(GOOD, bits=7), LEVELS),
    "another range": (Reason.WRONG_ENCODING, rewritten(GOOD, high=1e30), LEVELS),
    "a range that is no number": (Reason.WRONG_ENCODING, rewritten(GOOD, high=math.nan), LEVELS),
    "no expertise where some is due": (Reason.WRONG_ENCODING, opinion(PLAIN, LABELS), LEVELS),
    "a class that does not exist": (Reason.LABEL_RANGE, with_payload(GOOD, labelled(0, 1, 2, 3, 0)), LEVELS),
    "a bit behind the labels": (Reason.LABEL_RANGE, with_payload(GOOD, labelled(0, 1, 2, 1, 0, 0, 0, 1)), LEVELS),
    "a bit behind the bits": (
        Reason.LABEL_RANGE,
        wire.seal(envelope(), replace(PLAIN, labels=LabelCode.BITS), b"\0\1"),
        replace(PLAIN, labels=LabelCode.BITS),
    ),
    "not a number": (Reason.EXPERTISE_NONFINITE, opinion(FLOATS, LABELS, NAN_VALUES), FLOATS),
    "infinity": (Reason.EXPERTISE_NONFINITE, opinion(FLOATS, LABELS, [0, 0, 0, 0, math.inf]), FLOATS),
    "infinity below": (Reason.EXPERTISE_NONFINITE, opinion(FLOATS, LABELS, [0, -math.inf, 0, 0, 0]), FLOATS),
    "below the range": (Reason.EXPERTISE_RANGE, opinion(FLOATS, LABELS, [0, -2e-6, 0, 0, 0]), FLOATS),
    "above the range": (Reason.EXPERTISE_RANGE, opinion(FLOATS, LABELS, [0, 0, 1 + 2e-6, 0, 0]), FLOATS),
    "all there is": (Reason.EXPERTISE_RANGE, opinion(FLOATS, LABELS, np.full(5, 3e38)), FLOATS),
    "a bit behind the levels": (
        Reason.EXPERTISE_RANGE,
        wire.seal(envelope(), replace(LEVELS, expertise_bits=3), bytes(3) + b"\1"),
        replace(LEVELS, expertise_bits=3),
    ),
    "two shares of one class": (
        Reason.EXPERTISE_INCONSISTENT,
        opinion(SHARES, LABELS, [0.5, 0.25, 0, 0.25, 0.4]),
        SHARES,
    ),
    "more than there is": (Reason.EXPERTISE_INCONSISTENT, opinion(SHARES, LABELS, np.full(5, 0.34)), SHARES),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_message_is_refused_with_its_reason(fault):
    reason, data, form = FAULTS[fault]
    assert refusal(data, form) is reason


def test_every_reason_but_the_one_that_takes_two_messages_was_given_above():
    assert {reason for reason, _, _ in FAULTS.values()} == set(Reason) - {Reason.DUPLICATE}


def test_what_is_not_faulty_is_not_refused():
    assert refusal(GOOD, LEVELS) is None
    assert refusal(rewritten(GOOD, minor=9), LEVELS) is None, "a newer minor version can be read"
    assert refusal(opinion(FLOATS, LABELS, [-1e-7, 1 + 1e-7, 0, 1, 0.5]), FLOATS) is None
    assert refusal(opinion(SHARES, LABELS, [0.5, 0.25, 0.25, 0.25, 0.5]), SHARES) is None


def test_whoever_carries_a_message_must_be_its_author():
    both = frozenset({0, 1})
    assert refusal(opinion(PLAIN, LABELS, client=1), PLAIN, sender=1, roster=both) is None
    assert refusal(opinion(PLAIN, LABELS, client=1), PLAIN, sender=0, roster=both) is Reason.UNKNOWN_CLIENT


# From the one that is found first to the last: each is made worse by all that come before it.
ORDER = [
    (Reason.EXPERTISE_INCONSISTENT, lambda data: with_payload(data, data[HEADER.size : -9] + b"\x70")),
    (Reason.LABEL_RANGE, lambda data: with_payload(data, b"\xff\xff" + data[HEADER.size + 2 : -CHECKSUM])),
    (Reason.WRONG_ENCODING, lambda data: rewritten(data, labels=LabelCode.BITS)),
    (Reason.WRONG_COUNT, lambda data: rewritten(data, classes=4)),
    (Reason.STALE_ROUND, lambda data: rewritten(data, round=0)),
    (Reason.UNKNOWN_CLIENT, lambda data: rewritten(data, client=9)),
    (Reason.WRONG_PUBLIC_SET, lambda data: rewritten(data, public=bytes(16))),
    (Reason.WRONG_RUN, lambda data: rewritten(data, run=PUBLIC)),
    (Reason.CHECKSUM, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    (Reason.TRUNCATED, lambda data: data[:-1]),
    (Reason.BAD_VERSION, lambda data: data[:4] + b"\7" + data[5:]),
    (Reason.BAD_MAGIC, lambda data: b"PK\3\4" + data[4:]),
    (Reason.TOO_LARGE, lambda data: data + bytes(1000)),
]


def test_of_several_faults_the_first_in_the_table_is_given():
    data = GOOD
    for reason, spoil in ORDER:
        data = spoil(data)
        assert refusal(data, SHARES) is reason


def test_of_several_faults_in_numbers_the_first_in_the_table_is_given():
    form = replace(FLOATS, share=True)
    assert refusal(opinion(form, LABELS, [0.5, 0.25, 0, 0.25, 0.4]), form) is Reason.EXPERTISE_INCONSISTENT
    assert refusal(opinion(form, LABELS, [0.5, 2.0, 0, 0.25, 0.4]), form) is Reason.EXPERTISE_RANGE
    assert refusal(opinion(form, LABELS, [0.5, 2.0, 0, math.nan, 0.4]), form) is Reason.EXPERTISE_NONFINITE


# Expertise.


@settings(max_examples=1000)
@given(st.floats(width=32), st.sampled_from([1.0, math.log(10)]))
def test_a_float_is_read_if_and_only_if_it_is_in_range(value, high):
    form = replace(FLOATS, high=high)
    found = refusal(opinion(form, LABELS, [0.1, value, 0.2, 0.1, 0.0]), form)
    if not math.isfinite(value):
        assert found is Reason.EXPERTISE_NONFINITE
    elif value < -1e-6 or value > high + 1e-6:
        assert found is Reason.EXPERTISE_RANGE
    else:
        assert found is None
        read = wire.read_expertise(opinion(form, LABELS, [0.1, value, 0.2, 0.1, 0.0]), form)
        assert read[1] == min(max(value, 0.0), high)


def test_what_is_no_number_in_an_unusual_way_is_refused_without_a_warning():
    signalling = np.full(5, 0x7F800001, dtype="<u4").tobytes()
    data = wire.seal(envelope(), FLOATS, bytes(FLOATS.label_bytes) + signalling)
    assert refusal(data, FLOATS) is Reason.EXPERTISE_NONFINITE


@pytest.mark.parametrize("code", [ExpertiseCode.LEVELS, ExpertiseCode.FLOATS, ExpertiseCode.HISTOGRAM])
def test_who_claims_nothing_abstains(code):
    form = replace(PLAIN, expertise=code)
    count = 3 if code is ExpertiseCode.HISTOGRAM else 5
    assert wire.check_content(opinion(form, LABELS, np.zeros(count)), form)
    assert not wire.check_content(opinion(form, LABELS, np.full(count, 0.1)), form)
    assert not wire.check_content(opinion(PLAIN, LABELS), PLAIN)


def test_a_histogram_without_the_classes_that_are_told_of_is_an_abstention():
    form = replace(PLAIN, expertise=ExpertiseCode.HISTOGRAM, share=True)
    assert wire.check_content(opinion(form, [0, 0, 1, 1, 0], [0, 0, 1]), form)
    assert not wire.check_content(opinion(form, [0, 0, 1, 2, 0], [0, 0, 1]), form)


def many_classes(total: float, code: ExpertiseCode, classes: int = 4, bits: int = 8) -> Reason | None:
    """What becomes of shares, the same for all classes, that sum up to `total`."""
    form = Form(classes, classes, expertise=code, expertise_bits=bits, share=True)
    return refusal(opinion(form, np.arange(classes), np.full(classes, total / classes)), form)


def test_shares_may_exceed_their_sum_by_what_rounding_adds_and_no_more():
    assert many_classes(1 + 0.9e-3, ExpertiseCode.FLOATS) is None
    assert many_classes(1 + 1.1e-3, ExpertiseCode.FLOATS) is Reason.EXPERTISE_INCONSISTENT
    # Levels 64 each: 256/255. With 4/255 for rounding, 259/255 is allowed and 260/255 is not.
    for code in ExpertiseCode.LEVELS, ExpertiseCode.HISTOGRAM:
        assert many_classes(256 / 255, code) is None
        assert many_classes(260 / 255, code) is Reason.EXPERTISE_INCONSISTENT


@settings(max_examples=1000)
@given(st.integers(2, 300), st.integers(1, 16), st.integers(0, 2**32 - 1), st.sampled_from(list(ExpertiseCode)[1:]))
def test_nobody_s_true_shares_are_refused(classes, bits, seed, code):
    """However many classes there are and however coarse the levels, whoever tells the truth is heard."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(classes, rng.choice([0.05, 1.0, 100.0])))
    labels = rng.permutation(np.arange(2 * classes + 1) % classes)
    form = Form(len(labels), classes, expertise=code, expertise_bits=bits, share=True)
    assert refusal(opinion(form, labels, shares if code is ExpertiseCode.HISTOGRAM else shares[labels]), form) is None


def test_the_naive_claim_of_everything_is_inconsistent_unless_it_is_about_one_class():
    assert refusal(opinion(SHARES, LABELS, np.ones(5)), SHARES) is Reason.EXPERTISE_INCONSISTENT
    assert refusal(opinion(SHARES, np.full(5, 2), np.ones(5)), SHARES) is None
    assert refusal(opinion(LEVELS, LABELS, np.ones(5)), LEVELS) is None, "other expertise need not be shares"


# What clients receive.


def heard(data: bytes, form: Form) -> Reason | None:
    try:
        wire.read_consensus(data, expected(form, {SERVER}))
    except RefusedError as refused:
        return refused.reason
    return None


TOLD = wire.write_consensus(envelope(SERVER), CONSENSUS, LABELS)


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        (None, TOLD),
        (Reason.TOO_LARGE, TOLD + b"\0"),
        (Reason.BAD_MAGIC, b"\0" + TOLD[1:]),
        (Reason.BAD_VERSION, rewritten(TOLD, major=2)),
        (Reason.TRUNCATED, TOLD[:-3]),
        (Reason.TRAILING, rewritten(TOLD, payload=1)),
        (Reason.TRUNCATED, with_payload(TOLD, b"\0")),
        (Reason.CHECKSUM, TOLD[:-1] + bytes([TOLD[-1] ^ 128])),
        (Reason.WRONG_RUN, rewritten(TOLD, run=bytes(16))),
        (Reason.WRONG_PUBLIC_SET, rewritten(TOLD, public=bytes(16))),
        (Reason.UNKNOWN_CLIENT, rewritten(TOLD, client=0)),
        (Reason.STALE_ROUND, rewritten(TOLD, round=ROUND - 1)),
        (Reason.FUTURE_ROUND, rewritten(TOLD, round=ROUND + 1)),
        (Reason.WRONG_COUNT, rewritten(TOLD, public_size=6)),
        (Reason.WRONG_ENCODING, rewritten(TOLD, kind=Kind.OPINION)),
        (Reason.WRONG_ENCODING, rewritten(TOLD, labels=LabelCode.MASKED)),
        (Reason.LABEL_RANGE, with_payload(TOLD, b"\xc0\0")),
        (Reason.LABEL_RANGE, with_payload(TOLD, b"\0\x3f")),
    ],
)
def test_a_client_checks_the_consensus_as_the_server_checks_opinions(reason, data):
    assert heard(data, CONSENSUS) is reason


def test_rows_without_a_label_are_told_as_such():
    labels = np.array([-1, 2, 0, -1, 1])
    told = wire.write_consensus(envelope(SERVER), MASKED, labels)
    assert wire.read_consensus(told, expected(MASKED, {SERVER})).tolist() == labels.tolist()
    assert heard(with_payload(told, b"\x40\0\x78"), MASKED) is Reason.LABEL_RANGE, "a class where there is none"
    assert heard(with_payload(told, b"\0\0\xff"), MASKED) is Reason.LABEL_RANGE, "bits behind the mask"
    assert heard(with_payload(told, b"\0\x01\xf8"), MASKED) is Reason.LABEL_RANGE, "bits behind the labels"
    assert heard(with_payload(told, b"\xc0\0\xf8"), MASKED) is Reason.LABEL_RANGE, "a class that does not exist"


# Whatever comes.


@pytest.mark.parametrize("field", ["public_size", "classes", "payload"])
def test_a_header_that_promises_gigabytes_is_not_believed(field):
    data = rewritten(GOOD, **{field: 2**32 - 1})
    tracemalloc.start()
    reason = refusal(data, LEVELS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason in (Reason.TRUNCATED, Reason.WRONG_COUNT)
    assert peak < 100_000


def test_what_is_too_large_is_not_copied():
    data = GOOD + bytes(50_000_000)
    tracemalloc.start()
    assert refusal(data, LEVELS) is Reason.TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


EVERY_FORM = [
    Form(7, 10, labels=labels, expertise=code, share=share)
    for labels in (LabelCode.INDEX, LabelCode.BITS)
    for code in ExpertiseCode
    for share in (False, True)
]


def written(form: Form, rng: np.random.Generator) -> bytes:
    """A message of this form that is as it should be."""
    shape = (7, 10) if form.labels is LabelCode.BITS else 7
    labels = rng.integers(0, 2 if form.labels is LabelCode.BITS else 10, shape)
    shares = rng.dirichlet(np.ones(10))
    if form.expertise is ExpertiseCode.HISTOGRAM:
        return opinion(form, labels, shares)
    return opinion(form, labels, shares[labels] if labels.ndim == 1 else shares[:7])


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
        inside = slice(HEADER.size, -CHECKSUM)
        spoilt[inside] = rng.bytes(len(spoilt[inside]))
        return resealed(bytes(spoilt[:-CHECKSUM]))
    elif way == 6:  # noise in the header, sealed
        start = int(rng.integers(HEADER.size))
        spoilt[start : start + 4] = rng.bytes(len(spoilt[start : start + 4]))
        return resealed(bytes(spoilt[:-CHECKSUM]))
    else:  # one bit anywhere, sealed
        spoilt[place] ^= 1 << int(rng.integers(8))
        return resealed(bytes(spoilt[:-CHECKSUM]))
    return bytes(spoilt)


def test_nothing_but_a_refusal_comes_of_a_hundred_thousand_mutated_messages():
    rng = np.random.default_rng(0)
    good = [(form, written(form, rng)) for form in EVERY_FORM for _ in range(4)]
    assert all(refusal(data, form) is None for form, data in good)
    outcomes: Counter[Reason | None] = Counter()
    tracemalloc.start()
    for number in range(100_000):
        form, data = good[number % len(good)]
        outcomes[refusal(mutated(data, rng), form)] += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert set(outcomes) == {None, *Reason} - {Reason.DUPLICATE}, "every check is reached"
    assert outcomes[Reason.CHECKSUM] > 5_000
    assert outcomes[None] < 30_000, "bits, and numbers in range, are as good as others"


def test_nothing_but_a_refusal_comes_of_a_mutated_consensus():
    rng = np.random.default_rng(1)
    outcomes: Counter[Reason | None] = Counter()
    for form in CONSENSUS, MASKED:
        data = wire.write_consensus(envelope(SERVER), form, LABELS)
        outcomes.update(heard(mutated(data, rng), form) for _ in range(10_000))
    assert Reason.LABEL_RANGE in outcomes
    assert outcomes[None] < 5_000
