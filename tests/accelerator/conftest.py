"""Tests in this directory share a process: a simulated device cannot be removed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedmosaic_cli.audit import membership_audit
from fedmosaic_cli.runner import build, evaluate, experiment
from tests.accelerator.simulated_device import missing_api

LONG = ("oracle", "feddf")
"""Methods with many steps in every round."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "accelerator" in item.path.parts:
            item.add_marker(pytest.mark.accelerator)
            if any(f"[{name}-" in item.name for name in LONG):
                item.add_marker(pytest.mark.slow)
            if missing_api():
                item.add_marker(pytest.mark.skip(reason=missing_api()))


@pytest.fixture
def use_devices(monkeypatch) -> Callable[..., None]:
    """Return a function that lets commands find these devices on the machine."""

    def use(*devices: torch.device) -> None:
        for module in (build, experiment, evaluate, membership_audit):
            monkeypatch.setattr(module, "find_devices", lambda name: list(devices))

    return use
