"""Plug-in networks by name; see `plugins.register_model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


MODELS: dict[str, Callable[..., nn.Module]] = {}
"""Functions or classes that return a network, by name."""
