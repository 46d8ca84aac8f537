"""FedProx: FedAvg with a proximal term towards the received model.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. Every step minimises F_i(w) + mu/2 ||w -
w_received||^2. Differs from the paper: every client computes all its local steps, clients are sampled uniformly, and
the mean is weighted as in all other methods (`train.aggregation`). Differs from FedBN's repository, which does not
square the norm. No value of mu fits all problems; the authors tune it between 0.001 and 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import ProximalTerm
from fedmosaic_cli.engine.method import hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, Parameters


@hyperparameters
class FedProx(FedAvg):
    """FedProx.

    Attributes:
        mu: Strength of the proximal term. 0 equals FedAvg, bit for bit.
    """

    mu: Annotated[float, Field(ge=0, le=1e30)] = 0.01

    info = replace(FedAvg.info, name="fedprox", title="FedProx", citation="Li et al., MLSys 2020")

    def train_local_model(self, client: Client, received: Parameters) -> None:
        # The received model is trained in place, so the anchor must be a copy.
        client.train("model", proximal=ProximalTerm(params.clone(received), self.mu) if self.mu else None)
