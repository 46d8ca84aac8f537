"""Sampling of clients, aggregation weights, and the rows of a round."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.rounds import run_rounds, select_clients
from fedmosaic_cli.methods.ditto import Ditto
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedbn import FedBN
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.local import Centralized, Local
from tests.methods.problems import uploads
from tests.toys import TOYS, close, make_toy, models, run_toy, same


def sampled_clients(toy, rounds=40, seed=0):
    """Return the clients sampled in each round."""
    federation = toy.federation(Local(), seed)
    sampled = []
    for number in range(rounds):
        federation.state.finished = number
        sampled.append([client.id for client in select_clients(federation)])
    return sampled


def test_clients_are_sampled_anew_in_every_round():
    sampled = sampled_clients(make_toy([4] * 6).changed(clients_per_round=2))
    assert all(len(set(in_round)) == 2 for in_round in sampled)
    assert {client for in_round in sampled for client in in_round} == set(range(6))
    assert len({tuple(in_round) for in_round in sampled}) > 5
    assert sampled == sampled_clients(make_toy([4] * 6).changed(clients_per_round=2))
    assert sampled != sampled_clients(make_toy([4] * 6).changed(clients_per_round=2), seed=1)


def test_all_clients_participate_by_default():
    assert sampled_clients(make_toy([4] * 3), rounds=2) == [[0, 1, 2]] * 2
    assert same(models(FedAvg(), TOYS["even"]), models(FedAvg(), TOYS["even"].changed(clients_per_round=3)))


@pytest.mark.parametrize("method", [Local(), FedMosaic(), FedAvg(), Ditto()])
def test_client_that_is_not_sampled_is_only_evaluated(method):
    federation = TOYS["even"].changed(clients_per_round=1).federation(method)
    with federation.worker_pool:
        before = [
            params.clone(method.personal_model(c, {"model": federation.ctx.initial_model}))
            for c in federation.state.clients
        ]
        done = next(run_rounds(federation, 1))
    idle = [row for row in done.rows if row["loss_private"] is None]
    assert len(idle) == 2
    for row in idle:
        assert (row["bits_up"], row["bits_down"], row["lambda"]) == (0, 0, None)
        assert 0 <= row["accuracy"] <= 1
        if not isinstance(method, FedAvg) or isinstance(method, Ditto):
            client = federation.state.clients[row["client"]]
            assert same(
                [before[row["client"]]], [method.personal_model(client, ServerView(federation).for_client(client))]
            )


def test_mean_is_over_sampled_clients():
    toy = TOYS["uneven"].changed(clients_per_round=2)
    federation = toy.federation(FedAvg())
    sampled = [client.id for client in select_clients(federation)]
    _, sent = uploads(FedAvg(), toy)
    mean = params.weighted_mean([sent[c] for c in sampled], [federation.ctx.client_sizes[c] for c in sampled])
    with federation.worker_pool:
        next(run_rounds(federation, 1))
    assert close([federation.state.server.state["model"]], [mean])


def test_aggregation_weights_are_numbers_of_examples_or_uniform():
    _, sent = uploads(FedAvg(), TOYS["uneven"])
    for weighting, shares in (("samples", [3, 6, 11]), ("uniform", [1, 1, 1])):
        [ours, *_] = models(FedAvg(), TOYS["uneven"].changed(aggregation=weighting), rounds=1)
        assert close([ours], [params.weighted_mean(list(sent.values()), shares)])
    uniform = TOYS["uneven"].changed(aggregation="uniform")
    assert not close(models(FedAvg(), TOYS["uneven"]), models(FedAvg(), uniform), 1e-6)


def test_centralized_takes_the_steps_of_the_sampled_clients():
    client = TOYS["even"].changed(clients_per_round=2).federation(Centralized()).state.clients[0]
    client.begin_round(1)
    assert len(client._private_batches("private")) == 2 * 3
    toy = make_toy([8, 8, 8]).changed(local_steps=None, local_epochs=1, clients_per_round=2, batch_size=4)
    client = toy.federation(Centralized()).state.clients[0]
    client.begin_round(1)
    assert len(client._private_batches("private")) == 4, "two thirds of six batches"


def test_clients_are_evaluated_on_their_test_examples():
    toy = TOYS["uneven"]
    federation = toy.federation(Local())
    with federation.worker_pool:
        rows = next(run_rounds(federation, 1)).rows
    for row, client, shard in zip(rows, federation.state.clients, toy.partition.shards, strict=True):
        held_out = {}
        for name, index in shard.splits().items():
            examples = replace(client.private, indices=torch.as_tensor(index), labels=None)
            logits = client.learner.predict(client.state["model"], examples)
            held_out[name] = cross_entropy(logits, torch.as_tensor(toy.dataset.labels[index])).item()
        assert row["test_loss"] == pytest.approx(held_out["test"], rel=1e-12)
        assert row["test_loss"] != pytest.approx(held_out["train"], rel=1e-3)


def test_global_model_is_evaluated_in_addition_to_personal_models():
    def rows(method):
        federation = TOYS["uneven"].federation(method)
        with federation.worker_pool:
            return list(run_rounds(federation, 2))[-1].rows

    assert all(row["global_accuracy"] == row["accuracy"] for row in rows(FedAvg()))
    assert [row["global_accuracy"] for row in rows(Ditto())] == [row["accuracy"] for row in rows(FedAvg())]
    assert all("global_accuracy" not in row for method in (Local(), FedBN(), FedMosaic()) for row in rows(method))


def test_uploads_are_released_before_the_next_round():
    class RecordsUploads(FedAvg):
        def aggregate(self, server, uploads, ctx):
            seen.extend(weakref.ref(tensor) for upload in uploads.values() for tensor in upload["model"].values())
            super().aggregate(server, uploads, ctx)

    seen: list = []
    federation = TOYS["even"].federation(RecordsUploads())
    with federation.worker_pool:
        next(run_rounds(federation, 2))
    assert len(seen) == 12
    assert not any(reference() is not None for reference in seen)


def test_number_of_centralized_steps_is_exact():
    """9/14 of 42 batches are 27, despite rounding of floating-point numbers."""
    toy = make_toy([12] * 14).changed(local_steps=None, local_epochs=1, clients_per_round=9, batch_size=4)
    client = toy.federation(Centralized()).state.clients[0]
    client.begin_round(1)
    assert len(client._private_batches("private")) == 27


def test_every_model_has_its_own_optimizer_state():
    toy = TOYS["even"]
    kept, reset = (run_toy(Ditto(), toy.changed(optimizer_state=policy)) for policy in ("keep", "reset"))
    assert {"model.optimizer", "personal.optimizer"} <= kept.state.clients[0].state.keys()
    assert not any("optimizer" in key for key in reset.state.clients[0].state)
    state = kept.state.clients[0].state
    assert not torch.equal(
        state["model.optimizer"]["head.bias"]["exp_avg"], state["personal.optimizer"]["head.bias"]["exp_avg"]
    )
