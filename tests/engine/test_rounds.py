"""Who takes part, what a client counts, and what is told of a round."""

from __future__ import annotations

import weakref

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.rounds import run_rounds, select_clients
from fedmosaic_cli.methods.ditto import Ditto
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedbn import FedBN
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.local import Centralized, Local
from tests.methods.problems import uploads
from tests.toys import TOYS, close, make_toy, models, run_toy, same


def drawn(toy, rounds=40, seed=0):
    federation = toy.federation(Local(), seed)
    chosen = []
    for number in range(rounds):
        federation.state.finished = number
        chosen.append([client.id for client in select_clients(federation)])
    return chosen


def test_so_many_take_part_drawn_anew_in_every_round():
    chosen = drawn(make_toy([4] * 6).changed(clients_per_round=2))
    assert all(len(set(of_round)) == 2 for of_round in chosen)
    assert {client for of_round in chosen for client in of_round} == set(range(6))
    assert len({tuple(of_round) for of_round in chosen}) > 5
    assert chosen == drawn(make_toy([4] * 6).changed(clients_per_round=2))
    assert chosen != drawn(make_toy([4] * 6).changed(clients_per_round=2), seed=1)


def test_everybody_takes_part_unless_told_otherwise():
    assert drawn(make_toy([4] * 3), rounds=2) == [[0, 1, 2]] * 2
    assert same(models(FedAvg(), TOYS["even"]), models(FedAvg(), TOYS["even"].changed(clients_per_round=3)))


@pytest.mark.parametrize("method", [Local(), FedMosaic(), FedAvg(), Ditto()])
def test_who_sits_out_sends_nothing_learns_nothing_and_is_examined(method):
    federation = TOYS["even"].changed(clients_per_round=1).federation(method)
    with federation.worker_pool:
        before = [
            params.clone(method.personal_model({"model": federation.ctx.initial_model}, c))
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
            assert same([before[row["client"]]], [method.personal_model(federation.state.server, client)])


def test_the_mean_is_over_those_who_took_part():
    toy = TOYS["uneven"].changed(clients_per_round=2)
    federation = toy.federation(FedAvg())
    chosen = [client.id for client in select_clients(federation)]
    _, sent = uploads(FedAvg(), toy)
    mean = params.weighted_mean([sent[c] for c in chosen], [federation.ctx.client_sizes[c] for c in chosen])
    with federation.worker_pool:
        next(run_rounds(federation, 1))
    assert close([federation.state.server["model"]], [mean])


def test_a_client_counts_its_examples_or_one():
    _, sent = uploads(FedAvg(), TOYS["uneven"])
    for weighting, shares in (("samples", [3, 6, 11]), ("uniform", [1, 1, 1])):
        [ours, *_] = models(FedAvg(), TOYS["uneven"].changed(aggregation=weighting), rounds=1)
        assert close([ours], [params.weighted_mean(list(sent.values()), shares)])
    uniform = TOYS["uneven"].changed(aggregation="uniform")
    assert not close(models(FedAvg(), TOYS["uneven"]), models(FedAvg(), uniform), 1e-6)


def test_who_holds_everything_takes_the_steps_of_those_who_take_part():
    steps = TOYS["even"].changed(clients_per_round=2).federation(Centralized()).state.clients[0]
    steps.begin_round(1)
    assert len(steps._private_batches("private")) == 2 * 3
    toy = make_toy([8, 8, 8]).changed(local_steps=None, local_epochs=1, clients_per_round=2, batch_size=4)
    epochs = toy.federation(Centralized()).state.clients[0]
    epochs.begin_round(1)
    assert len(epochs._private_batches("private")) == 4, "two thirds of six batches"


def test_the_global_model_is_examined_beside_the_personal_one():
    def rows(method):
        federation = TOYS["uneven"].federation(method)
        with federation.worker_pool:
            return list(run_rounds(federation, 2))[-1].rows

    assert all(row["global_accuracy"] == row["accuracy"] for row in rows(FedAvg()))
    assert [row["global_accuracy"] for row in rows(Ditto())] == [row["accuracy"] for row in rows(FedAvg())]
    assert all("global_accuracy" not in row for method in (Local(), FedBN(), FedMosaic()) for row in rows(method))


def test_uploads_are_let_go_of_before_the_next_round():
    class Watched(FedAvg):
        def aggregate(self, server, uploads, world):
            seen.extend(weakref.ref(tensor) for upload in uploads.values() for tensor in upload["model"].values())
            return super().aggregate(server, uploads, world)

    seen: list = []
    federation = TOYS["even"].federation(Watched())
    with federation.worker_pool:
        next(run_rounds(federation, 2))
    assert len(seen) == 12
    assert not any(reference() is not None for reference in seen)


def test_a_centre_takes_no_step_too_many():
    """9 of 14 of 42 batches are 27, whatever floating point makes of it."""
    toy = make_toy([12] * 14).changed(local_steps=None, local_epochs=1, clients_per_round=9, batch_size=4)
    centre = toy.federation(Centralized()).state.clients[0]
    centre.begin_round(1)
    assert len(centre._private_batches("private")) == 27


def test_the_optimizer_s_memory_is_each_model_s_own():
    toy = TOYS["even"]
    kept, reset = (run_toy(Ditto(), toy.changed(optimizer_state=policy)) for policy in ("keep", "reset"))
    assert {"model.optimizer", "personal.optimizer"} <= kept.state.clients[0].state.keys()
    assert not any("optimizer" in key for key in reset.state.clients[0].state)
    memory = kept.state.clients[0].state
    assert not torch.equal(
        memory["model.optimizer"]["head.bias"]["exp_avg"], memory["personal.optimizer"]["head.bias"]["exp_avg"]
    )
