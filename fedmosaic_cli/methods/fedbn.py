"""FedBN: FedAvg in which batch normalisation stays with the client.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021. Weight, bias and
running statistics of every batch-normalisation layer are local. Layers are found by type; FedBN's repository, PFLlib
and FL-bench look for the name `bn`, which not every network uses. Differs from the repository: the mean is weighted as
in all other methods (`train.aggregation`). Local parameters are not sent and not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.engine.method import MethodInfo, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, Parameters, ReceivedMessage
    from fedmosaic_cli.engine.method import RunFacts


@hyperparameters
class FedBN(FedAvg):
    """FedBN. Equals FedAvg, bit for bit, if the network has no batch normalisation."""

    info = MethodInfo(
        "fedbn",
        "FedBN",
        family="FL",
        exchanges="model parameters but batch normalisation, both ways",
        citation="Li et al., ICLR 2021",
        evaluates="the global model with the client's own batch normalisation",
    )

    def local_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        return super().local_parameter_names(ctx) | ctx.group("batch_norm")

    def global_model(self, client: Client, received: ReceivedMessage) -> Parameters | None:
        return None

    def warnings(self, facts: RunFacts) -> list[str]:
        if facts.has_batch_norm:
            return []
        return ["FedBN equals FedAvg here: the network has no batch normalisation (model.name)"]
