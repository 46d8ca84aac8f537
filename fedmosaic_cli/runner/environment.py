"""The content of env.json: versions, devices, threads, command line."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.storage.shards import ShardSet

FEDERATION_KEY = "federation"
"""Key of the entries about remote sites in env.json and summary.json."""
RECORDED_PACKAGES = (
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


def package_versions() -> dict[str, str]:
    """Return the versions of fedmosaic, Python and the main libraries."""
    return {"fedmosaic": __version__, "python": platform.python_version()} | {
        name: version(name) for name in RECORDED_PACKAGES
    }


def collect_environment(
    federation: Federation, shards: ShardSet, cli_args: Sequence[str], plugins: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Return the content of env.json."""
    import torch

    return {
        **machine_environment(federation.client_devices, shards.digest, plugins),
        "execution": federation.execution,
        "workers": federation.worker_pool.num_workers,
        "threads_per_worker": torch.get_num_threads(),
        "shards": str(shards.path.absolute()),
        "arguments": list(cli_args),
        # Paths among the arguments are relative to it.
        "directory": str(Path.cwd()),
    }


def machine_environment(
    devices: Sequence[torch.device], shards_digest: str, plugins: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Return the facts that are known before the federation is built. `plugins` are the sources of plug-ins in use."""
    import torch

    gpus = {torch.cuda.get_device_name(device) for device in devices if device.type == "cuda"}
    return {
        "versions": package_versions(),
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": ", ".join(map(str, devices)),
        "gpu": ", ".join(sorted(gpus)) or None,
        "shards_digest": shards_digest,
        **({"plugins": plugins} if plugins else {}),
    }
