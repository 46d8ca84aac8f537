"""Tests in this directory share a process: a simulated device cannot be removed again."""

from __future__ import annotations

import pytest

from tests.accelerator.simulated_device import missing_api


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "accelerator" in item.path.parts:
            item.add_marker(pytest.mark.accelerator)
            if missing_api():
                item.add_marker(pytest.mark.skip(reason=missing_api()))
