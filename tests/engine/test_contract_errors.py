"""Mistakes of method authors are refused in a simulation as they would be at sites, in one line."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.messages import Logits, PerClient, Tensors, Weights
from fedmosaic_cli.engine.method import Method, MethodInfo, Needs, hyperparameters
from fedmosaic_cli.engine.peers import PeerMethod
from fedmosaic_cli.errors import DivergenceError, FedMosaicError
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedrep import FedRep
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.models.architectures import ARCHITECTURES
from fedmosaic_cli.models.classifier import Classifier
from tests.federation.sites import Sites, export_shards, make_config, run
from tests.toys import TOYS, from_server, models, run_toy, same


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


@hyperparameters
class Uploads(Method):
    """Uploads what `value` returns for the client's model."""

    info = MethodInfo("uploads", "Uploads")
    uploads: ClassVar = {"model": Weights(), "logits": Logits()}
    needs: ClassVar = Needs(public_set=True)

    def local_round(self, client, received, ctx):
        client.train("model")
        model = client.state["model"]
        return self.message(model, client.predict_public(model))

    def message(self, model, logits):
        return {"model": model, "logits": logits}


def test_a_correct_upload_is_accepted():
    run_toy(Uploads(), TOYS["even"], rounds=1)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (lambda model, logits: None, "a message is None"),
        (lambda model, logits: {"model": model}, "an upload lacks the part 'logits'"),
        (lambda model, logits: {"modle": model}, "has the part 'modle', declared are model, logits"),
        (lambda model, logits: {"model": {"x": torch.ones(1)}, "logits": logits}, "part 'model' .* wrong_names"),
        (lambda model, logits: {"model": {n: t[:1] for n, t in model.items()}, "logits": logits}, "wrong_shape"),
        (lambda model, logits: {"model": model, "logits": logits[:2]}, "part 'logits' .* wrong_shape"),
        (lambda model, logits: {"model": model, "logits": logits * torch.nan}, "part 'logits' .* not_finite"),
    ],
)
def test_wrong_uploads_are_refused(message, words):
    class Wrong(Uploads):
        def message(self, model, logits):
            return message(model, logits)

    with pytest.raises(FedMosaicError, match=words):
        run_toy(Wrong(), TOYS["even"], rounds=1)


def test_an_upload_that_is_not_finite_is_a_divergence_that_names_the_part():
    class NotFinite(Uploads):
        def message(self, model, logits):
            return {"model": {n: t * torch.nan for n, t in model.items()}, "logits": logits}

    with pytest.raises(DivergenceError, match="its upload 'model' is not finite"):
        run_toy(NotFinite(), TOYS["even"], rounds=1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"accuracy": 1.0}, "'accuracy', which the run logs itself"),
        ({"own_accuracy": 1.0}, "'own_accuracy', which the run logs itself"),
        ({"note": "text"}, "'note' is str"),
        ({"tensor": torch.ones(1)}, "'tensor' is Tensor"),
        ({"Upper": 1.0}, "the name 'Upper'"),
    ],
)
def test_values_that_a_method_must_not_log_are_refused(values, words):
    class LogsAtClients(Local):
        def local_round(self, client, received, ctx):
            client.log(**values)
            return super().local_round(client, received, ctx)

    class LogsAtServer(FedAvg):
        def aggregate(self, server, uploads, ctx):
            super().aggregate(server, uploads, ctx)
            server.log(**values)

    for method in (LogsAtClients(), LogsAtServer()):
        with pytest.raises(FedMosaicError, match=words):
            run_toy(method, TOYS["even"], rounds=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parameters": ["haed.weight"]}, "no entry 'haed.weight'"),
        ({"epochs": 1, "steps": 1}, "both epochs and steps"),
    ],
)
def test_wrong_options_of_training_are_refused(options, words):
    class Wrong(Local):
        def local_round(self, client, received, ctx):
            client.train("model", **options)
            return {}

    with pytest.raises(FedMosaicError, match=words):
        run_toy(Wrong(), TOYS["even"], rounds=1)


def test_an_unknown_group_of_parameters_is_refused():
    ctx = TOYS["even"].federation(Local()).ctx
    assert ctx.group("head") == {"head.weight", "head.bias"}
    with pytest.raises(FedMosaicError, match="unknown group 'haed'"):
        ctx.group("haed")


