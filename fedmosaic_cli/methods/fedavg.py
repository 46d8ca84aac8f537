"""FedAvg: clients train copies of one global model, the server averages them.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
Evaluated is the global model after aggregation, on every client; numbers taken after local training would be
FedAvg with fine-tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.messages import Weights
from fedmosaic_cli.engine.method import Method, Traffic, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.messages import Message
    from fedmosaic_cli.engine.method import Client, Parameters, Received, State, World


@hyperparameters
class FedAvg(Method):
    """The mean is weighted by the number of training examples."""

    name = "fedavg"
    title = "FedAvg"
    family = "FL"
    travels = "model parameters, both ways"
    citation = "McMahan et al. 2017"
    evaluated = "the global model after aggregation"

    def enter(self, client: Client) -> None:
        """Clients keep nothing between rounds but their optimizer's state."""

    def open(self, world: World) -> State:
        return {"model": params.copy(world.init)}

    def broadcast(self, server: State, client_id: int, world: World) -> Message:
        return {"model": Weights(server["model"])}

    def local_round(self, client: Client, received: Received, world: World) -> Message:
        client.state["model"] = received["model"]
        client.train("model")
        # The trained copy is sent, not kept: the next round starts from the server's.
        return {"model": Weights(client.state.pop("model"))}

    def aggregate(self, server: State, uploads: Mapping[int, Received], world: World) -> State:
        models = [upload["model"] for upload in uploads.values()]
        return {"model": params.weighted_mean(models, [world.sizes[client] for client in uploads])}

    def personal(self, server: State, client: Client) -> Parameters:
        model: Parameters = server["model"]
        return model

    def traffic(self, model_bits: int, public_size: int, num_classes: int) -> Traffic:
        return Traffic(up=model_bits, down=model_bits)
