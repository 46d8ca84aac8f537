"""Messages on the wire: how many bits, and what arrives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.cotraining import codecs
from fedmosaic_cli.cotraining.expertise import FLOOR, expertise_range
from fedmosaic_cli.engine import channel
from fedmosaic_cli.engine.messages import Labels, Scores, Weights
from fedmosaic_cli.engine.method import World
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from tests.toys import CPU


@pytest.mark.parametrize(("classes", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (10, 4), (16, 4), (17, 5), (345, 9)])
def test_a_label_takes_the_logarithm_of_the_number_of_classes(classes, bits):
    assert codecs.label_bits(classes) == bits


@given(st.integers(1, 16).flatmap(lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1)))))
def test_what_is_packed_comes_out_again_and_takes_no_more_room_than_it_must(case):
    bits, values = case
    data = codecs.pack(np.array(values, dtype=np.int64), bits)
    assert codecs.unpack(data, bits, len(values)).tolist() == values
    assert 8 * len(data) == codecs.packed_bits(len(values), bits)


@pytest.mark.parametrize(("public", "up", "down"), [(10_000, 15_000, 5_000), (2_250, 3_375, 1_125)])
def test_the_paper_s_communication_example(public, up, down):
    labels = torch.randint(10, (public,))
    message = {"labels": Labels(labels, 10), "expertise": Scores(torch.rand(public), FLOOR, 1 + FLOOR, bits=8)}
    received, bits = channel.send(message, CPU)
    assert bits == 8 * up
    assert torch.equal(received["labels"], labels)
    world = World(num_classes=10, init={}, sizes={}, rounds=1)
    traffic = FedMosaic().traffic(world, public_size=public)
    assert (traffic.up, traffic.down) == (8 * up, 8 * down)


@given(st.lists(st.floats(0, 1), min_size=1), st.integers(1, 16))
def test_scores_arrive_within_half_a_level(values, bits):
    low, high = expertise_range("frequency", 10)
    sent = torch.tensor(values, dtype=torch.float64) + FLOOR
    received, _ = channel.send({"expertise": Scores(sent, low, high, bits)}, CPU)
    half = (high - low) / (2**bits - 1) / 2
    assert (received["expertise"] - sent).abs().max() <= half * (1 + 1e-9)


def test_the_receiver_sees_levels_not_what_was_meant():
    received, bits = channel.send({"expertise": Scores(torch.tensor([0.1, 0.4, 0.6, 1.0]), 0.0, 1.0, bits=1)}, CPU)
    assert received["expertise"].tolist() == [0, 0, 1, 1]
    assert bits == 8


def test_the_floor_survives_the_wire():
    low, high = expertise_range("entropy", 10)
    received, _ = channel.send({"expertise": Scores(torch.tensor([low], dtype=torch.float64), low, high, 8)}, CPU)
    assert received["expertise"].item() == low > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_weights_arrive_as_they_were_sent(dtype):
    sent = {"a": torch.arange(6).reshape(2, 3).to(dtype), "scalar": torch.tensor(3).to(dtype), "none": torch.empty(0)}
    received, bits = channel.send({"model": Weights(sent)}, CPU)
    assert bits == 7 * 8 * dtype.itemsize
    assert all(torch.equal(received["model"][name], sent[name]) for name in sent)
