"""Federations for exact tests: a few images, a network of a few dozen weights, float64."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmosaic_cli.config.run_config import RunConfig
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.dataset import Dataset
from fedmosaic_cli.data.partitioning.partition import Partition, Shard
from fedmosaic_cli.engine.context import FederationInfo, Parameters
from fedmosaic_cli.engine.federation import Federation
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.messages import SERVER_ID, Route, make_route
from fedmosaic_cli.engine.method import Method
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.labels.label_settings import AttackSettings, DefenceSettings, PrivacySettings
from fedmosaic_cli.models.classifier import Classifier
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.runner.build import build_federation

CPU = torch.device("cpu")
CLASSES = 3
MESSAGE_SECTIONS = {"privacy": PrivacySettings, "attack": AttackSettings, "defence": DefenceSettings}


class Normalised(Classifier):
    """A network with batch normalisation in a layer called `2`, not `bn`."""

    def __init__(self, settings, input_shape, num_classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
        super().__init__(body, 3, num_classes)


class Linear(Classifier):
    """A network of one matrix: with a squared loss the objective is quadratic."""

    def __init__(self, settings, input_shape, num_classes):
        super().__init__(nn.Flatten(), 4, num_classes)
        self.head = nn.Linear(4, num_classes, bias=False)


def from_server(ctx: FederationInfo, device: torch.device = CPU) -> Route:
    """Return the route of a message from the server of a toy to a client, in the first round."""
    return make_route(device, ctx, 1, SERVER_ID)


def from_client(ctx: FederationInfo, client: int) -> Route:
    """Return the route of a message from a client to the server of a toy, in the first round."""
    return make_route(CPU, ctx, 1, client)


class Toy:
    """A data set, its partition, and its training settings."""

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        models: dict[int, ModelSettings] | None = None,
        message_sections: dict[str, Any] | None = None,
        **train: Any,
    ) -> None:
        self.dataset = dataset
        self.partition = partition
        self.models = models or {}
        self.message_sections = message_sections or {}
        self.dtype = torch.float64
        self.train: dict[str, Any] = {
            "rounds": 3,
            "local_steps": 3,
            "batch_size": 4,
            "lr": 0.05,
            "workers": 1,
            "execution": "threads",
            **train,
        }

    def changed(self, **changes: Any) -> Toy:
        """Return a copy with other examples, shards, training settings or message sections."""
        dataset = changes.pop("dataset", self.dataset)
        partition = changes.pop("partition", self.partition)
        models = changes.pop("models", self.models)
        sections = {name: changes.pop(name) for name in MESSAGE_SECTIONS if name in changes}
        toy = Toy(dataset, partition, models, {**self.message_sections, **sections}, **{**self.train, **changes})
        toy.dtype = self.dtype
        return toy

    def federation(self, method: Method, seed: int = 0, devices: Sequence[torch.device] = (CPU,)) -> Federation:
        partition = self.partition
        if method.needs.validation:
            partition = replace(partition, shards=tuple(replace(s, validation=s.train[:2]) for s in partition.shards))
        config = RunConfig(
            experiment_name="toy",
            seed=seed,
            data=self.partition.settings,
            model=ModelSettings(hidden=(3,)),
            train=TrainSettings(**self.train),
            method=method,
            partition_seed=0,
            client_models=self.models,
            **{name: MESSAGE_SECTIONS[name](**values) for name, values in self.message_sections.items()},
        )
        return build_federation(config, self.dataset, partition, devices, self.dtype)


def images(count: int, seed: int = 0, domains: int = 0) -> Dataset:
    """Return `count` images of 2x2 pixels whose brightness depends on their class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    pixels = rng.integers(0, 80, (count, 2, 2, 1)) + 80 * labels[:, None, None, None]
    return Dataset(
        name="toy",
        images=pixels.astype(np.uint8),
        labels=labels.astype(np.int64),
        class_names=("a", "b", "c"),
        domain_ids=np.arange(count) // CLASSES % domains if domains else None,
        domain_names=tuple(f"domain-{number}" for number in range(domains)),
    )


