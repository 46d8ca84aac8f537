"""Plug-in networks by name; see `plugins.register_model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from fedmosaic_cli.plugin_sources import PluginSource


@dataclass(frozen=True)
class PluginModel:
    """A plug-in network: a function or class that returns a module."""

    factory: Callable[..., nn.Module]
    source: PluginSource


MODELS: dict[str, PluginModel] = {}
"""The registered networks by name."""
