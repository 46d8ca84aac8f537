"""`fedmosaic doctor`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rich.table import Table

from fedmosaic_cli.cli.console import out, say_json
from fedmosaic_cli.cli.options import DebugOption, JsonOption


def doctor(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Versions, devices, data sets, disk and threads of this machine. Example: fedmosaic doctor --json"""
    findings = examine()
    if as_json:
        say_json(findings)
        return
    for topic, values in findings.items():
        view = Table(topic, "", box=None, pad_edge=False, title_justify="left")
        for name, value in values.items():
            view.add_row(f"  {name}", str(value))
        out().print(view)


def examine() -> dict[str, dict[str, Any]]:
    """What there is to know, by topic."""
    import torch

    from fedmosaic_cli.config.presets import preset_names, presets_directory
    from fedmosaic_cli.data.sources import SOURCES
    from fedmosaic_cli.engine.workers import available_cores
    from fedmosaic_cli.experiment.environment import versions

    disk = shutil.disk_usage(Path.cwd())
    gpus = {f"cuda:{number}": torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    if torch.backends.mps.is_available():
        gpus["mps"] = "Apple GPU"
    return {
        "versions": versions(),
        "devices": {"cpu": f"{available_cores()} cores", **(gpus or {"gpu": "none found"})},
        "threads": {"workers by default": available_cores(), "threads a worker": 1},
        "data sets": {name: f"found: {source.about}" for name, source in SOURCES.items()},
        "presets": {"directory": str(presets_directory()), "found": len(preset_names())},
        "disk": {"here": str(Path.cwd()), "free": f"{disk.free / 1e9:.1f} GB of {disk.total / 1e9:.1f} GB"},
    }
