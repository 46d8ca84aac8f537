"""Reference models: what a model would make of an example if it had, and if it had not, been trained on it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.audit.membership_attacks import confidence, halves
from fedmosaic_cli.audit.replay import asked_about
from fedmosaic_cli.engine.client import SimulatedClient
from fedmosaic_cli.engine.execution.modes import worker_count
from fedmosaic_cli.engine.execution.worker_pool import Workers
from fedmosaic_cli.engine.method import World
from fedmosaic_cli.engine.rounds import Federation, begin, play
from fedmosaic_cli.errors import DivergenceError, FailedRunError
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.build import Classroom
from fedmosaic_cli.seeds import derive, generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fedmosaic_cli.audit.members import Candidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.partitioning.partition import Shard
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.runner.build import Table
    from fedmosaic_cli.runner.evaluate import Finished


def reference_confidences(
    run: Finished,
    table: Table,
    shard: Shard,
    candidates: Candidates,
    models: int,
    rounds: int,
    told: Callable[[], None],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[models, candidates]: the confidence of `models` that each trained alone on a half, and who trained on what.

    They train as the client did, as many steps in each of `rounds` rounds; after each of them somebody is `told`.
    """
    config = alone(run.config, shard, models)
    seed = derive(run.config.seed, "audit", "reference", shard.client)
    chosen = halves(2 * len(candidates), models, generator(seed, "halves"))
    everything = asked_about(table.public, candidates)
    clients = pupils(config, table, everything, chosen, seed)
    world = World(table.dataset.num_classes, {}, {}, rounds)
    workers = Workers(worker_count(config.train.workers, models, table.device))
    standing = begin(Local(), clients, world)
    skips = config.train.on_nan == "skip"
    federation = Federation(Local(), world, [], workers, standing, seed, models, table.device, "", skips)
    with workers:
        try:
            for _ in play(federation, rounds):
                told()
        except DivergenceError:
            raise FailedRunError(
                f"a reference model for client {shard.client} diverged ({run.files.path}): audit without --lira"
            ) from None
    answers = [client.learner.predict(client.state["model"], everything).cpu().numpy() for client in clients]
    return np.stack([confidence(each, candidates.all_labels) for each in answers]), chosen


def alone(config: RunConfig, shard: Shard, models: int) -> RunConfig:
    """The run as if the client's reference models were its only clients, each with a start of its own."""
    train = config.train_of(shard.client)
    a_round = train.local_steps or train.local_epochs * -(-len(shard.train) // train.batch_size)
    train = train.model_copy(update={"local_steps": a_round, "init": "per-client", "clients_per_round": None})
    data = config.data.model_copy(update={"clients": models})
    model = config.model_of(shard.client)
    return replace(config, method=Local(), data=data, model=model, train=train, models={}, trainings={})


def pupils(
    config: RunConfig, table: Table, everything: Examples, chosen: NDArray[np.bool_], seed: int
) -> list[SimulatedClient]:
    """A client for each row of `chosen`, which says what it trains on."""
    classroom, clients = Classroom(config), []
    for number, row in enumerate(chosen):
        places = torch.tensor(np.flatnonzero(row))
        private = replace(
            everything,
            index=everything.index[places.to(everything.index.device)],
            labels=everything.targets[places.to(everything.device)],
        )
        learner = classroom.learner(number, private, table)
        clients.append(
            SimulatedClient(number, seed, private, table.public, learner, config.train, table.dataset.num_classes)
        )
    return clients
