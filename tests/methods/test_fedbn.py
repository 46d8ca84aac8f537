"""FedBN, and the policies for running statistics of averaged models."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.method import RunFacts
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedbn import FedBN
from fedmosaic_cli.models.architectures import ARCHITECTURES
from tests.toys import TOYS, Normalised, models, personal_models, run_toy, same

POLICIES = ("average", "local", "drop")
NORM = {f"body.2.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
STATISTICS = {name for name in NORM if name.rpartition(".")[2] not in ("weight", "bias")}


class ByName(FedBN):
    """Wrong: keeps the layers whose name contains `bn`, as published repositories do."""

    def local_parameter_names(self, ctx):
        return frozenset(name for name in ctx.initial_model if "bn" in name)


class OddlyNamed(Normalised):
    """The same network with other layer names."""

    def __init__(self, settings, input_shape, num_classes):
        super().__init__(settings, input_shape, num_classes)
        names = ("flat", "linear", "scale_and_shift", "relu")
        self.body = nn.Sequential(OrderedDict(zip(names, self.body, strict=True)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_fedbn_without_batch_normalisation_equals_fedavg(toy, policy):
    assert same(models(FedBN(), toy.changed(bn_buffers=policy)), models(FedAvg(), toy.changed(bn_buffers=policy)))


def test_fedbn_without_batch_normalisation_warns():
    assert "FedAvg" in FedBN().warnings(RunFacts(3, 3, 3, has_batch_norm=False, public_size=0))[0]
    assert not FedBN().warnings(RunFacts(3, 3, 3, has_batch_norm=True, public_size=0))


@pytest.mark.usefixtures("with_batch_norm")
class TestWithBatchNorm:
    def test_batch_normalisation_stays_local_and_other_layers_are_shared(self):
        federation = TOYS["even"].federation(FedBN())
        trained = {}
        with federation.worker_pool:
            for _ in run_rounds(federation, 2):
                trained = {client.id: client.state["kept"] for client in federation.state.clients}
        personal = personal_models(federation)
        for client, model in personal.items():
            assert trained[client].keys() == NORM
            assert all(model[name] is tensor for name, tensor in trained[client].items())
            assert all(torch.equal(model[name], personal[0][name]) for name in model if name not in NORM)
        for name in NORM - {"body.2.num_batches_tracked"}:
            assert not torch.equal(personal[0][name], personal[1][name])

    @pytest.mark.parametrize("policy", POLICIES)
    def test_fedbn_differs_from_fedavg_under_every_policy(self, policy):
        toy = TOYS["even"].changed(bn_buffers=policy)
        assert not same(models(FedBN(), toy), models(FedAvg(), toy))

    def test_layers_are_identified_by_type_not_by_name(self, monkeypatch):
        ours = models(FedBN(), TOYS["even"])
        assert same(models(ByName(), TOYS["even"]), models(FedAvg(), TOYS["even"])), "no layer is called bn"
        monkeypatch.setitem(ARCHITECTURES, "mlp", OddlyNamed)
        for left, right in zip(ours, models(FedBN(), TOYS["even"]), strict=True):
            assert all(torch.equal(*pair) for pair in zip(left.values(), right.values(), strict=True))

    def test_local_parameters_do_not_count_as_traffic(self):
        ctx = TOYS["even"].federation(FedBN()).ctx
        all_bits = planned_traffic(FedAvg(), ctx).uplink_bits
        # Two parameters and two statistics for each of three channels, and a counter.
        assert planned_traffic(FedBN(), ctx).uplink_bits == all_bits - 64 * (4 * 3 + 1)

    @pytest.mark.parametrize("method", [FedAvg(), FedBN()])
    def test_client_without_participation_uses_statistics_of_its_own_data(self, method):
        toy = TOYS["even"].changed(clients_per_round=1, bn_buffers="local")
        federation = toy.federation(method)
        with federation.worker_pool:
            list(run_rounds(federation, 1))
        idle = [client for client in federation.state.clients if not client.state["has_statistics"]]
        assert len(idle) == 2
        model = method.personal_model(idle[0], ServerView(federation).for_client(idle[0]))
        module = idle[0].learner.bound_module(model).eval()
        seen = module.body[1](module.body[0](idle[0].private.inputs(slice(None))))
        assert torch.allclose(model["body.2.running_mean"], seen.mean(dim=0))
        assert torch.allclose(model["body.2.running_var"], seen.var(dim=0))
        assert torch.equal(idle[0].state["kept"]["body.2.running_mean"], torch.zeros(3, dtype=torch.float64))

    def test_statistics_follow_the_policies_average_local_and_drop(self):
        def run_policy(policy, rounds=1):
            federation = run_toy(FedAvg(), TOYS["uneven"].changed(bn_buffers=policy), rounds)
            return federation, list(personal_models(federation).values())

        federation, average = run_policy("average")
        _, local = run_policy("local")
        _, drop = run_policy("drop")
        shares = [federation.ctx.client_sizes[client] for client in range(3)]
        for name in ("body.2.running_mean", "body.2.running_var"):
            mean = sum(n * model[name] for n, model in zip(shares, local, strict=True)) / sum(shares)
            assert torch.allclose(average[0][name], mean, rtol=0, atol=1e-12)
            assert not torch.equal(local[0][name], local[1][name])
            assert not torch.equal(drop[0][name], local[0][name]), "computed from its data, not during training"
        # In the first round the statistics do not affect training, so all other parameters must agree.
        rest = [{n: t for n, t in model.items() if n not in STATISTICS} for model in (average[0], local[0], drop[0])]
        assert same(rest[:1], rest[1:2])
        assert same(rest[:1], rest[2:])

    def test_dropped_statistics_are_recomputed_for_evaluation_and_initial_in_training(self):
        federation = run_toy(FedAvg(), TOYS["even"].changed(bn_buffers="drop"))
        for client in federation.state.clients:
            initial = {name: federation.ctx.initial_model[name] for name in STATISTICS}
            assert same([client.state["kept"]], [initial])
            personal = federation.method.personal_model(client, ServerView(federation).for_client(client))
            fresh = client.running_statistics({**federation.state.server.state["model"], **initial})
            assert same([{name: personal[name] for name in STATISTICS}], [fresh])
            assert not torch.equal(personal["body.2.running_mean"], initial["body.2.running_mean"])

    @pytest.mark.parametrize("policy", POLICIES)
    def test_message_size_follows_the_policy(self, policy):
        toy = TOYS["even"].changed(bn_buffers=policy)
        federation = toy.federation(FedAvg())
        with federation.worker_pool:
            row = next(run_rounds(federation, 1)).rows[0]
        scalars = sum(
            t.numel() for n, t in federation.ctx.initial_model.items() if policy == "average" or n not in STATISTICS
        )
        assert (
            row["bits_up"] == row["bits_down"] == 64 * scalars == planned_traffic(FedAvg(), federation.ctx).uplink_bits
        )
