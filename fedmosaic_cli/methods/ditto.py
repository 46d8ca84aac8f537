"""Ditto: FedAvg, plus a personal model per client with a proximal term towards the global model.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021. The personal model minimises
F_i(v) + mu/2 ||v - w||^2 (`mu` is the paper's lambda), where w is the model received this round, not the copy that the
client trains. Both models see the same batches and have separate optimizer states. Differs from the paper: both are
trained for the same number of steps, mu is the same for all clients, and the mean is weighted as in all other methods.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine.context import ProximalTerm
from fedmosaic_cli.engine.method import Costs, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, Parameters


@hyperparameters
class Ditto(FedAvg):
    """Ditto. The global model equals FedAvg's.

    Attributes:
        mu: Strength of the proximal term. With 0 the personal model equals Local's from a common start, bit for bit.
    """

    mu: Annotated[float, Field(ge=0, le=1e30)] = 1.0

    info = replace(
        FedAvg.info,
        name="ditto",
        title="Ditto",
        family="PFL",
        citation="Li et al., ICML 2021",
        evaluates="the client's personal model, which never leaves it",
    )
    personal_state_key = "personal"

    def train_local_model(self, client: Client, received: Parameters) -> None:
        # First: training the copy changes the received model in place.
        client.train("personal", proximal=ProximalTerm(received, self.mu) if self.mu else None)
        super().train_local_model(client, received)

    def costs(self, ctx: FederationInfo) -> Costs:
        return replace(super().costs(ctx), trained_models=2)
