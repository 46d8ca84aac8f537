"""A finished run played again in memory, to hear what its clients would have said in every round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.audit.audit_metrics import Seen
from fedmosaic_cli.audit.label_queries import Witness, statement
from fedmosaic_cli.audit.membership_attacks import message_scores
from fedmosaic_cli.engine.rounds import play
from fedmosaic_cli.labels.privacy.privatize import HISTOGRAM
from fedmosaic_cli.runner.build import assemble
from fedmosaic_cli.runner.run_state import to_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.audit.members import Candidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Watch
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.rounds import Federation
    from fedmosaic_cli.runner.build import Table
    from fedmosaic_cli.runner.evaluate import Finished


@dataclass(frozen=True)
class Replayed:
    """All messages of each client that sent some; and whether the clients arrived at the models that were saved."""

    heard: dict[int, Seen]
    identical: bool


def replay(run: Finished, table: Table, dealt: Partition, audited: Sequence[Candidates], watch: Watch) -> Replayed:
    """Play the run from its first round to its last; nothing is written."""
    rounds, heard = run.config.train.rounds, {candidates.client: Mean(candidates) for candidates in audited}
    federation = assemble(run.config, table.dataset, dealt, [table.device])
    watch("playing the run again", 0, rounds)
    with federation.workers:
        for done in play(federation, rounds):
            spoke = {row["client"] for row in done.rows if row["bits_up"]}
            for client in federation.standing.clients:
                if client.id in spoke & heard.keys():
                    heard[client.id].add(heard_from(client, federation, heard[client.id].candidates, run.config))
            watch("playing the run again", done.number, rounds)
        means = {client: mean.seen() for client, mean in heard.items() if mean.rounds}
        return Replayed(means, arrived(run, federation))


def heard_from(client: SimulatedClient, federation: Federation, candidates: Candidates, config: RunConfig) -> Seen:
    """What the client's message of this round would tell about the candidates."""
    model = federation.method.personal(federation.standing.server, client)
    logits = client.learner.predict(model, asked_about(client.private, candidates)).cpu()
    released_before = {HISTOGRAM: client.state[HISTOGRAM]} if HISTOGRAM in client.state else {}
    witness = Witness(client.id, client.round, client.class_counts, config.seed, released_before)
    return told(candidates, *statement(config, logits.log_softmax(dim=1), witness))


def told(candidates: Candidates, labels: np.ndarray, expertise: np.ndarray | None) -> Seen:
    """A statement about the candidates as scores."""
    truth = candidates.all_labels
    return Seen(message_scores(labels, expertise, truth), message_scores(labels, None, truth))


def asked_about(some: Examples, candidates: Candidates) -> Examples:
    """The candidates, out of the same images and on the same device as `some` examples."""
    index = torch.tensor(candidates.index, device=some.index.device)
    return replace(some, index=index, labels=torch.tensor(candidates.all_labels, device=some.device))


def arrived(run: Finished, federation: Federation) -> bool:
    """Whether every client ends with its saved model, bit for bit."""
    for client in federation.standing.clients:
        ours = to_arrays(federation.method.personal(federation.standing.server, client))
        saved = run.files.load_model(client.id, run.summary.get("models", {}))
        if ours.keys() != saved.keys() or any(ours[name].tobytes() != saved[name].tobytes() for name in ours):
            return False
    return True


class Mean:
    """The mean over rounds of what is seen of a client's candidates."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.rounds = 0
        self._scores, self._right = np.zeros((2, 2 * len(candidates)))

    def add(self, seen: Seen) -> None:
        self.rounds += 1
        self._scores += seen.scores
        self._right += seen.right

    def seen(self) -> Seen:
        return Seen(self._scores / self.rounds, self._right / self.rounds)
