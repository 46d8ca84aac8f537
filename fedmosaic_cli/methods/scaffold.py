"""SCAFFOLD: FedAvg whose local steps are corrected by control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020. Every step subtracts
the client's control variate c_i from the gradient and adds the server's c, and c_i becomes c_i - c + (w - y) / (K lr)
(option II), with the number K of steps that the client took. The identity behind it needs plain SGD, so other
optimizers are refused. Models are averaged with equal weights, as in the paper, and c changes by the mean over all
clients. Running statistics have no control variate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.messages import Weights
from fedmosaic_cli.engine.method import Costs, Needs, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, Parameters, ReceivedMessage, Server
    from fedmosaic_cli.engine.messages import Part


@hyperparameters
class Scaffold(FedAvg):
    """SCAFFOLD. The first round equals FedAvg with `train.aggregation=uniform`, because all control variates are 0.

    Attributes:
        server_lr: Step size of the server towards the mean of the clients' models.
    """

    server_lr: Annotated[float, Field(gt=0, le=10)] = 1.0

    info = replace(
        FedAvg.info,
        name="scaffold",
        title="SCAFFOLD",
        exchanges="model parameters and control variates, in both directions",
        citation="Karimireddy et al., ICML 2020",
    )

    @property
    def needs(self) -> Needs:
        return replace(super().needs, plain_sgd=True)

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {**super().uploads, "control": Weights(names=trained_names)}

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        client.state["control"] = zero_control(ctx)

    def init_server(self, server: Server, ctx: FederationInfo) -> None:
        super().init_server(server, ctx)
        server.state["control"] = zero_control(ctx)

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        return {**super().broadcast(server, client_id, ctx), "control": server.state["control"]}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        own, server_control = client.state["control"], received["control"]
        client.state["model"] = model = {**received["model"], **params.clone(client.state["kept"])}
        start = params.clone(params.select(model, own))
        result = client.train("model", correction=params.add_scaled(server_control, own, -1))
        change = params.zeros_like(own)
        if result.num_steps:
            # (w - y) / (K lr) is the mean corrected gradient, so the new c_i is the mean gradient.
            moved = params.add_scaled(start, params.select(model, own), -1)
            change = params.add_scaled(params.scaled(server_control, -1), moved, 1 / (result.num_steps * result.lr))
        client.state["control"] = params.add_scaled(own, change, 1)
        return {"model": self.make_upload(client, client.state.pop("model"), ctx), "control": change}

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        previous, equal = server.state["model"], [1.0] * len(uploads)
        mean = params.weighted_mean([upload["model"] for upload in uploads.values()], equal)
        names = mean.keys() - ctx.group("buffers")
        server.state["model"] = params.interpolate(mean, previous, self.server_lr, names)
        change = params.weighted_mean([upload["control"] for upload in uploads.values()], equal)
        fraction = len(uploads) / len(ctx.client_sizes)
        server.state["control"] = params.add_scaled(server.state["control"], change, fraction)

    def costs(self, ctx: FederationInfo) -> Costs:
        costs = super().costs(ctx)
        return replace(costs, state_models=costs.state_models + 1)


def trained_names(ctx: FederationInfo) -> frozenset[str]:
    """Return the entries of the model that have a gradient."""
    return frozenset(ctx.initial_model.keys() - ctx.group("buffers"))


def zero_control(ctx: FederationInfo) -> Parameters:
    """Return the initial control variate."""
    return params.zeros_like(params.select(ctx.initial_model, trained_names(ctx)))
