"""FedPHP."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import FederationInfo
from fedmosaic_cli.engine.losses import DistillationLoss, mmd2
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedphp import FedPHP
from tests.methods.problems import server_model, uploads
from tests.toys import TOYS, close, models, personal_models, run_toy, same

TRANSFERS = pytest.mark.parametrize("transfer", ["distillation", "mmd"])


class EvaluatesLocal(FedPHP):
    """Wrong: the model of the last local training is evaluated."""

    def make_upload(self, client, model, ctx):
        client.state["last"] = model
        return super().make_upload(client, model, ctx)

    def personal_model(self, client, received):
        return client.state["last"]


class NoCrossEntropy(FedPHP):
    """Wrong: transfer loss only, no labels, as by default in a published library."""

    def train_local_model(self, client, received):
        client.train("model", [self.transfer_term(client)], private_weight=0.0)


@TRANSFERS
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_global_model_without_transfer_equals_fedavg(toy, transfer):
    assert same([server_model(FedPHP(strength=0.0, transfer=transfer), toy)], [server_model(FedAvg(), toy)])
    assert not same([server_model(FedPHP(strength=0.3, transfer=transfer), toy)], [server_model(FedAvg(), toy)])


def test_history_starts_with_the_first_local_model():
    federation, sent = uploads(FedPHP())
    for client in federation.state.clients:
        assert same([client.state["history"]], [sent[client.id]])


def test_history_without_momentum_is_the_last_local_model():
    assert same(models(FedPHP(momentum=0.0), TOYS["even"]), models(EvaluatesLocal(momentum=0.0), TOYS["even"]))
    assert not same(models(FedPHP(), TOYS["even"]), models(EvaluatesLocal(), TOYS["even"]))


def test_history_is_the_moving_average_of_local_models():
    class Recording(FedPHP):
        def make_upload(self, client, model, ctx):
            record.setdefault(client.id, []).append(params.clone(model))
            return super().make_upload(client, model, ctx)

    record: dict[int, list] = {}
    federation = run_toy(Recording(), TOYS["even"])
    for client, [first, second, third] in record.items():
        history = params.interpolate(second, first, 1 - 0.9 * 1 / 3)
        history = params.interpolate(third, history, 1 - 0.9 * 2 / 3)
        assert close([federation.state.clients[client].state["history"]], [history], 1e-14)


class ConstantHistory(FedPHP):
    """The history never changes."""

    def history_weight(self, num_participations, ctx):
        return 1.0


def test_history_with_full_weight_never_changes():
    federation = run_toy(ConstantHistory(), TOYS["even"])
    assert same(list(personal_models(federation).values()), [federation.ctx.initial_model] * 3)


class ByRound(FedPHP):
    """Wrong: the weight depends on the round number, not on how often the client participated."""

    def make_upload(self, client, model, ctx):
        client.state["times"] = client.round - 1
        return super().make_upload(client, model, ctx)


def test_history_weight_depends_on_participations_not_on_rounds():
    assert same(models(ByRound(), TOYS["even"]), models(FedPHP(), TOYS["even"]))
    sampled = TOYS["even"].changed(clients_per_round=2, rounds=6)
    assert not same(models(ByRound(), sampled, rounds=6), models(FedPHP(), sampled, rounds=6))
    federation = run_toy(FedPHP(), sampled, rounds=6)
    assert sum(client.state["times"] for client in federation.state.clients) == 12


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_history_weight_grows_with_participation_up_to_the_momentum(share):
    ctx = FederationInfo(num_classes=3, initial_model={}, client_sizes={}, num_rounds=20, participation_rate=share)
    shares = [FedPHP().history_weight(times, ctx) for times in range(30)]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[round(20 * share)] == pytest.approx(0.9)
    assert max(shares) == 0.9


@TRANSFERS
def test_teacher_has_no_gradient_and_is_used_from_the_second_round(transfer):
    federation = TOYS["even"].federation(FedPHP(transfer=transfer))
    with federation.worker_pool:
        rows = [done.rows[0] for done in run_rounds(federation, 3)]
    assert "loss_transfer" not in rows[0]
    assert rows[1]["loss_transfer"] > 0
    federation = run_toy(FedPHP(transfer=transfer), TOYS["even"])
    assert all(not tensor.requires_grad for tensor in federation.state.clients[0].state["history"].values())


@TRANSFERS
def test_loss_is_the_weighted_sum_of_cross_entropy_and_transfer(transfer):
    """Compute one plain step of the second round manually."""
    toy = TOYS["even"].changed(optimizer="sgd", lr=1.0, local_steps=1)
    federation = run_toy(FedPHP(strength=0.3, transfer=transfer), toy, rounds=1)
    client = federation.state.clients[0]
    start, history = federation.state.server.state["model"], client.state["history"]
    client.begin_round(2)
    positions = client._private_batches("private")[0]
    inputs, labels = client.private.inputs(positions), client.private.labels[positions]
    module = client.learner.bound_module(history)
    teacher = [tensor.detach() for tensor in (module.features(inputs), (module(inputs) / 4).softmax(dim=1))]
    module = client.learner.bound_module(start)
    features = module.features(inputs)
    logits = module.head(features)
    ce = torch.nn.functional.cross_entropy(logits, labels)
    if transfer == "mmd":
        transfer_loss = squared_mmd(features, teacher[0])
    else:
        transfer_loss = -(teacher[1] * logits.log_softmax(dim=1)).sum(dim=1).mean()
    names, weights = zip(*module.named_parameters(), strict=True)
    gradients = torch.autograd.grad(0.7 * ce + 0.3 * transfer_loss, weights)
    expected = {name: start[name] - gradient for name, gradient in zip(names, gradients, strict=True)}
    received = {"model": params.clone(start)}
    sent = federation.method.local_round(client, received, federation.ctx)["model"]
    assert close([sent], [expected], 1e-12)


def squared_mmd(first, second):
    """Compute the squared MMD pair by pair, with five kernel widths around the mean distance, a factor of 2 apart."""
    points = [*first, *second]
    pairs = [(p - q).square().sum() for p in points for q in points if p is not q]
    width = torch.stack(pairs).mean().detach()

    def kernel(p, q):
        return sum((-(p - q).square().sum() / (width * 2.0**power)).exp() for power in (-2, -1, 0, 1, 2))

    def mean(left, right):
        return sum(kernel(p, q) for p in left for q in right) / (len(left) * len(right))

    return mean(first, first) + mean(second, second) - 2 * mean(first, second)


def test_ignoring_the_labels_is_detected():
    """With other labels and the same teacher, such a version gives the same model."""
    for method, expected in ((FedPHP(strength=1.0), True), (FedPHP(strength=0.5), False), (NoCrossEntropy(), True)):
        federation = run_toy(FedPHP(), TOYS["even"], rounds=1)
        client = federation.state.clients[0]
        client.begin_round(2)
        results = []
        for labels in (client.private.labels, (client.private.labels + 1) % 3):
            client.private.labels.copy_(labels)
            client.state["model"] = params.clone(federation.state.server.state["model"])
            client.state.pop("model.optimizer", None)
            method.train_local_model(client, client.state["model"])
            results.append(client.state.pop("model"))
        assert same(results[:1], results[1:]) == expected


def test_history_is_evaluated_not_the_last_local_model():
    federation = run_toy(FedPHP(), TOYS["even"])
    before = [params.clone(model) for model in personal_models(federation).values()]
    for tensor in federation.state.server.state["model"].values():
        tensor.add_(1.0)
    assert same(before, list(personal_models(federation).values()))


def test_temperature_applies_to_the_teacher_only():
    teacher = torch.tensor([[4.0, 0.0]], dtype=torch.float64)

    class Outputs:
        private_indices = torch.tensor([0])
        private_logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64)

    p = torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(dim=0)
    q = Outputs.private_logits[0].log_softmax(dim=0)
    assert DistillationLoss(teacher, 1.0, 4.0).loss(Outputs()).item() == pytest.approx(-(p * q).sum().item(), rel=1e-12)


clouds = st.integers(0, 10**6).map(
    lambda seed: torch.randn(4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
)


@given(clouds, clouds)
def test_mmd_is_symmetric_and_non_negative(first, second):
    assert mmd2(first, first).item() == pytest.approx(0, abs=1e-12)
    assert mmd2(first, second).item() == pytest.approx(mmd2(second, first).item(), rel=1e-9)
    assert mmd2(first, second).item() > -1e-12


def test_mmd_gradient_points_away_from_the_other_points():
    first = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    second = torch.ones(3, 2, dtype=torch.float64)
    mmd2(first, second).backward()
    assert (first.grad < 0).all(), "towards the other points"
    equal = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    mmd2(equal, torch.zeros(2, 2, dtype=torch.float64)).backward()
    assert equal.grad.isfinite().all(), "equal points have a finite gradient"
