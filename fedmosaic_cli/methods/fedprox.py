"""FedProx: FedAvg with a leash on how far a client may drift.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. Every step minimises F_i(w) + mu/2 ||w -
w_received||^2. Differs from the paper: every client takes all its local steps, participants are drawn uniformly, and
the mean is weighted as in all other methods (`train.aggregation`). Differs from FedBN's repository, where the norm is
not squared. There is no universal mu; the authors tune it between 0.001 and 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.method import ProximalTerm, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Client, Parameters


@hyperparameters
class FedProx(FedAvg):
    """`mu` is the strength of the leash; with 0 this is FedAvg, bit for bit."""

    mu: Annotated[float, Field(ge=0, le=1e30)] = 0.01

    name = "fedprox"
    title = "FedProx"
    citation = "Li et al., MLSys 2020"

    def train_local_model(self, client: Client, received: Parameters) -> None:
        # What was received is trained in place: the anchor has to be a copy.
        client.train("model", proximal=ProximalTerm(params.clone(received), self.mu) if self.mu else None)
