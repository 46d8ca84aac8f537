"""Ditto: FedAvg, and beside it a personal model for each client, on a leash to the global one.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021. The personal model minimises
F_i(v) + mu/2 ||v - w||^2 (the paper's lambda is `mu`), where w is the model received this round, not the copy that the
client is training. Both passes see the same batches, each with an optimizer of its own. Differs from the paper: the
personal pass is as long as the other, mu is one for all clients, and the mean is weighted as in all other methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine.method import ProximalTerm, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Client, Parameters


@hyperparameters
class Ditto(FedAvg):
    """With `mu` 0 the personal model is Local's from a common start, bit for bit; the global one is FedAvg's always."""

    mu: Annotated[float, Field(ge=0, le=1e30)] = 1.0

    name = "ditto"
    title = "Ditto"
    family = "PFL"
    citation = "Li et al., ICML 2021"
    evaluated = "the client's personal model, which never leaves it"
    personal_state_key = "personal"
    num_models, num_trained_models = 2, 2

    def train_local_model(self, client: Client, received: Parameters) -> None:
        # First, while what was received is as it came.
        client.train("personal", proximal=ProximalTerm(received, self.mu) if self.mu else None)
        super().train_local_model(client, received)
