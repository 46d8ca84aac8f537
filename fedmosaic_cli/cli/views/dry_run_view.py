"""`--dry-run`: show the configuration, the planned runs and their estimated cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedmosaic_cli.cli.console import print_json, print_stderr, print_stdout, stdout_console
from fedmosaic_cli.cli.privacy_options import privacy_section_lines
from fedmosaic_cli.cli.views.progress_view import EXECUTION_DESCRIPTIONS
from fedmosaic_cli.cli.views.reproduce_view import duration_text
from fedmosaic_cli.config.key_names import display_key, display_value
from fedmosaic_cli.config.run_config import flatten_keys
from fedmosaic_cli.labels.privacy.privacy_report import delta_warning
from fedmosaic_cli.report.run_costs import logged_round_seconds
from fedmosaic_cli.runner.prepare import is_run_complete
from fedmosaic_cli.runner.privacy_section import planned_privacy_section
from fedmosaic_cli.sweeps.time_estimates import measured_rounds

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.runner.plan import PlannedRun, RunPlan
    from fedmosaic_cli.sweeps.time_estimates import MeasuredRounds

FINISHED = "finished"


def print_dry_run(plan: RunPlan, data_dirs: DataDirs, as_json: bool) -> None:
    """Print the configuration with the origin of each value, and the runs with their work, memory and traffic."""
    from fedmosaic_cli.runner.build import check_networks, find_devices
    from fedmosaic_cli.runner.cost_estimates import dimensions_from_dataset, dimensions_from_shards, estimate_costs

    device = find_devices(plan.request.device)[0]
    configs, given_shards = [run.config for run in plan.runs], plan.request.shards
    settings = [
        {"key": display_key(key), "value": value, "origin": plan.layers.origin(key)}
        for key, value in planned_values(configs).items()
    ]
    # Runs on the same shards share their data.
    data_by_shards = {run.shards_key: run.config for run in plan.runs}
    dimensions = {
        key: dimensions_from_shards(given_shards)
        if given_shards
        else dimensions_from_dataset(config.data, config.partition_seed, data_dirs)
        for key, config in data_by_shards.items()
    }
    for planned in plan.runs:
        channels, height, width = dimensions[planned.shards_key].input_shape
        check_networks(planned.config, (height, width, channels), dimensions[planned.shards_key].num_classes, device)
    measured: dict[Path, MeasuredRounds] = {}
    runs = [
        {
            "path": str(run.files.path),
            "exists": run.files.has_content(),
            **planned_time(run, measured),
            **estimate_costs(run.config, dimensions[run.shards_key], device),
            "privacy": planned_privacy_section(
                run.config, dimensions[run.shards_key].num_classes, dimensions[run.shards_key].train_sizes
            ),
        }
        for run in plan.runs
    ]
    warnings = [
        delta_warning(run.config.noise.delta, dimensions[run.shards_key].train_sizes or [])
        for run in plan.runs
        if run.config.noise
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
    print_planned_work(runs)
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
        f"memory: sum of data, models, step and {runs[0]['process_mb']:,.1f} MB for torch and this program"
        if device.type == "cpu"
        else "memory on the device is about the sum of data, models and step"
    )
    print_stdout(f"on {device}: {'; '.join(modes)}")
    print_stdout(memory_text)
    print_stdout("bits are per client and exchange round; models include optimizer state")
    print_stdout("nothing was written")


def print_planned_work(runs: list[dict[str, Any]]) -> None:
    """Print the directory and the state of each run, and a table of its work."""
    for number, run in enumerate(runs, start=1):
        print_stdout(f"{number:>3} {run['path']} ({run['state']})")
    print_stdout("")
    columns = ("data", "models", "step", "memory")
    headings = ("run", "rounds", "steps", *(f"{name}\nMB" for name in columns), "bits\nup", "bits\ndown", "time")
    work = Table(*headings, box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for column in work.columns:
        column.justify, column.overflow = "right", "fold"
    for number, run in enumerate(runs, start=1):
        bits = [
            "raw data" if run[direction] is None else f"{run[direction]:,}" for direction in ("bits_up", "bits_down")
        ]
        parts = ("data_mb", "models_mb", "step_mb", "memory_mb")
        memory = ["?" if run[name] is None else f"{run[name]:,.1f}" for name in parts]
        steps = "?" if run["steps"] is None else f"{run['steps']:,}"
        time = "unknown" if run["seconds"] is None else time_text(run["seconds"])
        work.add_row(str(number), f"{run['rounds']}", steps, *memory, *bits, time)
    stdout_console().print(work)
    for source in dict.fromkeys(run["time_source"] for run in runs if run["state"] != FINISHED):
        print_stdout(f"time: {source}")


def planned_values(configs: list[RunConfig]) -> dict[str, Any]:
    """Return the values of all runs by stored key; a key with several values has them in a list as text."""
    values: dict[str, list[Any]] = {}
    for config in configs:
        sections = {name: part for name, part in config.to_dict().items() if isinstance(part, dict)}
        for key, value in flatten_keys(sections).items():
            held = values.setdefault(key, [])
            held += [value] if value not in held else []
    shown = {key: [display_value(key, value) for value in held] for key, held in values.items()}
    return {key: held[0] if len(held) == 1 else ", ".join(map(str, held)) for key, held in shown.items()}


def planned_time(run: PlannedRun, measured_by_directory: dict[Path, MeasuredRounds]) -> dict[str, Any]:
    """Return the state of a run on disk and the remaining seconds: None if nothing was measured."""
    directory, rounds = run.files.path.parent.parent, run.config.train.rounds
    if directory not in measured_by_directory:
        measured_by_directory[directory] = measured_rounds(directory)
    measured, method = measured_by_directory[directory], run.config.method.info.name
    seconds = measured.round_seconds(method)
    if is_run_complete(run.files, run.config):
        return {"state": FINISHED, "seconds": 0.0, "time_source": ""}
    logged = len(logged_round_seconds(run.files)) if run.files.has_content() else 0
    return {
        "state": f"begun, {logged} of {rounds} rounds" if run.files.has_content() else "new",
        "seconds": None if seconds is None else max(1, rounds - logged) * seconds,
        "time_source": measured.source(method),
    }


def time_text(seconds: float) -> str:
    """Return a duration with one digit below ten seconds."""
    return f"{seconds:.1f} s" if seconds < 10 else duration_text(seconds)
