"""Student: identities, a computation by hand, guards, and common mistakes."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.config.run_config import resolve_run_config
from fedmosaic_cli.cotraining.logit_adjustment import shift_to_client
from fedmosaic_cli.cotraining.mixture import GATE_RULES
from fedmosaic_cli.cotraining.vote_shares import ConfidenceVotes, sharpened_shares, vote_sums
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.method import RunFacts
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.labels.certificates import ExchangeDiagnosis
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.mixture_model import SHIFT_ENTRY, WEIGHTS_ENTRY
from fedmosaic_cli.methods.oracle import Oracle
from fedmosaic_cli.methods.student import Student
from fedmosaic_cli.methods.student_mixture import NUM_LR_PHASES, STUDENT_KEY, STUDENT_NETWORK
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from fedmosaic_cli.runner.summary import certificate_sections
from tests.cotraining.test_mixture import possible_weights
from tests.methods.problems import PermutedShares, by_hand_logits, full_batch_toy
from tests.toys import TOYS, Toy, close, from_disk, make_toy, mixed, models, personal_models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
FAST = Student(steps=40, batch_size=8, check_agreement=False, check_shares=False)
ALWAYS, NEVER = replace(FAST, gate="off"), replace(FAST, gate_prior_var=1e30)
LARGE = make_toy([24, 18, 30], public=40).changed(local_steps=8, rounds=3)


def rows_of(method: Student, toy: Toy, rounds: int = 3) -> list[dict[str, Any]]:
    federation = toy.changed(rounds=rounds).federation(method)
    with federation.worker_pool:
        return [row for done in run_rounds(federation, rounds) for row in done.rows]


class MixesLogits(Student):
    """Wrong: logits are averaged instead of probabilities."""

    def predict(self, model, predictor, examples):
        own, student = ({n[len(p) :]: t for n, t in model.items() if n.startswith(p)} for p in ("local.", "corrected."))
        shifted = predictor.predict(student, examples, STUDENT_NETWORK) + model[SHIFT_ENTRY]
        return 0.5 * predictor.predict(own, examples) + 0.5 * shifted


@EVERY_TOY
def test_client_that_fails_the_gate_equals_local_training(toy):
    assert same(models(NEVER, toy), models(Local(), toy))


@EVERY_TOY
def test_rounds_before_the_last_equal_local_training(toy):
    assert same(models(ALWAYS, toy, rounds=2), models(Local(), toy, rounds=2))


@EVERY_TOY
def test_own_model_in_the_mixture_equals_local_training(toy):
    for mixture, local in zip(models(ALWAYS, toy), models(Local(), toy), strict=True):
        own = {name.removeprefix("local."): t for name, t in mixture.items() if name.startswith("local.")}
        assert same([own], [local])


def test_there_is_one_exchange():
    rows = rows_of(ALWAYS, LARGE)
    assert all(row["bits_up"] == row["bits_down"] == 0 for row in rows if row["round"] < 3)
    # 40 labels of 2 bits and 40 confidences of 8 bits; 40 x 3 shares of 4 bits and two numbers of 64 bits.
    assert all(row["bits_up"] == 40 * (2 + 8) for row in rows if row["round"] == 3)
    assert all(row["bits_down"] == 40 * 3 * 4 + 2 * 64 for row in rows if row["round"] == 3)
    hard = rows_of(replace(ALWAYS, downlink="labels", confidence_bits=4), LARGE)
    assert {(row["bits_up"], row["bits_down"]) for row in hard if row["round"] == 3} == {(240, 80 + 128)}


def by_hand_student(model, inputs, targets, steps: int, lr: float):
    """Return a model after full-batch steps of Adam on soft targets, with the learning rate of the method."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in model.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=lr)
    for phase in range(NUM_LR_PHASES):
        optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * phase / NUM_LR_PHASES)) / 2
        for _ in range(steps // NUM_LR_PHASES):
            optimizer.zero_grad()
            (-(targets * by_hand_logits(leaves, inputs).log_softmax(dim=1)).sum(dim=1).mean()).backward()
            optimizer.step()
    return {name: tensor.detach() for name, tensor in leaves.items()}


def by_hand_tuned(model, inputs, labels, steps: int, lr: float):
    """Return a model after full-batch steps of plain gradient descent."""
    for _ in range(steps):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in model.items()}
        loss = cross_entropy(by_hand_logits(leaves, inputs), labels)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        model = {name: leaf.detach() - lr * g for (name, leaf), g in zip(leaves.items(), gradients, strict=True)}
    return model


