"""On what a run was made: versions, device, threads."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from fedmosaic_cli.engine.rounds import Federation

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "pillow",
    "matplotlib",
    "pandas",
    "scikit-learn",
    "safetensors",
    "pydantic",
    "typer",
    "rich",
)


def versions() -> dict[str, str]:
    """fedmosaic, Python and the libraries that it stands on."""
    return {"fedmosaic": __version__, "python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def environment(federation: Federation, shards: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """What is written to env.json."""
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "device": ", ".join(map(str, federation.devices)),
        "execution": federation.execution,
        "workers": federation.workers.count,
        "threads_per_worker": 1,
        "shards": str(shards.absolute()),
        "arguments": list(arguments),
    }
