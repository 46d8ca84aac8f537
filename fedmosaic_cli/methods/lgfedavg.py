"""LG-FedAvg: the head is averaged, the body stays with the client.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020. The opposite
of FedPer. Differs from the paper: training does not start from a FedAvg model, and there is no adversarial term.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, Parameters, ReceivedMessage


@hyperparameters
class LGFedAvg(FedAvg):
    """LG-FedAvg."""

    info = replace(
        FedAvg.info,
        name="lgfedavg",
        title="LG-FedAvg",
        family="PFL",
        exchanges="the head's parameters, in both directions",
        citation="Liang et al., 2020",
        evaluates="the client's own body with the global head",
    )

    def local_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        return super().local_parameter_names(ctx) | ctx.group("body")

    def global_model(self, client: Client, received: ReceivedMessage) -> Parameters | None:
        return None