def by_hand_voter(model, private, labels, public, steps: int, lr: float):
    """Return a model after full-batch steps on private data and, towards uniform predictions, on public data."""
    for _ in range(steps):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in model.items()}
        loss = cross_entropy(by_hand_logits(leaves, private), labels)
        loss = loss - by_hand_logits(leaves, public).log_softmax(dim=1).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        model = {name: leaf.detach() - lr * g for (name, leaf), g in zip(leaves.items(), gradients, strict=True)}
    return model


def test_whole_method_by_hand():
    """With full batches nothing is random. Votes are quantised with 16 bits, so that sums agree to about 1e-4."""
    toy = full_batch_toy((24, 18, 30), rounds=3)
    method = replace(ALWAYS, confidence_bits=16, share_bits=16, batch_size=1000)
    federation = run_toy(method, toy)
    clients = federation.state.clients
    public = clients[0].public.inputs(slice(None))
    start = clients[0].initial_model
    sums = torch.zeros(len(public), 3, dtype=torch.float64)
    for client in clients:
        inputs, labels = client.private.inputs(slice(None)), client.private.labels
        voter = by_hand_voter(start, inputs, labels, public, steps=6, lr=0.3)
        probabilities = by_hand_logits(voter, public).softmax(dim=1)
        confidence = math.log(3) + (probabilities * probabilities.log()).sum(dim=1)
        sums[torch.arange(len(public)), probabilities.argmax(dim=1)] += confidence / confidence.mean()
    shares = sums.square() / sums.square().sum(dim=1, keepdim=True)
    initial = client.shared_result("initial", lambda trainer: trainer.initial_network(STUDENT_NETWORK))
    student = by_hand_student(initial, public, shares, steps=40, lr=0.3)
    for client, model in zip(clients, personal_models(federation).values(), strict=True):
        inputs, labels = client.private.inputs(slice(None)), client.private.labels
        counts = torch.bincount(labels, minlength=3)
        shift = ((counts + 1) / (len(labels) + 3)).log() - (shares.mean(dim=0) + 1e-3).log()
        parts = {
            "local": by_hand_tuned(start, inputs, labels, steps=6, lr=0.3),
            "corrected": student,
            "tuned": by_hand_tuned(student, inputs, labels, steps=3, lr=0.15),
        }
        assert model[WEIGHTS_ENTRY].tolist() == [0.5, 0.25, 0.25]
        assert model[SHIFT_ENTRY] == pytest.approx(shift, abs=1e-3)
        for view, expected in parts.items():
            own = {name.removeprefix(f"{view}."): t for name, t in model.items() if name.startswith(f"{view}.")}
            assert close([own], [expected], 1e-10 if view == "local" else 0.02), view
        p = {view: by_hand_logits(part, inputs) for view, part in parts.items()}
        p["corrected"] = p["corrected"] + shift
        mixture = sum(w * p[view].softmax(dim=1) for view, w in zip(parts, (0.5, 0.25, 0.25), strict=True))
        predicted = method.predict(model, client.predictor, client.private).exp()
        assert predicted == pytest.approx(mixture, abs=0.01)


