"""`fedmosaic doctor`."""

from __future__ import annotations

import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

from fedmosaic_cli.cli.common_options import DataDirOption, DebugOption, JsonOption
from fedmosaic_cli.cli.console import print_json, stdout_console
from fedmosaic_cli.data.data_dirs import DEFAULT_DATA_DIR, default_cache_dir
from fedmosaic_cli.errors import RequestError

OPTIONAL_PACKAGES = ("flwr", "ray")


def doctor(data_dir: DataDirOption = None, as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Versions, devices, data sets, disk and threads of this machine. Example: fedmosaic doctor --json"""
    findings = collect_diagnostics(data_dir or DEFAULT_DATA_DIR)
    if as_json:
        print_json(findings)
        return
    for topic, values in findings.items():
        view = Table(topic, "", box=None, pad_edge=False, title_justify="left")
        for name, value in values.items():
            view.add_row(f"  {name}", str(value))
        stdout_console().print(view)


def collect_diagnostics(data_dir: Path) -> dict[str, dict[str, Any]]:
    """What there is to know, by topic."""
    import torch

    from fedmosaic_cli.config.presets import preset_names, presets_directory
    from fedmosaic_cli.machine import num_available_cores
    from fedmosaic_cli.runner.environment import package_versions

    disk = shutil.disk_usage(Path.cwd())
    gpus = {f"cuda:{number}": torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    if torch.backends.mps.is_available():
        gpus["mps"] = "Apple GPU"
    return {
        "versions": {**package_versions(), **optional_package_versions()},
        "devices": {"cpu": f"{num_available_cores()} cores", **(gpus or {"gpu": "none found"})},
        "threads": {"workers by default": num_available_cores(), "threads a worker": 1},
        "data sets": dataset_availability(data_dir),
        "data": {"directory": str(data_dir), "image cache": str(default_cache_dir())},
        "presets": {"directory": str(presets_directory()), "found": len(preset_names())},
        "disk": {"here": str(Path.cwd()), "free": f"{disk.free / 1e9:.1f} GB of {disk.total / 1e9:.1f} GB"},
    }


def optional_package_versions() -> dict[str, str]:
    """The versions of what some need and others do without, where it is installed. No run depends on them."""
    found = {}
    for name in OPTIONAL_PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def dataset_availability(data_dir: Path) -> dict[str, str]:
    """Which data sets are there, and where; of the others, what to do."""
    from fedmosaic_cli.data.datasets import DATASETS

    found = {}
    for name, source in DATASETS.items():
        try:
            path = source.find(data_dir)
        except RequestError as error:
            found[name] = f"unclear: {error}"
            continue
        if source.inspect is not None:
            found[name] = source.description
        elif path is not None:
            missing = [domain for domain in source.domains if path.is_dir() and not (path / domain).is_dir()]
            without = f", without {', '.join(missing)}" if missing else ""
            found[name] = f"found: {path} ({source.description}{without})"
        else:
            found[name] = f"missing: {source.setup_hint}"
    return found
