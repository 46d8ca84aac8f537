"""From the options of a training command to the runs that it amounts to, each checked. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.common_options import parse_integers
from fedmosaic_cli.cli.console import print_stderr
from fedmosaic_cli.cli.flower_options import is_federated
from fedmosaic_cli.cli.privacy_options import privacy_config_layer
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import RunConfig, require_safe_name, resolve_run_config
from fedmosaic_cli.config.yaml_files import read_yaml
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.site_shards import read_exported_description
from fedmosaic_cli.runner.prepare import run_directory
from fedmosaic_cli.storage import shards as shard_records
from fedmosaic_cli.storage.runs import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Collection

    from fedmosaic_cli.cli.train_options import TrainOptions
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.storage.shards import ShardSet


@dataclass(frozen=True)
class PlannedRun:
    """A run to be made."""

    config: RunConfig
    files: RunDirectory

    @property
    def label(self) -> str:
        return f"{self.config.method.variant} seed {self.config.seed}, {self.config.data.clients} clients"


def build_config_layers(methods: list[str], options: TrainOptions) -> tuple[ConfigLayers, str, ShardSet | None]:
    """The layers of the configuration, the name of the setting, and the shards where they are given."""
    layers, setting, given = ConfigLayers(), "", None
    if options.preset is not None:
        preset = load_preset(options.preset)
        setting = preset.name
        layers.add_all(preset.layers)
    if options.shards is not None:
        given = load_given_shards(options)
        setting = options.shards.resolve().name
        layers.add(f"shards {options.shards}", {"data": given.partition.settings.model_dump(mode="json")})
    if not setting:
        raise RequestError("nothing to train on (fedmosaic): add --preset quickstart or --shards DIR")
    if options.simulate_sites is not None and options.shards is None:
        layers.add("--simulate-sites", {"data": {"clients": options.simulate_sites}})
        setting += f"-{options.simulate_sites}-sites"
    if options.name is not None:
        require_safe_name(options.name, "--name")
        setting = options.name
    if options.config is not None:
        layers.add(f"file {options.config}", read_yaml(options.config))
    for assignment in options.assignments or []:
        layers.add_assignment(assignment)
    execution = options.execution and options.execution.value
    on_nan = options.on_nan and options.on_nan.value
    flags = {"rounds": options.rounds, "workers": options.workers, "execution": execution, "on_nan": on_nan}
    layers.add("flag", {"train": {key: value for key, value in flags.items() if value is not None}})
    layers.add("flag", {"privacy": privacy_config_layer(options)})
    if options.expertise is not None:
        if "fedmosaic" not in methods:
            raise RequestError("--expertise is for fedmosaic alone (fedmosaic baseline): leave it out")
        layers.add("flag", {"methods": {"fedmosaic": {"expertise": options.expertise}}})
    return layers, setting, given


def load_given_shards(options: TrainOptions) -> ShardSet:
    """The shards that were named. Where clients are at sites, so are their files."""
    path = options.shards or Path()
    sites = is_federated(options) and options.simulate_sites is None
    return read_exported_description(path) if sites else shard_records.read_shards(path)


def plan_runs(
    methods: list[str],
    options: TrainOptions,
    layers: ConfigLayers,
    experiment_name: str,
    given_shards: ShardSet | None,
    data_dirs: DataDirs,
) -> list[PlannedRun]:
    """The runs that the request amounts to, each checked."""
    if options.seeds is not None and options.seed is not None:
        raise RequestError("both --seed and --seeds are given (fedmosaic): use one of them")
    seeds = parse_integers(options.seeds, "--seeds") if options.seeds is not None else (options.seed or 0,)
    partition_seed = given_shards.partition.seed if given_shards else None
    configs = [
        resolve_run_config(experiment_name, layers, name, seed, data_dirs, partition_seed)
        for name in methods
        for seed in seeds
    ]
    if given_shards and any(config.data != given_shards.partition.settings for config in configs):
        raise RequestError(
            f"shards are dealt already, so data settings cannot change ({options.shards}): partition anew"
        )
    if options.tag is not None:
        require_safe_name(options.tag, "--tag")
    if options.run_dir is not None and len(configs) > 1:
        raise RequestError(f"{len(configs)} runs do not fit into one directory (--run-dir): use --runs-dir")
    return [
        PlannedRun(config, RunDirectory(options.run_dir or run_directory(options.runs_dir, config, options.tag or "")))
        for config in configs
    ]


def select_compatible_runs(runs: list[PlannedRun], optional_methods: Collection[str]) -> list[PlannedRun]:
    """The runs that these clients can play; one that was asked for by name has to be among them."""
    misfits = {
        run.config.method.name: (run.config.method.title, why) for run in runs if (why := run.config.incompatibility())
    }
    left_out: dict[str, list[str]] = {}
    for name, (title, why) in misfits.items():
        if name not in optional_methods:
            raise RequestError(f"{title} {why.requirement}, but {why.problem}: {why.remedy}")
        left_out.setdefault(f"{why.requirement}, but {why.problem}", []).append(title)
    for reason, titles in left_out.items():
        print_stderr(f"left out: {'each of ' if len(titles) > 1 else ''}{', '.join(titles)} {reason}")
    return [run for run in runs if run.config.method.name not in misfits]