def test_student_of_given_shares_by_hand():
    """Without the votes nothing is quantised, and the student agrees to rounding."""
    toy = full_batch_toy((24, 18, 30))
    federation = toy.federation(ALWAYS)
    client, method = federation.state.clients[0], replace(ALWAYS, batch_size=1000)
    public = client.public.inputs(slice(None))
    shares = torch.rand(len(public), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares /= shares.sum(dim=1, keepdim=True)
    initial = client.shared_result("initial", lambda trainer: trainer.initial_network(STUDENT_NETWORK))
    student = client.shared_result("student", lambda trainer: method.train_student(trainer, shares))
    assert close([student], [by_hand_student(initial, public, shares, 40, 0.3)], 1e-9)
    assert not close([student], [by_hand_student(initial, public, shares.square(), 40, 0.3)], 1e-3)
    assert not close([student], [by_hand_student(client.initial_model, public, shares, 40, 0.3)], 1e-3)


def test_all_clients_of_a_simulation_share_one_student():
    found = models(ALWAYS, LARGE)
    students = [{n: t for n, t in model.items() if n.startswith("corrected.")} for model in found]
    assert same(students, [students[0]] * 3)
    calls = []

    class Counted(Student):
        def train_student(self, *args, **options):
            calls.append(1)
            return super().train_student(*args, **options)

    models(Counted(steps=20, gate="off", check_agreement=False, check_shares=False), LARGE)
    assert len(calls) == 1


def test_student_may_differ_from_the_own_learner():
    toy = mixed(LARGE)
    found = models(ALWAYS, toy)
    assert [sorted({name.split(".")[0] for name in model}) for model in found] == [
        ["corrected", "local", "mixture_weights", "prior_shift", "tuned"]
    ] * 3
    assert "local.seed" in found[1]  # a random forest
    assert found[1]["corrected.head.weight"].shape == (3, 3)  # the network of the run
    assert found[0]["corrected.head.weight"].shape == (3, 2)  # the network of the client
    local = models(Local(), toy)
    assert same(models(NEVER, toy), local)


@pytest.mark.parametrize("gate", ["safe", "bold", "light"])
def test_decision_is_that_of_the_held_out_views(gate):
    for row in (row for row in rows_of(replace(FAST, gate=gate), LARGE) if row["round"] == 3):
        rule = GATE_RULES[gate]
        assert row["gate_on"] == int(row["gate_gain"] > rule.z * row["gate_error"])
        if row["gate_on"]:
            weights = row["weight_local"], row["weight_corrected"], row["weight_tuned"]
            assert weights in possible_weights(rule)
        assert abs(row["gate_accuracy_gain"]) <= 1
        assert 0 <= row["gate_accuracy_local"] <= 1


def test_gate_opens_where_others_know_more():
    """Clients with two examples per class learn from each other; votes without information change nothing."""
    toy = make_toy([12] * 8, public=90).changed(local_steps=6, rounds=2)
    method = replace(FAST, gate="bold", steps=200)
    federation = run_toy(method, toy, rounds=2)
    assert sum(WEIGHTS_ENTRY in model for model in personal_models(federation).values()) >= 4


def fold_models(method, relabelled_fold=None):
    """Return the models of all folds of client 0 after two rounds; the labels of a fold may be changed before."""
    federation = LARGE.federation(method)
    client = federation.state.clients[0]
    if relabelled_fold is not None:
        is_held_out = client.state["folds"] == relabelled_fold
        labels = torch.where(is_held_out, (client.private.labels + 1) % 3, client.private.labels)
        client.private = replace(client.private, labels=labels)
    with federation.worker_pool:
        for _ in run_rounds(federation, 2):
            pass
    return [client.state[f"fold-{fold}"] for fold in range(3)]


class TrainsOnAllFolds(Student):
    """Wrong: the models of the folds are trained on all examples."""

    def local_round(self, client, received, ctx):
        client.train("model")
        for fold in range(self.gate_folds):
            client.train(f"fold-{fold}")
        return {}


def test_own_model_of_a_fold_is_trained_without_it():
    bold = replace(FAST, gate="bold")
    before, after = fold_models(bold), fold_models(bold, relabelled_fold=0)
    assert [same([a], [b]) for a, b in zip(before, after, strict=True)] == [True, False, False]
    wrong = TrainsOnAllFolds(steps=40, batch_size=8, check_agreement=False, check_shares=False, gate="bold")
    assert not same(fold_models(wrong)[:1], fold_models(wrong, relabelled_fold=0)[:1])


def test_views_of_a_fold_are_predicted_without_it():
    federation = run_toy(replace(FAST, gate="bold"), LARGE, rounds=2)
    client = federation.state.clients[0]
    folds = client.state["folds"]
    assert sorted(folds.bincount().tolist()) == [8, 8, 8]
    shares = torch.full((40, 3), 1 / 3, dtype=torch.float64)
    student = client.shared_result("student", lambda trainer: FAST.train_student(trainer, shares))
    views = FAST.held_out_views(client, student, shares)
    changed = client.private.labels.clone()
    changed[folds == 0] = (changed[folds == 0] + 1) % 3
    client.private = replace(client.private, labels=changed)
    after = FAST.held_out_views(client, student, shares)
    for view in ("corrected", "tuned"):
        assert torch.equal(views[view][folds == 0], after[view][folds == 0]), view
        assert not torch.equal(views[view][folds != 0], after[view][folds != 0]), view


def test_own_view_of_an_example_is_that_of_the_model_without_its_fold():
    """The client's own model has seen all examples: a gate that scores it on them would compare a training error."""
    client = run_toy(replace(FAST, gate="bold"), LARGE, rounds=2).state.clients[0]
    shares = torch.full((40, 3), 1 / 3, dtype=torch.float64)
    student = client.shared_result("student", lambda trainer: FAST.train_student(trainer, shares))
    own = FAST.held_out_views(client, student, shares)["local"]
    for fold in range(3):
        is_held_out = client.state["folds"] == fold
        for key in ("fold-0", "fold-1", "fold-2", "model"):
            predicted = client.predict_private(client.state[key]).softmax(dim=1)[is_held_out]
            assert torch.equal(own[is_held_out], predicted) == (key == f"fold-{fold}")


def test_mixture_of_logits_is_another_prediction():
    toy = LARGE
    federation = run_toy(replace(FAST, gate="off"), toy)
    client, model = federation.state.clients[0], personal_models(federation)[0]
    half = {**model, WEIGHTS_ENTRY: torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)}
    right = FAST.predict(half, client.predictor, client.private).exp()
    wrong = MixesLogits().predict(half, client.predictor, client.private).softmax(dim=1)
    assert not torch.allclose(right, wrong, atol=1e-3)
    assert right.sum(dim=1) == pytest.approx(1.0)


