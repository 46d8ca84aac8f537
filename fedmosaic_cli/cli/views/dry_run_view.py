"""`--dry-run`: show the configuration, the planned runs and their estimated cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from fedmosaic_cli.cli.console import print_json, print_stderr, print_stdout, stdout_console
from fedmosaic_cli.cli.privacy_options import privacy_section_lines
from fedmosaic_cli.cli.views.progress_view import EXECUTION_DESCRIPTIONS
from fedmosaic_cli.config.key_names import display_key, display_value
from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.labels.privacy.privacy_report import delta_warning
from fedmosaic_cli.runner.privacy_section import planned_privacy_section

if TYPE_CHECKING:
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.runner.plan import RunPlan


def print_dry_run(plan: RunPlan, data_dirs: DataDirs, as_json: bool) -> None:
    """Print the configuration with the origin of each value, and the runs with their work, memory and traffic."""
    from fedmosaic_cli.runner.build import check_networks, find_devices
    from fedmosaic_cli.runner.cost_estimates import dimensions_from_dataset, dimensions_from_shards, estimate_costs

    device = find_devices(plan.request.device)[0]
    configs, given_shards = [run.config for run in plan.runs], plan.request.shards
    values: dict[str, object] = {}
    for config in configs:
        values |= flatten_keys({name: part for name, part in config.to_dict().items() if isinstance(part, dict)})
    settings = [
        {"key": display_key(k), "value": display_value(k, v), "origin": plan.layers.origin(k)}
        for k, v in values.items()
    ]
    # Runs with the same seed share their data.
    data_by_seed = {config.partition_seed: config.data for config in configs}
    dimensions = {
        seed: dimensions_from_shards(given_shards) if given_shards else dimensions_from_dataset(data, seed, data_dirs)
        for seed, data in data_by_seed.items()
    }
    for config in configs:
        channels, height, width = dimensions[config.partition_seed].input_shape
        check_networks(config, (height, width, channels), dimensions[config.partition_seed].num_classes, device)
    runs = [
        {
            "path": str(run.files.path),
            "exists": run.files.has_content(),
            **estimate_costs(run.config, dimensions[run.config.partition_seed], device),
            "privacy": planned_privacy_section(
                run.config,
                dimensions[run.config.partition_seed].num_classes,
                dimensions[run.config.partition_seed].train_sizes,
            ),
        }
        for run in plan.runs
    ]
    warnings = [
        delta_warning(config.noise.delta, dimensions[config.partition_seed].train_sizes or [])
        for config in configs
        if config.noise
    ]
    for warning in dict.fromkeys(filter(None, warnings)):
        print_stderr(f"warning: {warning}")
    if as_json:
        print_json({"configuration": settings, "runs": runs})
        return
    view = Table("key", "value", "from", box=None, pad_edge=False)
    for setting in settings:
        view.add_row(
            str(setting["key"]), "-" if setting["value"] is None else str(setting["value"]), str(setting["origin"])
        )
    stdout_console().print(view)
    print_stdout("")
    headings = ("run", "rounds", "steps", "data MB", "models MB", "step MB", "memory MB", "bits up", "bits down")
    work = Table(*headings, box=None, pad_edge=False)
    for run in runs:
        bits = [
            "raw data" if run[direction] is None else f"{run[direction]:,}" for direction in ("bits_up", "bits_down")
        ]
        parts = ("data_mb", "models_mb", "step_mb", "memory_mb")
        memory = ["?" if run[name] is None else f"{run[name]:,.1f}" for name in parts]
        steps = "?" if run["steps"] is None else f"{run['steps']:,}"
        path = f"{run['path']} (exists: needs --resume or another --runs-dir)" if run["exists"] else run["path"]
        work.add_row(path, f"{run['rounds']}", steps, *memory, *bits)
    stdout_console().print(work)
    once = {config.method.variant: run["bits_once"] for config, run in zip(configs, runs, strict=True)}
    for variant, bits_once in once.items():
        if any(bits_once.values()):
            print_stdout(
                f"{variant}: once in the run {bits_once['up']:,} bits up and {bits_once['down']:,} bits down per client"
            )
    sections = {config.method.variant: run["privacy"] for config, run in zip(configs, runs, strict=True)}
    for variant, section in sections.items():
        for line in privacy_section_lines(variant, section) if section else []:
            print_stdout(line)
    for missing in dict.fromkeys(run["missing"] for run in runs if run["missing"]):
        print_stdout(f"missing: {missing}")
    modes = dict.fromkeys(
        f"clients {EXECUTION_DESCRIPTIONS[run['execution']]}, workers: {run['workers']}" for run in runs
    )
    memory_text = (
        f"memory is the sum of data, models, step and {runs[0]['process_mb']:,.1f} MB for torch and this program"
        if device.type == "cpu"
        else "memory on the device is about the sum of data, models and step"
    )
    print_stdout(f"on {device}: {'; '.join(modes)}; {memory_text}")
    print_stdout("bits are per client and exchange round; models include optimizer state; nothing was written")
