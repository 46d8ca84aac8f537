"""A finished run played again in memory, to hear what its clients would have said in every round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedmosaic_cli.audit.audit_metrics import AttackScores
from fedmosaic_cli.audit.label_queries import AuditClient, query_labels
from fedmosaic_cli.audit.membership_attacks import message_scores
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.labels.privacy.privatize import HISTOGRAM_KEY
from fedmosaic_cli.runner.build import build_federation
from fedmosaic_cli.runner.run_state import to_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedmosaic_cli.audit.members import MembershipCandidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.engine.client import SimulatedClient
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.runner.build import DeviceDataset
    from fedmosaic_cli.runner.evaluate import FinishedRun


@dataclass(frozen=True)
class ReplayResult:
    """All messages of each client that sent some; and whether the clients arrived at the models that were saved."""

    scores_by_client: dict[int, AttackScores]
    is_identical: bool


def replay_run(
    run: FinishedRun,
    device_data: DeviceDataset,
    partition: Partition,
    all_candidates: Sequence[MembershipCandidates],
    on_progress: ProgressCallback,
) -> ReplayResult:
    """Play the run from its first round to its last; nothing is written."""
    rounds, heard = (
        run.config.train.rounds,
        {candidates.client_id: MeanAttackScores(candidates) for candidates in all_candidates},
    )
    federation = build_federation(run.config, device_data.dataset, partition, [device_data.device])
    on_progress("playing the run again", 0, rounds)
    with federation.worker_pool:
        for done in run_rounds(federation, rounds):
            spoke = {row["client"] for row in done.rows if row["bits_up"]}
            for client in federation.state.clients:
                if client.id in spoke & heard.keys():
                    heard[client.id].add(
                        round_message_scores(client, federation, heard[client.id].candidates, run.config)
                    )
            on_progress("playing the run again", done.number, rounds)
        means = {client: mean.average() for client, mean in heard.items() if mean.num_rounds}
        return ReplayResult(means, matches_saved_models(run, federation))


def round_message_scores(
    client: SimulatedClient, federation: Federation, candidates: MembershipCandidates, config: RunConfig
) -> AttackScores:
    """What the client's message of this round would tell about the candidates."""
    model = federation.method.personal_model(federation.state.server, client)
    logits = client.learner.predict(model, candidate_examples(client.private, candidates)).cpu()
    released_before = {HISTOGRAM_KEY: client.state[HISTOGRAM_KEY]} if HISTOGRAM_KEY in client.state else {}
    witness = AuditClient(client.id, client.round, client.class_counts, config.seed, released_before)
    return score_message(candidates, *query_labels(config, logits.log_softmax(dim=1), witness))


def score_message(candidates: MembershipCandidates, labels: np.ndarray, expertise: np.ndarray | None) -> AttackScores:
    """A statement about the candidates as scores."""
    truth = candidates.all_labels
    return AttackScores(message_scores(labels, expertise, truth), message_scores(labels, None, truth))


def candidate_examples(examples: Examples, candidates: MembershipCandidates) -> Examples:
    """The candidates, out of the same images and on the same device as `some` examples."""
    index = torch.tensor(candidates.all_indices, device=examples.indices.device)
    return replace(examples, indices=index, labels=torch.tensor(candidates.all_labels, device=examples.device))


def matches_saved_models(run: FinishedRun, federation: Federation) -> bool:
    """Whether every client ends with its saved model, bit for bit."""
    for client in federation.state.clients:
        ours = to_arrays(federation.method.personal_model(federation.state.server, client))
        saved = run.files.load_model(client.id, run.summary.get("models", {}))
        if ours.keys() != saved.keys() or any(ours[name].tobytes() != saved[name].tobytes() for name in ours):
            return False
    return True


class MeanAttackScores:
    """The mean over rounds of what is seen of a client's candidates."""

    def __init__(self, candidates: MembershipCandidates) -> None:
        self.candidates = candidates
        self.num_rounds = 0
        self._scores, self._correctness = np.zeros((2, 2 * len(candidates)))

    def add(self, attack_scores: AttackScores) -> None:
        self.num_rounds += 1
        self._scores += attack_scores.scores
        self._correctness += attack_scores.correctness

    def average(self) -> AttackScores:
        return AttackScores(self._scores / self.num_rounds, self._correctness / self.num_rounds)
