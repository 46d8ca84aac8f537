"""Runs of presets in this process, without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import RunConfig, resolve_run_config
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.datasets import load_dataset
from fedmosaic_cli.data.partitioning.partition import Partition, partition_dataset
from fedmosaic_cli.engine.federation import Federation
from fedmosaic_cli.engine.method import Method
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.runner.build import build_federation
from tests.toys import CPU


def prepare_preset(
    preset: str, method: str | Method, seed: int = 0, changes: Sequence[str] = ()
) -> tuple[RunConfig, Dataset, Partition]:
    """Return the configuration, the data set and the partition of a preset with changes such as `train.rounds=3`."""
    layers = ConfigLayers()
    layers.add_all(load_preset(preset).layers)
    for change in changes:
        layers.add_assignment(change)
    name = method if isinstance(method, str) else method.info.name
    config = resolve_run_config(preset, layers, name, seed, DataDirs())
    if isinstance(method, Method):
        config = replace(config, method=method)
    dataset = load_dataset(config.data, DataDirs())
    return config, dataset, partition_dataset(dataset, config.data, seed)


def run_prepared(config: RunConfig, dataset: Dataset, partition: Partition) -> tuple[Federation, list[dict[str, Any]]]:
    """Return the federation after all rounds, and the rows of the last one."""
    federation = build_federation(config, dataset, partition, [CPU])
    with federation.worker_pool:
        return federation, list(run_rounds(federation, config.train.rounds))[-1].rows
