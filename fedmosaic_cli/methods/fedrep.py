"""FedRep: FedPer with alternating training: first the head with a frozen body, then the body with a frozen head.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021. A frozen part has no
gradient and is in evaluation mode; in PFLlib its running statistics change. Both parts have separate optimizer states.
The body takes the configured number of local steps or epochs. The authors train the head for 10 epochs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine.method import Costs, hyperparameters
from fedmosaic_cli.methods.fedper import FedPer

if TYPE_CHECKING:
    from fedmosaic_cli.engine.context import Client, FederationInfo, Parameters


@hyperparameters
class FedRep(FedPer):
    """FedRep.

    Attributes:
        head_epochs: Passes over the training data with a frozen body.
    """

    head_epochs: Annotated[int, Field(ge=0, le=1000)] = 1

    info = replace(FedPer.info, name="fedrep", title="FedRep", citation="Collins et al., ICML 2021")

    def train_local_model(self, client: Client, received: Parameters) -> None:
        head = client.state["kept"].keys()
        if self.head_epochs:
            client.train("model", parameters=head, epochs=self.head_epochs, stream="head")
        client.train("model", parameters=client.state["model"].keys() - head)

    def costs(self, ctx: FederationInfo) -> Costs:
        return replace(super().costs(ctx), local_rounds=(1 + self.head_epochs) * ctx.num_rounds)
