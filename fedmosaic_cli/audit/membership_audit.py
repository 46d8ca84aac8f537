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

from fedmosaic_cli.audit.audit_metrics import Seen, Views, findings
from fedmosaic_cli.audit.label_queries import Witness, statement
from fedmosaic_cli.audit.members import LEAST, all_candidates
from fedmosaic_cli.audit.membership_attacks import confidence, likelihood_scores
from fedmosaic_cli.audit.replay import asked_about, replay, told
from fedmosaic_cli.audit.shadow_models import reference_confidences
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.build import as_trained_on, find_devices
from fedmosaic_cli.runner.evaluate import ABOUT_THE_RUN, answers, data_of, on_their_data, open_run, saved_models
from fedmosaic_cli.storage.run_summary import SCHEMA
from fedmosaic_cli.storage.runs import ROUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from fedmosaic_cli.audit.members import Candidates
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.data.partitioning.partition import Partition
    from fedmosaic_cli.runner.build import Table
    from fedmosaic_cli.runner.evaluate import Finished
    from fedmosaic_cli.storage.runs import RunFiles


@dataclass(frozen=True)
class Terms:
    """How far an audit goes: the messages of the last round alone, or of all; how many reference models, if any."""

    last_round: bool = False
    references: int = 0


@dataclass(frozen=True)
class Audited:
    """All clients of a run: what is written to privacy.json."""

    files: RunFiles
    result: dict[str, Any]


@dataclass(frozen=True)
class Subjects:
    """Whom an audit of a run asks about.

    `left_out` are clients with too few candidates, and how many they have. `rounds` and `spoke` tell in how many rounds
    each client trained, and who ever sent something.
    """

    audited: list[Candidates]
    left_out: dict[int, int]
    rounds: dict[int, int]
    spoke: set[int]


def audit(runs: Sequence[RunFiles], terms: Terms, device_name: str, place: Place) -> Iterator[Audited]:
    """The audit of each run. Runs in which nobody can be audited are refused before work begins on any."""
    device = find_devices(device_name)[0]
    opened = [open_run(files, place) for files in runs]
    subjects = {run.files.path: subjects_of(run, place) for run in sorted(opened, key=lambda run: run.data)}

    def look(run: Finished, table: Table, dealt: Partition) -> Iterator[Audited]:
        yield audit_run(run, table, dealt, subjects[run.files.path], terms, place)

    yield from on_their_data(opened, device, place, look)


def subjects_of(run: Finished, place: Place) -> Subjects:
    """Refused where no client has enough candidates."""
    dataset, dealt = data_of(run, place)
    found = all_candidates(dataset, as_trained_on(dealt, run.config), run.config.seed)
    enough = [candidates for candidates in found if len(candidates) >= LEAST]
    if not enough:
        raise RequestError(
            f"no client has {LEAST} training examples to be matched by class with as many that nobody trained on, "
            f"the most is {max(map(len, found))} ({run.files.path}): deal to fewer clients, or use more data"
        )
    run.files.check(ROUNDS)
    rounds, spoke = {each.client: 0 for each in found}, set()
    for row in run.files.rounds():
        rounds[row["client"]] += row["loss_private"] is not None
        spoke |= {row["client"]} if row["bits_up"] else set()
    return Subjects(enough, {each.client: len(each) for each in found if len(each) < LEAST}, rounds, spoke)


