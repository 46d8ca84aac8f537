"""Methods that use rare parts of the contract: the results are the same in every execution and at sites."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.losses import ToDeviceMixin
from fedmosaic_cli.engine.messages import (
    Part,
    Scalars,
    Tensors,
    Weights,
    checked_tensors,
    decode_tensors,
    encode_tensors,
    send_message,
)
from fedmosaic_cli.engine.method import Method, MethodInfo, Needs, hyperparameters
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic
from fedmosaic_cli.errors import DivergenceError, FedMosaicError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.protocol import Request
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.models.classifier import Classifier
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.federation.sites import Sites, export_shards, keep_response, make_config, run
from tests.methods.problems import by_hand_logits, full_batch_toy
from tests.toys import TOYS, close, from_client, from_disk, models, personal_models, run_toy, same


@hyperparameters
class Numbers(Method):
    """Clients share their loss and a vector; the mean of both changes the heads that are evaluated."""

    info = MethodInfo("numbers", "Numbers", exchanges="numbers and a vector, in both directions")
    needs: ClassVar[Needs] = Needs(broadcast_to_evaluate=True)
    uploads: ClassVar = {
        "numbers": Scalars(("loss", "count")),
        "vector": Tensors(lambda ctx: {"bias": (ctx.num_classes,)}),
    }
    downloads: ClassVar = uploads

    def broadcast(self, server, client_id, ctx):
        return dict(server.state)

    def local_round(self, client, received, ctx):
        loss = client.train("model").loss
        client.state["sums"] = {"nested": {"loss": loss}, "count": len(client.train_labels)}
        bias = client.state["model"]["head.bias"]
        return {"numbers": {"loss": loss, "count": float(len(client.train_labels))}, "vector": {"bias": bias}}

    def aggregate(self, server, uploads, ctx):
        count = sum(upload["numbers"]["count"] for upload in uploads.values())
        loss = sum(upload["numbers"]["count"] * upload["numbers"]["loss"] for upload in uploads.values()) / count
        bias = sum(upload["vector"]["bias"] for upload in uploads.values()) / len(uploads)
        server.state |= {"numbers": {"loss": loss, "count": count}, "vector": {"bias": bias}}

    def personal_model(self, client, received):
        model = client.state["model"]
        if not received:
            return model
        return {**model, "head.bias": model["head.bias"] + received["numbers"]["loss"] * received["vector"]["bias"]}


@hyperparameters
class Infinite(Numbers):
    """Wrong: clients share a number that is not finite."""

    def local_round(self, client, received, ctx):
        message = super().local_round(client, received, ctx)
        return {**message, "numbers": {"loss": float("nan"), "count": 1.0}}


@hyperparameters
class AsksFirst(Method):
    """Before the first round clients share their class counts, which then weigh the models in a mean."""

    info = MethodInfo("asks-first", "Asks first", exchanges="counts once, then models")
    needs: ClassVar[Needs] = Needs(broadcast_to_evaluate=True, initial_exchange=True)
    uploads: ClassVar = {"counts": Tensors(lambda ctx: {"counts": (ctx.num_classes,)}), "model": Weights()}
    downloads: ClassVar = {"model": Weights()}

    def init_client(self, client, ctx):
        client.state["rounds"] = []

    def init_server(self, server, ctx):
        server.state |= {"model": params.clone(ctx.initial_model), "counts": {}}

    def broadcast(self, server, client_id, ctx):
        return {"model": server.state["model"]}

    def local_round(self, client, received, ctx):
        client.state["rounds"].append(client.round)
        client.state["model"] = received["model"]
        if client.round:
            client.train("model")
        counts = client.class_counts.to(received["model"]["head.bias"])
        return {"counts": {"counts": counts}, "model": client.state.pop("model")}

    def aggregate(self, server, uploads, ctx):
        if not server.round:
            server.state["counts"] = {str(client): upload["counts"]["counts"] for client, upload in uploads.items()}
            return
        weights = [server.state["counts"][str(client)].max().item() for client in uploads]
        server.state["model"] = params.weighted_mean([upload["model"] for upload in uploads.values()], weights)

    def personal_model(self, client, received):
        return received["model"]


class Wide(Classifier):
    """A network with one more layer."""

    def __init__(self, network, num_classes):
        width = network.head.in_features
        super().__init__(nn.Sequential(network.body, nn.Linear(width, 5), nn.ReLU()), 5, num_classes)


@hyperparameters
class TwoNetworks(Method):
    """A client trains a wide network besides its own, and evaluates the mean of both predictions."""

    info = MethodInfo("two-networks", "Two networks")
    needs: ClassVar[Needs] = Needs(networks={"wide": Wide})

    def init_client(self, client, ctx):
        client.state |= {"model": client.initial_model, "wide": client.initial_network("wide")}

    def local_round(self, client, received, ctx):
        client.train("model")
        client.train("wide", network="wide", lr=0.2)
        logits, features = (
            compute(client.state["wide"], network="wide")
            for compute in (client.predict_private, client.private_features)
        )
        head = (client.state["wide"][f"head.{name}"] for name in ("weight", "bias"))
        client.log(width=features.shape[1], gap=(logits - nn.functional.linear(features, *head)).abs().max().item())
        return {}

    def personal_model(self, client, received):
        return {**client.state["model"], "head.bias": client.predict_private(client.state["wide"], "wide").mean(dim=0)}


@dataclass(frozen=True)
class InputGradient(ToDeviceMixin):
    """The squared gradient of the sum of logits with respect to the images of a batch."""

    weight: float
    log_key: ClassVar[str] = "loss_gradient"
    uses_public: ClassVar[bool] = False
    uses_module: ClassVar[bool] = True

    def loss(self, outputs):
        images = outputs.private_inputs.clone().requires_grad_()
        [gradient] = torch.autograd.grad(outputs.module(images).square().sum(), images, create_graph=True)
        return gradient.square().mean()


@hyperparameters
class FlatLoss(Local):
    """Local training with a penalty on gradients with respect to images."""

    def local_round(self, client, received, ctx):
        client.train("model", [InputGradient(0.1)])
        return {}


@dataclass(frozen=True)
class HalfPrecision(Part):
    """A new kind of message part: the model in half precision, so the receiver sees rounded values."""

    kind: ClassVar[str] = "half"
    is_exact: ClassVar[bool] = False

    def planned_bits(self, ctx):
        return 16 * sum(tensor.numel() for tensor in ctx.initial_model.values())

    def bits(self, value, ctx):
        return self.planned_bits(ctx)

    def encode(self, value, route):
        return encode_tensors({name: tensor.half() for name, tensor in value.items()})

    def decode(self, data, route):
        template = {name: tensor.half() for name, tensor in route.ctx.initial_model.items()}
        tensors = checked_tensors(decode_tensors(data), template, route.device)
        return {name: tensors[name].to(tensor.dtype) for name, tensor in route.ctx.initial_model.items()}


@hyperparameters
class HalfFedAvg(FedAvg):
    """FedAvg whose messages have half precision."""

    info = replace(FedAvg.info, name="half", title="Half")
    uploads: ClassVar = {"model": HalfPrecision()}
    downloads: ClassVar = {"model": HalfPrecision()}


PLUG_INS = {method.info.name: method for method in (Numbers, AsksFirst, TwoNetworks, HalfFedAvg)}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("name", PLUG_INS)
@pytest.mark.parametrize("clients_per_round", [2, 3])
def test_a_run_with_sites_equals_the_local_run(name, clients_per_round, shards, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, name, PLUG_INS[name])
    config = make_config(shards, name, tmp_path, f"train.clients_per_round={clients_per_round}")
    local = run(config, shards, tmp_path / "local")
    sites = Sites(shards, tmp_path)
    remote = run(config, shards, tmp_path / "remote", sites)
    assert remote.read_rounds() == local.read_rounds()
    assert remote.read_summary()["models"] == local.read_summary()["models"]
    restarting, send_requests = Sites(shards, tmp_path / "restarting"), Sites.send_requests

    def restart_and_send(requests, timeout_seconds):
        for client in requests:
            restarting.restart(client)
        return send_requests(restarting, requests, timeout_seconds)

    restarting.send_requests = restart_and_send
    assert run(config, shards, tmp_path / "again", restarting).read_rounds() == local.read_rounds()


class CoordinatorKilledError(BaseException):
    """Stands for the death of the coordinator."""


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_killed_coordinator_repeats_the_initial_exchange_with_the_same_result(number, shards, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "asks-first", AsksFirst)
    config, sites, answered = make_config(shards, "asks-first", tmp_path), Sites(shards, tmp_path), []

    def kill_coordinator(client, request, response):
        header = Request.decode(request).header
        if (header["kind"], header.get("round")) == (protocol.LOCAL_ROUND, number):
            answered.append(client)
            if len(answered) == 2:
                raise CoordinatorKilledError
        return response

    sites.change_response = kill_coordinator
    with pytest.raises(CoordinatorKilledError):
        run(config, shards, tmp_path / "run", sites)
    sites.change_response = keep_response
    local = run(config, shards, tmp_path / "local")
    assert run(config, shards, tmp_path / "run", sites).read_rounds() == local.read_rounds()
    assert all(site._current_run.client.state["rounds"] == [0, 1, 2, 3, 4] for site in sites.sites.values())


@pytest.mark.parametrize("method", [Numbers(), AsksFirst(), TwoNetworks(), FlatLoss()], ids=lambda m: type(m).__name__)
def test_stacked_execution_and_resumed_runs_give_the_same_result(method):
    toy = TOYS["uneven"].changed(clients_per_round=2)
    expected = models(method, toy)
    assert close(models(method, toy.changed(execution="stacked")), expected, 1e-9)
    for stop in (1, 2):
        halfway, resumed = run_toy(method, toy, stop), toy.federation(method)
        restore_state(resumed, *from_disk(capture_state(halfway.state)), stop)
        with resumed.worker_pool:
            list(run_rounds(resumed, 3))
        assert same(list(personal_models(resumed).values()), expected)
        assert deepcopy(capture_state(resumed.state)[1]) == capture_state(run_toy(method, toy).state)[1]


def test_numbers_and_tensors_are_counted_and_delivered_without_loss():
    federation = TOYS["even"].federation(Numbers())
    with federation.worker_pool:
        rows = [done.rows[0] for done in run_rounds(federation, 2)]
    size = 2 * 64 + 3 * 64
    assert [(row["bits_up"], row["bits_down"]) for row in rows] == [(size, 0), (size, size)]
    assert planned_traffic(Numbers(), federation.ctx).uplink_bits == size
    message = {"numbers": {"loss": 1 / 3, "count": 2.0}, "vector": {"bias": torch.ones(3, dtype=torch.float64) / 3}}
    route = from_client(federation.ctx, 0)
    received, _ = send_message(message, Numbers().uploads, route)
    assert received["numbers"] == message["numbers"]
    for name, part in Numbers().uploads.items():
        decoded = part.decode(part.encode(message[name], route), route)
        assert decoded == message[name] if name == "numbers" else same([decoded], [message[name]])


def test_a_new_kind_of_part_is_one_class_and_its_rounding_reaches_the_evaluation():
    federation = run_toy(HalfFedAvg(), TOYS["even"], rounds=2)
    server, personal = federation.state.server.state["model"], personal_models(federation)[0]
    assert all(torch.equal(personal[name], tensor.half().to(tensor.dtype)) for name, tensor in server.items())
    assert not same([server], [personal])
    assert planned_traffic(HalfFedAvg(), federation.ctx).uplink_bits == 16 * 27


def test_a_number_that_is_not_finite_is_a_divergence():
    with pytest.raises(DivergenceError):
        run_toy(Infinite(), TOYS["even"])


def test_initial_exchange_takes_place_once_and_counts_as_traffic_of_the_first_round():
    toy = TOYS["even"].changed(clients_per_round=2)
    federation = toy.federation(AsksFirst())
    assert federation.state.finished == -1
    with federation.worker_pool:
        rows = [row for done in run_rounds(federation, 3) for row in done.rows]
    seen = {client.id: client.state["rounds"] for client in federation.state.clients}
    assert all(rounds[0] == 0 and 0 not in rounds[1:] for rounds in seen.values()), "all clients take part in it"
    assert sum(len(rounds) - 1 for rounds in seen.values()) == 2 * 3
    model, counts = 64 * 27, 64 * 3
    for row in rows:
        exchanges = (row["round"] in seen[row["client"]]) + (row["round"] == 1)
        assert (row["bits_up"], row["bits_down"]) == (exchanges * (model + counts), exchanges * model)
    assert len(federation.state.server.state["counts"]) == 3


def test_additional_network_is_trained_with_its_own_parameters():
    federation = full_batch_toy(local_steps=3).federation(TwoNetworks())
    with federation.worker_pool:
        rows = next(run_rounds(federation, 1)).rows
    assert all(row["width"] == 5 and row["gap"] < 1e-12 for row in rows)
    for client in federation.state.clients:
        module = client.learner.bound_module(client.initial_model)
        assert same([client.state["model"]], [local_model(client.id)]), "the client's own network trains as usual"
        model = {name: tensor.clone().requires_grad_() for name, tensor in client.initial_network("wide").items()}
        wide = Wide(module, 3).double()
        for _ in range(3):
            logits = torch.func.functional_call(wide, model, client.private.inputs(slice(None)))
            gradients = torch.autograd.grad(cross_entropy(logits, client.private.labels), list(model.values()))
            model = {
                name: (tensor - 0.2 * gradient).detach().requires_grad_()
                for (name, tensor), gradient in zip(model.items(), gradients, strict=True)
            }
        assert close([client.state["wide"]], [model])
    with pytest.raises(FedMosaicError, match="declares no network 'tall'"):
        federation.state.clients[0].train("wide", network="tall")


def local_model(client):
    return models(Local(), full_batch_toy(local_steps=3), rounds=1)[client]


def test_term_that_calls_the_network_equals_a_computation_by_hand():
    toy = full_batch_toy(local_steps=3)
    trained = models(FlatLoss(), toy, rounds=1)
    for client, ours in zip(toy.federation(Local()).state.clients, trained, strict=True):
        model, inputs = client.initial_model, client.private.inputs(slice(None))
        for _ in range(3):
            leaves = {name: tensor.clone().requires_grad_() for name, tensor in model.items()}
            images = inputs.clone().requires_grad_()
            logits = by_hand_logits(leaves, images)
            [slope] = torch.autograd.grad(logits.square().sum(), images, create_graph=True)
            loss = cross_entropy(logits, client.private.labels) + 0.1 * slope.square().mean()
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            model = {n: t - toy.train["lr"] * g for (n, t), g in zip(model.items(), gradients, strict=True)}
        assert close([ours], [model])
    assert same(models(FlatLoss(), toy.changed(execution="stacked"), rounds=1), trained), "one by one in both"
    assert not close(models(Local(), toy, rounds=1), trained, 1e-6)
