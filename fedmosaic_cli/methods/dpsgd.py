"""D-PSGD: decentralised training, in which clients average their models with those of their neighbours.

Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017. There is no server: at the
start of a round a client replaces its model by the mean of its own and its neighbours' models, then trains. Differs
from the paper: a round has the configured number of local steps, which start at the mean; the paper averages after
every step and takes the gradient at the model before averaging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.messages import Weights
from fedmosaic_cli.engine.method import MethodInfo, hyperparameters
from fedmosaic_cli.engine.peers import PeerMethod

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import Client, FederationInfo, Message, ReceivedMessage
    from fedmosaic_cli.engine.messages import Part


@hyperparameters
class DPSGD(PeerMethod):
    """D-PSGD. With one client it equals Local from a common start, bit for bit."""

    info = MethodInfo(
        "dpsgd",
        "D-PSGD",
        family="FL",
        exchanges="model parameters, to and from neighbours",
        citation="Lian et al., NeurIPS 2017",
        evaluates="the client's own model after its local steps",
    )

    @property
    def uploads(self) -> Mapping[str, Part]:
        return {"model": Weights()}

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        client.state["model"] = params.clone(ctx.initial_model)

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        models = received.get("model", {})
        if models:
            # A neighbour without a model yet leaves its weight to the client, so that the weights sum to 1.
            num_missing = len(self.neighbors(client.id, ctx)) - len(models)
            weights = [1.0 + num_missing, *[1.0] * len(models)]
            client.state["model"] = params.weighted_mean([client.state["model"], *models.values()], weights)
        client.train("model")
        return {"model": client.state["model"]}
