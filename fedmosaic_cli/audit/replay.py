"""What the messages of a run reveal: its rounds are repeated to query each client about candidates."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmosaic_cli.audit.audit_metrics import AttackScores
from fedmosaic_cli.audit.membership_attacks import message_scores
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.messages import MessageHeader
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.privacy.privatize import HISTOGRAM_KEY, privatize
from fedmosaic_cli.labels.sharing import EXTENSION_KEY, LabelSharing
from fedmosaic_cli.labels.voting import Ballot
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.runner.build import build_federation
from fedmosaic_cli.runner.checkpoint_state import to_arrays
from fedmosaic_cli.runner.client_state_files import client_state_files
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.audit.members import MembershipCandidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import ProgressCallback
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.engine.client import InProcessClient
    from fedmosaic_cli.engine.context import State
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.runner.device_dataset import DeviceDataset
    from fedmosaic_cli.runner.evaluate import FinishedRun


@dataclass
class AuditClient:
    """Replaces a client in a query. Its privacy noise has the same distribution, but comes from another stream."""

    id: int
    round: int
    class_counts: Tensor
    seed: int
    state: State = field(default_factory=dict)

    def privacy_rng(self, purpose: str) -> np.random.Generator:
        return derive_rng(self.seed, "audit", purpose, self.id, self.round)


def query_labels(
    config: RunConfig, log_probs: Tensor, client: AuditClient
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Return what the server would receive if these examples were public: labels, and vote weights.

    The weights are None if the method sends labels only.
    """
    method = config.method
    if not isinstance(method, FedCT):
        raise TypeError(f"{method.info.title} sends no labels")
    noise = None if config.noise is None else replace(config.noise, max_epsilon=None)  # queries spend no budget
    ctx = FederationInfo(
        num_classes=log_probs.shape[1],
        initial_model={},
        client_sizes={client.id: int(client.class_counts.sum())},
        num_rounds=1,
        public_size=config.data.public_size or 0,
        extensions={EXTENSION_KEY: LabelSharing(privacy_noise=noise)},
    )
    spec = replace(method.message_spec(ctx), public_size=len(log_probs))
    labels = log_probs.argmax(dim=1)
    released = privatize(labels.numpy(), method.compute_expertise(log_probs, labels, client), client, ctx, spec)
    header = MessageHeader(ctx.run_id, ctx.public_set_id, client.round, client.id)
    ballot = Ballot(client.id, wire.encode_label_upload(header, spec, *released), spec)
    received, weights = ballot.labels(), ballot.weights()
    if weights.ndim > 1 and received.ndim == 1:  # one weight per class, one class per example
        weights = weights[0, received]
    return received, None if spec.expertise_encoding is wire.ExpertiseEncoding.NONE else weights


def score_message(candidates: MembershipCandidates, labels: np.ndarray, expertise: np.ndarray | None) -> AttackScores:
    """Score the candidates by a message about them."""
    true_labels = candidates.all_labels
    return AttackScores(message_scores(labels, expertise, true_labels), message_scores(labels, None, true_labels))


def candidate_examples(examples: Examples, candidates: MembershipCandidates) -> Examples:
    """Select the candidates from the images behind `examples`, on the same device."""
    index = torch.tensor(candidates.all_indices, device=examples.indices.device)
    return replace(examples, indices=index, labels=torch.tensor(candidates.all_labels, device=examples.device))


@dataclass(frozen=True)
class ReplayResult:
    """The mean scores of each client over its messages, and whether the replay reproduced the saved models."""

    scores_by_client: dict[int, AttackScores]
    is_identical: bool


def replay_run(
    run: FinishedRun,
    device_data: DeviceDataset,
    partition: Partition,
    all_candidates: Sequence[MembershipCandidates],
    on_progress: ProgressCallback,
) -> ReplayResult:
    """Repeat all rounds of a run and query the clients after each message.

    States of clients are where the run had them: in memory, or in a temporary directory of the run
    (`train.client_state`).
    """
    config, rounds = run.config, run.config.train.rounds
    candidates_by_client = {candidates.client_id: candidates for candidates in all_candidates}
    sums: dict[int, Any] = {}
    num_messages: Counter[int] = Counter()
    on_progress("replaying the run", 0, rounds)
    with ExitStack() as resources:
        store = resources.enter_context(client_state_files(config.train.client_state, run.files))
        federation = build_federation(config, device_data.dataset, partition, [device_data.device], state_store=store)
        resources.enter_context(federation.worker_pool)
        for record in run_rounds(federation, rounds):
            senders = {row["client"] for row in record.rows if row["bits_up"]}
            for client in federation.state.clients:
                if client.id in senders & candidates_by_client.keys():
                    view = round_message_scores(client, federation, candidates_by_client[client.id], config)
                    client.release_state(is_changed=False)
                    sums[client.id] = sums.get(client.id, 0.0) + np.stack([view.scores, view.correctness])
                    num_messages[client.id] += 1
            on_progress("replaying the run", record.number, rounds)
        means = {client_id: AttackScores(*(total / num_messages[client_id])) for client_id, total in sums.items()}
        return ReplayResult(means, matches_saved_models(run, federation))


def round_message_scores(
    client: InProcessClient, federation: Federation, candidates: MembershipCandidates, config: RunConfig
) -> AttackScores:
    """Query a client about the candidates after the current round."""
    model = federation.method.personal_model(client, ServerView(federation).for_client(client))
    logits = federation.method.predict(model, client.predictor, candidate_examples(client.private, candidates)).cpu()
    released_before = {HISTOGRAM_KEY: client.state[HISTOGRAM_KEY]} if HISTOGRAM_KEY in client.state else {}
    audit_client = AuditClient(client.id, client.round, client.class_counts, config.seed, released_before)
    return score_message(candidates, *query_labels(config, logits.log_softmax(dim=1), audit_client))


def matches_saved_models(run: FinishedRun, federation: Federation) -> bool:
    """Return whether every client's model equals its saved model, bit for bit."""
    for client in federation.state.clients:
        model = to_arrays(federation.method.personal_model(client, ServerView(federation).for_client(client)))
        client.release_state(is_changed=False)
        saved = run.files.load_model(client.id, run.summary.get("models", {}))
        if model.keys() != saved.keys() or any(model[name].tobytes() != saved[name].tobytes() for name in model):
            return False
    return True
