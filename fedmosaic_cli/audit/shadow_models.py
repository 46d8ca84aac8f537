"""Reference models: what a model would make of an example if it had, and if it had not, been trained on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.audit.membership_attacks import logit_scaled_confidence, shadow_training_masks
from fedmosaic_cli.audit.replay import candidate_examples
from fedmosaic_cli.engine.client import SimulatedClient
from fedmosaic_cli.engine.execution.modes import num_workers
from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
from fedmosaic_cli.engine.federation import Federation, init_state
from fedmosaic_cli.engine.method import FederationInfo
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.errors import DivergenceError, RunFailedError
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.build import LearnerFactory
from fedmosaic_cli.seeds import derive_rng, derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.audit.members import MembershipCandidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.partitioning.partition import Shard
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.runner.build import DeviceDataset
    from fedmosaic_cli.runner.evaluate import FinishedRun


def shadow_confidences(
    run: FinishedRun,
    device_data: DeviceDataset,
    shard: Shard,
    candidates: MembershipCandidates,
    num_models: int,
    rounds: int,
    on_round: Callable[[], None],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[models, candidates]: the confidence of `models` that each trained alone on a half, and who trained on what.

    They train as the client did, as many steps in each of `rounds` rounds; after each of them somebody is `told`.
    """
    config = shadow_config(run.config, shard, num_models)
    seed = derive_seed(run.config.seed, "audit", "reference", shard.client)
    chosen = shadow_training_masks(2 * len(candidates), num_models, derive_rng(seed, "halves"))
    everything = candidate_examples(device_data.public_examples, candidates)
    clients = shadow_clients(config, device_data, everything, chosen, seed)
    world = FederationInfo(device_data.dataset.num_classes, {}, {}, rounds)
    workers = WorkerPool(num_workers(config.train.workers, num_models, device_data.device))
    standing = init_state(Local(), clients, world)
    skips = config.train.on_nan == "skip"
    federation = Federation(Local(), world, [], workers, standing, seed, num_models, device_data.device, "", skips)
    with workers:
        try:
            for _ in run_rounds(federation, rounds):
                on_round()
        except DivergenceError:
            raise RunFailedError(
                f"a reference model for client {shard.client} diverged ({run.files.path}): audit without --lira"
            ) from None
    answers = [client.learner.predict(client.state["model"], everything).cpu().numpy() for client in clients]
    return np.stack([logit_scaled_confidence(each, candidates.all_labels) for each in answers]), chosen


def shadow_config(config: RunConfig, shard: Shard, num_models: int) -> RunConfig:
    """The run as if the client's reference models were its only clients, each with a start of its own."""
    train = config.train_settings_for(shard.client)
    a_round = train.local_steps or train.local_epochs * -(-len(shard.train) // train.batch_size)
    train = train.model_copy(update={"local_steps": a_round, "init": "per-client", "clients_per_round": None})
    data = config.data.model_copy(update={"clients": num_models})
    model = config.model_settings_for(shard.client)
    return replace(
        config, method=Local(), data=data, model=model, train=train, client_models={}, client_train_settings={}
    )


def shadow_clients(
    config: RunConfig, device_data: DeviceDataset, examples: Examples, training_masks: NDArray[np.bool_], seed: int
) -> list[SimulatedClient]:
    """A client for each row of `chosen`, which says what it trains on."""
    classroom, clients = LearnerFactory(config), []
    for number, row in enumerate(training_masks):
        places = torch.tensor(np.flatnonzero(row))
        private = replace(
            examples,
            indices=examples.indices[places.to(examples.indices.device)],
            labels=examples.targets[places.to(examples.device)],
        )
        learner = classroom.learner(number, private, device_data)
        clients.append(
            SimulatedClient(
                number,
                seed,
                private,
                device_data.public_examples,
                learner,
                config.train,
                device_data.dataset.num_classes,
            )
        )
    return clients
