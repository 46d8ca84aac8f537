"""FedBN: FedAvg on everything but batch normalisation, which stays with the client.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021. Local are weight,
bias and running statistics of every batch-normalisation layer, found by the layer's type; the name `bn`, by which
FedBN's repository, PFLlib and FL-bench look for them, is not what such layers are called everywhere. Differs from the
repository: the mean is weighted as in all other methods (`train.aggregation`). What stays at home is not sent and not
counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Client, FederationInfo, Parameters, State


@hyperparameters
class FedBN(FedAvg):
    """On a network without batch normalisation this is FedAvg, bit for bit."""

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
        return "" if has_batch_norm else "FedBN is FedAvg here, the network has no batch normalisation (model.name)"
