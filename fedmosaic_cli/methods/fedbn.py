"""FedBN: FedAvg in which batch normalisation stays with the client.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021. Weight, bias and
running statistics of every batch-normalisation layer are local. Layers are found by type; FedBN's repository, PFLlib
and FL-bench look for the name `bn`, which not every network uses. Differs from the repository: the mean is weighted as
in all other methods (`train.aggregation`). Local parameters are not sent and not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Client, FederationInfo, Parameters, State


@hyperparameters
class FedBN(FedAvg):
    """FedBN. Equals FedAvg, bit for bit, if the network has no batch normalisation."""

    name = "fedbn"
    title = "FedBN"
    family = "FL"
    travels = "model parameters but batch normalisation, both ways"
    citation = "Li et al., ICLR 2021"
    evaluated = "the global model with the client's own batch normalisation"

    def local_parameter_names(self, ctx: FederationInfo) -> frozenset[str]:
        return super().local_parameter_names(ctx) | ctx.batch_norm_names

    def global_model(self, server: State, client: Client) -> Parameters | None:
        return None

    def warning(self, num_rounds: int, num_participants: int, has_batch_norm: bool) -> str:
        return "" if has_batch_norm else "FedBN equals FedAvg here: the network has no batch normalisation (model.name)"
