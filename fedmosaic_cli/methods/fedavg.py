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
from fedmosaic_cli.engine.method import Costs, Method, MethodInfo, Needs, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, Parameters, ReceivedMessage, Server
    from fedmosaic_cli.engine.messages import Part


@hyperparameters
class FedAvg(Method):
    """The base class of all methods that average models. Subclasses change what is shared and how it is trained."""

    info = MethodInfo(
        "fedavg",
        "FedAvg",
        family="FL",
        exchanges="model parameters, both ways",
        citation="McMahan et al., AISTATS 2017",
        evaluates="the global model after aggregation",
    )
    personal_state_key: ClassVar[str | None] = None
    """The key of a personal model in the client's state, if there is one. It starts as the initial global model."""

    @property
    def needs(self) -> Needs:
        return Needs(broadcast_to_evaluate=True)

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {"model": Weights(names=self.shared_parameter_names)}

    @property
    def downloads(self) -> Mapping[str, Part]:
        return self.uploads

    def shared_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        """Return the entries of the model that are averaged."""
        return frozenset(ctx.initial_model.keys() - self.local_parameter_names(ctx))

    def local_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        """Return the entries of the model that stay with each client."""
        return frozenset() if ctx.bn_buffers == "average" else ctx.group("buffers")

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        client.state["kept"] = params.clone(params.select(ctx.initial_model, self.local_parameter_names(ctx)))
        client.state["has_statistics"] = False
        if self.personal_state_key:
            client.state[self.personal_state_key] = params.clone(ctx.initial_model)

    def init_server(self, server: Server, ctx: FederationInfo) -> None:
        server.state["model"] = params.clone(params.exclude(ctx.initial_model, self.local_parameter_names(ctx)))

    def broadcast(self, server: Server, client_id: int, ctx: FederationInfo) -> Message:
        return {"model": server.state["model"]}

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        client.state["model"] = {**received["model"], **params.clone(client.state["kept"])}
        self.train_local_model(client, received["model"])
        return {"model": self.make_upload(client, client.state.pop("model"), ctx)}

    def train_local_model(self, client: Client, received: Parameters) -> None:
        """Train the client's copy, `client.state["model"]`, which shares its tensors with `received`."""
        client.train("model")

    def make_upload(self, client: Client, model: Parameters, ctx: FederationInfo) -> Parameters:
        """Return the part of a trained copy that is sent, and keep the local part.

        With `train.bn_buffers: drop`, running statistics of layers that are averaged are not kept.
        """
        names = self.local_parameter_names(ctx)
        is_dropped = ctx.bn_buffers == "drop" and not ctx.group("batch_norm") <= names
        kept_names = names - ctx.group("buffers") if is_dropped else names
        client.state["kept"] |= params.select(model, kept_names)
        client.state["has_statistics"] = not is_dropped
        return params.exclude(model, names)

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        models = [upload["model"] for upload in uploads.values()]
        server.state["model"] = params.weighted_mean(models, ctx.aggregation_weights(uploads))

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        if self.personal_state_key:
            personal: Parameters = client.state[self.personal_state_key]
            return personal
        return self.with_local_parameters(received["model"], client)

    def global_model(self, client: Client, received: ReceivedMessage) -> Parameters | None:
        return self.with_local_parameters(received["model"], client)

    def with_local_parameters(self, model: Parameters, client: Client) -> Parameters:
        """Return the server's model with the client's local parameters."""
        local = client.state["kept"]
        if not local:
            return model
        merged = {**model, **local}
        if client.state["has_statistics"]:
            return merged
        # Initial running statistics are useless: a client that has not trained yet computes them from its data.
        return {**merged, **params.select(client.running_statistics(merged), local)}

    def costs(self, ctx: FederationInfo) -> Costs:
        local, all_bits = Weights(names=self.local_parameter_names), Weights().planned_bits(ctx)
        fraction = local.planned_bits(ctx) / all_bits if all_bits else 0.0
        return Costs(state_models=fraction + (1 if self.personal_state_key else 0))
