"""FedPer: the body is averaged, the head stays with the client.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019. Body and head are trained together. The head
is the last linear layer; the paper also tries more layers. Only the body is sent and counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, Parameters, ReceivedMessage


@hyperparameters
class FedPer(FedAvg):
    """FedPer."""

    info = replace(
        FedAvg.info,
        name="fedper",
        title="FedPer",
        family="PFL",
        exchanges="the body's parameters, in both directions",
        citation="Arivazhagan et al., 2019",
        evaluates="the global body with the client's own head",
    )

    def local_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        return super().local_parameter_names(ctx) | ctx.group("head")

    def global_model(self, client: Client, received: ReceivedMessage) -> Parameters | None:
        return None
