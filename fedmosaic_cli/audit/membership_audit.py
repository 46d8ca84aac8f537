"""The membership audit of finished runs: can anybody tell a client's training examples from others?

Views, each an attack of its own: `messages-last` and `messages-all` are those of a server that slipped the candidates
into the public set and hears what a client says of them, `model-loss` and `model-lira-...` those of whoever has the
client's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmosaic_cli.audit.audit_metrics import AttackScores, AttackViews, audit_metrics
from fedmosaic_cli.audit.label_queries import AuditClient, query_labels
from fedmosaic_cli.audit.members import MIN_CANDIDATES, candidates_per_client
from fedmosaic_cli.audit.membership_attacks import lira_scores, logit_scaled_confidence
from fedmosaic_cli.audit.replay import candidate_examples, replay_run, score_message
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
    from fedmosaic_cli.runner.build import DeviceDataset
    from fedmosaic_cli.runner.evaluate import FinishedRun
    from fedmosaic_cli.storage.runs import RunDirectory


@dataclass(frozen=True)
class AuditSettings:
    """How far an audit goes: the messages of the last round alone, or of all; how many reference models, if any."""

    last_round_only: bool = False
    num_shadow_models: int = 0


@dataclass(frozen=True)
class AuditResult:
    """All clients of a run: what is written to privacy.json."""

    run_files: RunDirectory
    content: dict[str, Any]


@dataclass(frozen=True)
class AuditScope:
    """Whom an audit of a run asks about.

    `left_out` are clients with too few candidates, and how many they have. `rounds` and `spoke` tell in how many rounds
    each client trained, and who ever sent something.
    """

    candidates: list[MembershipCandidates]
    excluded: dict[int, int]
    training_rounds: dict[int, int]
    senders: set[int]


def run_membership_audits(
    runs: Sequence[RunDirectory], settings: AuditSettings, device_name: str, data_dirs: DataDirs
) -> Iterator[AuditResult]:
    """The audit of each run. Runs in which nobody can be audited are refused before work begins on any."""
    device = find_devices(device_name)[0]
    opened = [load_finished_run(files, data_dirs) for files in runs]
    subjects = {run.files.path: audit_scope(run, data_dirs) for run in sorted(opened, key=lambda run: run.data_key)}

    def look(run: FinishedRun, table: DeviceDataset, dealt: Partition) -> Iterator[AuditResult]:
        yield audit_run(run, table, dealt, subjects[run.files.path], settings, data_dirs)

    yield from process_runs(opened, device, data_dirs, look)


def audit_scope(run: FinishedRun, data_dirs: DataDirs) -> AuditScope:
    """Refused where no client has enough candidates."""
    dataset, dealt = load_run_data(run, data_dirs)
    found = candidates_per_client(dataset, with_poisoned_labels(dealt, run.config), run.config.seed)
    enough = [candidates for candidates in found if len(candidates) >= MIN_CANDIDATES]
    if not enough:
        raise RequestError(
            f"no client has {MIN_CANDIDATES} training examples to be matched by class with as many that nobody trained on, "
            f"the most is {max(map(len, found))} ({run.files.path}): deal to fewer clients, or use more data"
        )
    run.files.verify_files(ROUNDS_FILE)
    rounds, spoke = {each.client_id: 0 for each in found}, set()
    for row in run.files.read_rounds():
        rounds[row["client"]] += row["loss_private"] is not None
        spoke |= {row["client"]} if row["bits_up"] else set()
    return AuditScope(
        enough, {each.client_id: len(each) for each in found if len(each) < MIN_CANDIDATES}, rounds, spoke
    )


def audit_run(
    run: FinishedRun,
    device_data: DeviceDataset,
    partition: Partition,
    scope: AuditScope,
    settings: AuditSettings,
    data_dirs: DataDirs,
) -> AuditResult:
    """All views of all clients, and what they come to."""
    method, notes = run.config.method, audit_notes(run.config, scope, settings)
    views = saved_model_views(run, device_data, partition, scope, data_dirs)
    identical = None
    if not settings.last_round_only and any("messages-last" in each for each in views.values()):
        again = replay_run(run, device_data, partition, scope.candidates, data_dirs.on_progress)
        identical = again.is_identical
        for client, heard in again.scores_by_client.items():
            views[client]["messages-all"] = heard
        if not identical:
            notes.append(
                "played again, the run did not end in the saved models, bit for bit: another machine or version"
            )
    if settings.num_shadow_models and not method.is_centralized:
        add_lira_views(views, run, device_data, partition, scope, settings.num_shadow_models, data_dirs)
    result = {
        "schema": SUMMARY_SCHEMA,
        **{key: run.summary[key] for key in COPIED_SUMMARY_KEYS},
        "device": str(device_data.device),
        "precision": run.config.train.precision,
        "references": 0 if method.is_centralized else settings.num_shadow_models,
        "replay_identical": identical,
        **audit_metrics(views, scope.candidates, run.config.seed),
        "left_out": [{"client": client, "matched": count} for client, count in scope.excluded.items()],
        "notes": notes,
    }
    return AuditResult(run.files, result)


def audit_notes(config: RunConfig, scope: AuditScope, settings: AuditSettings) -> list[str]:
    """What a reader has to know about views that are missing, or not what they seem."""
    method, found = config.method, []
    if config.attack.fabricates_uploads and method.shares_labels:
        who = ", ".join(map(str, config.attack.clients))
        found.append(f"attackers are asked as if they told what they found: client {who}")
    if not method.shares_labels:
        found.append(f"{method.title} sends no labels: only models are looked at (what travels: {method.travels})")
    elif not scope.senders:
        found.append("no labels were sent in any round: only models are looked at")
    if method.is_centralized:
        found.append("there is one model for all clients, asked about the examples of each")
        if settings.num_shadow_models:
            found.append("there are no reference models of pooled data")
    if scope.excluded:
        who = ", ".join(f"{client} ({count})" for client, count in scope.excluded.items())
        found.append(f"clients with fewer than {MIN_CANDIDATES} matched examples are left out: {who}")
    return found


def saved_model_views(
    run: FinishedRun, device_data: DeviceDataset, partition: Partition, scope: AuditScope, data_dirs: DataDirs
) -> dict[int, AttackViews]:
    """What the saved models show, and what they would say in their clients' last message."""
    views: dict[int, AttackViews] = {}
    chosen = {candidates.client_id: candidates for candidates in scope.candidates}
    data_dirs.on_progress("auditing clients", 0, len(chosen))
    for shard, learner, model in load_saved_models(run, device_data, partition):
        if shard.client not in chosen:
            continue
        candidates, own = chosen[shard.client], views.setdefault(shard.client, {})
        logits = predict_logits(
            run, shard.client, learner, model, candidate_examples(device_data.public_examples, candidates)
        )
        if run.config.method.shares_labels and shard.client in scope.senders:
            counts = torch.bincount(
                torch.tensor(shard.split_labels("train", device_data.dataset)),
                minlength=device_data.dataset.num_classes,
            )
            witness = AuditClient(shard.client, run.config.train.rounds, counts, run.config.seed)
            said = query_labels(run.config, logits.log_softmax(dim=1), witness)
            own["messages-last"] = score_message(candidates, *said)
        own["model-loss"] = model_view(logits, candidates)
        data_dirs.on_progress("auditing clients", len(views), len(chosen))
    return views