def audit_run(run: Finished, table: Table, dealt: Partition, subjects: Subjects, terms: Terms, place: Place) -> Audited:
    """All views of all clients, and what they come to."""
    method, notes = run.config.method, remarks(run.config, subjects, terms)
    views = views_of_saved(run, table, dealt, subjects, place)
    identical = None
    if not terms.last_round and any("messages-last" in each for each in views.values()):
        again = replay(run, table, dealt, subjects.audited, place.watch)
        identical = again.identical
        for client, heard in again.heard.items():
            views[client]["messages-all"] = heard
        if not identical:
            notes.append(
                "played again, the run did not end in the saved models, bit for bit: another machine or version"
            )
    if terms.references and not method.pooled:
        add_likelihoods(views, run, table, dealt, subjects, terms.references, place)
    result = {
        "schema": SCHEMA,
        **{key: run.summary[key] for key in ABOUT_THE_RUN},
        "device": str(table.device),
        "precision": run.config.train.precision,
        "references": 0 if method.pooled else terms.references,
        "replay_identical": identical,
        **findings(views, subjects.audited, run.config.seed),
        "left_out": [{"client": client, "matched": count} for client, count in subjects.left_out.items()],
        "notes": notes,
    }
    return Audited(run.files, result)


def remarks(config: RunConfig, subjects: Subjects, terms: Terms) -> list[str]:
    """What a reader has to know about views that are missing, or not what they seem."""
    method, found = config.method, []
    if config.attack.lies and method.shares_labels:
        who = ", ".join(map(str, config.attack.clients))
        found.append(f"attackers are asked as if they told what they found: client {who}")
    if not method.shares_labels:
        found.append(f"{method.title} sends no labels: only models are looked at (what travels: {method.travels})")
    elif not subjects.spoke:
        found.append("no labels were sent in any round: only models are looked at")
    if method.pooled:
        found.append("there is one model for all clients, asked about the examples of each")
        if terms.references:
            found.append("there are no reference models of pooled data")
    if subjects.left_out:
        who = ", ".join(f"{client} ({count})" for client, count in subjects.left_out.items())
        found.append(f"clients with fewer than {LEAST} matched examples are left out: {who}")
    return found


def views_of_saved(run: Finished, table: Table, dealt: Partition, subjects: Subjects, place: Place) -> dict[int, Views]:
    """What the saved models show, and what they would say in their clients' last message."""
    views: dict[int, Views] = {}
    chosen = {candidates.client: candidates for candidates in subjects.audited}
    place.watch("auditing clients", 0, len(chosen))
    for shard, learner, model in saved_models(run, table, dealt):
        if shard.client not in chosen:
            continue
        candidates, own = chosen[shard.client], views.setdefault(shard.client, {})
        logits = answers(run, shard.client, learner, model, asked_about(table.public, candidates))
        if run.config.method.shares_labels and shard.client in subjects.spoke:
            counts = torch.bincount(
                torch.tensor(shard.labels("train", table.dataset)), minlength=table.dataset.num_classes
            )
            witness = Witness(shard.client, run.config.train.rounds, counts, run.config.seed)
            said = statement(run.config, logits.log_softmax(dim=1), witness)
            own["messages-last"] = told(candidates, *said)
        own["model-loss"] = model_view(logits, candidates)
        place.watch("auditing clients", len(views), len(chosen))
    return views


def model_view(logits: Tensor, candidates: Candidates) -> Seen:
    """How sure the model is of each candidate's label."""
    labels = candidates.all_labels
    right = (logits.argmax(dim=1).numpy() == labels).astype(np.float64)
    return Seen(confidence(logits.numpy(), labels), right)


def add_likelihoods(
    views: dict[int, Views],
    run: Finished,
    table: Table,
    dealt: Partition,
    subjects: Subjects,
    models: int,
    place: Place,
) -> None:
    """Lay the views of the likelihood-ratio attack beside the others."""
    done, total = 0, sum(subjects.rounds[candidates.client] for candidates in subjects.audited)

    def tell() -> None:
        nonlocal done
        done += 1
        place.watch("training reference models", done, total)

    for candidates in subjects.audited:
        client, shard = candidates.client, dealt.shards[candidates.client]
        found = reference_confidences(run, table, shard, candidates, models, subjects.rounds[client], tell)
        plain = views[client]["model-loss"]
        for name, scores in zip(("offline", "online"), likelihood_scores(plain.scores, *found), strict=True):
            views[client][f"model-lira-{name}"] = Seen(scores, plain.right)
