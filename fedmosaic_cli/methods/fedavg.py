"""FedAvg: clients train copies of one global model, the server averages them.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017. The global
model is evaluated after aggregation, on every client; evaluation after local training would be FedAvg with fine-tuning.
Differs from PFLlib: running statistics are averaged like weights unless `train.bn_buffers` says otherwise (in PFLlib
they stay with the clients, and the server uses those of the first client), and short batches are not dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.messages import Weights
from fedmosaic_cli.engine.method import Method, MethodFamily, Traffic, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, FederationInfo, Parameters, ReceivedMessage, State


@hyperparameters
class FedAvg(Method):
    """The base class of all methods that average models. Subclasses change what is shared and how it is trained."""

    name = "fedavg"
    title = "FedAvg"
    family: ClassVar[MethodFamily] = "FL"
    travels = "model parameters, both ways"
    citation = "McMahan et al., AISTATS 2017"
    evaluated = "the global model after aggregation"
    uploads: ClassVar[Mapping[str, str]] = {"model": "weights"}
    evaluation_needs_server = True
    personal_state_key: ClassVar[str | None] = None
    """The key of a personal model in the client's state, if there is one. It starts as the initial global model."""

    def local_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        """Return the entries of the model that stay with each client."""
        return frozenset() if ctx.bn_buffers == "average" else ctx.buffer_names

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        client.state["kept"] = params.clone(params.select(ctx.initial_model, self.local_parameter_names(ctx)))
        client.state["has_statistics"] = False
        if self.personal_state_key:
            client.state[self.personal_state_key] = params.clone(ctx.initial_model)

    def init_server(self, ctx: FederationInfo) -> State:
        return {"model": params.clone(params.exclude(ctx.initial_model, self.local_parameter_names(ctx)))}

    def broadcast(self, server: State, client_id: int, ctx: FederationInfo) -> Message:
        return {"model": Weights(server["model"])}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        client.state["model"] = {**received["model"], **params.clone(client.state["kept"])}
        self.train_local_model(client, received["model"])
        return {"model": Weights(self.make_upload(client, client.state.pop("model"), ctx))}

    def train_local_model(self, client: Client, received: Parameters) -> None:
        """Train the client's copy, `client.state["model"]`, which shares its tensors with `received`."""
        client.train("model")

    def make_upload(self, client: Client, model: Parameters, ctx: FederationInfo) -> Parameters:
        """Return the part of a trained copy that is sent, and keep the local part unless it is dropped."""
        names = self.local_parameter_names(ctx)
        if ctx.bn_buffers != "drop" or not names <= ctx.buffer_names:
            client.state["kept"] = params.select(model, names)
            client.state["has_statistics"] = True
        return params.exclude(model, names)

    def aggregate(self, server: State, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> State:
        models = [upload["model"] for upload in uploads.values()]
        return {"model": params.weighted_mean(models, ctx.aggregation_weights(uploads))}

    def personal_model(self, server: State, client: Client) -> Parameters:
        if self.personal_state_key:
            personal: Parameters = client.state[self.personal_state_key]
            return personal
        return self.with_local_parameters(server["model"], client)

    def global_model(self, server: State, client: Client) -> Parameters | None:
        return self.with_local_parameters(server["model"], client)

    def with_local_parameters(self, model: Parameters, client: Client) -> Parameters:
        """Return the server's model with the client's local parameters."""
        local = client.state["kept"]
        if not local:
            return model
        merged = {**model, **local}
        # Initial running statistics are useless: a client that has not trained yet computes them from its data.
        return merged if client.state["has_statistics"] else {**merged, **client.running_statistics(merged)}

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        bits = Weights(params.exclude(ctx.initial_model, self.local_parameter_names(ctx))).bits
        return Traffic(uplink_bits=bits, downlink_bits=bits)
