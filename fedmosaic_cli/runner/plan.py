"""From the options of a training command to the runs that it amounts to, each checked. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmosaic_cli.cli.common_options import whole_numbers
from fedmosaic_cli.cli.console import remark
from fedmosaic_cli.cli.flower_options import is_federated
from fedmosaic_cli.cli.privacy_options import privacy_layer
from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import RunConfig, check_name, resolve_run
from fedmosaic_cli.config.yaml_files import read
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.site_shards import exported_description
from fedmosaic_cli.runner.prepare import run_directory
from fedmosaic_cli.storage import shards as shard_records
from fedmosaic_cli.storage.runs import RunFiles

if TYPE_CHECKING:
    from collections.abc import Collection

    from fedmosaic_cli.cli.train_options import Request
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.storage.shards import Shards


@dataclass(frozen=True)
class Planned:
    """A run to be made."""

    config: RunConfig
    files: RunFiles

    @property
    def label(self) -> str:
        return f"{self.config.method.variant} seed {self.config.seed}, {self.config.data.clients} clients"


def layers_of(methods: list[str], request: Request) -> tuple[Layers, str, Shards | None]:
    """The layers of the configuration, the name of the setting, and the shards where they are given."""
    layers, setting, given = Layers(), "", None
    if request.preset is not None:
        preset = load_preset(request.preset)
        setting = preset.name
        layers.add_all(preset.layers)
    if request.shards is not None:
        given = load_shards(request)
        setting = request.shards.resolve().name
        layers.add(f"shards {request.shards}", {"data": given.partition.settings.model_dump(mode="json")})
    if not setting:
        raise RequestError("nothing to train on (fedmosaic): add --preset quickstart or --shards DIR")
    if request.local_sites is not None and request.shards is None:
        layers.add("--local-sites", {"data": {"clients": request.local_sites}})
        setting += f"-{request.local_sites}-sites"
    if request.name is not None:
        check_name(request.name, "--name")
        setting = request.name
    if request.config is not None:
        layers.add(f"file {request.config}", read(request.config))
    for assignment in request.assignments or []:
        layers.set(assignment)
    execution = request.execution and request.execution.value
    on_nan = request.on_nan and request.on_nan.value
    flags = {"rounds": request.rounds, "workers": request.workers, "execution": execution, "on_nan": on_nan}
    layers.add("flag", {"train": {key: value for key, value in flags.items() if value is not None}})
    layers.add("flag", {"privacy": privacy_layer(request)})
    if request.expertise is not None:
        if "fedmosaic" not in methods:
            raise RequestError("--expertise is for fedmosaic alone (fedmosaic baseline): leave it out")
        layers.add("flag", {"methods": {"fedmosaic": {"expertise": request.expertise}}})
    return layers, setting, given


def load_shards(request: Request) -> Shards:
    """The shards that were named. Where clients are at sites, so are their files."""
    path = request.shards or Path()
    sites = is_federated(request) and request.local_sites is None
    return exported_description(path) if sites else shard_records.load(path)


def plan(
    methods: list[str], request: Request, layers: Layers, setting: str, given: Shards | None, place: Place
) -> list[Planned]:
    """The runs that the request amounts to, each checked."""
    if request.seeds is not None and request.seed is not None:
        raise RequestError("both --seed and --seeds are given (fedmosaic): use one of them")
    seeds = whole_numbers(request.seeds, "--seeds") if request.seeds is not None else (request.seed or 0,)
    partition_seed = given.partition.seed if given else None
    configs = [resolve_run(setting, layers, name, seed, place, partition_seed) for name in methods for seed in seeds]
    if given and any(config.data != given.partition.settings for config in configs):
        raise RequestError(
            f"shards are dealt already, so data settings cannot change ({request.shards}): partition anew"
        )
    if request.label is not None:
        check_name(request.label, "--label")
    if request.run_dir is not None and len(configs) > 1:
        raise RequestError(f"{len(configs)} runs do not fit into one directory (--run-dir): use --runs-dir")
    return [
        Planned(config, RunFiles(request.run_dir or run_directory(request.runs_dir, config, request.label or "")))
        for config in configs
    ]


def fitting(runs: list[Planned], optional: Collection[str]) -> list[Planned]:
    """The runs that these clients can play; one that was asked for by name has to be among them."""
    misfits = {run.config.method.name: (run.config.method.title, why) for run in runs if (why := run.config.misfit())}
    left_out: dict[str, list[str]] = {}
    for name, (title, why) in misfits.items():
        if name not in optional:
            raise RequestError(f"{title} {why.needs}, but {why.but}: {why.way_out}")
        left_out.setdefault(f"{why.needs}, but {why.but}", []).append(title)
    for reason, titles in left_out.items():
        remark(f"left out: {'each of ' if len(titles) > 1 else ''}{', '.join(titles)} {reason}")
    return [run for run in runs if run.config.method.name not in misfits]
