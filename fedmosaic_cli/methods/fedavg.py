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
from fedmosaic_cli.engine.method import Family, Method, Traffic, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.messages import Kind, Message
    from fedmosaic_cli.engine.method import Client, Parameters, Received, State, World


@hyperparameters
class FedAvg(Method):
    """All methods that average models are made from this one: it says what is shared and how that is merged."""

    name = "fedavg"
    title = "FedAvg"
    family: ClassVar[Family] = "FL"
    travels = "model parameters, both ways"
    citation = "McMahan et al., AISTATS 2017"
    evaluated = "the global model after aggregation"
    uploads: ClassVar[Mapping[str, Kind]] = {"model": "weights"}
    judged_with_server = True
    personal_entry: ClassVar[str | None] = None
    """Where a client remembers a personal model of its own; it starts as the global one does."""

    def kept(self, world: World) -> frozenset[str]:
        """The entries of the model that stay with each client."""
        return frozenset() if world.bn_buffers == "average" else world.buffers

    def enter(self, client: Client, world: World) -> None:
        client.state["kept"] = params.copy(params.only(world.init, self.kept(world)))
        client.state["has_statistics"] = False
        if self.personal_entry:
            client.state[self.personal_entry] = params.copy(world.init)

    def open(self, world: World) -> State:
        return {"model": params.copy(params.without(world.init, self.kept(world)))}

    def broadcast(self, server: State, client_id: int, world: World) -> Message:
        return {"model": Weights(server["model"])}

    def local_round(self, client: Client, received: Received, world: World) -> Message:
        client.state["model"] = {**received["model"], **params.copy(client.state["kept"])}
        self.train(client, received["model"])
        return {"model": Weights(self.hand_over(client, client.state.pop("model"), world))}

    def train(self, client: Client, received: Parameters) -> None:
        """Train the client's copy, `client.state["model"]`. It shares its tensors with what was received."""
        client.train("model")

    def hand_over(self, client: Client, model: Parameters, world: World) -> Parameters:
        """What of a trained copy is sent. The rest stays with the client, unless it is to be forgotten."""
        kept = self.kept(world)
        if world.bn_buffers != "drop" or not kept <= world.buffers:
            client.state["kept"] = params.only(model, kept)
            client.state["has_statistics"] = True
        return params.without(model, kept)

    def aggregate(self, server: State, uploads: Mapping[int, Received], world: World) -> State:
        models = [upload["model"] for upload in uploads.values()]
        return {"model": params.weighted_mean(models, world.weights(uploads))}

    def personal(self, server: State, client: Client) -> Parameters:
        if self.personal_entry:
            own: Parameters = client.state[self.personal_entry]
            return own
        return self.merged(server["model"], client)

    def global_model(self, server: State, client: Client) -> Parameters | None:
        return self.merged(server["model"], client)

    def merged(self, model: Parameters, client: Client) -> Parameters:
        """The server's model as this client would use it."""
        kept = client.state["kept"]
        if not kept:
            return model
        whole = {**model, **kept}
        # Initial statistics would make nonsense of any model: who has no others takes them from its own data.
        return whole if client.state["has_statistics"] else {**whole, **client.statistics(whole)}

    def traffic(self, world: World, public_size: int) -> Traffic:
        shared = params.without(world.init, self.kept(world))
        bits = sum(8 * tensor.numel() * tensor.element_size() for tensor in shared.values())
        return Traffic(up=bits, down=bits)
