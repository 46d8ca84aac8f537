"""From a request to planned runs: configurations resolved and checked, directories chosen. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import RunConfig, data_fingerprint, require_safe_name, resolve_run_config
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import find_dataset_source
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.prepare import run_directory
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Collection

    from fedmosaic_cli.config.presets import Preset
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.storage.shards import ShardSet


@dataclass(frozen=True)
class RunRequest:
    """Which runs to make and where to write them.

    Attributes:
        methods: Names of methods; one run per method and seed.
        optional_methods: Those to leave out, not to refuse, if the configured clients do not support them.
        preset: Name or path of a preset. Either a preset or shards are required.
        shards: Existing shards to train on.
        simulated_sites: Sets the number of clients if no shards are given.
        experiment_name: Name in directories and reports; by default that of the shards or the preset.
        config_file: YAML file that overrides the preset.
        assignments: Overrides of the form `section.key=value`.
        overrides: Sections with values that override all others.
        tag: Suffix of the method's name in directories.
        run_dir: Directory of the one run; by default a directory below `runs_dir`.
        allow_nonidentical: Resume even if the result differs from that of an uninterrupted run.
    """

    methods: tuple[str, ...]
    optional_methods: frozenset[str] = frozenset()
    preset: str | None = None
    shards: ShardSet | None = None
    simulated_sites: int | None = None
    experiment_name: str | None = None
    config_file: Path | None = None
    assignments: tuple[str, ...] = ()
    overrides: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    tag: str = ""
    runs_dir: Path = Path("runs")
    run_dir: Path | None = None
    resume: bool = False
    allow_nonidentical: bool = False
    device: str = "auto"


@dataclass(frozen=True)
class PlannedRun:
    """A run to make: its configuration, its directory, and the name of its shards if they are not given."""

    config: RunConfig
    files: RunDirectory
    shards_name: str

    @property
    def label(self) -> str:
        clients = "1 client" if self.config.data.clients == 1 else f"{self.config.data.clients} clients"
        return f"{self.config.method.variant} seed {self.config.seed}, {clients}"


@dataclass(frozen=True)
class RunPlan:
    """The runs of a request, with the configuration layers that they share."""

    request: RunRequest
    layers: ConfigLayers
    runs: list[PlannedRun]
    skipped: list[str]
    """Which optional methods are left out, and why."""


def plan_runs(request: RunRequest, data_dirs: DataDirs) -> RunPlan:
    """Resolve and check the configuration of every run of a request.

    Raises:
        RequestError: A value is invalid, or a method that is not optional does not support the clients.
    """
    preset = load_preset(request.preset) if request.preset is not None else None
    layers, experiment_name = build_config_layers(request, preset)
    partition_seed = request.shards.partition.seed if request.shards else None
    configs = [
        resolve_run_config(experiment_name, layers, method, seed, data_dirs, partition_seed)
        for method in request.methods
        for seed in request.seeds
    ]
    if request.shards and any(config.data != request.shards.partition.settings for config in configs):
        raise RequestError(
            f"data settings cannot change for existing shards ({request.shards.path}): re-run 'fedmosaic partition'"
        )
    if request.tag:
        require_safe_name(request.tag, "--tag")
    if request.run_dir is not None and len(configs) > 1:
        raise RequestError(f"one directory for {len(configs)} runs (--run-dir): use --runs-dir")
    shards_name = "" if request.shards else default_shards_name(preset, layers, configs[0], data_dirs)
    runs = [
        PlannedRun(
            config, RunDirectory(request.run_dir or run_directory(request.runs_dir, config, request.tag)), shards_name
        )
        for config in configs
    ]
    runs, skipped = select_compatible_runs(runs, request.optional_methods)
    for run in runs:
        run.config.check_privacy_budget(known_num_classes(run.config, request.shards))
    return RunPlan(request, layers, runs, skipped)


def known_num_classes(config: RunConfig, shards: ShardSet | None) -> int | None:
    """Return the number of classes if it is known before the data is loaded."""
    if shards is not None:
        return len(shards.manifest["class_names"])
    info = find_dataset_source(config.data.dataset).info
    return None if info is None else info.num_classes


def build_config_layers(request: RunRequest, preset: Preset | None) -> tuple[ConfigLayers, str]:
    """Stack the configuration layers of a request; return them with the experiment's name."""
    layers, name = ConfigLayers(), ""
    if preset is not None:
        name = preset.name
        layers.add_all(preset.layers)
    if request.shards is not None:
        name = request.shards.path.resolve().name
        settings = request.shards.partition.settings.model_dump(mode="json")
        layers.add(f"shards {request.shards.path}", {"data": settings}, is_stored=True)
    elif request.simulated_sites is not None and name:
        layers.add("--simulate-sites", {"data": {"clients": request.simulated_sites}})
        name += f"-{request.simulated_sites}-sites"
    if not name:
        raise RequestError("no data to train on (fedmosaic): add --preset quickstart or --shards DIR")
    if request.experiment_name is not None:
        require_safe_name(request.experiment_name, "--name")
        name = request.experiment_name
    if request.config_file is not None:
        layers.add(f"file {request.config_file}", read_yaml(request.config_file))
    for assignment in request.assignments:
        layers.add_assignment(assignment)
    layers.add("flag", request.overrides)
    return layers, name


def default_shards_name(preset: Preset | None, layers: ConfigLayers, config: RunConfig, data_dirs: DataDirs) -> str:
    """Name the shards after the preset; add a fingerprint if they differ from those of the preset alone."""
    if preset is None:
        return f"{config.experiment_name}-{data_fingerprint(config.data)}"
    preset_layers = ConfigLayers()
    preset_layers.add_all(preset.layers)
    settings = preset_layers.section("data", DataSettings)
    if settings == layers.section("data", DataSettings):
        return preset.name
    try:
        is_same = resolve_data_settings(settings, data_dirs) == config.data
    except RequestError:  # the preset alone has no data here
        is_same = False
    return preset.name if is_same else f"{preset.name}-{data_fingerprint(config.data)}"


def select_compatible_runs(
    runs: list[PlannedRun], optional_methods: Collection[str]
) -> tuple[list[PlannedRun], list[str]]:
    """Drop the runs of optional methods that the clients do not support; return the others, and notes about these."""
    incompatible = {
        run.config.method.info.name: (run.config.method.info.title, why)
        for run in runs
        if (why := run.config.incompatibility())
    }
    titles_by_reason: dict[str, list[str]] = {}
    for name, (title, why) in incompatible.items():
        if name not in optional_methods:
            raise RequestError(f"{title} {why.requirement}, but {why.problem}: {why.remedy}")
        titles_by_reason.setdefault(f"{why.requirement}, but {why.problem}", []).append(title)
    notes = [
        f"left out: {'each of ' if len(titles) > 1 else ''}{', '.join(titles)} {reason}"
        for reason, titles in titles_by_reason.items()
    ]
    return [run for run in runs if run.config.method.info.name not in incompatible], notes
