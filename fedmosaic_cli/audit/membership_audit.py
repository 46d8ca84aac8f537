"""Membership-inference audit of finished runs: can training examples be distinguished from other examples?

Each view is an attack. In `messages-last` and `messages-all` a malicious server adds the candidates to the public set
and reads the client's messages. In `model-loss` and `model-lira-...` the attacker has the client's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmosaic_cli.audit.audit_metrics import AttackScores, AttackViews, audit_metrics
from fedmosaic_cli.audit.members import MIN_CANDIDATES, candidates_per_client
from fedmosaic_cli.audit.membership_attacks import lira_scores, logit_scaled_confidence
from fedmosaic_cli.audit.replay import AuditClient, candidate_examples, query_labels, replay_run, score_message
from fedmosaic_cli.audit.shadow_models import shadow_confidences
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.build import find_devices, with_poisoned_labels
from fedmosaic_cli.runner.evaluate import (
    COPIED_SUMMARY_KEYS,
    load_finished_run,
    load_run_data,
    load_saved_models,
    predict_logits,
    process_runs,
)
from fedmosaic_cli.storage.run_summary import SUMMARY_SCHEMA
from fedmosaic_cli.storage.runs import ROUNDS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from fedmosaic_cli.audit.members import MembershipCandidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.runner.device_dataset import DeviceDataset
    from fedmosaic_cli.runner.evaluate import FinishedRun
    from fedmosaic_cli.storage.runs import RunDirectory


@dataclass(frozen=True)
class AuditSettings:
    """Extent of an audit: messages of the last round only or of all rounds, and the number of shadow models."""

    last_round_only: bool = False
    num_shadow_models: int = 0


@dataclass(frozen=True)
class AuditResult:
    """The content of privacy.json for one run."""

    run_files: RunDirectory
    content: dict[str, Any]


@dataclass(frozen=True)
class AuditScope:
    """What an audit of a run covers.

    Attributes:
        candidates: The candidates of all audited clients.
        excluded: The number of candidates of each client that has too few.
        training_rounds: The number of rounds in which each client trained.
        senders: The clients that sent at least one message.
    """

    candidates: list[MembershipCandidates]
    excluded: dict[int, int]
    training_rounds: dict[int, int]
    senders: set[int]


def run_membership_audits(
    runs: Sequence[RunDirectory], settings: AuditSettings, device_name: str, data_dirs: DataDirs
) -> Iterator[AuditResult]:
    """Audit each run.

    Raises:
        RequestError: If a run has no client with enough candidates; checked for all runs before the first audit.
    """
    device = find_devices(device_name)[0]
    finished_runs = [load_finished_run(files, data_dirs) for files in runs]
    runs_by_data = sorted(finished_runs, key=lambda run: run.data_key)
    scopes = {run.files.path: audit_scope(run, data_dirs) for run in runs_by_data}

    def process(run: FinishedRun, device_data: DeviceDataset, partition: Partition) -> Iterator[AuditResult]:
        yield audit_run(run, device_data, partition, scopes[run.files.path], settings, data_dirs)

    yield from process_runs(finished_runs, device, data_dirs, process)


def audit_scope(run: FinishedRun, data_dirs: DataDirs) -> AuditScope:
    """Match candidates and read from the log which clients trained and sent messages."""
    dataset, partition = load_run_data(run, data_dirs)
    candidates = candidates_per_client(dataset, with_poisoned_labels(partition, run.config), run.config.seed)
    audited = [each for each in candidates if len(each) >= MIN_CANDIDATES]
    if not audited:
        raise RequestError(
            f"no client has {MIN_CANDIDATES} training examples that match unused examples by class, the maximum is "
            f"{max(map(len, candidates))} ({run.files.path}): use fewer clients, or more data"
        )
    run.files.verify_files(ROUNDS_FILE)
    training_rounds, senders = {each.client_id: 0 for each in candidates}, set()
    for row in run.files.read_rounds():
        training_rounds[row["client"]] += row["loss_private"] is not None
        senders |= {row["client"]} if row["bits_up"] else set()
    excluded = {each.client_id: len(each) for each in candidates if len(each) < MIN_CANDIDATES}
    return AuditScope(audited, excluded, training_rounds, senders)


def audit_run(
    run: FinishedRun,
    device_data: DeviceDataset,
    partition: Partition,
    scope: AuditScope,
    settings: AuditSettings,
    data_dirs: DataDirs,
) -> AuditResult:
    """Compute all views of all clients and their metrics."""
    method, notes = run.config.method, audit_notes(run.config, scope, settings)
    views = saved_model_views(run, device_data, partition, scope, data_dirs)
    identical = None
    if not settings.last_round_only and any("messages-last" in each for each in views.values()):
        replay = replay_run(run, device_data, partition, scope.candidates, data_dirs.on_progress)
        identical = replay.is_identical
        for client_id, scores in replay.scores_by_client.items():
            views[client_id]["messages-all"] = scores
        if not identical:
            notes.append("the replayed run did not end in the saved models, bit for bit: another machine or version")
    if settings.num_shadow_models and not method.needs.pooled_data:
        add_lira_views(views, run, device_data, partition, scope, settings.num_shadow_models, data_dirs)
    result = {
        "schema": SUMMARY_SCHEMA,
        **{key: run.summary[key] for key in COPIED_SUMMARY_KEYS},
        "device": str(device_data.device),
        "precision": run.config.train.precision,
        "references": 0 if method.needs.pooled_data else settings.num_shadow_models,
        "replay_identical": identical,
        **audit_metrics(views, scope.candidates, run.config.seed),
        "left_out": [{"client": client, "matched": count} for client, count in scope.excluded.items()],
        "notes": notes,
    }
    return AuditResult(run.files, result)


def audit_notes(config: RunConfig, scope: AuditScope, settings: AuditSettings) -> list[str]:
    """Explain missing or unusual views."""
    method, notes = config.method, []
    if config.attack.fabricates_uploads and method.info.shares_labels:
        clients = ", ".join(map(str, config.attack.clients))
        notes.append(f"attackers are audited as if they sent honest labels: client {clients}")
    if not method.info.shares_labels:
        notes.append(
            f"{method.info.title} sends no labels: only models are audited (exchanged: {method.info.exchanges})"
        )
    elif not scope.senders:
        notes.append("no labels were sent in any round: only models are audited")
    if method.needs.pooled_data:
        notes.append("there is one model for all clients, which is audited on the examples of each")
        if settings.num_shadow_models:
            notes.append("there are no shadow models of pooled data")
    if scope.excluded:
        clients = ", ".join(f"{client} ({count})" for client, count in scope.excluded.items())
        notes.append(f"clients with fewer than {MIN_CANDIDATES} matched examples are skipped: {clients}")
    return notes


def saved_model_views(
    run: FinishedRun, device_data: DeviceDataset, partition: Partition, scope: AuditScope, data_dirs: DataDirs
) -> dict[int, AttackViews]:
    """Compute the views of the saved models and of the last messages, which depend on these models."""
    views: dict[int, AttackViews] = {}
    candidates_by_client = {candidates.client_id: candidates for candidates in scope.candidates}
    data_dirs.on_progress("auditing clients", 0, len(candidates_by_client))
    for shard, predictor, model in load_saved_models(run, device_data, partition):
        if shard.client not in candidates_by_client:
            continue
        candidates, client_views = candidates_by_client[shard.client], views.setdefault(shard.client, {})
        logits = predict_logits(
            run, shard.client, predictor, model, candidate_examples(device_data.public_examples, candidates)
        )
        if run.config.method.info.shares_labels and shard.client in scope.senders:
            counts = torch.bincount(
                torch.tensor(shard.split_labels("train", device_data.dataset)),
                minlength=device_data.dataset.num_classes,
            )
            audit_client = AuditClient(shard.client, run.config.train.rounds, counts, run.config.seed)
            message = query_labels(run.config, logits.log_softmax(dim=1), audit_client)
            client_views["messages-last"] = score_message(candidates, *message)
        client_views["model-loss"] = model_view(logits, candidates)
        data_dirs.on_progress("auditing clients", len(views), len(candidates_by_client))
    return views


def model_view(logits: Tensor, candidates: MembershipCandidates) -> AttackScores:
    """Score the candidates by the model's confidence in their labels."""
    labels = candidates.all_labels
    correct = (logits.argmax(dim=1).numpy() == labels).astype(np.float64)
    return AttackScores(logit_scaled_confidence(logits.numpy(), labels), correct)


def add_lira_views(
    views: dict[int, AttackViews],
    run: FinishedRun,
    device_data: DeviceDataset,
    partition: Partition,
    scope: AuditScope,
    num_models: int,
    data_dirs: DataDirs,
) -> None:
    """Add the views of the likelihood-ratio attack."""
    done, total = 0, sum(scope.training_rounds[candidates.client_id] for candidates in scope.candidates)

    def on_round() -> None:
        nonlocal done
        done += 1
        data_dirs.on_progress("training shadow models", done, total)

    for candidates in scope.candidates:
        client_id, shard = candidates.client_id, partition.shards[candidates.client_id]
        rounds, target = scope.training_rounds[client_id], views[client_id]["model-loss"]
        shadows = shadow_confidences(run, device_data, shard, candidates, num_models, rounds, on_round)
        for name, scores in zip(("offline", "online"), lira_scores(target.scores, *shadows), strict=True):
            views[client_id][f"model-lira-{name}"] = AttackScores(scores, target.correctness)
