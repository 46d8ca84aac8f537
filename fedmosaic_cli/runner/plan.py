"""From a request to planned runs: configurations resolved and checked, directories chosen. Writes nothing."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.automatic_names import automatic_experiment_name, automatic_tag
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import RunConfig, data_fingerprint, require_safe_name, resolve_run_config
from fedmosaic_cli.config.swept_values import expand_assignments
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import find_dataset_source
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.models.default_model import FIRST_DEFAULT_MODEL
from fedmosaic_cli.runner.prepare import load_latest_run_config, run_directory
from fedmosaic_cli.runner.resume_checks import config_differences, display_difference
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

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
        experiment_name: Name in directories and reports; by default that of the shards or the preset, and the values
            that differ from it.
        config_file: YAML file that overrides the preset.
        assignments: Overrides of the form `section.key=value`. Several values, separated by commas, make several runs.
        overrides: Sections with values that override all others.
        tag: Suffix of the method's name in directories; by default the hyper-parameters that differ from the preset.
        run_dir: Directory of the one run; by default a directory below `runs_dir`.
        resume: Extend a run with fewer rounds.
        must_be_new: Refuse directories with content; by default finished runs are skipped and others continue.
        allow_nonidentical: Continue a run even if the result differs from that of an uninterrupted run.
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
    tag: str | None = None
    runs_dir: Path = Path("runs")
    run_dir: Path | None = None
    resume: bool = False
    must_be_new: bool = False
    allow_nonidentical: bool = False
    device: str = "auto"


@dataclass(frozen=True)
class PlannedRun:
    """A run to make: its configuration, its directory, and the name of its shards if they are not given.

    Attributes:
        detail: What distinguishes the run from others of its method in one command, for labels.
    """

    config: RunConfig
    files: RunDirectory
    shards_name: str
    detail: str = ""

    @property
    def label(self) -> str:
        name = " ".join(filter(None, (self.config.method.variant, self.detail)))
        clients = "1 client" if self.config.data.clients == 1 else f"{self.config.data.clients} clients"
        return f"{name} seed {self.config.seed}, {clients}"

    @property
    def shards_key(self) -> tuple[str, int]:
        """Identifies the shards among those of the plan."""
        return self.shards_name, self.config.partition_seed


@dataclass(frozen=True)
class RunPlan:
    """The runs of a request, with the configuration layers that they share."""

    request: RunRequest
    layers: ConfigLayers
    runs: list[PlannedRun]
    skipped: list[str]
    """Which optional methods are left out, and why."""


def plan_runs(request: RunRequest, data_dirs: DataDirs) -> RunPlan:
    """Resolve and check the configuration of every run of a request, and find their directories.

    Raises:
        RequestError: A value is invalid, a method that is not optional does not support the clients, or two runs would
            share a directory.
    """
    if request.tag:
        require_safe_name(request.tag, "--tag")
    preset = load_preset(request.preset) if request.preset is not None else None
    base, base_name = build_base_layers(request, preset)
    all_layers: list[ConfigLayers] = []
    runs: dict[Path, PlannedRun] = {}
    choices = expand_assignments(request.assignments)
    for swept in choices:
        layers = add_user_layers(deepcopy(base), request, swept.assignments)
        all_layers.append(layers)
        names = RunNames(request, base_name, base, layers, swept.values)
        planned = plan_runs_with_layers(names, preset, data_dirs)
        if request.run_dir is not None and len(planned) * len(choices) > 1:
            raise RequestError(f"one directory for {len(planned) * len(choices)} runs (--run-dir): use --runs-dir")
        for run in planned:
            if runs.setdefault(run.files.path, run) is not run:
                require_same_run(runs[run.files.path], run)
    by_method = sorted(runs.values(), key=lambda run: request.methods.index(run.config.method.info.name))
    chosen, skipped = select_compatible_runs(by_method, request.optional_methods)
    for run in chosen:
        run.config.check_privacy_budget(known_num_classes(run.config, request.shards))
    return RunPlan(request, all_layers[0], chosen, skipped)


@dataclass(frozen=True)
class RunNames:
    """Names the runs of a request that share their configuration layers.

    Attributes:
        base_name: Name of the preset or the shards.
        base: The layers of the preset and the shards alone.
        layers: All layers.
        swept: The values of the keys that have several in the request; they are part of every name.
    """

    request: RunRequest
    base_name: str
    base: ConfigLayers
    layers: ConfigLayers
    swept: dict[str, str]

    def experiment_name(self, data_dirs: DataDirs) -> str:
        """Return the name that the user gave, or the automatic one.

        A run in a directory that the user names has no automatic name.
        """
        given = self.request.experiment_name
        if self.request.run_dir is not None:
            return given or self.base_name
        name, base = (self.base_name, self.base) if given is None else (given, self.layers)
        return automatic_experiment_name(name, base, self.layers, data_dirs, self.swept)

    def tag(self, config: RunConfig) -> str:
        """Return the tag that the user gave, or the automatic one."""
        given = self.request.tag
        if given is None:
            return automatic_tag(config, self.base, self.layers, self.swept)
        return "-".join(filter(None, (given, automatic_tag(config, self.layers, self.layers, self.swept))))

    def find_run(self, config: RunConfig, data_dirs: DataDirs) -> tuple[RunConfig, RunDirectory]:
        """Return a configuration under the name of its run, and the directory.

        A run that an earlier version made under a shorter name keeps it.
        """
        request, tag = self.request, self.tag(config)
        if request.run_dir is not None:
            return config, RunDirectory(request.run_dir)
        automatic = RunDirectory(run_directory(request.runs_dir, config, tag))
        if not automatic.has_content():
            renamed = replace(config, experiment_name=request.experiment_name or self.base_name)
            files = RunDirectory(run_directory(request.runs_dir, renamed, request.tag or ""))
            if holds_run(files, renamed, request, data_dirs):
                return renamed, files
        return config, automatic


def holds_run(files: RunDirectory, config: RunConfig, request: RunRequest, data_dirs: DataDirs) -> bool:
    """Whether a directory holds a run that the request would continue or skip."""
    try:
        if not files.has_content():
            return False
        stored = load_latest_run_config(files, data_dirs)
    except (RequestError, OSError):
        return False
    differences = config_differences(stored, config)
    if any(not (request.allow_nonidentical and difference.is_overridable) for difference in differences):
        return False
    return stored.train.rounds == config.train.rounds or request.resume


def plan_runs_with_layers(names: RunNames, preset: Preset | None, data_dirs: DataDirs) -> list[PlannedRun]:
    """Plan one run per method and seed with the same configuration layers."""
    request, layers = names.request, names.layers
    partition_seed = request.shards.partition.seed if request.shards else None
    experiment_name = names.experiment_name(data_dirs)
    configs = [
        resolve_run_config(experiment_name, layers, method, seed, data_dirs, partition_seed)
        for method in request.methods
        for seed in request.seeds
    ]
    if request.shards and any(config.data != request.shards.partition.settings for config in configs):
        raise RequestError(
            f"data settings cannot change for existing shards ({request.shards.path}): re-run 'fedmosaic partition'"
        )
    shards_name = "" if request.shards else default_shards_name(preset, layers, configs[0], data_dirs)
    runs = []
    for config in configs:
        named, files = names.find_run(config, data_dirs)
        named = with_recorded_model(named, files, layers, data_dirs)
        runs.append(PlannedRun(named, files, shards_name, run_detail(names, config)))
    return runs


def run_detail(names: RunNames, config: RunConfig) -> str:
    """Return the swept values of a run, for labels."""
    method = f"methods.{config.method.info.name}."
    return " ".join(
        f"{key.removeprefix(method)}={value}"
        for key, value in names.swept.items()
        if not key.startswith("methods.") or key.startswith(method)
    )


def require_same_run(planned: PlannedRun, run: PlannedRun) -> None:
    """Refuse two different runs in one directory."""
    for difference in config_differences(planned.config, run.config):
        raise RequestError(
            f"two runs would share a directory, {display_difference(difference.text)} ({run.files.path}): "
            "give them different names with --name or --tag"
        )


def with_recorded_model(config: RunConfig, files: RunDirectory, layers: ConfigLayers, data_dirs: DataDirs) -> RunConfig:
    """Return the configuration with the default model of older versions if no layer names a model and the run has it.

    Older versions used it for images of every size, and their runs continue with it.
    """
    if layers.names_model() or not files.config_path.is_file():
        return config
    if config.model == FIRST_DEFAULT_MODEL or load_latest_run_config(files, data_dirs).model != FIRST_DEFAULT_MODEL:
        return config
    if command_names_model(files):
        return config
    layers = deepcopy(layers)
    layers.add(f"run {files.path}", {"model": FIRST_DEFAULT_MODEL.model_dump(mode="json")}, is_stored=True)
    method = config.method.info.name
    return resolve_run_config(config.experiment_name, layers, method, config.seed, data_dirs, config.partition_seed)


def command_names_model(files: RunDirectory) -> bool:
    """Whether the command that made a run chose its model, directly or in a configuration file."""
    try:
        words = list(map(str, files.read_environment().get("arguments") or ()))
    except RequestError:
        return True
    return any(word.startswith(("--model", "--config", "--set=model.", "model.")) for word in words)


def known_num_classes(config: RunConfig, shards: ShardSet | None) -> int | None:
    """Return the number of classes if it is known before the data is loaded."""
    if shards is not None:
        return len(shards.manifest["class_names"])
    info = find_dataset_source(config.data.dataset).info
    return None if info is None else info.num_classes


def build_base_layers(request: RunRequest, preset: Preset | None) -> tuple[ConfigLayers, str]:
    """Return the layers of the preset, the shards and the simulated sites of a request, with their name."""
    layers, name = ConfigLayers(), ""
    if preset is not None:
        name = preset.name
        layers.add_all(preset.layers)
    if request.shards is not None:
        name = request.shards.path.resolve().name
        settings = request.shards.partition.settings.model_dump(mode="json")
        layers.add(f"shards {request.shards.path}", {"data": settings}, is_stored=True)
        layers.image_shape = request.shards.image_shape
    elif request.simulated_sites is not None and name:
        layers.add("--simulate-sites", {"data": {"clients": request.simulated_sites}})
        name += f"-{request.simulated_sites}-sites"
    if not name:
        raise RequestError("no data to train on (fedmosaic): add --preset quickstart or --shards DIR")
    require_safe_name(name)
    return layers, name


def add_user_layers(layers: ConfigLayers, request: RunRequest, assignments: Iterable[str]) -> ConfigLayers:
    """Add the values that the user gives besides preset and shards."""
    if request.experiment_name is not None:
        require_safe_name(request.experiment_name, "--name")
    if request.config_file is not None:
        layers.add(f"file {request.config_file}", read_yaml(request.config_file))
    for assignment in assignments:
        layers.add_assignment(assignment)
    layers.add("flag", request.overrides)
    return layers


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