@pytest.mark.parametrize("toy", [LARGE, mixed(LARGE)], ids=["networks", "mixed"])
def test_distilled_model_is_one_network_that_predicts_alike(toy):
    longer = replace(ALWAYS, steps=400)
    mixture, single = run_toy(longer, toy), run_toy(replace(longer, distil=True), toy)
    for client, many, one in zip(
        mixture.state.clients, personal_models(mixture).values(), personal_models(single).values(), strict=True
    ):
        assert {name.split(".")[0] for name in one} == {"tuned", "mixture_weights", "prior_shift"}
        assert one[WEIGHTS_ENTRY].tolist() == [0.0, 0.0, 1.0]
        expected = ALWAYS.predict(many, client.predictor, client.public).argmax(dim=1)
        assert (ALWAYS.predict(one, client.predictor, client.public).argmax(dim=1) == expected).double().mean() > 0.8


def test_resume_does_not_change_results():
    for method in (FAST, ALWAYS, replace(ALWAYS, distil=True)):
        for stop in (1, 2):
            stopped = run_toy(method, LARGE, rounds=stop)
            arrays, values = from_disk(capture_state(stopped.state))
            resumed = LARGE.federation(method)
            restore_state(resumed, arrays, values, stop)
            with resumed.worker_pool:
                list(run_rounds(resumed, 3))
            assert same(list(personal_models(resumed).values()), models(method, LARGE))


def test_state_after_the_last_round_is_the_personal_model():
    client = run_toy(ALWAYS, LARGE).state.clients[0]
    assert set(client.state) == {"model", "model.optimizer", "mixture"}
    assert set(run_toy(NEVER, LARGE).state.clients[0].state) == {"model", "model.optimizer"}


def test_client_with_too_little_data_for_the_gate_keeps_its_model():
    toy = make_toy([4, 30, 30], public=40).changed(local_steps=8)
    assert same(models(FAST, toy)[:1], models(Local(), toy)[:1])


def test_client_that_contradicts_the_others_keeps_its_model():
    toy = make_toy([30] * 8, public=90, flipped=(0, 1)).changed(local_steps=30, rounds=3)
    guarded = replace(ALWAYS, check_agreement=True)
    rows = [row for row in rows_of(guarded, toy) if row["round"] == 3]
    assert [row["gate_on"] for row in rows] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert max(row["agreement_z"] for row in rows[:2]) < 3 < min(row["agreement_z"] for row in rows[2:])
    assert all(row["gate_on"] for row in rows_of(ALWAYS, toy) if row["round"] == 3)


