"""PerFed-CKT."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmosaic_cli.cotraining.clustering import cluster_clients
from fedmosaic_cli.engine.losses import LogitMatchingLoss
from fedmosaic_cli.engine.messages import Logits
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.perfedckt import PerFedCKT
from tests.toys import TOYS, close, make_toy, models, run_toy, same

EVERY_TOY = pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)


class SummedOverClasses(PerFedCKT):
    """Wrong: distances are summed over classes, so the strength grows with their number."""

    def local_round(self, client, received, ctx):
        terms = [LogitMatchingLoss(received["target"], self.mu * ctx.num_classes)] if received else []
        client.train("model", terms)
        return {"logits": client.predict_public(client.state["model"])}


@EVERY_TOY
def test_without_transfer_it_equals_local_training(toy):
    assert same(models(PerFedCKT(mu=0.0), toy), models(Local(), toy))


@EVERY_TOY
def test_only_the_first_round_equals_local_training(toy):
    assert same(models(PerFedCKT(), toy, rounds=1), models(Local(), toy, rounds=1))
    if len(toy.partition.shards) > 1:
        assert not same(models(PerFedCKT(clusters=1), toy, rounds=2), models(Local(), toy, rounds=2))


def test_target_of_one_cluster_is_the_mean_of_all_clients():
    federation = run_toy(PerFedCKT(clusters=1), TOYS["even"], rounds=1)
    logits = [client.predict_public(client.state["model"]) for client in federation.state.clients]
    mean = torch.stack(logits).mean(dim=0)
    for client in federation.state.clients:
        assert torch.allclose(federation.state.server.state[str(client.id)], mean, rtol=0, atol=1e-12)


def test_with_one_cluster_per_client_the_target_is_its_own_logits():
    toy = TOYS["even"].changed(local_steps=1)
    federation = run_toy(PerFedCKT(clusters=3, mu=1.0), toy, rounds=1)
    for client in federation.state.clients:
        own = client.predict_public(client.state["model"])
        assert torch.equal(federation.state.server.state[str(client.id)], own)
    # Equal up to rounding: the predictions come from a pass over another batch.
    assert close(models(PerFedCKT(clusters=3, mu=1.0), toy, rounds=2), models(Local(), toy, rounds=2), 1e-14)


def test_distances_are_averaged_over_classes():
    class Outputs:
        public_indices = torch.tensor([1, 0])
        public_logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    targets = torch.tensor([[3.0, 2.0], [1.0, 0.0]])
    assert LogitMatchingLoss(targets, 1.0).loss(Outputs()).item() == pytest.approx((0 + 4 + 0 + 4) / 4)
    toy = TOYS["even"]
    assert not same(models(PerFedCKT(clusters=1), toy), models(SummedOverClasses(clusters=1), toy))


def test_targets_have_no_gradient_and_messages_contain_no_weights():
    federation = run_toy(PerFedCKT(), TOYS["even"], rounds=1)
    message = federation.method.broadcast(federation.state.server, 0, federation.ctx)
    target = message["target"]
    assert target.shape == (7, 3)
    assert not target.requires_grad
    client = federation.state.clients[0]
    client.begin_round(2)
    upload = federation.method.local_round(client, {"target": target}, federation.ctx)
    assert [type(federation.method.uploads[name]) for name in upload] == [Logits]
    assert upload["logits"].shape == (7, 3)


def test_equal_clients_share_a_cluster():
    toy = TOYS["even"].changed(init="common")
    shards = toy.partition.shards
    twins = (shards[0], replace(shards[0], client=1), shards[2])
    toy = toy.changed(partition=replace(toy.partition, shards=twins), batch_size=100)
    federation = run_toy(PerFedCKT(clusters=2), toy, rounds=2)
    targets = federation.state.server.state
    assert torch.equal(targets["0"], targets["1"])
    assert not torch.equal(targets["0"], targets["2"])


def grouped_logits(seed: int, clients: int = 6) -> list[torch.Tensor]:
    """Return logits of clients that form three groups."""
    generator = torch.Generator().manual_seed(seed)
    centres = 10 * torch.randn(3, 5, 4, generator=generator)
    return [centres[client % 3] + torch.randn(5, 4, generator=generator) for client in range(clients)]


def same_cluster(numbers: list[int]) -> list[list[bool]]:
    """Return which clients share a cluster, independent of the cluster numbers."""
    return [[left == right for right in numbers] for left in numbers]


@given(st.integers(0, 10**6), st.permutations(range(6)), st.permutations(range(5)))
def test_clusters_do_not_depend_on_client_or_example_order(seed, clients, examples):
    logits = grouped_logits(seed)
    expected = same_cluster(cluster_clients(logits, 3))
    shuffled = same_cluster(cluster_clients([logits[client] for client in clients], 3))
    assert shuffled == [[expected[a][b] for b in clients] for a in clients]
    assert same_cluster(cluster_clients([values[list(examples)] for values in logits], 3)) == expected


def test_separated_groups_become_clusters():
    assert same_cluster(cluster_clients(grouped_logits(3), 3)) == [[a % 3 == b % 3 for b in range(6)] for a in range(6)]


def test_more_clusters_than_distinct_logits_are_allowed():
    equal = [torch.ones(2, 2)] * 4
    assert len(set(cluster_clients(equal, 3))) == 1
    assert len(set(cluster_clients([torch.ones(2, 2), torch.zeros(2, 2)], 9))) == 2


def test_client_that_is_not_sampled_keeps_its_target():
    toy = make_toy([8, 8, 8]).changed(clients_per_round=2, rounds=4)
    federation = run_toy(PerFedCKT(clusters=1), toy, rounds=4)
    assert federation.state.server.state.keys() == {"0", "1", "2"}
