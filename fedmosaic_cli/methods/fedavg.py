"""FedAvg: clients train copies of one global model, the server averages them.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017. Evaluated is
the global model after aggregation, on every client; numbers taken after local training would be FedAvg with
fine-tuning. Differs from PFLlib: running statistics are averaged like the rest unless `train.bn_buffers` says
otherwise (there they stay with the clients, and the server's are those of the first one), and no short batch is
dropped.
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
    """All methods that average models are made from this one: it says what is shared and how that is merged."""

    name = "fedavg"
    title = "FedAvg"
    family: ClassVar[MethodFamily] = "FL"
    travels = "model parameters, both ways"
    citation = "McMahan et al., AISTATS 2017"
    evaluated = "the global model after aggregation"
    uploads: ClassVar[Mapping[str, str]] = {"model": "weights"}
    evaluation_needs_server = True
    personal_state_key: ClassVar[str | None] = None
    """Where a client remembers a personal model of its own; it starts as the global one does."""

    def local_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        """The entries of the model that stay with each client."""
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
        """Train the client's copy, `client.state["model"]`. It shares its tensors with what was received."""
        client.train("model")

    def make_upload(self, client: Client, model: Parameters, ctx: FederationInfo) -> Parameters:
        """What of a trained copy is sent. The rest stays with the client, unless it is to be forgotten."""
        kept = self.local_parameter_names(ctx)
        if ctx.bn_buffers != "drop" or not kept <= ctx.buffer_names:
            client.state["kept"] = params.select(model, kept)
            client.state["has_statistics"] = True
        return params.exclude(model, kept)

    def aggregate(self, server: State, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> State:
        models = [upload["model"] for upload in uploads.values()]
        return {"model": params.weighted_mean(models, ctx.aggregation_weights(uploads))}

    def personal_model(self, server: State, client: Client) -> Parameters:
        if self.personal_state_key:
            own: Parameters = client.state[self.personal_state_key]
            return own
        return self.with_local_parameters(server["model"], client)

    def global_model(self, server: State, client: Client) -> Parameters | None:
        return self.with_local_parameters(server["model"], client)

    def with_local_parameters(self, model: Parameters, client: Client) -> Parameters:
        """The server's model as this client would use it."""
        kept = client.state["kept"]
        if not kept:
            return model
        whole = {**model, **kept}
        # Initial statistics would make nonsense of any model: who has no others takes them from its own data.
        return whole if client.state["has_statistics"] else {**whole, **client.running_statistics(whole)}

    def traffic(self, ctx: FederationInfo, public_size: int) -> Traffic:
        shared = params.exclude(ctx.initial_model, self.local_parameter_names(ctx))
        bits = sum(8 * tensor.numel() * tensor.element_size() for tensor in shared.values())
        return Traffic(uplink_bits=bits, downlink_bits=bits)
