"""Gated co-training: identities, and common mistakes that violate them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.execution.modes import ExecutionMode
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.gated import ExtendedFedMosaic, GatedCoTraining
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.toys import TOYS, Toy, close, from_disk, make_toy, models, personal_models, run_toy, same

THREE = GatedCoTraining(gate_folds=3, gate_budget=0.5, votes_from="self")
NEVER, ALWAYS = replace(THREE, gate_z=1e30), replace(THREE, gate_z=-1e30, trust_min=0.0)
BIG = make_toy([24, 18, 30], public=21).changed(local_steps=12)
EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


def rows_by_round(method: FedMosaic, toy: Toy, rounds: int) -> list[list[dict[str, Any]]]:
    federation = toy.changed(rounds=rounds).federation(method)
    with federation.worker_pool:
        return [done.rows for done in run_rounds(federation, rounds)]


def make_info(rounds: int) -> FederationInfo:
    return FederationInfo(num_classes=3, initial_model={}, client_sizes={}, num_rounds=rounds)


@EVERY_TOY
def test_client_that_fails_the_gate_equals_local_training(toy):
    longer = toy.changed(rounds=8)
    assert same(models(NEVER, longer, rounds=8), models(Local(), longer, rounds=8))


def test_client_that_fails_the_gate_still_votes():
    for number, rows in enumerate(rows_by_round(NEVER, BIG, 8), start=1):
        assert all((row["message"] == "accepted") == (number >= 2) for row in rows if "message" in row)
        assert all(row["bits_up"] > 0 for row in rows) == (number >= 2)
    federation = run_toy(NEVER, BIG.changed(rounds=8), rounds=8)
    assert "labels" in federation.state.server.state


def test_gate_that_always_passes_equals_trust_by_agreement_after_the_decision():
    """The candidate model co-trains from the start with its own optimizer. A version that starts at the decision, or
    that resets the optimizer, gives another model."""
    toy = BIG.changed(rounds=9)
    passing = replace(ALWAYS, votes_from="shadow")
    ungated = replace(passing, trust="agreement")
    assert not same(models(passing, toy, rounds=3), models(ungated, toy, rounds=3))  # equals Local until the decision
    assert same(models(passing, toy, rounds=9), models(ungated, toy, rounds=9))
    assert not same(models(passing, toy, rounds=9), models(Local(), toy, rounds=9))


def test_client_uses_its_local_model_and_logs_no_trust_before_the_decision():
    rounds = rows_by_round(ALWAYS, BIG, 10)
    closes = ALWAYS.gate_decision_round(10)
    assert closes == 5
    assert all(row["lambda"] == 0.0 for rows in rounds[:closes] for row in rows)
    assert all(row["lambda"] > 0.0 for rows in rounds[closes:] for row in rows)
    toy = BIG.changed(rounds=10)
    assert same(models(ALWAYS, toy, rounds=closes - 1), models(Local(), toy, rounds=closes - 1))


def test_decisions_are_logged_once_with_their_statistics():
    rounds = rows_by_round(THREE, BIG, 10)
    decided = [row for rows in rounds for row in rows if "gate_on" in row]
    assert sorted(row["client"] for row in decided) == [0, 1, 2]
    for row in decided:
        if row["gate_trust"]:
            assert row["gate_on"] == int(row["gate_gain"] > row["gate_error"])
    opened = [row for row in rounds[2] if "gate_agreement" in row]
    assert len(opened) == 3  # the round after the first exchange, which ends round 2


def test_gate_uses_the_consensus_of_the_other_clients():
    """With the full consensus, a fold would be evaluated with pseudo-labels that depend on it."""
    federation = run_toy(THREE, BIG.changed(rounds=10), rounds=2)
    server = federation.state.server
    assert set(server.state["without"]) == {"0", "1", "2"}
    uploads = {}
    for client in federation.state.clients:
        message = federation.method.broadcast(server, client.id, federation.ctx)
        uploads[client.id] = message["without"]
        assert torch.equal(message["labels"], server.state["labels"])
    assert any(not torch.equal(labels, server.state["labels"]) for labels in uploads.values())
    after = run_toy(THREE, BIG.changed(rounds=10), rounds=3)
    assert "without" not in after.state.server.state  # it is sent once
    assert "without" not in federation.method.broadcast(after.state.server, 0, federation.ctx)


def test_single_client_equals_local_training():
    toy = TOYS["alone"].changed(rounds=8)
    assert same(models(ALWAYS, toy, rounds=8), models(Local(), toy, rounds=8))


def test_client_with_too_little_data_for_the_gate_does_not_collaborate():
    toy = make_toy([4, 30, 30], public=21).changed(rounds=8, local_steps=12)
    ours, alone = models(ALWAYS, toy, rounds=8), models(Local(), toy, rounds=8)
    assert same(ours[:1], alone[:1])
    assert not same(ours[1:2], alone[1:2])


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize("stop", range(1, 9))
@pytest.mark.parametrize("method", [THREE, ALWAYS, replace(ALWAYS, votes_from="shadow")], ids=["own", "on", "shadow"])
def test_resume_before_or_after_the_decision_does_not_change_results(method, stop):
    toy = BIG.changed(rounds=9)
    stopped = run_toy(method, toy, rounds=stop)
    arrays, values = from_disk(capture_state(stopped.state))
    resumed = toy.federation(method)
    restore_state(resumed, arrays, values, stop)
    with resumed.worker_pool:
        for _ in run_rounds(resumed, 9):
            pass
    assert same(list(personal_models(resumed).values()), models(method, toy, rounds=9))


@pytest.mark.parametrize("method", [THREE, ALWAYS], ids=["own", "on"])
def test_stacked_execution_gives_the_same_models(method):
    toy = BIG.changed(rounds=9)
    modes: tuple[ExecutionMode, ...] = ("threads", "stacked")
    threads, stacked = (models(method, toy.changed(execution=mode), rounds=9) for mode in modes)
    assert close(threads, stacked)


def test_folds_are_fixed_and_models_never_train_on_their_held_out_fold(monkeypatch):
    """The models of a fold train on all other examples and on none of the fold."""
    from fedmosaic_cli.engine.client import InProcessClient

    calls: list[tuple[int, str, frozenset[int]]] = []
    original = InProcessClient.train_all

    def recorded(self, trainings):
        parts = [(each.model, each.examples) for each in trainings if each.examples is not None]
        calls.extend((self.id, model, frozenset(examples.tolist())) for model, examples in parts)
        return original(self, trainings)

    monkeypatch.setattr(InProcessClient, "train_all", recorded)
    run_toy(THREE, BIG.changed(rounds=8), rounds=4)
    sizes = [24, 18, 30]
    for client, size in enumerate(sizes):
        trained_on = {model: parts for caller, model, parts in calls if caller == client}
        assert set(trained_on) == {f"fold-{kind}-{fold}" for kind in ("alone", "together") for fold in range(3)}
        held_out = [frozenset(range(size)) - trained_on[f"fold-alone-{fold}"] for fold in range(3)]
        assert sorted(example for part in held_out for example in part) == list(range(size))
        assert all(trained_on[f"fold-alone-{fold}"] == trained_on[f"fold-together-{fold}"] for fold in range(3))
    assert len({entry for entry in calls if entry[0] == 0}) == 6  # the same parts in every round


def brier_gain(client, fold, example):
    """Return the gain of the models of a fold on a training example, computed by a loop over the classes."""
    label, scores = client.train_labels[example].item(), []
    for kind in ("alone", "together"):
        probabilities = client.predict_private(client.state[f"fold-{kind}-{fold}"])[example].softmax(dim=0).tolist()
        scores.append(sum((p - (c == label)) ** 2 for c, p in enumerate(probabilities)))
    return scores[0] - scores[1]


def test_gate_scores_each_example_by_the_models_that_never_trained_on_it():
    """A gate that scores the examples which its models were trained on measures how well they fit."""
    method = replace(THREE, gate_z=-1e30, trust_min=0.0)
    for client in run_toy(method, BIG.changed(rounds=10), rounds=4).state.clients:
        folds, count = client.state["folds"].tolist(), len(client.train_labels)
        gains = [brier_gain(client, folds[example], example) for example in range(count)]
        seen = [brier_gain(client, fold, e) for e in range(count) for fold in range(3) if fold != folds[e]]
        decision = method.gate.decide(client)
        assert decision.gain == pytest.approx(sum(gains) / count, abs=1e-12)
        assert decision.gain != pytest.approx(sum(seen) / len(seen), abs=1e-6)


def test_prior_adjustment_with_zero_strength_equals_the_plain_loss():
    toy = BIG.changed(rounds=5)
    plain = ExtendedFedMosaic(trust=0.5)
    assert same(models(replace(plain, public_loss="prior-adjusted", prior_strength=0.0), toy), models(plain, toy))
    assert not same(models(replace(plain, public_loss="prior-adjusted"), toy), models(plain, toy))


def test_shadow_voter_equals_local_training():
    toy = BIG.changed(rounds=5)
    method = ExtendedFedMosaic(trust=1.0, votes_from="shadow", expertise="uniform")
    shadows = [client.state["voter"] for client in run_toy(method, toy, rounds=5).state.clients]
    assert same(shadows, models(Local(), toy, rounds=5))
    assert not same(models(method, toy, rounds=5), models(replace(method, votes_from="self"), toy, rounds=5))


def test_trust_by_agreement_is_computed_once():
    rounds = rows_by_round(ExtendedFedMosaic(trust="agreement"), BIG, 6)
    trusts = [[row["lambda"] for row in rows] for rows in rounds]
    assert trusts[0] == [0.0] * 3
    assert all(later == trusts[1] for later in trusts[2:])


def test_warmup_is_a_share_or_a_number_of_rounds():
    assert [GatedCoTraining().num_warmup_rounds(rounds) for rounds in (3, 10, 30)] == [1, 2, 6]
    assert GatedCoTraining(warmup_rounds=8).num_warmup_rounds(30) == 8
    assert GatedCoTraining(warmup_share=0.0).num_warmup_rounds(30) == 1


def test_gate_prior_adjustment_and_doubt_require_networks():
    assert GatedCoTraining().needs.learners == "any network"
    assert ExtendedFedMosaic(trust="gated").needs.learners == "any network"
    assert ExtendedFedMosaic(public_loss="prior-adjusted").needs.learners == "any network"
    assert ExtendedFedMosaic(votes_from="doubting").needs.learners == "any network"
    assert ExtendedFedMosaic().needs.learners == ExtendedFedMosaic(votes_from="shadow").needs.learners == "anything"


def test_gate_and_warmup_share_depend_on_the_total_number_of_rounds():
    assert GatedCoTraining().needs.total_rounds
    assert ExtendedFedMosaic(trust="gated").needs.total_rounds
    assert ExtendedFedMosaic(warmup_share=0.2).needs.total_rounds
    assert not ExtendedFedMosaic().needs.total_rounds


def test_doubting_voter_with_zero_doubt_equals_a_shadow_voter():
    toy = BIG.changed(rounds=6)
    without = replace(THREE, gate_z=-1e30, votes_from="doubting", doubt=0.0)
    shadow = replace(THREE, gate_z=-1e30, votes_from="shadow")
    assert same(models(without, toy, rounds=6), models(shadow, toy, rounds=6))
    assert not same(models(replace(without, doubt=1.0), toy, rounds=6), models(shadow, toy, rounds=6))


def test_doubting_voter_does_not_depend_on_the_consensus():
    """Its training depends on its own data and the public images, not on pseudo-labels."""
    toy = BIG.changed(rounds=6)
    trusting = ExtendedFedMosaic(trust=1.0, votes_from="doubting", expertise="uniform")
    votes = [
        [client.state["voter"] for client in run_toy(method, toy, rounds=6).state.clients]
        for method in (trusting, replace(trusting, trust=0.0))
    ]
    assert same(*votes)
    assert not same(votes[0], models(Local(), toy, rounds=6))


def test_doubt_lowers_confidence_on_public_examples():
    """A plain voter confidently assigns public examples of an unseen class to one of its own classes."""
    toy = BIG.changed(local_steps=60)
    confidence = {}
    for doubt in (0.0, 1.0):
        method = ExtendedFedMosaic(trust=0.0, votes_from="doubting", doubt=doubt, expertise="entropy", warmup_rounds=3)
        client = run_toy(method, toy, rounds=3).state.clients[0]
        confidence[doubt] = client.state["log_probs"].exp().max(dim=1).values.mean().item()
    assert confidence[1.0] < confidence[0.0] - 0.1


def test_loss_ratio_trust_uses_the_model_not_its_voter():
    toy = BIG.changed(rounds=4)
    rows = rows_by_round(ExtendedFedMosaic(trust="paper", votes_from="doubting"), toy, 4)
    plain = rows_by_round(ExtendedFedMosaic(trust="paper"), toy, 4)
    assert [row["loss_private"] for row in rows[1]] == [row["loss_private"] for row in plain[1]]
    federation = run_toy(ExtendedFedMosaic(trust="paper", votes_from="doubting"), toy, rounds=1)
    client, labels = federation.state.clients[0], federation.state.server.state["labels"]
    own = torch.nn.functional.cross_entropy(client.predict_public(client.state["model"]), labels).item()
    assert rows[1][0]["loss_public"] == pytest.approx(own)


@pytest.mark.parametrize(
    ("method", "rounds", "expected"),
    [
        (ExtendedFedMosaic(), 30, 30),
        (ExtendedFedMosaic(votes_from="shadow", warmup_rounds=5), 30, 55),
        (ExtendedFedMosaic(votes_from="doubting", warmup_rounds=5), 30, 60),
        (THREE, 30, 30 + 3 * 6 + 7 * 9),
        (replace(THREE, votes_from="shadow"), 30, 30 + 3 * 6 + 7 * 9 + 15),
        (replace(THREE, warmup_rounds=40), 30, 30 + 3 * 30),
    ],
)
def test_local_rounds_predict_the_training_cost(method, rounds, expected):
    assert method.costs(make_info(rounds)).local_rounds == expected


@pytest.mark.parametrize("method", [THREE, ALWAYS, GatedCoTraining(), replace(ALWAYS, votes_from="shadow")], ids=str)
def test_no_client_trains_more_often_than_predicted(method, monkeypatch):
    """A client that passes the gate trains exactly this often."""
    from fedmosaic_cli.engine.client import InProcessClient

    trained: list[int] = []
    original = InProcessClient.train_all

    def counted(self, trainings):
        trained.extend([self.id] * len(trainings))
        return original(self, trainings)

    monkeypatch.setattr(InProcessClient, "train_all", counted)
    run_toy(method, BIG.changed(rounds=10), rounds=10)
    most = max(trained.count(client) for client in range(3))
    predicted = method.costs(make_info(rounds=10)).local_rounds
    assert most <= predicted
    if method.gate_z == -1e30:
        assert most == predicted
