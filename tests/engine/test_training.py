"""Batches, the trainer and the evaluator."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import batching, evaluation, params
from fedmosaic_cli.engine.learner import BatchSchedule, TrainingTask
from fedmosaic_cli.engine.losses import (
    DistillationLoss,
    FeatureMatchingLoss,
    LogitMatchingLoss,
    PseudoLabelLoss,
    mean_cross_entropy,
)
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.training import fit_network
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.seeds import derive_seed
from tests.toys import TOYS, make_toy, models, run_toy, same

sizes = st.integers(1, 40)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@given(sizes, sizes, st.integers(1, 3))
def test_epoch_contains_every_example_once(count, batch_size, passes):
    drawn = batching.epoch_batches(count, batch_size, passes, generator())
    assert all(1 <= len(batch) <= batch_size for batch in drawn)
    assert torch.cat(drawn).bincount(minlength=count).tolist() == [passes] * count


@given(sizes, sizes, st.integers(1, 12))
def test_step_batches_are_full_and_use_examples_evenly(count, batch_size, number):
    drawn = batching.step_batches(count, batch_size, number, generator())
    assert [len(batch) for batch in drawn] == [min(batch_size, count)] * number
    seen = torch.cat(drawn).bincount(minlength=count)
    assert seen.max() - seen.min() <= 1


def test_private_batches_do_not_depend_on_public_ones(monkeypatch):
    client = TOYS["even"].federation(FedCT()).state.clients[0]
    schedules = []

    def record_schedule(parameters, optimizer_state, task):
        schedules.append(task.schedule)
        return fit(parameters, optimizer_state, task)

    fit = client.learner.fit
    monkeypatch.setattr(client.learner, "fit", record_schedule)
    client.begin_round(1)
    client.train("model")
    client.train("model", [PseudoLabelLoss(torch.arange(len(client.public)) % 3, 0.5)])
    private_only, with_public = schedules
    assert not private_only.public_batches
    assert all(
        torch.equal(left, right)
        for left, right in zip(private_only.private_batches, with_public.private_batches, strict=True)
    )
    assert len(with_public.public_batches) == len(with_public.private_batches)
    client.begin_round(2)
    client.train("model")
    assert not torch.equal(torch.cat(schedules[-1].private_batches), torch.cat(private_only.private_batches))


def test_public_batches_have_a_random_stream_of_their_own(monkeypatch):
    """With the private stream, position k of the public set would always be trained with private example k."""
    client = make_toy([8, 8], public=8).changed(local_steps=4).federation(FedCT()).state.clients[0]
    schedules = []
    fit = client.learner.fit
    monkeypatch.setattr(
        client.learner, "fit", lambda *arguments: (schedules.append(arguments[2].schedule), fit(*arguments))[1]
    )
    client.begin_round(1)
    term = PseudoLabelLoss(torch.arange(8) % 3, 0.5)
    client.train("model", [term])
    client.train("model", [term], stream="other")
    for schedule, stream in zip(schedules, ("public", "public-other"), strict=True):
        expected = torch.Generator().manual_seed(derive_seed(0, stream, client.id, 1))
        drawn = torch.cat(schedule.public_batches)
        assert torch.equal(drawn, torch.cat(batching.step_batches(8, 4, 4, expected)))
        assert not torch.equal(drawn, torch.cat(schedule.private_batches))
    assert not torch.equal(torch.cat(schedules[0].public_batches), torch.cat(schedules[1].public_batches))


def test_images_are_scaled_to_minus_one_and_one():
    client = TOYS["even"].federation(Local()).state.clients[0]
    inputs = client.private.inputs(slice(None))
    pixels = client.private.images[client.private.indices].permute(0, 3, 1, 2).double()
    assert torch.allclose(inputs, pixels / 255 * 2 - 1)
    assert inputs.shape == (len(client.private), 1, 2, 2)


def test_training_losses_are_means_over_batches():
    federation = TOYS["even"].changed(optimizer="sgd", lr=1e-300).federation(FedCT())
    client = federation.state.clients[0]
    labels = torch.arange(len(client.public)) % 3
    schedule = BatchSchedule([torch.arange(8)], [torch.arange(7)])
    model = params.clone(client.initial_model)
    task = TrainingTask(client.private, client.public, schedule, [PseudoLabelLoss(labels, 0.5)])
    losses = fit_network(client.learner, model, {}, task)
    assert losses.private == pytest.approx(client.private_loss(model), rel=1e-12)
    assert losses.terms[0] == pytest.approx(
        mean_cross_entropy(client.predict_public(model).log_softmax(dim=1), labels), rel=1e-12
    )


def test_evaluate_model_equals_a_direct_computation():
    federation = run_toy(Local(), TOYS["even"])
    client = federation.state.clients[0]
    result = evaluation.evaluate_model(client.learner, client.state["model"], client.private)
    logits = client.learner.bound_module(client.state["model"])(client.private.inputs(slice(None)))
    assert result.accuracy == (logits.argmax(dim=1) == client.private.labels).double().mean().item()
    assert result.loss == pytest.approx(cross_entropy(logits, client.private.labels).item(), rel=1e-12)
    assert result.num_examples == len(client.private)


def test_evaluation_does_not_depend_on_the_batch_size(monkeypatch):
    federation = run_toy(Local(), TOYS["even"])
    client = federation.state.clients[0]
    expected = client.predict_public(client.state["model"])
    monkeypatch.setattr(client.learner, "eval_batch_size", 2)
    assert torch.allclose(client.predict_public(client.state["model"]), expected, rtol=0, atol=1e-14)


@pytest.mark.usefixtures("with_batch_norm")
class TestBatchNorm:
    def test_private_and_public_batch_statistics_are_separate(self):
        federation = TOYS["even"].federation(FedCT())
        client = federation.state.clients[0]
        labels = torch.zeros(len(client.public), dtype=torch.int64)
        schedule = BatchSchedule([torch.arange(4)], [torch.arange(5)])
        model = params.clone(client.initial_model)
        fit_network(
            client.learner,
            model,
            {},
            TrainingTask(client.private, client.public, schedule, [PseudoLabelLoss(labels, 1.0)]),
        )
        assert model["body.2.num_batches_tracked"].item() == 2, "two batches with separate statistics"

    def test_prediction_does_not_change_statistics(self):
        federation = run_toy(FedCT(), TOYS["even"])
        client = federation.state.clients[0]
        before = params.clone(client.state["model"])
        first, second = client.predict_public(client.state["model"]), client.predict_public(client.state["model"])
        assert torch.equal(first, second)
        assert same([before], [client.state["model"]])

    def test_batch_of_one_example_is_skipped_with_batch_norm(self):
        toy = make_toy([5, 1, 4]).changed(local_steps=None, local_epochs=1)
        before, after = models(Local(), toy, rounds=0), models(Local(), toy, rounds=2)
        assert same(before[1:2], after[1:2]), "a client with one example cannot train with batch norm"
        federation = toy.federation(Local())
        with federation.worker_pool:
            losses = [row["loss_private"] for row in next(run_rounds(federation, 1)).rows]
        assert losses[1] is None, "a loss over no batches is None, not 0"
        assert losses[0] > 0
        assert not same(before[:1], after[:1])

    def test_weighted_mean_takes_the_maximum_of_counters(self):
        states = [{"w": torch.tensor([1.0]), "n": torch.tensor(3)}, {"w": torch.tensor([3.0]), "n": torch.tensor(5)}]
        mean = params.weighted_mean(states, [1, 3])
        assert (mean["w"].item(), mean["n"].item()) == (2.5, 5)


@pytest.mark.parametrize(
    "term",
    [
        PseudoLabelLoss(torch.zeros(2), 0.5),
        LogitMatchingLoss(torch.zeros(2, 3), 0.5),
        DistillationLoss(torch.zeros(2, 3), 0.5, 4.0),
        FeatureMatchingLoss(torch.zeros(2, 3), 0.5),
    ],
)
def test_loss_terms_move_to_a_device(term):
    moved = term.to_device(torch.device("meta"))
    assert (moved.weight, moved.log_key) == (0.5, term.log_key)
    assert [v.device.type for v in vars(moved).values() if isinstance(v, torch.Tensor)] == ["meta"]


def test_reset_optimizer_state_is_discarded_after_the_round():
    """The state is twice as large as the model."""
    for policy, kept in (("reset", False), ("keep", True)):
        federation = make_toy([6, 6]).changed(optimizer_state=policy).federation(Local())
        with federation.worker_pool:
            next(run_rounds(federation, 1))
        assert all(("model.optimizer" in client.state) == kept for client in federation.state.clients)


def test_batches_of_a_stream_are_drawn_once_per_round(monkeypatch):
    client = TOYS["even"].federation(Local()).state.clients[0]
    drawn, draw = [], batching.step_batches

    def note(*args):
        drawn.append(draw(*args))
        return drawn[-1]

    monkeypatch.setattr(batching, "step_batches", note)
    client.state["other"] = client.initial_model
    for number in (1, 2):
        client.begin_round(number)
        client.train("model")
        client.train("other")
        client.train("other", steps=2)
        client.train("other", stream="another")
        client.finish_round()
    assert len(drawn) == 6
    assert not all(map(torch.equal, drawn[0], drawn[3])), "each round has other batches"


def test_random_layers_of_a_client_draw_from_the_generator_of_its_gpu(monkeypatch):
    gpu, calls = torch.device("cuda:1"), []

    @contextmanager
    def entered(*what):
        calls.append(what)
        yield
        calls.append("end")

    learner = TOYS["even"].federation(Local()).state.clients[0].learner
    learner.has_random_layers, learner.device = True, gpu
    with torch.random.fork_rng(devices=[]):
        monkeypatch.setattr(torch.random, "fork_rng", lambda devices: entered("fork", *devices))
        monkeypatch.setattr(torch.cuda, "device", lambda device: entered("device", device))
        monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: calls.append(("seed", seed)))
        with learner.seeded_layers(5):
            calls.append("step")
    assert calls == [("fork", gpu), ("device", gpu), ("seed", 5), "end", "step", "end"]
