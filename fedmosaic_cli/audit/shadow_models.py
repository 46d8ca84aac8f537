"""Shadow models: the confidence of models that were, and were not, trained on an example."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.audit.membership_attacks import logit_scaled_confidence, shadow_training_masks
from fedmosaic_cli.audit.replay import candidate_examples
from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.execution.modes import num_workers
from fedmosaic_cli.engine.execution.worker_pool import WorkerPool
from fedmosaic_cli.engine.federation import Federation, init_state
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.server import InProcessServer
from fedmosaic_cli.errors import DivergenceError, RunFailedError
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.learner_factory import LearnerFactory
from fedmosaic_cli.seeds import derive_rng, derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.audit.members import MembershipCandidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.partitioning.partition import Shard
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.runner.device_dataset import DeviceDataset
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
    """Train shadow models of one client, each alone on a random half of the candidates.

    They train with the client's settings and its number of steps per round, for `rounds` rounds. Their states are in
    memory whatever `train.client_state` is, because only the shadow models of one client exist at a time.

    Returns:
        Confidences and training masks, both [models, candidates].
    """
    config = shadow_config(run.config, shard, num_models)
    seed = derive_seed(run.config.seed, "audit", "reference", shard.client)
    masks = shadow_training_masks(2 * len(candidates), num_models, derive_rng(seed, "halves"))
    examples = candidate_examples(device_data.public_examples, candidates)
    clients = shadow_clients(config, device_data, examples, masks, seed)
    ctx = FederationInfo(device_data.dataset.num_classes, {}, {}, rounds)
    workers = WorkerPool(num_workers(config.train.workers, num_models, device_data.device))
    state = init_state(Local(), clients, InProcessServer(seed, device_data.device), ctx)
    skip_diverged = config.train.on_nan == "skip"
    federation = Federation(Local(), ctx, [], workers, state, seed, num_models, device_data.device, "", skip_diverged)
    with workers:
        try:
            for _ in run_rounds(federation, rounds):
                on_round()
        except DivergenceError:
            raise RunFailedError(
                f"a shadow model for client {shard.client} diverged ({run.files.path}): audit without --lira"
            ) from None
    logits = [client.learner.predict(client.state["model"], examples).cpu().numpy() for client in clients]
    return np.stack([logit_scaled_confidence(each, candidates.all_labels) for each in logits]), masks


def shadow_config(config: RunConfig, shard: Shard, num_models: int) -> RunConfig:
    """Return the configuration of a run whose clients are the shadow models, with individual initial models."""
    train = config.train_settings_for(shard.client)
    steps_per_round = train.steps_per_round(len(shard.train))
    train = train.model_copy(update={"local_steps": steps_per_round, "init": "per-client", "clients_per_round": None})
    data = config.data.model_copy(update={"clients": num_models})
    model = config.model_settings_for(shard.client)
    return replace(
        config, method=Local(), data=data, model=model, train=train, client_models={}, client_train_settings={}
    )


def shadow_clients(
    config: RunConfig, device_data: DeviceDataset, examples: Examples, training_masks: NDArray[np.bool_], seed: int
) -> list[InProcessClient]:
    """Create one client per row of the training masks."""
    factory, clients = LearnerFactory(config), []
    for number, mask in enumerate(training_masks):
        index = torch.tensor(np.flatnonzero(mask))
        private = replace(
            examples,
            indices=examples.indices[index.to(examples.indices.device)],
            labels=examples.targets[index.to(examples.device)],
        )
        learner = factory.learner(number, private, device_data)
        public, num_classes = device_data.public_examples, device_data.dataset.num_classes
        clients.append(InProcessClient(number, seed, private, public, learner, config.train, num_classes))
    return clients