class Frozen(Classifier):
    """A network with a layer that is not trained, and a buffer of several integers and one constant."""

    def __init__(self, settings, input_shape, num_classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
        super().__init__(body, 3, num_classes)
        body[1].weight.requires_grad_(False)
        self.register_buffer("positions", torch.arange(4))
        self.register_buffer("constant", torch.full((2,), 2.0))


@pytest.mark.parametrize("execution", ["threads", "stacked"])
@pytest.mark.parametrize("method", [FedAvg(), FedRep()])
def test_layers_that_a_network_froze_stay_frozen_and_its_buffers_survive(method, execution, monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "mlp", Frozen)
    toy = TOYS["uneven"].changed(execution=execution, clients_per_round=2, bn_buffers="local")
    before, after = models(method, toy, rounds=0), models(method, toy, rounds=3)
    for old, new in zip(before, after, strict=True):
        # Averaging rounds the last bits.
        assert torch.allclose(old["body.1.weight"], new["body.1.weight"], rtol=0, atol=1e-12)
        assert torch.equal(new["positions"], torch.arange(4))
        assert torch.equal(new["constant"], torch.full((2,), 2.0, dtype=torch.float64))
    assert not same(before, after)


@hyperparameters
class PeerVectors(PeerMethod):
    """Neighbours exchange vectors; a client adds the mean of what it gets to its bias."""

    info = MethodInfo("peer-vectors", "Peer vectors")
    uploads: ClassVar = {"vector": Tensors(lambda ctx: {"bias": (ctx.num_classes,)})}

    def local_round(self, client, received, ctx):
        vectors = [vector["bias"] for vector in received.get("vector", {}).values()]
        if vectors:
            client.state["model"]["head.bias"] += 0.01 * torch.stack(vectors).mean(dim=0)
        client.log(neighbours=len(vectors))
        client.train("model")
        return {"vector": {"bias": client.state["model"]["head.bias"]}}


def wide(module, num_classes):
    """Return another network of a method: the client's with a wider body."""
    width = module.head.in_features
    return Classifier(nn.Sequential(module.body, nn.Linear(width, 2 * width), nn.ReLU()), 2 * width, num_classes)


@hyperparameters
class SharedStudent(Method):
    """Clients average a second network and predict with it."""

    info = MethodInfo("shared-student", "Shared student", exchanges="a second network")
    needs: ClassVar = Needs(networks={"student": wide}, broadcast_to_evaluate=True)
    uploads: ClassVar = {"student": Weights(network="student")}
    downloads: ClassVar = {"student": Weights(network="student")}

    def init_client(self, client, ctx):
        pass

    def init_server(self, server, ctx):
        server.state["student"] = params.clone(ctx.networks["student"])

    def broadcast(self, server, client_id, ctx):
        return {"student": server.state["student"]}

    def local_round(self, client, received, ctx):
        client.state["student"] = received["student"]
        client.train("student", network="student")
        return {"student": client.state.pop("student")}

    def aggregate(self, server, uploads, ctx):
        students = [upload["student"] for upload in uploads.values()]
        server.state["student"] = params.weighted_mean(students, ctx.aggregation_weights(uploads))

    def personal_model(self, client, received):
        return received["student"]

    def predict(self, model, predictor, examples):
        return predictor.predict(model, examples, network="student")


@pytest.mark.parametrize("method", [PeerVectors, SharedStudent])
def test_values_of_neighbours_and_second_networks_give_the_same_result_at_sites(method, shards, tmp_path, monkeypatch):
    name = method.info.name
    monkeypatch.setitem(METHODS, name, method)
    config = make_config(shards, name, tmp_path)
    local, remote = (
        run(config, shards, tmp_path / "local"),
        run(config, shards, tmp_path / "remote", Sites(shards, tmp_path)),
    )
    assert remote.read_rounds() == local.read_rounds()
    assert remote.read_summary()["models"] == local.read_summary()["models"]
    if method is PeerVectors:
        assert {row["neighbours"] for row in local.read_rounds() if row["round"] > 1} == {2}


def test_values_per_client_are_checked_when_they_are_read():
    ctx = TOYS["even"].federation(Local()).ctx
    part = PerClient(Tensors(lambda ctx: {"x": (2,)}), lambda ctx: 2)
    route = from_server(ctx)
    value = {client: {"x": torch.full((2,), float(client), dtype=torch.float64)} for client in (0, 2)}
    data = part.encode(value, route)
    assert part.decode(data, route)[2]["x"].tolist() == [2.0, 2.0]
    assert part.planned_bits(ctx) == part.bits(value, ctx) == 2 * 2 * 64
    entry = len(data) // 2
    for wrong in (data[:-1], data + data[:entry], data[entry:] + data[:entry], data[:3], b"\xff" * 8 + data):
        with pytest.raises(Exception, match=r"truncated|wrong_clients|too_many|bad_tensors"):
            part.decode(wrong, route)


def test_sites_keep_no_state_of_the_server(shards, tmp_path):
    config = make_config(shards, "pfedhn", tmp_path)
    sites = Sites(shards, tmp_path)
    run(config, shards, tmp_path / "remote", sites)
    for site in sites.sites.values():
        assert site._current_run.federation.state.server.state == {}
