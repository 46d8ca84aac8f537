"""Shifts of logits between the class frequencies of a client and of the public set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.cotraining.logit_adjustment import shift_to_client, shift_to_public_set
from fedmosaic_cli.engine.losses import AdjustedPseudoLabelLoss, PseudoLabelLoss


def test_shift_to_a_client_is_bayes_rule():
    """The student models p(y | x) under the shares' frequencies r; times q / r it is that of the client."""
    counts, shares = torch.tensor([7, 0, 1]), torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]])
    own = torch.tensor([8, 1, 2]) / 11
    common = torch.tensor([0.5, 0.25, 0.25]) + 1e-3
    likelihood = torch.tensor([0.2, 0.3, 0.5]).double()
    student = likelihood * common / (likelihood * common).sum()
    corrected = (student.log() + shift_to_client(counts, shares)).softmax(dim=0)
    assert corrected == pytest.approx(likelihood * own / (likelihood * own).sum(), rel=1e-6)


def test_shift_to_a_client_of_equal_frequencies_changes_nothing():
    shift = shift_to_client(torch.tensor([10, 10, 10]), torch.full((5, 3), 1 / 3))
    assert shift.softmax(dim=0) == pytest.approx([1 / 3] * 3)


def test_shift_to_the_public_set_equals_a_manual_computation():
    counts, consensus = torch.tensor([3, 0]), torch.tensor([0, 1, 1, 1, NO_LABEL])
    own, common = np.array([4 / 5, 1 / 5]), np.array([2 / 6, 4 / 6])
    expected = np.log(common) - np.log(own)
    assert shift_to_public_set(counts, consensus, 1.0, 1.0).numpy() == pytest.approx(expected)
    assert shift_to_public_set(counts, consensus, 0.5, 1.0).numpy() == pytest.approx(expected / 2)


def test_shift_to_the_public_set_is_zero_for_equal_distributions():
    assert shift_to_public_set(torch.tensor([4, 8]), torch.tensor([0, 1, 1] * 4), 1.0, 1.0).abs().max() == 0


def test_adjusted_loss_equals_plain_loss_on_shifted_logits():
    torch.manual_seed(0)
    logits, consensus = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, NO_LABEL, 1, 0])
    shift = torch.tensor([0.5, -1.0, 0.25])
    adjusted = AdjustedPseudoLabelLoss.from_labels(consensus, shift, 1.0)
    plain = PseudoLabelLoss(consensus, 1.0)
    assert torch.allclose(
        adjusted.example_losses(logits, adjusted.targets),
        plain.example_losses(logits + shift.double(), plain.targets),
        atol=1e-6,
    )
    assert adjusted.example_losses(logits, adjusted.targets)[3] == 0
    unshifted = AdjustedPseudoLabelLoss.from_labels(consensus, torch.zeros(3), 1.0)
    assert torch.allclose(
        unshifted.example_losses(logits, unshifted.targets), plain.example_losses(logits, plain.targets), atol=1e-12
    )
