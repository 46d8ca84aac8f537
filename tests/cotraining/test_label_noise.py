"""The channel of randomised labels, and the loss that corrects for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedmosaic_cli.cotraining.label_noise import denoised_mean, noisy_log_probs, uniform_fraction
from fedmosaic_cli.engine.losses import RandomisedLabelLoss, SoftLabelLoss
from fedmosaic_cli.labels.privacy import mechanisms

NUM_CLASSES = 4
P = torch.tensor([[0.7, 0.2, 0.1, 0.0], [0.1, 0.1, 0.2, 0.6]], dtype=torch.float64)


def krr_fraction(epsilon: float) -> float:
    keep = mechanisms.keep_probability(epsilon, NUM_CLASSES)
    return uniform_fraction(keep, mechanisms.other_label_probability(epsilon, NUM_CLASSES), NUM_CLASSES)


def xor_fraction(epsilon: float) -> float:
    flip = mechanisms.flip_probability(epsilon, mechanisms.CHANGED_BITS_PER_LABEL)
    return uniform_fraction(1 - flip, flip, NUM_CLASSES)


def channel(probabilities: torch.Tensor, fraction: float) -> torch.Tensor:
    return noisy_log_probs(probabilities.log(), fraction).exp()


@pytest.mark.parametrize("epsilon", [1e-9, 0.5, 2.0, 8.0, 800.0, float("inf")])
def test_transition_matrix_is_stochastic_and_that_of_the_mechanism(epsilon):
    for fraction in (krr_fraction(epsilon), xor_fraction(epsilon)):
        assert 0 <= fraction < 1
        matrix = channel(torch.eye(NUM_CLASSES, dtype=torch.float64), fraction)
        assert (matrix >= 0).all()
        assert matrix.sum(dim=1) == pytest.approx(torch.ones(NUM_CLASSES))
    matrix = channel(torch.eye(NUM_CLASSES, dtype=torch.float64), krr_fraction(epsilon))
    assert matrix.diagonal() == pytest.approx(mechanisms.keep_probability(epsilon, NUM_CLASSES))
    assert matrix[0, 1].item() == pytest.approx(mechanisms.other_label_probability(epsilon, NUM_CLASSES))


def test_shares_of_noisy_votes_are_those_behind_the_channel():
    rng = np.random.default_rng(0)
    labels = rng.choice(NUM_CLASSES, size=200_000, p=P[0].numpy())
    kept = np.bincount(mechanisms.randomized_response(labels, 1.5, NUM_CLASSES, rng), minlength=NUM_CLASSES)
    bits = mechanisms.flip_one_hot_bits(labels, 1.5, NUM_CLASSES, rng).sum(axis=0)
    for counts, fraction in ((kept, krr_fraction(1.5)), (bits, xor_fraction(1.5))):
        assert counts / counts.sum() == pytest.approx(channel(P[:1], fraction)[0].numpy(), abs=0.005)
    assert abs(krr_fraction(1.5) - xor_fraction(1.5)) > 0.05  # the mechanisms have different channels


def test_loss_without_noise_is_the_plain_loss_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        logits = (40 * torch.randn(50, 10, generator=generator)).to(dtype)
        targets = torch.rand(50, 10, generator=generator).to(dtype)
        plain, corrected = SoftLabelLoss(targets, 1.0), RandomisedLabelLoss(targets, 1.0, 0.0)
        assert torch.equal(plain.example_losses(logits, targets), corrected.example_losses(logits, targets))


def gradient(loss: SoftLabelLoss, logits: torch.Tensor) -> torch.Tensor:
    leaf = logits.clone().requires_grad_()
    loss.example_losses(leaf, loss.targets).sum().backward()
    return leaf.grad


@pytest.mark.parametrize("sharpen", [1.0, 2.0])
@pytest.mark.parametrize("fraction", [0.3, krr_fraction(1.0)])
def test_corrected_loss_is_minimal_at_the_clean_distribution_and_the_plain_one_is_not(fraction, sharpen):
    clean = (P + 0.01) / (P + 0.01).sum(dim=1, keepdim=True)
    noisy = channel(clean, fraction)
    corrected = RandomisedLabelLoss(noisy, 1.0, fraction, sharpen)
    logits = sharpen * clean.log()  # its softmax is the sharpened distribution
    assert gradient(corrected, logits).abs().max() < 1e-12
    best = corrected.example_losses(logits, noisy)
    for seed in range(20):
        other = logits + torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert (corrected.example_losses(other, noisy) > best).all()
    plain = SoftLabelLoss(noisy, 1.0)
    assert gradient(plain, logits).abs().max() > 0.05
    assert gradient(plain, noisy.log()).abs().max() < 1e-12


def test_loss_stays_finite_for_confident_wrong_predictions():
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    logits = torch.tensor([[-500.0, 500.0, 0.0]])
    loss = RandomisedLabelLoss(targets, 1.0, 0.5)
    assert loss.example_losses(logits, targets).item() == pytest.approx(-np.log(0.5 / 3))
    assert gradient(loss, logits).isfinite().all()


def test_class_frequencies_are_those_before_the_noise():
    fraction = krr_fraction(1.0)
    assert denoised_mean(channel(P, fraction), fraction)[0] == pytest.approx(P.mean(dim=0))
    assert denoised_mean(P, 0.0) is P
    # Frequencies below what noise alone would give are 0.
    low = denoised_mean(torch.tensor([[0.9, 0.08, 0.01, 0.01]], dtype=torch.float64), 0.4)
    assert low.shape == (1, NUM_CLASSES)
    assert (low >= 0).all()
    assert low.sum().item() == pytest.approx(1)
    assert low[0, 1:].tolist() == [0, 0, 0]


def test_frequencies_of_clipped_rows_would_be_biased():
    """A version that inverts the channel for single examples, whose votes are few."""
    rng = np.random.default_rng(1)
    fraction = krr_fraction(1.0)
    labels = rng.choice(NUM_CLASSES, size=(5000, 3), p=P[0].numpy())
    noisy = mechanisms.randomized_response(labels, 1.0, NUM_CLASSES, rng)
    shares = torch.as_tensor(np.eye(NUM_CLASSES)[noisy].mean(axis=1))
    rows = torch.stack([denoised_mean(row[None], fraction)[0] for row in shares])
    assert denoised_mean(shares, fraction)[0] == pytest.approx(P[0], abs=0.03)
    assert (rows.mean(dim=0) - P[0]).abs().max() > 0.1
