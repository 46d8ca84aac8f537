"""Messages on the wire: how many bits, and what arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.cotraining.expertise import EXPERTISE_RULES
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.messages import Route, Weights, send_message
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.labels import codecs, wire
from fedmosaic_cli.labels.label_messages import ConsensusLabels, LabelUpload, LabelVotes
from fedmosaic_cli.labels.wire import SERVER_ID, ExpertiseEncoding, MessageSpec
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from tests.labels.ballots import make_header
from tests.toys import CPU


@pytest.mark.parametrize(("classes", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (10, 4), (16, 4), (17, 5), (345, 9)])
def test_label_bits(classes, bits):
    assert codecs.label_bits(classes) == bits


@given(st.integers(1, 32).flatmap(lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1)))))
def test_packing_round_trip_and_size(case):
    bits, values = case
    data = codecs.pack_bits(np.array(values, dtype=np.int64), bits)
    assert codecs.unpack_bits(data, bits, len(values)).tolist() == values
    assert 8 * len(data) == codecs.packed_bits(len(values), bits)


def make_info(public_size: int, num_classes: int) -> FederationInfo:
    return FederationInfo(num_classes, initial_model={}, client_sizes={}, num_rounds=1, public_size=public_size)


def way(ctx: FederationInfo, client: int = 0) -> Route:
    return Route(CPU, make_header(client), ctx)


@pytest.mark.parametrize(("public", "up", "down"), [(10_000, 15_000, 5_000), (2_250, 3_375, 1_125)])
def test_the_paper_s_communication_example(public, up, down):
    labels, expertise = np.random.default_rng(0).integers(0, 10, public), np.zeros(public)
    form = MessageSpec(public, 10, expertise_encoding=ExpertiseEncoding.LEVELS)
    ctx = make_info(public, num_classes=10)
    message, parts = {"opinion": LabelVotes(labels, expertise)}, {"opinion": LabelUpload(lambda _: form)}
    received, bits = send_message(message, parts, way(ctx))
    assert bits == 8 * up
    assert np.array_equal(wire.decode_labels(received["opinion"], form), labels)
    traffic = planned_traffic(FedMosaic(), ctx)
    assert (traffic.uplink_bits, traffic.downlink_bits) == (8 * up, 8 * down)
    message, parts = {"labels": torch.as_tensor(labels)}, {"labels": ConsensusLabels()}
    consensus, bits = send_message(message, parts, way(ctx, SERVER_ID))
    assert bits == 8 * down
    assert consensus["labels"].tolist() == labels.tolist()


def arrived(values: list[float], high: float, bits: int) -> np.ndarray:
    """Expertise as the server reads it."""
    form = MessageSpec(
        len(values), 2, expertise_encoding=ExpertiseEncoding.LEVELS, expertise_bits=bits, max_expertise=high
    )
    said = LabelVotes(np.zeros(len(values), dtype=int), np.array(values))
    parts = {"opinion": LabelUpload(lambda _: form)}
    received, sent_bits = send_message({"opinion": said}, parts, way(make_info(len(values), num_classes=2)))
    assert sent_bits == codecs.packed_bits(len(values), 1) + codecs.packed_bits(len(values), bits)
    return wire.decode_expertise(received["opinion"], form)


@given(st.lists(st.floats(0, 1), min_size=1), st.integers(1, 32), st.sampled_from(["frequency", "entropy"]))
def test_expertise_arrives_within_half_a_level(shares, bits, kind):
    high = EXPERTISE_RULES[kind].max_value(10, 1)
    values = [share * high for share in shares]
    half = high / (2**bits - 1) / 2
    assert np.abs(arrived(values, high, bits) - values).max() <= half * (1 + 1e-6)


def test_receiver_decodes_quantised_levels():
    assert arrived([0.1, 0.4, 0.6, 1.0], high=1.0, bits=1).tolist() == [0, 0, 1, 1]


def test_values_that_are_not_numbers_have_no_level():
    with pytest.raises(ArithmeticError, match="not a number"):
        codecs.quantise(np.array([0.5, np.nan]), 1.0, 8)


def test_range_ends_are_exact():
    """The server adds what keeps a vote alive: on the wire 0 is 0."""
    high = EXPERTISE_RULES["entropy"].max_value(10, 1)
    assert arrived([0.0, high], high, bits=8).tolist() == [0.0, pytest.approx(high)]


def test_single_class_has_zero_expertise():
    high = EXPERTISE_RULES["entropy"].max_value(1, 1)
    assert high == 0.0
    assert arrived([0.0, 0.0], high, bits=8).tolist() == [0.0, 0.0]


def test_missing_consensus_labels_are_transmitted():
    said = torch.tensor([3, -1, 0, 9, -1])
    route = way(make_info(len(said), num_classes=10), SERVER_ID)
    received, bits = send_message({"labels": said}, {"labels": ConsensusLabels()}, route)
    assert received["labels"].tolist() == said.tolist()
    assert bits == codecs.packed_bits(5, 4) + codecs.packed_bits(5, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_weights_arrive_as_they_were_sent(dtype):
    sent = {"a": torch.arange(6).reshape(2, 3).to(dtype), "scalar": torch.tensor(3).to(dtype), "none": torch.empty(0)}
    ctx = FederationInfo(num_classes=2, initial_model=sent, client_sizes={}, num_rounds=1)
    received, bits = send_message({"model": sent}, {"model": Weights()}, way(ctx))
    assert bits == 7 * 8 * dtype.itemsize
    assert all(torch.equal(received["model"][name], sent[name]) for name in sent)