def make_toy(sizes: list[int], public: int = 7, flipped: tuple[int, ...] = ()) -> Toy:
    """Return a toy with these numbers of training examples, three test examples per client, and a public set."""
    dataset = images(sum(sizes) + 3 * len(sizes) + public)
    rest = np.random.default_rng(1).permutation(len(dataset))
    shards = []
    for client, size in enumerate(sizes):
        train, test, rest = rest[:size], rest[size : size + 3], rest[size + 3 :]
        shards.append(Shard(client, np.sort(train), np.sort(test), has_flipped_labels=client in flipped))
    settings = DataSettings(dataset="toy", clients=len(sizes), public_size=public, flip_labels=flipped)
    return Toy(dataset, Partition(settings, 0, tuple(shards), np.sort(rest)))


def mixed(toy: Toy) -> Toy:
    """Give the three clients of a toy three different kinds of learners."""
    kinds = (
        ModelSettings(hidden=(5, 2)),
        ModelSettings(name="random-forest", trees=5),
        ModelSettings(name="gradient-boosting", trees=3),
    )
    return toy.changed(models=dict(enumerate(kinds)))


TOYS = {
    "even": make_toy([8, 8, 8]),
    "uneven": make_toy([3, 6, 11]),
    "alone": make_toy([9]),
    "tiny": make_toy([1, 2, 5]),
    "flipped": make_toy([6, 6, 6], flipped=(0,)),
    "epochs": make_toy([5, 7, 6]).changed(local_steps=None, local_epochs=2),
    "sgd": make_toy([8, 5, 8]).changed(optimizer="sgd", lr=0.1, momentum=0.5),
    "forgetful": make_toy([8, 5, 8]).changed(optimizer_state="reset"),
}


def run_toy(method: Method, toy: Toy, rounds: int = 3, seed: int = 0) -> Federation:
    """Return the federation after `rounds` rounds."""
    federation = toy.federation(method, seed)
    with federation.worker_pool:
        for _ in run_rounds(federation, rounds):
            pass
    return federation


def personal_models(federation: Federation) -> dict[int, Parameters]:
    """Return the current personal model of every client, by client."""
    received = ServerView(federation)
    clients = federation.state.clients
    return {client.id: federation.method.personal_model(client, received.for_client(client)) for client in clients}


def models(method: Method, toy: Toy, rounds: int = 3, seed: int = 0) -> list[Parameters]:
    """Return the personal model of every client after `rounds` rounds."""
    return list(personal_models(run_toy(method, toy, rounds, seed)).values())


def same(left: list[Parameters], right: list[Parameters]) -> bool:
    """Return whether two lists of models are equal, bit for bit."""
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(left, right, strict=True)
    )


def close(left: list[Parameters], right: list[Parameters], tolerance: float = 1e-10) -> bool:
    """Return whether two lists of models agree up to rounding."""
    return all(
        torch.allclose(a[name], b[name], rtol=0, atol=tolerance) for a, b in zip(left, right, strict=True) for name in a
    )


def from_disk(captured: tuple[dict[str, Any], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a captured state as if read from files: copies, in another order."""
    arrays, values = captured
    return {name: arrays[name].copy() for name in sorted(arrays, reverse=True)}, deepcopy(values)


def with_other_labels(dataset: Dataset, index: np.ndarray) -> Dataset:
    """Return the data set with other labels for the examples `index`."""
    labels = dataset.labels.copy()
    labels[index] = (labels[index] + 1) % CLASSES
    return replace(dataset, labels=labels)


def with_other_pixels(dataset: Dataset, index: np.ndarray) -> Dataset:
    """Return the data set with other pixels for the examples `index`."""
    pixels = dataset.images.copy()
    pixels[index] = 255 - pixels[index]
    return replace(dataset, images=pixels)
