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
    """Show versions, devices, data sets, disk and threads of this machine.

    \b
    [bold]Example[/bold]
    fedmosaic doctor --json
    """
    diagnostics = collect_diagnostics(data_dir or DEFAULT_DATA_DIR)
    if as_json:
        print_json(diagnostics)
        return
    for topic, values in diagnostics.items():
        view = Table(topic, "", box=None, pad_edge=False, title_justify="left")
        for name, value in values.items():
            view.add_row(f"  {name}", str(value))
        stdout_console().print(view)


def collect_diagnostics(data_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the diagnostics by topic."""
    import torch

    from fedmosaic_cli.config.presets import preset_names, presets_directory
    from fedmosaic_cli.machine import num_available_cores
    from fedmosaic_cli.runner.environment import package_versions

    optional_versions = {}
    for name in OPTIONAL_PACKAGES:
        with suppress(PackageNotFoundError):
            optional_versions[name] = version(name)
    disk = shutil.disk_usage(Path.cwd())
    gpus = {f"cuda:{number}": torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    if torch.backends.mps.is_available():
        gpus["mps"] = "Apple GPU"
    return {
        "versions": {**package_versions(), **optional_versions},
        "devices": {"cpu": f"{num_available_cores()} cores", **(gpus or {"gpu": "none found"})},
        "threads": {"workers by default": num_available_cores(), "threads a worker": 1},
        "data sets": dataset_availability(data_dir),
        "data": {"directory": str(data_dir), "image cache": str(default_cache_dir())},
        "presets": {"directory": str(presets_directory()), "found": len(preset_names())},
        "disk": {"here": str(Path.cwd()), "free": f"{disk.free / 1e9:.1f} GB of {disk.total / 1e9:.1f} GB"},
    }


def dataset_availability(data_dir: Path) -> dict[str, str]:
    """Return where each data set is, or how to get it."""
    from fedmosaic_cli.data.datasets import DATASETS

    status = {}
    for name, source in DATASETS.items():
        try:
            path = source.find(data_dir)
        except RequestError as error:
            status[name] = f"unclear: {error}"
            continue
        if source.inspect is not None:
            status[name] = source.description
        elif path is not None:
            present = [domain for domain in source.domains if (path / domain).is_dir()]
            # Synthetic domains have no directories.
            missing = [domain for domain in source.domains if present and domain not in present]
            suffix = f", without {', '.join(missing)}" if missing else ""
            status[name] = f"found: {path} ({source.description}{suffix})"
        else:
            status[name] = f"missing: {source.setup_hint}"
    return status