def model_view(logits: Tensor, candidates: MembershipCandidates) -> AttackScores:
    """How sure the model is of each candidate's label."""
    labels = candidates.all_labels
    right = (logits.argmax(dim=1).numpy() == labels).astype(np.float64)
    return AttackScores(logit_scaled_confidence(logits.numpy(), labels), right)


def add_lira_views(
    views: dict[int, AttackViews],
    run: FinishedRun,
    device_data: DeviceDataset,
    partition: Partition,
    scope: AuditScope,
    num_models: int,
    data_dirs: DataDirs,
) -> None:
    """Lay the views of the likelihood-ratio attack beside the others."""
    done, total = 0, sum(scope.training_rounds[candidates.client_id] for candidates in scope.candidates)

    def tell() -> None:
        nonlocal done
        done += 1
        data_dirs.on_progress("training reference models", done, total)

    for candidates in scope.candidates:
        client, shard = candidates.client_id, partition.shards[candidates.client_id]
        found = shadow_confidences(run, device_data, shard, candidates, num_models, scope.training_rounds[client], tell)
        plain = views[client]["model-loss"]
        for name, scores in zip(("offline", "online"), lira_scores(plain.scores, *found), strict=True):
            views[client][f"model-lira-{name}"] = AttackScores(scores, plain.correctness)