def test_shares_that_no_student_can_predict_are_refused():
    toy = make_toy([30] * 4, public=200).changed(local_steps=30, rounds=2)
    options = {"steps": 300, "gate": "off", "check_agreement": False}
    real = [row for row in rows_of(Student(**options), toy, rounds=2) if row["round"] == 2]
    assert min(row["holdout_z"] for row in real) > 3
    assert all(row["gate_on"] for row in real)
    noise = [row for row in rows_of(PermutedShares(**options), toy, rounds=2) if row["round"] == 2]
    assert max(row["holdout_z"] for row in noise) < 3
    assert not any(row["gate_on"] for row in noise)
    assert same(models(PermutedShares(**options), toy, 2), models(Local(), toy, 2))


def test_student_of_the_holdout_test_never_learns_the_votes_that_it_is_tested_on():
    """A student that has seen them would remember votes that cannot be predicted."""
    client = LARGE.federation(FAST).state.clients[0]
    client.begin_round(1)
    shares = torch.nn.functional.one_hot(torch.arange(40) % 3, 3).double()

    def students(trainer):
        order = torch.as_tensor(trainer.rng("holdout").permutation(40))
        for changed in (order[:0], order[:8], order[8:]):
            other = shares.clone()
            other[changed] = other[changed].roll(1, dims=1)
            trainer.state = {}
            FAST.holdout_test(trainer, other, 0.0)
            yield params.clone(trainer.state[STUDENT_KEY])

    unchanged, held_out, seen = client.shared_result("students", lambda trainer: list(students(trainer)))
    assert same([unchanged], [held_out])
    assert not same([unchanged], [seen])


def test_clients_that_do_not_agree_keep_their_models_only_with_the_safe_gate():
    toy = make_toy([9, 9, 9], public=8).changed(local_steps=1, rounds=1)
    safe = replace(FAST, check_agreement=True)
    rows = rows_of(safe, toy, rounds=1)
    assert rows[0]["median_z"] < 3
    assert "gate_gain" not in rows[0]
    assert same(models(safe, toy, rounds=1), models(Local(), toy, rounds=1))
    assert "gate_gain" in rows_of(replace(safe, gate="bold"), toy, rounds=1)[0]


def test_exchange_with_too_few_valid_uploads_is_reported_as_failed():
    toy = LARGE.changed(attack={"kind": "missing", "clients": (0, 1)})
    rows = rows_of(FAST, toy)
    assert [row.get("exchanged") for row in rows] == [None] * 6 + [0] * 3
    shards: Any = SimpleNamespace(manifest={"clients": [{"train": {"size": 30}}]})
    sections = certificate_sections(rows, shards)
    assert [certificate["collaborates"] for certificate in sections["certificates"]] == [False] * 3
    [warning] = ExchangeDiagnosis.model_validate(sections["exchange"]).warnings()
    assert "there was no exchange, and all clients keep their own model" in warning
    assert same(models(FAST, toy), models(Local(), LARGE))
    assert not any("exchanged" in row for row in rows_of(FAST, LARGE))


def test_client_that_does_not_vote_needs_only_the_shares():
    toy = LARGE.changed(clients_per_round=2)
    federation = run_toy(ALWAYS, toy)
    assert len(federation.state.server.state["z"]) == 2
    assert all(WEIGHTS_ENTRY in model for model in personal_models(federation).values())


def test_server_state_keeps_the_votes():
    """`fedmosaic forecast` reads them from the checkpoint."""
    server = run_toy(ALWAYS, LARGE).state.server
    votes = server.state["votes"]
    assert list(votes) == ["0", "1", "2"]
    sums = vote_sums(
        {int(c): ConfidenceVotes(v["labels"].numpy(), v["confidence"].numpy()) for c, v in votes.items()}, 3
    )
    assert sharpened_shares(sums, ALWAYS.sharpen) == pytest.approx(server.state["shares"].numpy())


def test_robust_votes_use_reputations():
    rows = [row for row in rows_of(replace(FAST, robust=True), LARGE) if row["round"] == 3]
    assert all(0 <= row["reputation"] <= 1 for row in rows)
    assert not any("reputation" in row for row in rows_of(FAST, LARGE))


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("kind", ["flip", "collude_flip"])
@pytest.mark.parametrize("attackers", [2, 4])
def test_hostile_voters_are_counted_and_do_not_decide_all_labels(kind, attackers):
    toy = make_toy([30] * 12, public=90).changed(local_steps=30, rounds=2)
    attack = {"kind": kind, "clients": list(range(attackers))}
    rows = rows_of(replace(ALWAYS, robust=True), toy.changed(attack=attack), rounds=2)
    honest = rows_of(replace(ALWAYS, robust=True), toy, rounds=2)
    assert rows[-1]["pseudo_label_accuracy"] > honest[-1]["pseudo_label_accuracy"] - 0.1
    assert max(row["reputation"] for row in rows if row["round"] == 2 and row["client"] < attackers) < 0.3


