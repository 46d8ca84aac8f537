"""FedDF."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.losses import DistillationLoss
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.feddf import STUDENT_KEY, FedDF
from tests.methods.problems import (
    by_hand_descent,
    by_hand_logits,
    by_hand_mean,
    full_batch_toy,
    server_model,
    uploads,
)
from tests.toys import TOYS, close, models, run_toy, same, with_other_labels, with_other_pixels

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class KeepsOptimizer(FedDF):
    """Wrong: the server's optimizer continues with the state of the last round."""

    def aggregate(self, server, uploads, ctx):
        FedAvg.aggregate(self, server, uploads, ctx)
        mean = torch.stack([server.predict_public(upload["model"]) for upload in uploads.values()]).mean(dim=0)
        server.state[STUDENT_KEY] = params.clone(server.state["model"])
        term = DistillationLoss(mean, 1.0, temperature=1.0)
        server.train(STUDENT_KEY, [term], steps=self.steps, lr=self.lr, optimizer="adam")
        server.state["model"] = server.state.pop(STUDENT_KEY)


class MeanOfProbabilities(FedDF):
    """Wrong: probabilities are averaged instead of logits."""

    def aggregate(self, server, uploads, ctx):
        predict, models = server.predict_public, iter(uploads.values())
        mean = torch.stack([predict(upload["model"]).softmax(dim=1) for upload in models]).mean(dim=0).log()
        server.predict_public = lambda _: mean
        super().aggregate(server, uploads, ctx)
        del server.predict_public


class StartsAtTheOldModel(FedDF):
    """Wrong: the student starts at the last global model instead of at the mean."""

    def aggregate(self, server, uploads, ctx):
        old = server.state["model"]
        teachers = torch.stack([server.predict_public(upload["model"]) for upload in uploads.values()])
        server.state["model"] = server.state[STUDENT_KEY] = params.clone(old)
        term = DistillationLoss(teachers.mean(dim=0), 1.0, temperature=1.0)
        server.train(STUDENT_KEY, [term], steps=self.steps, lr=self.lr, optimizer="adam")
        server.state["model"] = server.state.pop(STUDENT_KEY)
        server.state.pop(f"{STUDENT_KEY}-adam.optimizer")


@EVERY_TOY
def test_without_steps_it_equals_fedavg(toy):
    assert same(models(FedDF(steps=0), toy), models(FedAvg(), toy))
    assert not same(models(FedDF(steps=1), toy), models(FedAvg(), toy))


def test_with_equal_teachers_the_gradient_is_zero():
    """The student starts at their mean. Later steps of Adam amplify rounding errors, so that one step is taken."""
    method = FedDF(steps=1, lr=0.1)
    federation, sent = uploads(method, TOYS["uneven"].changed(batch_size=1000))
    server = federation.state.server
    method.aggregate(server, {client: {"model": sent[0]} for client in range(3)}, federation.ctx)
    assert close([server.state["model"]], [sent[0]], 1e-6)
    predicted = server.predict_public(sent[0]).softmax(dim=1)
    entropy = -(predicted * predicted.log()).sum(dim=1).mean().item()
    assert server.metrics["loss_distillation"] == pytest.approx(entropy, rel=1e-12)
    method.aggregate(server, {client: {"model": model} for client, model in sent.items()}, federation.ctx)
    assert not close([server.state["model"]], [by_hand_mean(list(sent.values()), [3, 6, 11])], 1e-3)


def test_distillation_brings_the_student_closer_to_the_ensemble():
    federation, sent = uploads(FedDF(steps=100, lr=0.01), TOYS["uneven"])
    server, messages = federation.state.server, {client: {"model": model} for client, model in sent.items()}
    target = torch.stack([server.predict_public(model) for model in sent.values()]).mean(dim=0).softmax(dim=1)

    def divergence(method):
        method.aggregate(server, messages, federation.ctx)
        return (target * (target.log() - server.predict_public(server.state["model"]).log_softmax(dim=1))).sum().item()

    assert divergence(FedDF(steps=100, lr=0.01)) < 0.5 * divergence(FedAvg())


def test_images_of_the_public_set_are_used_and_its_labels_are_not():
    toy = TOYS["even"]
    ours = models(FedDF(steps=5), toy)
    public = toy.partition.public
    assert same(ours, models(FedDF(steps=5), toy.changed(dataset=with_other_labels(toy.dataset, public))))
    assert not same(ours, models(FedDF(steps=5), toy.changed(dataset=with_other_pixels(toy.dataset, public))))


@pytest.mark.parametrize("train", [{"optimizer": "adam"}, {"optimizer": "sgd"}, {"optimizer_state": "reset"}])
def test_server_keeps_its_model_only(train):
    federation = run_toy(FedDF(steps=2), TOYS["even"].changed(**train))
    assert federation.state.server.state.keys() == {"model"}


@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_statistics_that_stay_with_clients_are_not_added_to_the_global_model(policy):
    toy = TOYS["even"].changed(bn_buffers=policy)
    assert server_model(FedDF(steps=2), toy).keys() == server_model(FedAvg(), toy).keys()


def test_loss_of_the_distillation_is_logged_for_every_client():
    federation = TOYS["even"].federation(FedDF(steps=2))
    with federation.worker_pool:
        losses = [row["loss_distillation"] for row in next(run_rounds(federation, 1)).rows]
    assert losses[0] > 0
    assert losses == [losses[0]] * 3


def oracle(toy, rounds, steps, lr):
    """Return the global model: FedAvg by hand, then torch's Adam on the whole public set, new in every round."""
    federation = toy.federation(FedAvg())
    clients, shared = federation.state.clients, federation.ctx.initial_model
    public = clients[0].public.inputs(slice(None))
    for _ in range(rounds):
        copies = [by_hand_descent(client, shared, toy.train["local_steps"], toy.train["lr"]) for client in clients]
        target = (sum(by_hand_logits(copy, public) for copy in copies) / len(copies)).softmax(dim=1)
        mean = by_hand_mean(copies, [len(client.private) for client in clients])
        student = {name: tensor.clone().requires_grad_() for name, tensor in mean.items()}
        optimizer = torch.optim.Adam(student.values(), lr)
        for _ in range(steps):
            optimizer.zero_grad()
            (-(target * by_hand_logits(student, public).log_softmax(dim=1)).sum(dim=1).mean()).backward()
            optimizer.step()
        shared = {name: tensor.detach() for name, tensor in student.items()}
    return shared


def test_rounds_equal_a_computation_by_hand():
    toy, options = full_batch_toy(), {"steps": 5, "lr": 0.02}
    expected = oracle(toy, 3, **options)
    assert close([server_model(FedDF(**options), toy)], [expected], 1e-6)
    for wrong in (KeepsOptimizer(**options), MeanOfProbabilities(**options), StartsAtTheOldModel(**options)):
        assert not close([server_model(wrong, toy)], [expected], 1e-5)
