"""Fixtures of the method tests."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import training
from fedmosaic_cli.models.architectures import ARCHITECTURES
from tests.toys import Linear


@pytest.fixture
def quadratic(monkeypatch):
    """Use a linear network and a squared loss: gradients are linear in the weights, optima have a closed form."""

    def squared(outputs, labels):
        targets = torch.nn.functional.one_hot(labels, outputs.shape[1]).to(outputs)
        return 0.5 * (outputs - targets).square().sum() / len(outputs)

    monkeypatch.setitem(ARCHITECTURES, "mlp", Linear)
    monkeypatch.setattr(training, "cross_entropy", squared)