def test_votes_without_outlier_exposure_are_those_of_the_own_model():
    federation = run_toy(replace(ALWAYS, outlier_weight=0.0), LARGE)
    client = federation.state.clients[0]
    votes = client.predict_public(client.state["model"]).argmax(dim=1)
    assert "voter" not in client.state
    row = next(row for row in rows_of(replace(ALWAYS, outlier_weight=0.0), LARGE) if row["round"] == 3)
    labels = federation.state.server.state["labels"]
    assert row["vote_agreement"] == pytest.approx((votes == labels).double().mean().item())


def test_prior_shift_uses_the_counts_of_the_client():
    federation = run_toy(ALWAYS, LARGE)
    shares = federation.method.broadcast(federation.state.server, 0, federation.ctx)["shares"]
    for client, model in zip(federation.state.clients, personal_models(federation).values(), strict=True):
        assert model[SHIFT_ENTRY] == pytest.approx(shift_to_client(client.class_counts, shares), abs=0.05)


def test_defences_that_the_method_does_not_use_are_refused():
    layers = ConfigLayers()
    layers.add_all(load_preset("quickstart").layers)
    layers.add_assignment("defence.min_clients=3")
    assert resolve_run_config("x", layers, "student", 0, DataDirs()).incompatibility() is None
    layers.add_assignment("defence.vote=majority")
    reason = resolve_run_config("x", layers, "student", 0, DataDirs()).incompatibility()
    assert reason is not None
    assert (reason.problem, "methods.student.robust=true" in reason.remedy) == ("defence.vote is set", True)
    assert resolve_run_config("x", layers, "fedmosaic", 0, DataDirs()).incompatibility() is None


def test_a_learning_rate_for_sgd_is_questioned():
    facts = RunFacts(10, 10, 10, has_batch_norm=False, public_size=500, optimizer="sgd", learning_rate=0.1)
    [warning] = Student().warnings(facts)
    assert "learning rate 0.1, which is meant for sgd" in warning
    assert "set methods.student.lr" in warning
    assert Student(lr=0.002).warnings(facts) == []
    assert Student().warnings(replace(facts, optimizer="adam")) == []


@pytest.mark.parametrize(
    ("public_size", "words"), [(249, "at least 250 are needed, 500 are recommended"), (250, "at least 500 are")]
)
def test_small_public_sets_are_questioned(public_size, words):
    facts = RunFacts(10, 10, 10, has_batch_norm=False, public_size=public_size)
    [warning] = Student().warnings(facts)
    assert f"{public_size} public examples (data.public_size): {words}" in warning


@pytest.mark.parametrize("method", [Student(), Oracle()])
def test_steps_of_distillation_are_part_of_the_costs(method):
    ctx = FederationInfo(0, {}, {}, 10)
    assert "distilled" not in method.costs(ctx).note
    title = method.info.title
    assert f"each distilled network of {title} takes 500 steps" in replace(method, distil=True).costs(ctx).note


def test_public_share_is_that_of_the_own_model():
    assert {row["public_share"] for row in rows_of(ALWAYS, LARGE, rounds=1)} == {0.0}


def test_client_after_one_step_is_not_fine_tuned():
    """Half of one step is no step; only a model without steps takes those of the student as a measure."""
    federation = run_toy(ALWAYS, LARGE.changed(local_steps=1, rounds=1), rounds=1)
    for model in personal_models(federation).values():
        corrected, tuned = (
            {name.removeprefix(view): tensor for name, tensor in model.items() if name.startswith(view)}
            for view in ("corrected.", "tuned.")
        )
        assert same([corrected], [tuned])


def test_many_examples_per_client_are_questioned():
    facts = RunFacts(10, 10, 10, has_batch_norm=False, public_size=500, examples_per_client=501)
    assert "501 training examples" in Student().warnings(facts)[0]
    assert Student().warnings(replace(facts, examples_per_client=500)) == []
