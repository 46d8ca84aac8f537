"""Build the learners of clients, and the workers that train on the public set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.estimator_learner import EstimatorLearner
from fedmosaic_cli.engine.execution.modes import NETWORK_LEARNERS, choose_execution
from fedmosaic_cli.engine.execution.stacked.matmul_convolution import use_matrix_products
from fedmosaic_cli.engine.execution.stacked.stacked_layers import is_stackable
from fedmosaic_cli.engine.server import PUBLIC_STREAM, PublicTrainer

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.execution.modes import ExecutionMode
    from fedmosaic_cli.engine.learner import Learner
    from fedmosaic_cli.engine.method import NetworkFactory
    from fedmosaic_cli.engine.network_learner import NetworkLearner
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.models.model_settings import ModelSettings
    from fedmosaic_cli.runner.device_dataset import DeviceDataset


class LearnerFactory:
    """Creates learners. Clients with equal network, training settings and device share one."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._learners: dict[tuple[ModelSettings, TrainSettings, torch.device], NetworkLearner] = {}
        self._networks: dict[tuple[ModelSettings, TrainSettings, torch.device, str], NetworkLearner] = {}
        self._public_trainers: dict[tuple[ModelSettings, TrainSettings, torch.device], PublicTrainer] = {}
        self._modes: set[str] = set()

    def networks(self, client: int, device_dataset: DeviceDataset) -> dict[str, NetworkLearner]:
        """Return the learners of the additional networks that the method needs, by name."""
        model, train = self._config.network_settings_for(client), self._config.train_settings_for(client)
        dataset, device, networks = device_dataset.dataset, device_dataset.device, self._config.method.needs.networks
        for name in networks:
            if (model, train, device, name) not in self._networks:
                mode = choose_execution(train, model, dataset.input_shape, self._config.group_size(client), device)
                learner = build_network_learner(model, train, device_dataset, "threads", networks[name])
                if mode == "stacked" and is_stackable(learner.template):
                    learner = build_network_learner(model, train, device_dataset, mode, networks[name])
                self._networks[model, train, device, name] = learner
        return {name: self._networks[model, train, device, name] for name in networks}

    def public_trainer(self, client: int, device_dataset: DeviceDataset) -> PublicTrainer | None:
        """Return what trains on the public set for this client, if the method needs it."""
        if not self._config.method.needs.public_training:
            return None
        config, train = self._config, self._config.train_settings_for(client)
        key = (config.network_settings_for(client), train, device_dataset.device)
        if key not in self._public_trainers:
            worker = build_public_worker(config, PUBLIC_STREAM, key[0], train, device_dataset)
            self._public_trainers[key] = PublicTrainer(config.seed, worker)
        return self._public_trainers[key]

    def learner(self, client: int, private: Examples, device_dataset: DeviceDataset) -> Learner:
        model, train = self._config.model_settings_for(client), self._config.train_settings_for(client)
        shape, classes = device_dataset.dataset.input_shape, device_dataset.dataset.num_classes
        if not model.is_network:
            return EstimatorLearner(model, private, device_dataset.public_examples, classes)
        key = (model, train, device_dataset.device)
        if key not in self._learners:
            mode = choose_execution(train, model, shape, self._config.group_size(client), device_dataset.device)
            self._modes.add(mode)
            self._learners[key] = build_network_learner(model, train, device_dataset, mode)
        return self._learners[key]

    @property
    def execution(self) -> str:
        """The execution modes in use, e.g. `stacked` or `stacked and threads`."""
        return " and ".join(sorted(self._modes)) or "threads"


def build_public_worker(
    config: RunConfig, name: str, model: ModelSettings, train: TrainSettings, data: DeviceDataset
) -> InProcessClient:
    """Build a client whose training data is the public set without its labels; `name` is used in random streams."""
    labels = torch.zeros(len(data.public_examples), dtype=torch.int64).to(data.device)
    networks = config.method.needs.networks
    return InProcessClient(
        name,
        config.seed,
        replace(data.public_examples, labels=labels),
        data.public_examples,
        build_network_learner(model, train, data),
        train,
        data.dataset.num_classes,
        networks={name: build_network_learner(model, train, data, extend=extend) for name, extend in networks.items()},
    )


def build_network_learner(
    model: ModelSettings,
    train: TrainSettings,
    data: DeviceDataset,
    mode: ExecutionMode = "threads",
    extend: NetworkFactory | None = None,
) -> NetworkLearner:
    """Build the learner of a network or, with `extend`, of an additional network of the method."""
    dataset = data.dataset
    learner = NETWORK_LEARNERS[mode](
        model, train, dataset.input_shape, dataset.num_classes, data.device, data.dtype, extend=extend
    )
    if mode == "stacked" and train.stacked_convolution == "matmul":
        use_matrix_products(learner.template)
    return learner


def build_reference_network(
    config: RunConfig, dataset: Dataset, device: torch.device, dtype: torch.dtype = torch.float32
) -> NetworkLearner:
    """Build the network of the first client, which defines the shapes of averaged models."""
    model, train = config.model_settings_for(0), config.train_settings_for(0)
    return NETWORK_LEARNERS["threads"](model, train, dataset.input_shape, dataset.num_classes, device, dtype)
